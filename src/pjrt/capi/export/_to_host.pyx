"""Copies of buffers to a framework's memory."""

from libc.stdint cimport int64_t

from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport read_layout
from pjrt.capi.export._buffer cimport buffer_record
from pjrt.capi.export._event cimport event_of
from pjrt.capi.export._host_memory cimport host_array, host_memory
from pjrt.capi.export._trampolines cimport drop, keep, put, python_error, trampoline

import math

from pjrt.api.errors import InvalidArgumentError, OutOfRangeError, UnimplementedError
from pjrt.api.future import Promise
from pjrt.api.layout import StridedLayout


cdef int _to_host_buffer(void *raw) except -1:
    args = <PJRT_Buffer_ToHostBuffer_Args *>raw
    buffer = buffer_record(args.src).buffer
    shape, dtype = buffer.unpadded_shape, buffer.dtype
    cdef size_t size = dtype.itemsize * math.prod(shape)
    if args.dst == NULL and (size or args.dst_size == 0):  # a framework asks for the size first
        args.dst_size = size
        args.event = NULL
        return 0
    if args.dst_size < size:
        raise InvalidArgumentError(f"the value needs {size} bytes of host memory, found {args.dst_size}")
    strides = None
    if args.host_layout != NULL:
        strides = _strides(read_layout(args.host_layout), shape, dtype.itemsize)
    out = host_array(args.dst, shape, dtype, strides, True)
    args.event = event_of(buffer.to_host(out))


cdef object _strides(layout, shape, itemsize):
    """Return the byte strides of an array of the shape in a layout."""
    if isinstance(layout, StridedLayout):
        return layout.byte_strides
    if layout.tiles:
        raise UnimplementedError(f"expected a host layout without tiles, found {layout}: tiles are unsupported")
    if len(layout.minor_to_major) != len(shape):
        raise InvalidArgumentError(f"expected a layout of {len(shape)} dimensions, found {layout}")
    strides = [0] * len(shape)
    step = itemsize
    for dimension in layout.minor_to_major:
        strides[dimension] = step
        step *= max(shape[dimension], 1)
    return tuple(strides)


cdef int _copy_raw_to_host(void *raw) except -1:
    args = <PJRT_Buffer_CopyRawToHost_Args *>raw
    memory = host_memory(args.dst, args.transfer_size, True)
    try:
        done = buffer_record(args.buffer).buffer.copy_raw_to_host(memory, args.offset, args.transfer_size)
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
        done = buffer_record(args.buffer).buffer.copy_raw_to_host_future(
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
