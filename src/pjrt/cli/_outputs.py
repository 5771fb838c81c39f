"""The results of a program, in a file or on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.shape_spec import format_shape
from pjrt.models.output_path import check_output_path, writing

Array = np.ndarray[Any, Any]

SUFFIXES = (".npy", ".npz", ".safetensors")

_OPTION = "--output"


def check_results_path(path: str, count: int) -> None:
    """Check that results can be written to a path, before any work is done.

    Raises:
        InvalidArgumentError: the suffix is unsupported, the path is a folder, or a ``.npy`` file would have several
            results.
        NotFoundError: the folder does not exist.
    """
    check_output_path(path, SUFFIXES, option=_OPTION)
    if Path(path).suffix == ".npy" and count != 1:
        raise InvalidArgumentError(
            f"{_OPTION} {path}: a .npy file holds one array, the program has {count} results; use .npz"
        )


def write_results(path: str, results: Mapping[str, Array]) -> None:
    """Write results by name: one to a ``.npy`` file, any number to other files.

    Raises:
        InvalidArgumentError: the file cannot be written.
    """
    named = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in results.items()}
    with writing(path, option=_OPTION):
        if path.endswith(".npy"):
            np.save(path, next(iter(results.values())), allow_pickle=False)
        elif path.endswith(".npz"):
            np.savez(path, allow_pickle=False, **named)
        else:
            _write_safetensors(path, named)


def _write_safetensors(path: str, named: dict[str, Array]) -> None:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save_file
    except ImportError as error:
        raise NotFoundError(
            "writing .safetensors needs the package of that name: pip install 'pjrt[safetensors]'"
        ) from error
    try:
        save_file(named, path)
    except SafetensorError as error:
        types = ", ".join(sorted({ElementType.of(array.dtype).name.lower() for array in named.values()}))
        raise InvalidArgumentError(
            f"--output {path}: a .safetensors file cannot hold these results ({types}): {error}; use .npz"
        ) from error


def describe(result: Array) -> str:
    """Return a result's type and first values on one line."""
    flat = np.asarray(result).reshape(-1)[:6]
    values = ", ".join(_format(v) for v in flat)
    more = ", …" if result.size > flat.size else ""
    return f"{format_shape(ElementType.of(result.dtype), result.shape)} [{values}{more}]"


def _format(value: Any) -> str:
    kind = ElementType.of(value.dtype)
    if kind is ElementType.PRED:
        return str(bool(value)).lower()
    if kind.is_integer:
        return str(int(value))
    return f"{complex(value):.6g}" if kind.is_complex else f"{float(value):.6g}"
