"""The product of a sparse matrix (CSR) and a dense one: jaxlib's handler, after a check of the indices.

jaxlib's handler reads the dense matrix wherever an index points to, which may be outside of it. No look at the program
can find that out, because the indices come when it runs. So programs call a handler of this package in its place, which
looks at the indices, and then calls jaxlib's.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Collection
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.xla import _jaxlib, ffi_handler
from pjrt.devices.xla.call_signatures import CHECKED_CSR_PRODUCT, CSR_PRODUCT
from pjrt.stablehlo.jaxlib import load
from pjrt.stablehlo.mlir_module import walk

_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))


@functools.cache
def register() -> None:
    """Register the handler with XLA."""
    capsule = _jaxlib.csr_targets()[CSR_PRODUCT]
    own = ffi_handler.checked_handler(_pointer(capsule, _name(capsule)), _check)
    _jaxlib.register_handler(CHECKED_CSR_PRODUCT, own)


def guard(module: Any, called: Collection[str]) -> None:
    """Have a program call the handler that checks the indices in place of jaxlib's.

    Args:
        module: the program, an ``MlirModule``.
        called: the targets that it calls.
    """
    if CSR_PRODUCT not in called:
        return
    with module as mlir:
        target = load("mlir.ir", "change a program").StringAttr.get(CHECKED_CSR_PRODUCT)
        for operation in walk(mlir.operation):
            attributes = operation.attributes
            if operation.name == "stablehlo.custom_call" and attributes["call_target_name"].value == CSR_PRODUCT:
                attributes["call_target_name"] = target


def _check(values: Any, rows: Any, columns: Any, dense: Any, result: Any) -> None:
    """Raise an error if the indices of a sparse matrix lead out of it, or out of the dense one.

    Args:
        values: the values that are not zero.
        rows: where the values of each row begin, and the end of the last one.
        columns: the column of each value.
        dense: the dense matrix, or a vector.
        result: the result.

    Raises:
        InvalidArgumentError: an index is outside.
    """
    if rows[0] < 0 or rows[-1] > len(values) or np.any(rows[1:] < rows[:-1]):
        raise InvalidArgumentError(
            f"the rows of a sparse matrix must begin in order between 0 and its {len(values)} values; found rows that "
            f"begin between {rows.min()} and {rows.max()}"
        )
    used = columns[rows[0] : rows[-1]]
    if len(used) and not 0 <= used.min() <= used.max() < len(dense):
        raise InvalidArgumentError(
            f"the columns of a sparse matrix must be from 0 to {len(dense) - 1}, as the dense matrix has {len(dense)} "
            f"rows; found columns from {used.min()} to {used.max()}"
        )
