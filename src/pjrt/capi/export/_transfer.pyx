"""Transfers in pieces: managers that a framework drives, and streams that a program receives from."""

from libc.stdint cimport int64_t, uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport read_named_values
from pjrt.capi.export._array_type cimport dense_strides, stated_element_type, stated_layout, stated_shape
from pjrt.capi.export._buffer cimport give_buffer
from pjrt.capi.export._client cimport ClientRecord, client_record
from pjrt.capi.export._device cimport memory_space_of
from pjrt.capi.export._event cimport event_of
from pjrt.capi.export._host_memory cimport host_array, host_memory
from pjrt.capi.export._trampolines cimport drop, keep, pjrt_check_size, put, python_error, quiet_trampoline, trampoline

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.shape_spec import ShapeSpec


cdef class _ManagerRecord:
    cdef ClientRecord client
    cdef object manager


cdef _ManagerRecord _record(PJRT_AsyncHostToDeviceTransferManager *handle):
    return <_ManagerRecord><void *>handle


cdef int _create_buffers(void *raw) except -1:
    args = <PJRT_Client_CreateBuffersForAsyncHostToDevice_Args *>raw
    cdef _ManagerRecord record = _ManagerRecord()
    cdef PJRT_ShapeSpec *shape
    cdef size_t index
    specs = []
    for index in range(args.num_shape_specs):
        shape = &args.shape_specs[index]
        layout = None
        if index < args.num_device_layouts and args.device_layouts != NULL and args.device_layouts[index] != NULL:
            layout = stated_layout(args.device_layouts[index])
        dims = stated_shape(shape.dims, shape.num_dims, "the dimensions of a buffer")
        specs.append(ShapeSpec(dims, stated_element_type(shape.element_type), layout))
    record.client = client_record(args.client)
    record.manager = record.client.client.create_buffers_for_async_host_to_device(
        specs, memory_space=memory_space_of(args.memory)
    )
    args.transfer_manager = <PJRT_AsyncHostToDeviceTransferManager *>keep(record)


cdef int _destroy(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_Destroy_Args *>raw
    if args.transfer_manager != NULL:
        manager = _record(args.transfer_manager).manager
        drop(<void *>args.transfer_manager)
        manager.close()


cdef int _transfer_data(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_TransferData_Args *>raw
    args.done_with_h2d_transfer = event_of(
        _record(args.transfer_manager).manager.transfer_data(
            args.buffer_index,
            host_memory(args.data, args.transfer_size, False),
            args.offset,
            is_last_transfer=args.is_last_transfer,
        )
    )


cdef int _transfer_literal(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *>raw
    shape = stated_shape(args.shape_dims, args.shape_num_dims, "the dimensions of a literal")
    dtype = stated_element_type(args.shape_element_type).dtype
    layout = stated_layout(args.shape_layout)
    strides = None if layout is None else dense_strides(layout, shape, dtype.itemsize)
    if args.data == NULL and 0 not in shape:
        raise InvalidArgumentError(f"expected a literal of shape {shape}, found a null pointer")
    array = host_array(<void *>args.data, shape, dtype, strides, False)
    args.done_with_h2d_transfer = event_of(
        _record(args.transfer_manager).manager.transfer_literal(args.buffer_index, array)
    )


cdef int _retrieve_buffer(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args *>raw
    cdef _ManagerRecord record = _record(args.transfer_manager)
    args.buffer_out = give_buffer(record.client, record.manager.retrieve_buffer(args.buffer_index))


cdef int _device(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_Device_Args *>raw
    cdef _ManagerRecord record = _record(args.transfer_manager)
    args.device_out = <PJRT_Device *>&record.client.device(record.manager.device).handle


cdef int _buffer_count(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args *>raw
    args.buffer_count = _record(args.transfer_manager).manager.buffer_count


cdef int _buffer_size(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args *>raw
    args.buffer_size = _record(args.transfer_manager).manager.buffer_size(args.buffer_index)


cdef int _set_buffer_error(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args *>raw
    error = python_error(args.error_code, args.error_message, args.error_message_size)
    _record(args.transfer_manager).manager.set_buffer_error(args.buffer_index, error)


cdef int _add_metadata(void *raw) except -1:
    args = <PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args *>raw
    metadata = read_named_values(args.transfer_metadata, args.num_metadata, "the metadata of a transfer")
    _record(args.transfer_manager).manager.add_metadata(metadata)


# Streams: the handle is the Python object itself.

cdef object _stream(PJRT_CopyToDeviceStream *handle):
    return <object><void *>handle


cdef PJRT_Error *_stream_destroy(PJRT_CopyToDeviceStream_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_CopyToDeviceStream_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_CopyToDeviceStream_Destroy_Args"
    )
    if error == NULL:
        drop(<void *>args.stream)
    return error


cdef int _stream_add_chunk(void *raw) except -1:
    args = <PJRT_CopyToDeviceStream_AddChunk_Args *>raw
    cdef PJRT_Chunk *chunk = args.chunk
    try:
        args.transfer_complete = event_of(_stream(args.stream).add_chunk((<char *>chunk.data)[:chunk.size]))
    finally:
        if chunk.deleter != NULL:
            chunk.deleter(chunk.data, chunk.deleter_arg)


cdef int _stream_total_bytes(void *raw) except -1:
    args = <PJRT_CopyToDeviceStream_TotalBytes_Args *>raw
    args.total_bytes = _stream(args.stream).total_bytes


cdef int _stream_granule_size(void *raw) except -1:
    args = <PJRT_CopyToDeviceStream_GranuleSize_Args *>raw
    args.granule_size_in_bytes = _stream(args.stream).granule_size


cdef int _stream_current_bytes(void *raw) except -1:
    args = <PJRT_CopyToDeviceStream_CurrentBytes_Args *>raw
    args.current_bytes = _stream(args.stream).current_bytes


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of transfers in pieces."""
    put(&table.PJRT_Client_CreateBuffersForAsyncHostToDevice, trampoline(_create_buffers))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_Destroy, quiet_trampoline(_destroy))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_TransferData, trampoline(_transfer_data))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_TransferLiteral, trampoline(_transfer_literal))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer, trampoline(_retrieve_buffer))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_Device, trampoline(_device))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_BufferCount, trampoline(_buffer_count))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_BufferSize, trampoline(_buffer_size))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_SetBufferError, trampoline(_set_buffer_error))
    put(&table.PJRT_AsyncHostToDeviceTransferManager_AddMetadata, trampoline(_add_metadata))
    table.PJRT_CopyToDeviceStream_Destroy = _stream_destroy
    put(&table.PJRT_CopyToDeviceStream_AddChunk, trampoline(_stream_add_chunk))
    put(&table.PJRT_CopyToDeviceStream_TotalBytes, trampoline(_stream_total_bytes))
    put(&table.PJRT_CopyToDeviceStream_GranuleSize, trampoline(_stream_granule_size))
    put(&table.PJRT_CopyToDeviceStream_CurrentBytes, trampoline(_stream_current_bytes))
