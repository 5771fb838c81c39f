"""The beginning of ``jax.export`` files, by which they are recognized.

Each program that is read is looked at; the rest of the format is for ``_jax_export_schema``.
"""

from __future__ import annotations

import struct

FUNCTION_NAME, IN_TREE, OUT_TREE, MLIR_MODULE = 1, 2, 4, 13
"""The numbers of the fields that the root table has in each file."""

_TYPICAL = (FUNCTION_NAME, IN_TREE, OUT_TREE, MLIR_MODULE)
_MOST_FIELDS = 256
_LARGEST_OFFSET = 16


def looks_like_jax_export(beginning: bytes) -> bool:
    """Whether bytes begin like a file of ``jax.export``: with a root table that has the fields of one.

    The format has no word of its own to begin with. JAX writes the root table into the first few hundred bytes, and the
    offsets of its fields before it. But with two derivatives, the root table and that of the first one share these
    offsets, which may lie behind the bytes that are here.

    One of the fields may be missing: the reader then names it.
    """
    is_shared = False
    try:
        (root,) = struct.unpack_from("<I", beginning)
        (back,) = struct.unpack_from("<i", beginning, root)
        vtable = root - back
        is_shared = vtable > root
        if root % 4 or vtable < 4 or (is_shared and root > _LARGEST_OFFSET):
            return False
        size, table = struct.unpack_from("<HH", beginning, vtable)
        if size % 2 or not 4 + 2 * MLIR_MODULE < size <= 4 + 2 * _MOST_FIELDS:
            return False
        fields = struct.unpack_from(f"<{size // 2 - 2}H", beginning, vtable + 4)
    except struct.error:
        return is_shared
    missing = [slot for slot in _TYPICAL if not fields[slot]]
    return len(missing) <= 1 and all(offset == 0 or 4 <= offset < table for offset in fields)
