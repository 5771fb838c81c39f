"""A shared library's file, looked at without opening it: whether it is whole, whether it exports a function .

Only ELF files are read part by part. Of others, those of macOS and Windows, it is known no more than whether a name
occurs in them.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: what this package is built for
_FORMS = (
    b"\x7fELF",
    b"MZ",
    *(bytes.fromhex(magic) for magic in ("feedface", "feedfacf", "cefaedfe", "cffaedfe", "cafebabe", "cafebabf")),
)
"""How shared libraries begin: of Linux, of Windows, and those of macOS for one or several processors."""

_HEADER_SIZE = 64
_SEGMENT = struct.Struct("<IIQQQQQQ")
_LOADED, _DYNAMIC = 1, 2
_DYNAMIC_ENTRY = struct.Struct("<qQ")
_STRING_TABLE, _STRING_TABLE_SIZE = 5, 10


@dataclass(frozen=True, slots=True)
class _Segment:
    """A part of a library: where it is in the file, and where in memory."""

    kind: int
    offset: int
    address: int
    size: int


def missing_bytes(path: Path) -> tuple[int, int] | None:
    """Finds a library whose file ends before the parts of it that are to be loaded, as after a broken download.

    Returns:
        How many bytes the file has, and how many its header speaks of; ``None`` if nothing is missing, or if the file
        is no library of a form that is known here.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER_SIZE)
        found = _segment_table(header)
        if found is None:
            return None
        offset, length = found
        file.seek(min(offset, size))
        segments = _segments(file.read(length))
    needed = max([offset + length, *(part.offset + part.size for part in segments if part.kind == _LOADED)])
    return (size, needed) if needed > size else None


def is_library(path: Path) -> bool:
    """Whether a file begins as shared libraries of any system do; what comes after that is not looked at.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(4).startswith(_FORMS)


def exports(path: Path, function: str) -> bool:
    """Whether a library's file names a function among its dynamic symbols; ``False`` too where it cannot be read."""
    name = function.encode()
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if not data[:_HEADER_SIZE].startswith(_MAGIC):
                return data.find(name + b"\0") >= 0
            start, end = _dynamic_strings(data)
            return data.find(b"\0" + name + b"\0", start, end) >= 0
    except (OSError, ValueError, OverflowError, struct.error):
        return False


def _segment_table(header: bytes) -> tuple[int, int] | None:
    """Where the table of segments begins and how long it is; ``None`` if this is no header of a known form."""
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
    found = _segment_table(data[:_HEADER_SIZE])
    return [] if found is None else _segments(data[found[0] : found[0] + found[1]])


def _dynamic_entries(data: mmap.mmap) -> list[tuple[int, int]]:
    """What the dynamic linker is told, as kinds and values."""
    for part in _all_segments(data):
        if part.kind == _DYNAMIC:
            whole = part.size - part.size % _DYNAMIC_ENTRY.size
            return list(_DYNAMIC_ENTRY.iter_unpack(data[part.offset : part.offset + whole]))
    return []


def _dynamic_strings(data: mmap.mmap) -> tuple[int, int]:
    """Where in the file the names of the dynamic symbols begin and end; nowhere if there are none."""
    entries = dict(_dynamic_entries(data))
    if not entries:
        return 0, 0
    start = _offset_of(entries.get(_STRING_TABLE, 0), _all_segments(data))
    return start, start + entries.get(_STRING_TABLE_SIZE, 0)


def _offset_of(address: int, segments: list[_Segment]) -> int:
    """Where in the file lies what is at an address in memory."""
    for part in segments:
        if part.kind == _LOADED and part.address <= address < part.address + part.size:
            return address - part.address + part.offset
    return 0
