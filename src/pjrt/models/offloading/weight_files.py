"""Files of weights, read so that arrays stay in the file until they are needed."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError

HostArray = np.ndarray[Any, Any]

_LONGEST_HEADER = 100 << 20

_SAFETENSORS = {
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


def arrays_by_name(path: str | os.PathLike[str]) -> Mapping[str, HostArray]:
    """Return the arrays in a ``.safetensors`` or ``.npz`` file by name.

    Those of a ``.safetensors`` file are mapped: the operating system reads them when they are needed, and may drop
    them again. Those of a ``.npz`` file, which may be compressed, are read at once.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is of another format.
        DataLossError: the file is damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"expected a file of weights, found none at {str(file)!r}")
    if file.suffix == ".npz":
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
                return dict(arrays)
        except (ValueError, OSError, EOFError, AttributeError, zipfile.BadZipFile) as error:
            raise DataLossError(f"{str(file)!r} is not a readable .npz file: {error}") from error
    if file.suffix == ".safetensors":
        return _mapped(file)
    raise InvalidArgumentError(f"expected a .safetensors or .npz file of weights, found {str(file)!r}")


def _mapped(file: Path) -> Mapping[str, HostArray]:
    """Return the arrays in a ``.safetensors`` file: eight bytes with the header's size, a header in JSON, the data."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 2 <= size <= min(_LONGEST_HEADER, file.stat().st_size - 8):
            raise DataLossError(f"{str(file)!r} is not a .safetensors file: its header would have {size} bytes")
        header = stream.read(size)
    try:
        entries = json.loads(header)
        data = np.memmap(file, np.uint8, "r", offset=8 + size) if file.stat().st_size > 8 + size else np.empty(0, "u1")
        return {name: _array(data, entry) for name, entry in entries.items() if name != "__metadata__"}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataLossError(f"{str(file)!r} is not a readable .safetensors file: {error}") from error


def _array(data: HostArray, entry: Mapping[str, Any]) -> HostArray:
    if entry["dtype"] not in _SAFETENSORS:
        raise ValueError(f"the element type {entry['dtype']!r} is unknown")
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= data.size:
        raise ValueError(f"an array at the bytes {begin} to {end} of {data.size}")
    return data[begin:end].view(_SAFETENSORS[entry["dtype"]].dtype).reshape(entry["shape"])
