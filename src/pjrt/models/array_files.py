"""Files of arrays: ``.npy``, ``.npz`` and ``.safetensors``."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
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


_NPY_HEADER = 1 << 16
"""The bytes before the elements of an array in a ``.npy`` file, at the most."""
_LARGER = 16
"""Factor by which an array of another element type may be larger: the error for that says more."""


def check_sizes(path: str | os.PathLike[str], most_bytes: int) -> None:
    """Check that no array of a ``.npz`` file is much larger than any that is wanted, before one is read.

    A compressed array may be a thousand times as large as its file.

    Raises:
        InvalidArgumentError: one is larger.
    """
    if Path(path).suffix != ".npz" or not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.file_size > _LARGER * most_bytes + _NPY_HEADER:
                raise InvalidArgumentError(
                    f"expected arrays of at most {most_bytes:,} bytes in {os.fspath(path)!r}, found "
                    f"{member.filename.removesuffix('.npy')!r} of {member.file_size:,}"
                )


def arrays_by_name(path: str | os.PathLike[str], only: str = "") -> Mapping[str, HostArray]:
    """Return the arrays in a file by name; the one of a ``.npy`` file has the name of the file.

    Those of a ``.safetensors`` file are mapped: the operating system reads them when they are needed, and may drop
    them again. The others are read at once, because a ``.npz`` file may be compressed.

    Args:
        path: the file.
        only: the name of the only array that is wanted; empty for all. Others may be left out.

    Raises:
        NotFoundError: there is no such file.
        InvalidArgumentError: the file is of another format.
        DataLossError: the file is damaged.
    """
    file = Path(path)
    if not file.is_file():
        raise NotFoundError(f"expected a file of arrays, found none at {str(file)!r}")
    reader = _READERS.get(file.suffix)
    if reader is None:
        raise InvalidArgumentError(f"expected a .npy, .npz or .safetensors file, found {str(file)!r}")
    try:
        return reader(file, only)
    except Exception as error:  # numpy's readers raise what they are made of: ast, struct, tokenize, zipfile, zlib
        raise DataLossError(f"{str(file)!r} is not a readable {file.suffix} file: {error}") from error


def _load_npy(file: Path, only: str) -> Mapping[str, HostArray]:
    return {file.stem: np.load(file, allow_pickle=False)}


def _load_npz(file: Path, only: str) -> Mapping[str, HostArray]:
    # numpy leaves a file open that it opened itself and cannot read.
    with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
        return {only: arrays[only]} if only in arrays.files else dict(arrays)


def _map_safetensors(file: Path, only: str) -> Mapping[str, HostArray]:
    """Return the arrays in a ``.safetensors`` file: eight bytes with the header's size, a header in JSON, the data."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        if not 2 <= size <= min(_LONGEST_HEADER, file.stat().st_size - 8):
            raise ValueError(f"its header would have {size} bytes")
        entries = json.loads(stream.read(size))
    data = np.memmap(file, np.uint8, "r", offset=8 + size) if file.stat().st_size > 8 + size else np.empty(0, "u1")
    return {name: _array(data, entry) for name, entry in entries.items() if name != "__metadata__"}


def _array(data: HostArray, entry: Mapping[str, Any]) -> HostArray:
    if entry["dtype"] not in _SAFETENSORS:
        raise ValueError(f"the element type {entry['dtype']!r} is unknown")
    begin, end = entry["data_offsets"]
    if not 0 <= begin <= end <= data.size:
        raise ValueError(f"an array at the bytes {begin} to {end} of {data.size}")
    return data[begin:end].view(_SAFETENSORS[entry["dtype"]].dtype).reshape(entry["shape"])


_READERS: Mapping[str, Callable[[Path, str], Mapping[str, HostArray]]] = {
    ".npy": _load_npy,
    ".npz": _load_npz,
    ".safetensors": _map_safetensors,
}

SUFFIXES = tuple(_READERS)
"""The suffixes of files that can be read."""
