"""The container of MLIR bytecode: its header and its sections, read without MLIR.

A portable artifact is MLIR bytecode whose producer names the StableHLO version. The container has no checksum, but
its sections must tile the file. ``screen`` checks that in time that does not grow with the program: a truncated file
fails there, before a native parser sees it. What a damaged file has inside its sections is for ``safe_parse``.
"""

from __future__ import annotations

from typing import NamedTuple

from pjrt.api.errors import DataLossError
from pjrt.stablehlo.version import Version

MAGIC = b"ML\xefR"

_NEWEST_CONTAINER = 6
_PRODUCER_PREFIX = "StableHLO_v"
_LONGEST_PRODUCER = 4096

_SECTIONS = (
    *("STRING", "DIALECT", "ATTR_TYPE", "ATTR_TYPE_OFFSET", "IR", "RESOURCE", "RESOURCE_OFFSET", "DIALECT_VERSIONS"),
    "PROPERTIES",
)
"""The names of the sections, by their numbers in a file."""

_REQUIRED = frozenset(("STRING", "DIALECT", "ATTR_TYPE", "ATTR_TYPE_OFFSET", "IR"))


class Header(NamedTuple):
    """The header of a bytecode file.

    Attributes:
        container: the version of the bytecode container (not of StableHLO).
        producer: what wrote the file, such as ``MLIR23.0.0git`` or ``StableHLO_v1.17.0``.
        end: where the first section begins.
    """

    container: int
    producer: str
    end: int

    @property
    def artifact_version(self) -> Version | None:
        """The StableHLO version, if the producer says that this is a portable artifact; None otherwise."""
        return Version.parse(self.producer) if self.producer.startswith(_PRODUCER_PREFIX) else None


def read_header(code: bytes) -> Header:
    """Return the header of bytes that begin with ``MAGIC``.

    Raises:
        DataLossError: the header is cut off or senseless.
    """
    container, begin = _varint(code, len(MAGIC))
    end = code.find(b"\0", begin, begin + _LONGEST_PRODUCER)
    if end < 0:
        raise DataLossError(f"truncated MLIR bytecode: its header names no complete producer in {len(code)} bytes")
    try:
        header = Header(container, code[begin:end].decode(), end + 1)
        _ = header.artifact_version
    except ValueError as error:
        raise DataLossError(f"corrupt MLIR bytecode: the producer in its header is {code[begin:end]!r}") from error
    return header


def screen(code: bytes) -> Header:
    """Return the header of bytecode, after a check that its sections tile the file.

    The sections of a container newer than this package knows are left to the parser.

    Raises:
        DataLossError: the bytes are truncated or corrupt; the message says where.
    """
    header = read_header(code)
    if header.container <= _NEWEST_CONTAINER:
        missing = [name for name in _SECTIONS if name in _REQUIRED - read_sections(code, header.end).keys()]
        if missing:
            raise DataLossError(
                f"truncated MLIR bytecode: {len(code)} bytes without the section {' and '.join(missing)}"
            )
    return header


def has_resources(code: bytes) -> bool:
    """Whether bytecode may have resources beside its operations, such as the values of large constants.

    Raises:
        DataLossError: as for ``screen``.
    """
    header = read_header(code)
    # MLIR writes the section in any case; the one byte of an empty one is the number of groups.
    return header.container > _NEWEST_CONTAINER or read_sections(code, header.end).get("RESOURCE_OFFSET", 0) > 1


def read_sections(code: bytes, position: int) -> dict[str, int]:
    """Return the sizes, by name, of the sections that begin at a position and fill the rest of the bytes.

    Raises:
        DataLossError: they do not fill it.
    """
    sizes: dict[str, int] = {}
    while position < len(code):
        number, is_aligned = code[position] & 0x7F, code[position] & 0x80
        name = _SECTIONS[number] if number < len(_SECTIONS) else ""
        if not name or name in sizes:
            raise DataLossError(f"corrupt MLIR bytecode: section {number} at byte {position} is unknown or there twice")
        length, position = _varint(code, position + 1)
        if is_aligned:
            alignment, position = _varint(code, position)
            position += -position % max(alignment, 1)
        position += length
        if position > len(code):
            raise DataLossError(f"truncated MLIR bytecode: section {name} ends at byte {position} of only {len(code)}")
        sizes[name] = length
    return sizes


def _varint(code: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it.

    The trailing zero bits of its first byte count the bytes that follow; a first byte of zero has eight after it.
    """
    first = code[position] if position < len(code) else 0
    extra = (first & -first).bit_length() - 1 if first else 8
    end = position + 1 + extra
    if end > len(code):
        raise DataLossError(f"truncated MLIR bytecode: it ends inside a number, at byte {len(code)}")
    if not first:
        return int.from_bytes(code[position + 1 : end], "little"), end
    return int.from_bytes(code[position:end], "little") >> (extra + 1), end
