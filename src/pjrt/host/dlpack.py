"""DLPack: buffers shared with other array libraries without a copy.

numpy makes and reads the capsules. It knows no bfloat16 and no types of eight bits, so those travel through it as
unsigned integers of the same size, and the type in the capsule is written over.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.element_type import AnyDType
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.host.storage import Array

CPU = 1
"""DLPack's device type of memory of the host."""

# DLPack's type codes for what numpy lacks: (code, bits) by dtype.
_CODES: dict[AnyDType, tuple[int, int]] = {
    np.dtype(ml_dtypes.bfloat16): (4, 16),
    np.dtype(ml_dtypes.float8_e3m4): (7, 8),
    np.dtype(ml_dtypes.float8_e4m3): (8, 8),
    np.dtype(ml_dtypes.float8_e4m3b11fnuz): (9, 8),
    np.dtype(ml_dtypes.float8_e4m3fn): (10, 8),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (11, 8),
    np.dtype(ml_dtypes.float8_e5m2): (12, 8),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (13, 8),
    np.dtype(ml_dtypes.float8_e8m0fnu): (14, 8),
}
_DTYPES = {row: dtype for dtype, row in _CODES.items()}
_CARRIERS: dict[int, AnyDType] = {8: np.dtype(np.uint8), 16: np.dtype(np.uint16)}
_UNSIGNED = 1


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


# In a DLTensor the type follows a pointer, two 32-bit numbers of the device and one of the dimensions. A versioned
# capsule has a version, two pointers and flags before the tensor.
_TYPE_OFFSET = {b"dltensor": 20, b"dltensor_versioned": 32 + 20}

# Prototypes of our own: ``ctypes.pythonapi.PyCapsule_GetName`` is one object for all packages of the process, and types
# that are set on it are set for all of them.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def to_capsule(array: Array) -> Any:
    """A DLPack capsule over a writable array.

    Raises:
        UnimplementedError: DLPack has no way to hold the array's dtype as it lies.
    """
    row = _CODES.get(array.dtype)
    if row is None:
        if array.dtype.kind not in "biufc":
            raise UnimplementedError(
                f"DLPack cannot share elements of type {array.dtype} as they lie here; copy with numpy.asarray(buffer)"
            )
        return array.__dlpack__()
    capsule = array.view(_CARRIERS[row[1]]).__dlpack__()
    found = _data_type(capsule)
    found.code, found.bits = row
    return capsule


def from_source(source: Any) -> Array:
    """The array of another library, shared by its ``__dlpack__``.

    Raises:
        InvalidArgumentError: it has none, or its memory is not the host's.
        UnimplementedError: numpy cannot express its elements.
    """
    try:
        kind, _ = source.__dlpack_device__()
    except AttributeError as error:
        raise InvalidArgumentError(
            f"expected an object with __dlpack__, found {type(source).__name__}; use buffer_from_host"
        ) from error
    if kind != CPU:
        raise InvalidArgumentError(
            f"the memory is on a device of DLPack's type {kind}, expected the host's ({CPU}); copy it there first"
        )
    try:
        capsule = source.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise _not_shared(error) from error
    return from_capsule(capsule)


def from_capsule(capsule: Any) -> Array:
    """Return the array in a DLPack capsule of the host's memory; the capsule is used up.

    Raises:
        InvalidArgumentError: it is no unused DLPack capsule.
        UnimplementedError: numpy cannot express its elements.
    """
    found = _data_type(capsule)
    dtype = _DTYPES.get((found.code, found.bits))
    if dtype is not None:
        found.code = _UNSIGNED
    try:
        array: Array = np.from_dlpack(_Capsule(capsule))
    except (BufferError, RuntimeError, TypeError) as error:
        raise _not_shared(error) from error
    return array if dtype is None else array.view(dtype)


def _not_shared(error: Exception) -> UnimplementedError:
    return UnimplementedError(f"numpy cannot share this array by DLPack: {error}; use buffer_from_host")


def _data_type(capsule: Any) -> _DLDataType:
    name = _capsule_name(capsule)
    if name not in _TYPE_OFFSET:
        raise InvalidArgumentError(f"expected an unused DLPack capsule, found one named {name!r}")
    return _DLDataType.from_address(_capsule_pointer(capsule, name) + _TYPE_OFFSET[name])


class _Capsule:
    """A capsule in the form that ``numpy.from_dlpack`` takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU, 0
