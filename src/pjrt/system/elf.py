"""The file of a shared library, read without loading it: whether it is complete, and what it exports.

Only ELF files are parsed. In other files, those of macOS and Windows, a name is only searched for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: what this package is built for
_FORMS = (
    b"\x7fELF",
    b"MZ",
    *(bytes.fromhex(magic) for magic in ("feedface", "feedfacf", "cefaedfe", "cffaedfe", "cafebabe", "cafebabf")),
)
"""The first bytes of shared libraries of Linux, of Windows, and of macOS for one or several processors."""

_HEADER_SIZE = 64
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOADED, _DYNAMIC = 1, 2
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_STRING_TABLE, _SYMBOL_TABLE, _STRING_TABLE_SIZE, _GNU_HASH = 5, 6, 10, 0x6FFFFEF5
_SYMBOL = struct.Struct("<IBBHQQ")


@dataclass(frozen=True, slots=True)
class _Segment:
    """A segment of a library, with its place in the file and in memory."""

    kind: int
    offset: int
    address: int
    size: int


def missing_bytes(path: Path) -> tuple[int, int] | None:
    """Return how many bytes an incomplete library has, as after a broken download, and how many its header requires.

    It is ``None`` if nothing is missing, or if the file is not an ELF library.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER_SIZE)
        table = _segment_table(header)
        if table is None:
            return None
        offset, length = table
        file.seek(min(offset, size))
        segments = _segments(file.read(length))
    needed = max([offset + length, *(part.offset + part.size for part in segments if part.kind == _LOADED)])
    return (size, needed) if needed > size else None


def is_library(path: Path) -> bool:
    """Whether a file begins like a shared library of any system; the rest is not read.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(4).startswith(_FORMS)


def exports(path: Path, function: str) -> bool:
    """Whether a function is among a library's dynamic symbols; ``False`` if the file cannot be read."""
    name = function.encode()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if not data[:_HEADER_SIZE].startswith(_MAGIC):
                return data.find(name + b"\0") >= 0
            start, end = _dynamic_strings(data)
            return data.find(b"\0" + name + b"\0", start, end) >= 0
    except (OSError, ValueError, OverflowError, struct.error):
        return False


def exported_names(path: Path) -> tuple[str, ...]:
    """Return the names of the dynamic symbols that an ELF library defines; none of other files.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if not data[:_HEADER_SIZE].startswith(_MAGIC):
            return ()
        try:
            return tuple(_exported_names(data))
        except (struct.error, IndexError, ValueError):
            return ()  # cut off or damaged


def _exported_names(data: mmap.mmap) -> Iterator[str]:
    """Give the names that the hash table of a library lists: those that others can find."""
    entries, segments = dict(_dynamic_entries(data)), _all_segments(data)
    strings, _ = _dynamic_strings(data)
    table, symbols = (_offset_of(entries.get(kind, 0), segments) for kind in (_GNU_HASH, _SYMBOL_TABLE))
    if not (strings and table and symbols):
        return
    buckets, first, words, _ = struct.unpack_from("<4I", data, table)
    start = table + 16 + 8 * words
    number = max(struct.unpack_from(f"<{buckets}I", data, start), default=0)
    chains = start + 4 * buckets
    while number and not struct.unpack_from("<I", data, chains + 4 * (number - first))[0] & 1:
        number += 1
    for index in range(first, number + 1 if number else first):
        name, _, _, section, _, _ = _SYMBOL.unpack_from(data, symbols + _SYMBOL.size * index)
        if section:
            yield data[strings + name : data.find(b"\0", strings + name)].decode(errors="replace")


def _segment_table(header: bytes) -> tuple[int, int] | None:
    """Return the offset and the length of the program header table; ``None`` for other headers than 64-bit ELF."""
    if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
        return None
    (offset,) = struct.unpack_from("<Q", header, 32)
    entry_size, number = struct.unpack_from("<HH", header, 54)
    return (offset, entry_size * number) if entry_size == _SEGMENT.size else None


def _segments(table: bytes) -> list[_Segment]:
    whole = len(table) - len(table) % _SEGMENT.size
    return [
        _Segment(kind, offset, address, size)
        for kind, _, offset, address, _, size, _, _ in _SEGMENT.iter_unpack(table[:whole])
    ]


def _all_segments(data: mmap.mmap) -> list[_Segment]:
    table = _segment_table(data[:_HEADER_SIZE])
    return [] if table is None else _segments(data[table[0] : table[0] + table[1]])


def _dynamic_entries(data: mmap.mmap) -> list[tuple[int, int]]:
    """Return the entries of the dynamic section, as kinds and values."""
    for part in _all_segments(data):
        if part.kind == _DYNAMIC:
            whole = part.size - part.size % _DYNAMIC_ENTRY.size
            return list(_DYNAMIC_ENTRY.iter_unpack(data[part.offset : part.offset + whole]))
    return []


def _dynamic_strings(data: mmap.mmap) -> tuple[int, int]:
    """Return where the dynamic string table begins and ends in the file; ``(0, 0)`` if there is none."""
    entries = dict(_dynamic_entries(data))
    if not entries:
        return 0, 0
    start = _offset_of(entries.get(_STRING_TABLE, 0), _all_segments(data))
    return start, start + entries.get(_STRING_TABLE_SIZE, 0)


def _offset_of(address: int, segments: list[_Segment]) -> int:
    """Return the offset in the file of an address in memory."""
    for part in segments:
        if part.kind == _LOADED and part.address <= address < part.address + part.size:
            return address - part.address + part.offset
    return 0
