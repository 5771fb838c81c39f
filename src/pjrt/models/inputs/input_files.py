"""Files of arrays: ``.npy``, ``.npz``, ``.safetensors``, and ``.bin`` with the bytes of one array."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import DataLossError, InvalidArgumentError, NotFoundError
from pjrt.models.array_files import SUFFIXES, arrays_by_name, check_sizes
from pjrt.stablehlo.signatures import Parameter

Array = np.ndarray[Any, Any]

FORMS = (
    "PATH.npy, PATH.npz[:NAME], PATH.safetensors[:NAME], PATH.bin, a number, a list such as [1,2,3], random:SEED, "
    "zeros or ones, each optionally after NAME= or INDEX="
)

ARRAY_FILES = "PATH.npy, PATH.npz[:NAME] or PATH.safetensors[:NAME]"

RAW = ".bin"
"""The suffix of a file with the bytes of one array, whose type and shape are the parameter's."""


def arrays_in(text: str, option: str, flag: str = "--input", *, most_bytes: int | None = None) -> Mapping[str, Array]:
    """Return the arrays of a ``.npy``, ``.npz`` or ``.safetensors`` file by name.

    Args:
        text: the path, and optionally the name of one array after a colon.
        option: the whole option, for messages.
        flag: the name of the option, for messages.
        most_bytes: the bytes of the largest array that is wanted; None if that is not known.

    Raises:
        InvalidArgumentError: the file is of another format, or is damaged, or has a larger array.
        NotFoundError: there is no such file, or no such array in it.
    """
    path, _, name = text.partition(":") if not Path(text).exists() else (text, "", "")
    if Path(path).suffix not in SUFFIXES:
        forms = FORMS if flag == "--input" else ARRAY_FILES
        raise InvalidArgumentError(f"{flag} {option}: expected {forms}")
    _check_exists(path, option, flag)
    try:
        if most_bytes is not None and not name:
            check_sizes(path, most_bytes)
        mapped = arrays_by_name(path, name)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{flag} {option}: {error.message}") from error
    except DataLossError as error:
        raise InvalidArgumentError(f"{flag} {option}: {error.message}") from error
    # An array that stays mapped would end the process if the file became shorter, as with ``--watch``.
    read = {key: np.array(array) if isinstance(array, np.memmap) else array for key, array in mapped.items()}
    arrays = {key: _in_native_order(array) for key, array in read.items()}
    if not name:
        return arrays
    if name not in arrays:
        raise NotFoundError(f"{flag} {option}: {path!r} has no array {name!r}; it has {', '.join(arrays)}")
    return {name: arrays[name]}


def members_in(text: str, option: str, root: str) -> Mapping[str, Array]:
    """Return the arrays of one nested value in a file, by the rest of their names: ``['k']`` of ``cache['k']``.

    Args:
        text: the path, and optionally the name of the nested value after a colon, such as ``result[1]``.
        option: the whole option, for messages.
        root: the name of the nested value if ``text`` does not have one; names that begin with a bracket are members,
            too.

    Raises:
        InvalidArgumentError: the file is of another format, or is damaged.
        NotFoundError: there is no such file, or no array in it has such a name.
    """
    path, _, prefix = text.partition(":") if not Path(text).exists() else (text, "", "")
    arrays = arrays_in(path, option)
    for head in (prefix,) if prefix else (root, ""):
        members = {
            name[len(head) :]: array
            for name, array in arrays.items()
            if name.startswith(head) and name[len(head) :].startswith(("[", "."))
        }
        if members:
            return members
    raise NotFoundError(
        f"--input {option}: expected arrays such as {prefix or root}['NAME'] in {path!r}, it has {', '.join(arrays)}"
    )


def array_of_bytes(path: str, parameter: Parameter, option: str) -> Array:
    """Return the array whose bytes a ``.bin`` file has: row-major, little-endian, at least a byte for each element.

    Args:
        path: the file.
        parameter: the parameter, which has the type and the shape. One size of it may be dynamic.
        option: the whole option, for messages.

    Raises:
        InvalidArgumentError: the number of bytes is not that of the parameter, or several of its sizes are dynamic.
        NotFoundError: there is no such file.
    """
    _check_exists(path, option)
    dtype = parameter.element_type.dtype
    dynamic = [place for place, size in enumerate(parameter.shape) if not isinstance(size, int)]
    if len(dynamic) > 1:
        raise InvalidArgumentError(
            f"--input {option}: expected a shape for {parameter}, of which raw bytes have none; give a .npy file"
        )
    row = math.prod(size for size in parameter.shape if isinstance(size, int)) * dtype.itemsize
    count = Path(path).stat().st_size
    if count % row if dynamic and row else count != row:
        many = f"a multiple of {row}" if dynamic and row else str(row)
        raise InvalidArgumentError(
            f"--input {option}: expected {many} bytes for {parameter}, found a file of {count} bytes"
        )
    try:
        flat = np.fromfile(path, dtype.newbyteorder("<") if dtype.isbuiltin == 1 else dtype)
    except OSError as error:
        raise InvalidArgumentError(f"--input {option}: cannot read {path!r}: {error.strerror}") from error
    if parameter.element_type is ElementType.PRED and (flat.view(np.uint8) > 1).any():
        raise InvalidArgumentError(f"--input {option}: expected bytes of 0 and 1 for {parameter}, found larger ones")
    shape = tuple(size if isinstance(size, int) else count // row if row else 0 for size in parameter.shape)
    return _in_native_order(flat).reshape(shape)


def with_type(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return raw bytes as a type of their size: numpy writes bfloat16 and the like to files as raw bytes."""
    is_raw = array.dtype.kind == "V" and array.dtype.names is None
    return array.view(dtype) if is_raw and array.dtype.itemsize == dtype.itemsize else array


def _check_exists(path: str, option: str, flag: str = "--input") -> None:
    if not Path(path).is_file():
        raise NotFoundError(f"{flag} {option}: expected a file, found none at {path!r}{_why_no_name(path)}")


def _why_no_name(path: str) -> str:
    name, equals, _ = path.partition("=")
    return f"; the program has no argument called {name!r}" if equals else ""


def _in_native_order(array: Array) -> Array:
    """Return an array in the byte order of this machine, which a file need not have."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
