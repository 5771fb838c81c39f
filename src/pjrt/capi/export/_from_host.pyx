"""New buffers for a framework: of its memory, over memory of the device, or without a value yet."""

from libc.stdint cimport int64_t, uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport read_int64s
from pjrt.capi.export._array_type cimport stated_element_type, stated_layout, stated_shape
from pjrt.capi.export._buffer cimport buffer_record, give_buffer
from pjrt.capi.export._client cimport ClientRecord, client_record
from pjrt.capi.export._device cimport device_of, memory_space_of
from pjrt.capi.export._event cimport event_of, loan_event_of
from pjrt.capi.export._host_memory cimport host_array
from pjrt.capi.export._trampolines cimport drop, has_field, keep, put, python_error, trampoline, with_payloads

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Promise
from pjrt.api.shape_spec import ShapeSpec

cdef list _SEMANTICS = [HostBufferSemantics(number) for number in range(4)]
# The semantics by which the device may use the host's memory for as long as the buffer lives.
cdef tuple _LOANS = (HostBufferSemantics.IMMUTABLE_ZERO_COPY, HostBufferSemantics.MUTABLE_ZERO_COPY)


cdef object _spec(const int64_t *dims, size_t num_dims, PJRT_Buffer_Type type, PJRT_Buffer_MemoryLayout *layout):
    return ShapeSpec(
        stated_shape(dims, num_dims, "the dimensions of a buffer"),
        stated_element_type(type),
        stated_layout(layout),
    )


cdef int _expect_place(const PJRT_Device *device, const PJRT_Memory *memory) except -1:
    if device == NULL and memory == NULL:
        raise InvalidArgumentError("expected a device or a memory for a new buffer, found two null pointers")


cdef int _buffer_from_host_buffer(void *raw) except -1:
    args = <PJRT_Client_BufferFromHostBuffer_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    _expect_place(args.device, args.memory)
    shape = stated_shape(args.dims, args.num_dims, "the dimensions of a buffer")
    if args.data == NULL and 0 not in shape:
        raise InvalidArgumentError(f"expected the host memory of an array of shape {shape}, found a null pointer")
    strides = None
    if args.byte_strides != NULL and args.num_byte_strides:
        strides = read_int64s(args.byte_strides, args.num_byte_strides, "the strides of a host buffer")
        if len(strides) != len(shape):
            raise InvalidArgumentError(f"expected {len(shape)} strides, one a dimension, found {len(strides)}")
    if not 0 <= <int>args.host_buffer_semantics < 4:
        raise InvalidArgumentError(f"host buffer semantics are 0 to 3, found {<int>args.host_buffer_semantics}")
    semantics = _SEMANTICS[<int>args.host_buffer_semantics]
    mutable = semantics is HostBufferSemantics.MUTABLE_ZERO_COPY
    array = host_array(<void *>args.data, shape, stated_element_type(args.type).dtype, strides, mutable)
    done = Promise()
    buffer = record.client.buffer_from_host(
        array,
        device=None if args.memory != NULL else device_of(args.device),
        memory_space=memory_space_of(args.memory),
        layout=stated_layout(args.device_layout),
        semantics=semantics,
        on_done_with_host_buffer=lambda: done.set_result(None),
    )
    args.done_with_host_buffer = loan_event_of(done.future) if semantics in _LOANS else event_of(done.future)
    args.buffer = give_buffer(record, buffer)


cdef int _create_uninitialized_buffer(void *raw) except -1:
    args = <PJRT_Client_CreateUninitializedBuffer_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    _expect_place(args.device, args.memory)
    spec = _spec(args.shape_dims, args.shape_num_dims, args.shape_element_type, args.shape_layout)
    space = memory_space_of(args.memory)
    if space is None and args.device != NULL:
        space = device_of(args.device).default_memory_space
    args.buffer = give_buffer(record, record.client.create_uninitialized_buffer(spec, memory_space=space))


cdef int _create_error_buffer(void *raw) except -1:
    args = <PJRT_Client_CreateErrorBuffer_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    spec = _spec(args.shape_dims, args.shape_num_dims, args.shape_element_type, args.shape_layout)
    error = python_error(args.error_code, args.error_message, args.error_message_size)
    if has_field(args, &args.num_payload, sizeof(size_t)):
        error = with_payloads(error, args.payload, args.num_payload)
    buffer = record.client.create_error_buffer(error, spec, memory_space=memory_space_of(args.memory))
    args.buffer = give_buffer(record, buffer)


cdef int _create_alias_buffer(void *raw) except -1:
    args = <PJRT_Client_CreateAliasBuffer_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    spec = _spec(args.shape_dims, args.shape_num_dims, args.shape_element_type, args.shape_layout)
    buffer, fulfillment = record.client.create_alias_buffer(spec, memory_space=memory_space_of(args.memory))
    args.alias_buffer = give_buffer(record, buffer)
    args.fulfill_alias_buffer_cb = <PJRT_FulfillAliasBufferCallback *>keep(fulfillment)


cdef int _fulfill_alias_buffer(void *raw) except -1:
    args = <PJRT_Client_FulfillAliasBuffer_Args *>raw
    if args.fulfill_alias_buffer_cb == NULL:
        raise InvalidArgumentError("expected the callback handle of an alias buffer, found a null pointer")
    fulfillment = <object><void *>args.fulfill_alias_buffer_cb
    drop(<void *>args.fulfill_alias_buffer_cb)
    if args.status_code == PJRT_Error_Code_OK:
        fulfillment.fulfill(buffer_record(args.buffer).buffer())
    else:
        fulfillment.fail(python_error(args.status_code, args.error_message, args.error_message_size))


cdef class _OnDelete:
    """A framework's callback for the end of a view; it is called once, without the GIL."""

    cdef void (*function)(void *pointer, void *user_arg) noexcept nogil
    cdef void *pointer
    cdef void *user_arg

    def __call__(self):
        function = self.function
        self.function = NULL
        if function != NULL:
            with nogil:
                function(self.pointer, self.user_arg)


cdef int _create_view_of_device_buffer(void *raw) except -1:
    args = <PJRT_Client_CreateViewOfDeviceBuffer_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    cdef _OnDelete on_delete = None
    cdef PJRT_Memory *memory = args.memory if has_field(args, &args.memory, sizeof(PJRT_Memory *)) else NULL
    _expect_place(args.device, memory)
    if args.on_delete_callback != NULL:
        on_delete = _OnDelete()
        on_delete.function = <void (*)(void *, void *) noexcept nogil>args.on_delete_callback
        on_delete.pointer = args.device_buffer_ptr
        on_delete.user_arg = args.on_delete_callback_arg
    buffer = record.client.create_view_of_device_buffer(
        <uintptr_t>args.device_buffer_ptr,
        _spec(args.dims, args.num_dims, args.element_type, args.layout),
        device=None if memory != NULL else device_of(args.device),
        memory_space=memory_space_of(memory),
        on_delete=on_delete,
        stream=args.stream or None,
    )
    args.buffer = give_buffer(record, buffer)


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions that make buffers."""
    put(&table.PJRT_Client_BufferFromHostBuffer, trampoline(_buffer_from_host_buffer))
    put(&table.PJRT_Client_CreateUninitializedBuffer, trampoline(_create_uninitialized_buffer))
    put(&table.PJRT_Client_CreateErrorBuffer, trampoline(_create_error_buffer))
    put(&table.PJRT_Client_CreateAliasBuffer, trampoline(_create_alias_buffer))
    put(&table.PJRT_Client_FulfillAliasBuffer, trampoline(_fulfill_alias_buffer))
    put(&table.PJRT_Client_CreateViewOfDeviceBuffer, trampoline(_create_view_of_device_buffer))
