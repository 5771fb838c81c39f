"""From a buffer to the host: as an array, or its bytes as they lie on the device."""

from libc.stdint cimport int64_t

from pjrt.capi._api cimport start
from pjrt.capi._event cimport eager_future
from pjrt.capi._gen_abi cimport *
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._scope cimport Handle
from pjrt.capi._values cimport NativeLayout, native_layout, whole

import numpy as np

from pjrt.api.checks import expect, expect_out
from pjrt.api.errors import InvalidArgumentError, PjrtError, ResourceExhaustedError, UnimplementedError
from pjrt.api.future import Future
from pjrt.api.shape_spec import StridedLayout, TiledLayout, expect_layout

cdef enum:
    MOST_DIMENSIONS = 64

# 63, 62, … 0: the last n of them are row-major for n dimensions.
cdef int64_t[MOST_DIMENSIONS] _DESCENDING
cdef int _position
for _position in range(MOST_DIMENSIONS):
    _DESCENDING[_position] = MOST_DIMENSIONS - 1 - _position


cdef object read_array(Handle buffer, out, layout):
    """``Buffer.to_host``: copy into ``out`` or a new array."""
    shape = buffer.unpadded_shape if buffer.dynamic_dimensions else buffer.shape
    dtype = buffer.element_type.dtype
    if out is None:
        if layout is None:
            return _copy(buffer, _new(shape, dtype), None)
        return _copy(buffer, _empty(shape, dtype, layout), _order(layout, shape))
    expect_out(out, shape, dtype)
    if out.flags.c_contiguous:
        return _copy(buffer, out, None)
    return _copy(buffer, _new(shape, dtype), None).then(_Filler(out))


def _new(shape, dtype):
    """Return a new array for a value of the device.

    Raises:
        ResourceExhaustedError: the host has no memory for the array.
        UnimplementedError: numpy has no arrays of that many dimensions or elements.
    """
    try:
        return np.empty(shape, dtype)
    except MemoryError as error:
        raise ResourceExhaustedError(f"no memory of the host for an array of {dtype}{list(shape)}: {error}") from error
    except ValueError as error:
        raise UnimplementedError(f"numpy cannot hold an array of {dtype}{list(shape)}: {error}") from error


cdef object _copy(Handle buffer, array, order):
    """Start the copy into an array whose memory is in one piece, in an order of dimensions (row-major for ``None``)."""
    cdef PJRT_Buffer_ToHostBuffer_Args args
    cdef PJRT_Buffer_MemoryLayout row_major
    cdef NativeLayout other
    cdef int rank = array.ndim
    cdef HostMemory memory = HostMemory.of(
        array if order is None else array.transpose(order.minor_to_major[::-1]), True, "out"
    )
    start(&args, PJRT_Buffer_ToHostBuffer_Args_STRUCT_SIZE)
    args.src = <PJRT_Buffer *>buffer.use()
    args.dst = memory.at(0, memory.view.len)
    args.dst_size = memory.view.len
    if order is None:
        start(&row_major, PJRT_Buffer_MemoryLayout_STRUCT_SIZE)
        row_major.type = PJRT_Buffer_MemoryLayout_Type_Tiled
        start(&row_major.tiled, PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE)
        row_major.tiled.minor_to_major = &_DESCENDING[MOST_DIMENSIONS - rank]
        row_major.tiled.minor_to_major_size = rank
        args.host_layout = &row_major
    else:
        other = native_layout(order)
        args.host_layout = other.pointer
    buffer.call(SLOT_PJRT_Buffer_ToHostBuffer, &args)  # Buffer.to_host
    return eager_future(buffer.scope, args.event, array, (memory, buffer))


class _Filler:
    """A callback that copies a value from memory of its own into an array that lies in pieces."""

    def __init__(self, out):
        self.out = out

    def __call__(self, array):
        self.out[...] = array
        return self.out


cdef object _order(layout, shape):
    """Return a host layout as a dense order of dimensions; hosts have no tiles."""
    if isinstance(expect_layout(layout), StridedLayout):
        if len(layout.byte_strides) != len(shape):
            raise InvalidArgumentError(
                f"the host's layout for shape {tuple(shape)} has {len(shape)} strides, found {layout.byte_strides}"
            )
        order = sorted(range(len(shape)), key=lambda d: (abs(layout.byte_strides[d]), -d))
        return TiledLayout(tuple(order))
    if layout.tiles or len(layout.minor_to_major) != len(shape):
        raise InvalidArgumentError(
            f"the host's layout for shape {tuple(shape)} is one of {len(shape)} dimensions without tiles, found "
            f"{layout}"
        )
    return layout


cdef object _empty(shape, dtype, layout):
    """Return a new array whose memory lies in the order of dimensions of a layout."""
    order = _order(layout, shape)
    major_to_minor = order.minor_to_major[::-1]
    physical = _new([shape[d] for d in major_to_minor], dtype)
    array = physical.transpose(np.argsort(major_to_minor))
    if isinstance(layout, StridedLayout) and array.size and array.strides != layout.byte_strides:
        raise InvalidArgumentError(
            f"the strides {layout.byte_strides} leave gaps or overlap; give an array as out instead"
        )
    return array


cdef object copy_raw(Handle buffer, out, offset, size):
    """``Buffer.copy_raw_to_host``."""
    cdef PJRT_Buffer_CopyRawToHost_Args args
    cdef HostMemory memory = HostMemory.of(out, True, "out")
    start(&args, PJRT_Buffer_CopyRawToHost_Args_STRUCT_SIZE)
    args.transfer_size = memory.view.len if size is None else whole(size, "a number of bytes, or None, as size")
    args.buffer = <PJRT_Buffer *>buffer.use()
    args.dst = memory.at(0, args.transfer_size)
    args.offset = whole(offset, "an offset in bytes as a whole number")
    buffer.call(SLOT_PJRT_Buffer_CopyRawToHost, &args)
    return eager_future(buffer.scope, args.event, None, (memory, buffer))


cdef object copy_raw_later(Handle buffer, out, offset, size):
    """``Buffer.copy_raw_to_host_future``: give the plugin the memory as soon as the future has it."""
    cdef PJRT_Buffer_CopyRawToHostFuture_Args args
    cdef _Destination destination = _Destination()
    expect(out, Future, "a future of the memory to copy to")
    start(&args, PJRT_Buffer_CopyRawToHostFuture_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    args.offset = whole(offset, "an offset in bytes as a whole number")
    args.transfer_size = (
        buffer.on_device_size - args.offset if size is None else whole(size, "a number of bytes, or None, as size")
    )
    buffer.call(SLOT_PJRT_Buffer_CopyRawToHostFuture, &args)
    destination.callback = args.future_ready_callback
    destination.data = args.callback_data
    destination.size = args.transfer_size
    done = eager_future(buffer.scope, args.event, None, (destination, buffer))
    out.add_done_callback(destination)
    return done


cdef class _Destination:
    """A callback of the future of the memory: gives the memory to the plugin, once, and keeps it."""

    cdef void (*callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) noexcept nogil
    cdef void *data
    cdef int64_t size
    cdef HostMemory memory

    def __call__(self, future):
        cdef PJRT_Buffer_CopyRawToHostFuture_Callback_Args args
        cdef bytes message
        start(&args, PJRT_Buffer_CopyRawToHostFuture_Callback_Args_STRUCT_SIZE)
        args.callback_data = self.data
        try:
            self.memory = HostMemory.of(future.result(), True, "the value of the future")
            args.dst = self.memory.at(0, self.size)
        except Exception as error:
            wrapped = PjrtError.wrap(error)
            message = wrapped.message.encode()
            args.error_code = <PJRT_Error_Code><int>wrapped.code
            args.error_message = message
            args.error_message_size = len(message)
        with nogil:
            self.callback(&args)
