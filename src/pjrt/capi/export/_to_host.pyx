"""Copies of buffers to a framework's memory."""

from libc.stdint cimport int64_t

from pjrt.capi._api cimport gate_enter, gate_leave
from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._array_type cimport dense_strides, stated_layout
from pjrt.capi.export._buffer cimport buffer_record
from pjrt.capi.export._event cimport event_of
from pjrt.capi.export._host_memory cimport host_array, host_memory
from pjrt.capi.export._trampolines cimport drop, keep, put, python_error, trampoline

import math

from pjrt.api.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from pjrt.api.future import Promise
from pjrt.api.shape_spec import StridedLayout


cdef int _to_host_buffer(void *raw) except -1:
    args = <PJRT_Buffer_ToHostBuffer_Args *>raw
    buffer = buffer_record(args.src).buffer()
    shape, dtype = buffer.unpadded_shape, buffer.dtype
    strides = _host_strides(args.host_layout, buffer, shape, dtype.itemsize)
    cdef size_t size = _span(shape, strides, dtype.itemsize)
    if args.dst == NULL:  # a framework asks for the size first, or has no memory for an array without elements
        asks = size or args.dst_size == 0
        args.dst_size = size
        if asks:
            args.event = NULL
            return 0
    if args.dst_size < size:
        raise InvalidArgumentError(f"the value needs {size} bytes of host memory, found {args.dst_size}")
    out = host_array(args.dst, shape, dtype, strides, True)
    args.event = event_of(buffer.to_host(out))


cdef object _host_strides(PJRT_Buffer_MemoryLayout *host_layout, buffer, shape, itemsize):
    """Return the byte strides of the framework's array; ``None`` for an array in row-major order.

    Without a layout of the framework the array has that of the buffer, except for its tiles.
    """
    if host_layout == NULL:
        return None if len(shape) < 2 else dense_strides(buffer.layout, shape, itemsize)
    layout = stated_layout(host_layout)
    if isinstance(layout, StridedLayout):
        if len(layout.byte_strides) != len(shape):
            raise InvalidArgumentError(f"expected a layout of {len(shape)} strides, found {layout}")
        if min(layout.byte_strides, default=0) < 0:
            raise UnimplementedError(f"expected a host layout of positive strides, found {layout}")
        return layout.byte_strides
    if layout.tiles:
        raise UnimplementedError(f"expected a host layout without tiles, found {layout}: tiles are unsupported")
    return dense_strides(layout, shape, itemsize)


cdef object _span(shape, strides, itemsize):
    """Return the bytes from the first element of an array to the end of its last one."""
    if strides is None or 0 in shape:
        return itemsize * math.prod(shape)
    return itemsize + sum((size - 1) * stride for size, stride in zip(shape, strides))


cdef int _copy_raw_to_host(void *raw) except -1:
    args = <PJRT_Buffer_CopyRawToHost_Args *>raw
    memory = host_memory(args.dst, args.transfer_size, True)
    try:
        done = buffer_record(args.buffer).buffer().copy_raw_to_host(memory, args.offset, args.transfer_size)
    except OutOfRangeError as error:
        raise InvalidArgumentError(error.message) from error  # XLA's code for a range outside the buffer
    args.event = event_of(done)


cdef class _Destination:
    """Memory that a framework provides later, for a copy of ``size`` bytes."""

    cdef object promise
    cdef int64_t size


cdef int _copy_raw_to_host_future(void *raw) except -1:
    args = <PJRT_Buffer_CopyRawToHostFuture_Args *>raw
    cdef _Destination destination = _Destination()
    destination.promise = Promise()
    destination.size = args.transfer_size
    try:
        done = buffer_record(args.buffer).buffer().copy_raw_to_host_future(
            destination.promise.future, args.offset, args.transfer_size
        )
    except OutOfRangeError as error:
        raise InvalidArgumentError(error.message) from error  # XLA's code for a range outside the buffer
    args.event = event_of(done)
    args.callback_data = keep(destination)
    args.future_ready_callback = _destination_ready


cdef void _destination_ready(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) noexcept nogil:
    if gate_enter():
        _set_destination(args)
        gate_leave()


cdef void _set_destination(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) noexcept with gil:
    destination = <_Destination>args.callback_data
    drop(args.callback_data)
    if args.error_code == PJRT_Error_Code_OK:
        destination.promise.set_result(host_memory(args.dst, destination.size, True))
    else:
        destination.promise.set_error(python_error(args.error_code, args.error_message, args.error_message_size))


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions that copy buffers to the host."""
    put(&table.PJRT_Buffer_ToHostBuffer, trampoline(_to_host_buffer))
    put(&table.PJRT_Buffer_CopyRawToHost, trampoline(_copy_raw_to_host))
    put(&table.PJRT_Buffer_CopyRawToHostFuture, trampoline(_copy_raw_to_host_future))
