"""Python functions as handlers of XLA's foreign function interface (FFI).

XLA calls a handler with a call frame, a C struct. ctypes reads it here, and its buffers become numpy arrays over the
same memory. The structs are those of XLA's header ``xla/ffi/api/c_api.h``.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, PjrtError, from_author
from pjrt.devices.xla.device_array import DeviceArray
from pjrt.stablehlo.hlo_parameters import ELEMENT_TYPES

_API_VERSION = (0, 1)
"""The oldest version of the interface with these structs; XLA accepts handlers of older versions than its own."""

_EXECUTE = 3
_TOKEN = 17
_METADATA_EXTENSION = 1
_ARRAY, _DICTIONARY, _SCALAR, _STRING = 1, 2, 3, 4

# Elements of less than a byte are packed, the first one in the lowest bits; numpy holds each in a byte of its own.
_PACKED = {number: each for number, each in ELEMENT_TYPES.items() if 0 < each.bits < 8}
_DTYPES = {
    number: each.dtype
    for number, each in ELEMENT_TYPES.items()
    if number not in _PACKED and each is not ElementType.TOKEN
}


class _Header(ctypes.Structure):
    _fields_: ClassVar[tuple[tuple[str, Any], ...]] = (
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_void_p),
    )


class _Span(ctypes.Structure):
    _fields_ = (("ptr", ctypes.c_void_p), ("len", ctypes.c_size_t))


class _Buffer(_Header):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
    )


class _Scalar(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("value", ctypes.c_void_p))


class _Array(ctypes.Structure):
    _fields_ = (("dtype", ctypes.c_int), ("size", ctypes.c_size_t), ("data", ctypes.c_void_p))


class _Values(_Header):
    """Arguments or results."""

    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("values", ctypes.POINTER(ctypes.POINTER(_Buffer))),
    )


class _Attributes(_Header):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.POINTER(ctypes.c_int)),
        ("names", ctypes.POINTER(ctypes.POINTER(_Span))),
        ("values", ctypes.POINTER(ctypes.c_void_p)),
    )


class _ErrorCreateArgs(_Header):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Version(_Header):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


_ErrorCreate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_ErrorCreateArgs))


class _StreamGetArgs(_Header):
    _fields_ = (("context", ctypes.c_void_p), ("stream", ctypes.c_void_p))


_StreamGet = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_StreamGetArgs))


class _Api(_Header):
    _fields_ = (
        ("version", _Version),
        ("internal_api", ctypes.c_void_p),
        ("error_create", _ErrorCreate),
        ("error_get_message", ctypes.c_void_p),
        ("error_destroy", ctypes.c_void_p),
        ("handler_register", ctypes.c_void_p),
        ("stream_get", _StreamGet),
    )


class _CallFrame(_Header):
    _fields_ = (
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Values),
        ("results", _Values),
        ("attributes", _Attributes),
    )


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version), ("traits", ctypes.c_uint32))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_CallFrame))

_handlers: dict[int, tuple[Any, Callable[..., Any]]] = {}
"""Handlers and their functions by address. XLA keeps a handler for ever, so they must stay."""

_addresses: dict[tuple[Callable[..., Any], int, bool], int] = {}
_lock = threading.Lock()


def handler_of(function: Callable[..., Any], traits: int, *, on_device: bool = False) -> int:
    """Return the address of an FFI handler that calls a Python function.

    The address is the same each time, because XLA accepts the registration of a name again only with the same handler.

    The function is called on a thread of the runtime, as ``function(*operands, *results, **attributes)``: operands are
    read-only numpy arrays, results writable ones to fill, and attributes Python values. The arrays are valid during the
    call only. A result is zero before the call, or has the value of the operand whose memory the program gives it. The
    return value is ignored. An exception becomes the error of the execution.

    With ``on_device`` the buffers are in memory that the host cannot read: operands and results are ``DeviceArray``,
    and results have no value before the call.
    """
    with _lock:
        key = function, traits, on_device
        if key not in _addresses:
            handler = _Handler(_handle(function, traits, _call_on_device if on_device else _call_on_host))
            address = ctypes.cast(handler, ctypes.c_void_p).value or 0
            _handlers[address] = handler, function
            _addresses[key] = address
        return _addresses[key]


def checked_handler(address: int, check: Callable[..., Any]) -> int:
    """Return the address of an FFI handler that calls another one in C, if a check lets it.

    Args:
        address: the address of the other handler.
        check: is given the operands and results of each call as numpy arrays, and raises the error of the execution.
    """
    inner = _Handler(address)

    def handle(frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        try:
            if frame.stage == _EXECUTE and _metadata_extension(frame) is None:
                arrays = [
                    _view(values, number, False)
                    for values in (frame.arguments, frame.results)
                    for number in range(values.size)
                ]
                check(*arrays)
        except BaseException as error:  # no exception may escape into XLA's thread
            return _failure(frame, from_author(error))
        result: int | None = inner(frame_pointer)
        return result

    with _lock:
        handler = _Handler(handle)
        own = ctypes.cast(handler, ctypes.c_void_p).value or 0
        _handlers[own] = handler, check
        return own


def function_at(address: int) -> Callable[..., Any] | None:
    """Return the Python function behind a handler of ``handler_of``; None for the address of any other handler."""
    entry = _handlers.get(address)
    return None if entry is None else entry[1]


def _handle(
    function: Callable[..., Any], traits: int, call: Callable[[Callable[..., Any], Any], None]
) -> Callable[[Any], int | None]:
    """Return the C callback of a handler: it takes a call frame, and returns an error or null."""

    def handle(frame_pointer: Any) -> int | None:
        frame = frame_pointer.contents
        try:
            if _describe(frame, traits) or frame.stage != _EXECUTE:
                return None
            call(function, frame)
        except BaseException as error:  # no exception may escape into XLA's thread
            return _failure(frame, from_author(error))
        return None

    return handle


def _call_on_host(function: Callable[..., Any], frame: Any) -> None:
    operands = [_view(frame.arguments, number, False) for number in range(frame.arguments.size)]
    results = [_result(frame, number) for number in range(frame.results.size)]
    function(*operands, *results, **_attributes(frame.attributes))
    for number, result in enumerate(results):
        _pack(frame.results.values[number].contents, result)


def _call_on_device(function: Callable[..., Any], frame: Any) -> None:
    stream = _stream_of(frame)
    arrays = [
        _on_device(values.values[number].contents, stream, writable)
        for values, writable in ((frame.arguments, False), (frame.results, True))
        for number in range(values.size)
    ]
    function(*arrays, **_attributes(frame.attributes))


def _stream_of(frame: Any) -> int:
    """Return the address of the stream that the program runs on."""
    arguments = _StreamGetArgs(ctypes.sizeof(_StreamGetArgs), None, frame.context, None)
    if frame.api.contents.stream_get(ctypes.byref(arguments)):
        raise InternalError("expected the program's stream from XLA, found an error: a custom call needs it on a GPU")
    return arguments.stream or 0


def _on_device(buffer: Any, stream: int, writable: bool) -> DeviceArray:
    dtype = np.dtype(np.bool_) if buffer.dtype == _TOKEN else _DTYPES.get(buffer.dtype)
    if dtype is None:
        raise NotImplementedError(f"elements of XLA's type number {buffer.dtype} have no numpy type on devices")
    shape = (0,) if buffer.dtype == _TOKEN else tuple(buffer.dims[: buffer.rank])
    return DeviceArray(buffer.data or 0, shape, dtype, stream, writable)


def _describe(frame: Any, traits: int) -> bool:
    """Describe the handler if the call frame only asks for that, and return whether it does."""
    extension = _metadata_extension(frame)
    if extension is None:
        return False
    metadata = extension.metadata.contents
    metadata.version.major, metadata.version.minor = _API_VERSION
    metadata.traits = traits
    return True


def _metadata_extension(frame: Any) -> Any:
    """Return the extension of a call frame that asks for a description of the handler; ``None`` without one."""
    address = frame.extension_start
    while address:
        extension = _Extension.from_address(address)
        if extension.type == _METADATA_EXTENSION:
            return extension
        address = extension.next
    return None


def _result(frame: Any, number: int) -> np.ndarray[Any, Any]:
    """Return a result to fill, which is zero: the function may leave parts of it alone."""
    buffer = frame.results.values[number].contents
    arguments = frame.arguments
    operands = {arguments.values[operand].contents.data for operand in range(arguments.size)}
    if buffer.data is not None and buffer.data not in operands:
        ctypes.memset(buffer.data, 0, _size_in_memory(buffer))
    return _view(frame.results, number, True)


def _size_in_memory(buffer: Any) -> int:
    """Return the bytes of a buffer in XLA's memory."""
    count = math.prod(buffer.dims[: buffer.rank])
    if buffer.dtype in _PACKED:
        return _packed_size(count, _PACKED[buffer.dtype].bits)
    dtype = _DTYPES.get(buffer.dtype)
    return 0 if dtype is None else count * dtype.itemsize


def _view(values: Any, number: int, writable: bool) -> np.ndarray[Any, Any]:
    buffer = values.values[number].contents
    shape = tuple(buffer.dims[dimension] for dimension in range(buffer.rank))
    return _over(buffer.data, shape, buffer.dtype, writable)


def _over(address: int | None, shape: tuple[int, ...], number: int, writable: bool) -> np.ndarray[Any, Any]:
    if number == _TOKEN:
        return np.empty(0, np.bool_)  # a token has no value; the array keeps its place among the arguments
    if number in _PACKED:
        return _unpacked(address, shape, number, writable)
    dtype = _DTYPES.get(number)
    if dtype is None:
        raise NotImplementedError(f"numpy has no type for elements of XLA's type number {number}")
    array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, _memory(address, math.prod(shape) * dtype.itemsize))
    array.flags.writeable = writable
    return array


def _memory(address: int | None, size: int) -> Any:
    return (ctypes.c_char * size).from_address(address) if size and address is not None else bytearray(size)


def _unpacked(address: int | None, shape: tuple[int, ...], number: int, writable: bool) -> np.ndarray[Any, Any]:
    """Return elements of less than a byte, each in a byte of new memory; a result is packed after the call."""
    element_type = _PACKED[number]
    bits = element_type.bits
    count = math.prod(shape)
    packed = np.ndarray(_packed_size(count, bits), np.uint8, _memory(address, _packed_size(count, bits)))
    each = (packed[:, np.newaxis] >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    low = each.reshape(-1)[:count]
    if element_type.name[0] == "S":  # numpy keeps the sign in the bits above
        sign = np.uint8(1 << (bits - 1))
        low = (low ^ sign) - sign
    values = low.view(element_type.dtype).reshape(shape)
    values.flags.writeable = writable
    return values


def _pack(buffer: Any, result: np.ndarray[Any, Any]) -> None:
    """Write a result whose elements are of less than a byte into XLA's memory; do nothing with other results."""
    if buffer.dtype not in _PACKED or not result.size:
        return
    bits = _PACKED[buffer.dtype].bits
    low = result.reshape(-1).view(np.uint8) & np.uint8((1 << bits) - 1)
    size = _packed_size(low.size, bits)
    each = np.zeros(size * (8 // bits), np.uint8)
    each[: low.size] = low
    shifted = each.reshape(size, -1) << np.arange(0, 8, bits, dtype=np.uint8)
    np.ndarray(size, np.uint8, _memory(buffer.data, size))[...] = np.bitwise_or.reduce(shifted, axis=1)


def _packed_size(count: int, bits: int) -> int:
    return -(-count * bits // 8)


def _attributes(attributes: Any) -> Mapping[str, Any]:
    return {
        _text(attributes.names[number].contents): _attribute(attributes.types[number], attributes.values[number])
        for number in range(attributes.size)
    }


def _attribute(kind: int, address: int) -> Any:
    if kind == _STRING:
        return _text(_Span.from_address(address))
    if kind == _SCALAR:
        scalar = _Scalar.from_address(address)
        return _over(scalar.value, (), scalar.dtype, False)[()].item()
    if kind == _ARRAY:
        array = _Array.from_address(address)
        return _over(array.data, (array.size,), array.dtype, False).copy()
    if kind == _DICTIONARY:
        return _attributes(_Attributes.from_address(address))
    raise NotImplementedError(f"attributes of FFI's kind {kind} are unsupported")


def _text(span: Any) -> str:
    return ctypes.string_at(span.ptr, span.len).decode() if span.len else ""


def _failure(frame: Any, error: PjrtError) -> int | None:
    arguments = _ErrorCreateArgs(
        ctypes.sizeof(_ErrorCreateArgs), None, error.message.encode(errors="replace"), int(error.code)
    )
    address: int | None = frame.api.contents.error_create(ctypes.byref(arguments))
    return address
