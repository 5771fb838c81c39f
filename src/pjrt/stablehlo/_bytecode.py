"""The container of MLIR bytecode: its header, its sections and its strings, read without MLIR.

A portable artifact is MLIR bytecode whose producer names the StableHLO version. The container has no checksum, but
its sections must tile the file and its tables must fit their sections. ``screen`` holds it to that in time that does
not grow with the program's constants: every truncation fails there, before any native parser (which trusts more than
it should) sees the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pjrt.api.errors import DataLossError
from pjrt.stablehlo.version import Version

MAGIC = b"ML\xefR"

_NEWEST_CONTAINER = 6
_PRODUCER_PREFIX = "StableHLO_v"
_PADDING = 0xCB
_LONGEST_PRODUCER = 4096


class Section(IntEnum):
    """The sections of a bytecode file, by their numbers in it."""

    STRING = 0
    DIALECT = 1
    ATTR_TYPE = 2
    ATTR_TYPE_OFFSET = 3
    IR = 4
    RESOURCE = 5
    RESOURCE_OFFSET = 6
    DIALECT_VERSIONS = 7
    PROPERTIES = 8


_REQUIRED = (Section.STRING, Section.DIALECT, Section.ATTR_TYPE, Section.ATTR_TYPE_OFFSET, Section.IR)


@dataclass(frozen=True, slots=True)
class Header:
    """What a bytecode file says first.

    Attributes:
        container: the version of the bytecode container (not of StableHLO).
        producer: what wrote it, such as ``MLIR23.0.0git`` or ``StableHLO_v1.17.0``.
        end: where the first section begins.
    """

    container: int
    producer: str
    end: int

    @property
    def artifact_version(self) -> Version | None:
        """The StableHLO version, if the producer says that this is a portable artifact; None otherwise."""
        if not self.producer.startswith(_PRODUCER_PREFIX):
            return None
        return Version.parse(self.producer)


def read_header(code: bytes) -> Header:
    """Reads the header of bytes that begin with ``MAGIC``.

    Raises:
        DataLossError: the header is cut off or senseless.
    """
    cursor = _Cursor(code, len(MAGIC), len(code), "the header")
    container = cursor.varint()
    end = code.find(b"\0", cursor.position, cursor.position + _LONGEST_PRODUCER)
    if end < 0:
        raise DataLossError(f"truncated MLIR bytecode: its header names no complete producer in {len(code)} bytes")
    try:
        producer = code[cursor.position : end].decode()
        header = Header(container, producer, end + 1)
        _ = header.artifact_version
    except ValueError as error:
        raise DataLossError(
            f"corrupt MLIR bytecode: the producer in its header is {code[cursor.position : end]!r}"
        ) from error
    return header


def screen(code: bytes) -> Header:
    """Holds bytecode to the structure of its container, without MLIR and without looking at constants.

    A container newer than this package knows is not looked into: its reader will say what it makes of it.

    Raises:
        DataLossError: the bytes are truncated or corrupt; the message says where.
    """
    header = read_header(code)
    if header.container > _NEWEST_CONTAINER:
        return header
    sections = read_sections(code, header)
    missing = [section.name for section in _REQUIRED if section not in sections]
    if missing:
        raise DataLossError(f"truncated MLIR bytecode: {len(code)} bytes without the section {' and '.join(missing)}")
    read_strings(code, *sections[Section.STRING])
    _screen_offsets(code, sections)
    return header


def read_sections(code: bytes, header: Header) -> dict[Section, tuple[int, int]]:
    """Where each section's content begins and ends.

    Raises:
        DataLossError: the sections do not tile the file.
    """
    cursor = _Cursor(code, header.end, len(code), "the list of sections")
    found: dict[Section, tuple[int, int]] = {}
    while cursor.position < len(code):
        head = code[cursor.position]
        cursor.position += 1
        number, aligned = head & 0x7F, head & 0x80
        if number > max(Section) or Section(number) in found:
            raise DataLossError(
                f"corrupt MLIR bytecode: section {number} at byte {cursor.position - 1} is unknown or there twice"
            )
        length = cursor.varint()
        if aligned:
            _skip_padding(cursor)
        end = cursor.position + length
        if end > len(code):
            raise DataLossError(
                f"truncated MLIR bytecode: section {Section(number).name} ends at byte {end} of only {len(code)}"
            )
        found[Section(number)] = (cursor.position, end)
        cursor.position = end
    return found


def read_strings(code: bytes, begin: int, end: int) -> list[bytes]:
    """The strings of the string section that lies between two positions (they need not be UTF-8: a custom call's may
    be anything).

    Raises:
        DataLossError: the table of strings does not fit its section.
    """
    cursor = _Cursor(code, begin, end, "the string section")
    count = cursor.count()
    lengths = [cursor.varint() for _ in range(count)]
    if cursor.position + sum(lengths) != end:
        raise DataLossError(f"corrupt MLIR bytecode: its {count} strings do not fill the string section")
    strings = []
    position = cursor.position
    for length in reversed(lengths):  # lengths are stored last string first
        position += length
        if length == 0 or code[position - 1]:
            raise DataLossError("corrupt MLIR bytecode: a string does not end with a zero byte")
        strings.append(code[position - length : position - 1])
    return strings


def _screen_offsets(code: bytes, sections: dict[Section, tuple[int, int]]) -> None:
    """Attributes and types must fill their section exactly."""
    cursor = _Cursor(code, *sections[Section.ATTR_TYPE_OFFSET], "the attribute offsets")
    expected = cursor.count() + cursor.count()
    counted = total = 0
    while cursor.position < cursor.end:
        cursor.varint()  # the dialect
        for _ in range(cursor.count()):
            total += cursor.varint() >> 1  # the lowest bit says which encoding
            counted += 1
    begin, end = sections[Section.ATTR_TYPE]
    if counted != expected or total != end - begin:
        raise DataLossError(
            f"corrupt MLIR bytecode: expected {expected} attributes and types in {end - begin} bytes, "
            f"found {counted} in {total}"
        )


def _skip_padding(cursor: _Cursor) -> None:
    alignment = cursor.varint()
    if alignment == 0 or alignment & (alignment - 1) or alignment > 1 << 20:
        raise DataLossError(f"corrupt MLIR bytecode: a section aligned to {alignment} bytes")
    while cursor.position % alignment:
        if cursor.position >= cursor.end:
            raise DataLossError("truncated MLIR bytecode: it ends in the padding before a section")
        if cursor.code[cursor.position] != _PADDING:
            raise DataLossError(f"corrupt MLIR bytecode: byte {cursor.position} should be padding")
        cursor.position += 1


class _Cursor:
    """A position in the bytes that moves as numbers are read."""

    __slots__ = ("code", "end", "position", "what")

    def __init__(self, code: bytes, position: int, end: int, what: str) -> None:
        self.code = code
        self.position = position
        self.end = end
        self.what = what

    def varint(self) -> int:
        """One number: the trailing zero bits of its first byte tell how many bytes follow."""
        position = self.position
        if position >= self.end:
            raise self._cut()
        first = self.code[position]
        if first & 1:
            self.position = position + 1
            return first >> 1
        if first == 0:
            stop = position + 9
            value = int.from_bytes(self.code[position + 1 : stop], "little")
        else:
            extra = (first & -first).bit_length() - 1
            stop = position + 1 + extra
            value = int.from_bytes(self.code[position:stop], "little") >> (extra + 1)
        if stop > self.end:
            raise self._cut()
        self.position = stop
        return value

    def count(self) -> int:
        """A number of things that need a byte each at least, so that no senseless count makes work."""
        value = self.varint()
        if value > self.end - self.position and value > 0:
            raise DataLossError(
                f"corrupt MLIR bytecode: {self.what} counts {value} entries in {self.end - self.position} bytes"
            )
        return value

    def _cut(self) -> DataLossError:
        return DataLossError(f"truncated MLIR bytecode: {self.what} ends inside a number, at byte {self.end}")
