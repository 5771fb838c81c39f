"""The beginning of ``jax.export`` files, by which they are recognized.

Each program that is read is looked at; the rest of the format is for ``_jax_export_schema``.
"""

from __future__ import annotations

import struct

FUNCTION_NAME, IN_TREE, OUT_TREE, MLIR_MODULE = 1, 2, 4, 13
"""The numbers of the fields that the root table has in each file."""

_NEEDED = (FUNCTION_NAME, IN_TREE, OUT_TREE, MLIR_MODULE)
_MOST_FIELDS = 256


def looks_like_jax_export(beginning: bytes) -> bool:
    """Whether bytes begin like a file of ``jax.export``: with a root table that has the fields of one.

    The format has no word of its own to begin with. JAX writes the root table into the first few hundred bytes.
    """
    try:
        (root,) = struct.unpack_from("<I", beginning)
        (back,) = struct.unpack_from("<i", beginning, root)
        vtable = root - back
        if root % 4 or not 4 <= vtable < root:
            return False
        size, table = struct.unpack_from("<HH", beginning, vtable)
        if size % 2 or not 4 + 2 * MLIR_MODULE < size <= 4 + 2 * _MOST_FIELDS:
            return False
        fields = struct.unpack_from(f"<{size // 2 - 2}H", beginning, vtable + 4)
    except struct.error:
        return False
    return all(fields[slot] for slot in _NEEDED) and all(offset == 0 or 4 <= offset < table for offset in fields)
