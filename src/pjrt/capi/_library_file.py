"""A look at a shared library's file before it is opened: the dynamic linker ends the process on one that is cut off."""

from __future__ import annotations

import struct
from pathlib import Path

from pjrt.api.errors import DataLossError

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: what this package is built for
_HEADER_SIZE = 64
_SEGMENT_SIZE = 56
_LOADED = 1


def check_library_file(path: Path) -> None:
    """Refuses a library whose file ends before the parts of it that are to be loaded, as after a broken download.

    What is no such library at all is left to the dynamic linker, which says so.

    Raises:
        DataLossError: the file is cut off.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        header = file.read(_HEADER_SIZE)
        if len(header) < _HEADER_SIZE or not header.startswith(_MAGIC):
            return
        (offset,) = struct.unpack_from("<Q", header, 32)
        segment_size, number = struct.unpack_from("<HH", header, 54)
        if segment_size != _SEGMENT_SIZE:
            return
        file.seek(min(offset, size))
        table = file.read(segment_size * number)
    needed = offset + segment_size * number
    for start in range(0, len(table) - segment_size + 1, segment_size):
        kind, _, position, _, _, in_file = struct.unpack_from("<IIQQQQ", table, start)
        if kind == _LOADED:
            needed = max(needed, position + in_file)
    if needed > size:
        raise DataLossError(
            f"{path}: the library's file is cut off: it has {size} bytes, its header speaks of at least {needed}; "
            "get it again"
        )
