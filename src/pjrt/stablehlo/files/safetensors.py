"""Safetensors: eight bytes with the size of a header, the header in JSON, and the elements of arrays.

They are read and written here without a copy: the operating system reads a mapped array when it is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from pjrt.api.element_type import ElementType

Array = np.ndarray[Any, Any]

_LONGEST_HEADER = 100 << 20
_ALIGNMENT = 64

_TYPES = {
    "BOOL": ElementType.PRED,
    "U8": ElementType.U8,
    "I8": ElementType.S8,
    "U16": ElementType.U16,
    "I16": ElementType.S16,
    "U32": ElementType.U32,
    "I32": ElementType.S32,
    "U64": ElementType.U64,
    "I64": ElementType.S64,
    "F16": ElementType.F16,
    "BF16": ElementType.BF16,
    "F32": ElementType.F32,
    "F64": ElementType.F64,
    "C64": ElementType.C64,
    "F8_E4M3": ElementType.F8E4M3FN,
    "F8_E5M2": ElementType.F8E5M2,
}
_NAMES = {kind: name for name, kind in _TYPES.items()}


def read_safetensors(content: Array) -> dict[str, Array]:
    """Return the arrays in the bytes of a file by name; they share its memory.

    Args:
        content: the bytes, as an array of ``uint8`` that may be mapped.

    Raises:
        ValueError: the bytes are damaged.
    """
    size = int.from_bytes(content[:8].tobytes(), "little")
    if not 2 <= size <= min(_LONGEST_HEADER, content.size - 8):
        raise ValueError(f"its header would have {size} bytes")
    entries = json.loads(content[8 : 8 + size].tobytes())
    data = content[8 + size :]
    return {name: _array(data, entry) for name, entry in entries.items() if name != "__metadata__"}


def _array(data: Array, entry: Mapping[str, Any]) -> Array:
    if entry["dtype"] not in _TYPES:
        raise ValueError(f"the element type {entry['dtype']!r} is unknown")
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= data.size:
        raise ValueError(f"an array at the bytes {begin} to {end} of {data.size}")
    return data[begin:end].view(_TYPES[entry["dtype"]].dtype).reshape(entry["shape"])


def write_safetensors(file: IO[bytes], arrays: Mapping[str, Array], begin: int) -> None:
    """Write arrays as a file of safetensors. One of a type that the format lacks is written as its bytes.

    Args:
        file: the file, or the member of an archive.
        arrays: the arrays by name, one after another in memory and not all at once.
        begin: the place in the whole file where this one begins. The elements begin at a multiple of 64 there, so that
            a mapped array is aligned.
    """
    # As the safetensors library orders them: the widest elements first, then each array is aligned.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    entries: dict[str, Any] = {}
    end = 0
    for name in order:
        array = arrays[name]
        kind = _NAMES.get(ElementType.of(array.dtype))
        shape = list(array.shape) if kind else [array.nbytes]
        entries[name] = {"dtype": kind or "U8", "shape": shape, "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(begin + 8 + len(header)) % _ALIGNMENT)
    file.write(len(header).to_bytes(8, "little"))
    file.write(header)
    for name in order:
        # NumPy lacks the buffer protocol for types such as bfloat16.
        file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data)
