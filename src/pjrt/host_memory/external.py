"""External memory: arrays over memory that numpy does not own, and memory of ours that others use.

By DLPack, arrays are shared with other libraries without a copy. numpy makes and reads the capsules. It knows neither
bfloat16 nor the floating-point types of eight bits, so those pass through it as unsigned integers of the same size, and
the type in the capsule is overwritten.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pjrt.api.buffer import ExternalReference
from pjrt.api.element_type import AnyDType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from pjrt.host_memory.array import HostArray

_log = logging.getLogger("pjrt")


class ExternalMemory:
    """The base of every array over the memory: numpy keeps it alive for as long as there is a view.

    Args:
        pointer: the address at which the memory begins.
        size: its number of bytes.
        owner: a Python object that keeps the memory alive, if one does.
        on_release: called exactly once, when the last array over the memory is gone.
    """

    __slots__ = ("__array_interface__", "_on_release", "_owner")

    def __init__(
        self, pointer: int, size: int, owner: object = None, on_release: Callable[[], object] | None = None
    ) -> None:
        self.__array_interface__ = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}
        self._owner = owner
        self._on_release = on_release

    def array(self, shape: tuple[int, ...], dtype: AnyDType, strides: tuple[int, ...] | None = None) -> HostArray:
        """Return a writable array over the memory."""
        array: HostArray = np.ndarray(shape, dtype, self.bytes(), 0, strides)
        return array

    def bytes(self) -> HostArray:
        """Return the memory as a writable array of bytes."""
        return np.asarray(self)

    @staticmethod
    def over(array: HostArray, on_release: Callable[[], object] | None = None) -> HostArray:
        """Return a writable array of the same memory, shape and strides as a dense array, which may be read-only.

        ``on_release`` is called when the new array and all its views are gone.
        """
        memory = ExternalMemory(array.ctypes.data, array.nbytes, array, on_release)
        return memory.array(array.shape, array.dtype, array.strides)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Bound as a default, because the names of the module may be gone at the end of the interpreter. Those that the
        # owner's callback needs may be, too.
        on_release: Any = getattr(self, "_on_release", None)
        if on_release is not None and not is_finalizing():
            self._on_release = None
            notify_owner(on_release)


def notify_owner(on_release: Callable[[], object]) -> None:
    """Call an owner's callback and log what it raises: there is no caller that could handle it."""
    try:
        on_release()
    except BaseException:  # The memory is often dropped by the garbage collector, which must go on.
        _log.exception("the callback for the release of memory raised; the exception is ignored")


def memory_of(array: HostArray) -> HostArray:
    """Return the memory of a dense array, in the order of its addresses, as writable bytes that keep it alive."""
    if not array.nbytes:
        return np.empty(0, np.uint8)
    return ExternalMemory(array.ctypes.data, array.nbytes, array).bytes()


class HostExternalReference(ExternalReference):
    """Keeps a buffer's memory alive and in place until it is released, even if the buffer is deleted before.

    Args:
        array: the buffer's value.
        owner: what keeps the memory from being written to or given to another buffer, besides the array.
    """

    __slots__ = ("_held", "_pointer")

    def __init__(self, array: HostArray, owner: object = None) -> None:
        self._held: tuple[HostArray, object] | None = (array, owner)
        self._pointer = int(array.ctypes.data)

    @property
    def pointer(self) -> int:
        if self._held is None:
            raise FailedPreconditionError("the external reference was released; take a new one")
        return self._pointer

    def release(self) -> None:
        self._held = None


DLPACK_HOST_DEVICE = (1, 0)
"""DLPack's device of the host's memory: its device type, ``kDLCPU``, and number."""

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

# Prototypes of our own: ``ctypes.pythonapi.PyCapsule_GetName`` is one object for all packages of the process, and its
# types, once set, would be set for all of them.
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def to_capsule(array: HostArray) -> Any:
    """Return a DLPack capsule over a writable array.

    Raises:
        UnimplementedError: DLPack has no type for elements as the array holds them.
    """
    row = _CODES.get(array.dtype)
    if row is None:
        if array.dtype.kind not in "biufc":
            raise UnimplementedError(
                f"DLPack cannot share elements of type {array.dtype} as they lie here; copy with numpy.asarray(buffer)"
            )
        return array.__dlpack__()
    capsule = array.view(_CARRIERS[row[1]]).__dlpack__()
    data_type = _data_type(capsule)
    data_type.code, data_type.bits = row
    return capsule


def check_dlpack_device(dl_device: Any) -> None:
    """Check the device on which a consumer wants a capsule; ``None`` leaves the choice to the producer.

    Raises:
        BufferError: the device is not the host, as DLPack's protocol demands it.
    """
    if dl_device is not None and tuple(dl_device) != DLPACK_HOST_DEVICE:
        raise BufferError(
            f"the memory is on DLPack's device {DLPACK_HOST_DEVICE}, the consumer wants it on {dl_device}"
        )


def from_dlpack(source: Any) -> HostArray:
    """Return the array of another library, shared by its ``__dlpack__``.

    Raises:
        InvalidArgumentError: the object has no ``__dlpack__``, or its memory is not the host's.
        UnimplementedError: numpy cannot express its elements.
    """
    try:
        device = source.__dlpack_device__()
    except AttributeError as error:
        raise InvalidArgumentError(
            f"expected an object with __dlpack__, found {type(source).__name__}; use buffer_from_host"
        ) from error
    if device[0] != DLPACK_HOST_DEVICE[0]:
        raise InvalidArgumentError(
            f"expected memory of the host, DLPack's device {DLPACK_HOST_DEVICE}, found memory of the device {device}; "
            "copy it to the host first"
        )
    try:
        capsule = source.__dlpack__()
    except (BufferError, RuntimeError, TypeError) as error:
        raise _not_shared(error) from error
    return from_capsule(capsule)


def from_capsule(capsule: Any) -> HostArray:
    """Return the array in a DLPack capsule of the host's memory; the capsule is used up.

    Raises:
        InvalidArgumentError: the object is not an unused DLPack capsule.
        UnimplementedError: numpy cannot express its elements.
    """
    data_type = _data_type(capsule)
    dtype = _DTYPES.get((data_type.code, data_type.bits))
    if dtype is not None:
        data_type.code = _UNSIGNED
    try:
        array: HostArray = np.from_dlpack(_Capsule(capsule))
    except (BufferError, RuntimeError, TypeError) as error:
        raise _not_shared(error) from error
    return array if dtype is None else array.view(dtype)


def _not_shared(error: Exception) -> UnimplementedError:
    return UnimplementedError(f"numpy cannot share this array by DLPack: {error}; use buffer_from_host")


def _data_type(capsule: Any) -> _DLDataType:
    name = _capsule_name(capsule)
    if name not in _TYPE_OFFSET:
        raise InvalidArgumentError(f"expected an unused DLPack capsule, found a capsule named {name!r}")
    return _DLDataType.from_address(_capsule_pointer(capsule, name) + _TYPE_OFFSET[name])


class _Capsule:
    """A capsule in the form that ``numpy.from_dlpack`` takes."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return DLPACK_HOST_DEVICE
