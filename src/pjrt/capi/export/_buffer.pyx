"""Buffers shown to a framework: their properties, their lifetime, and copies of them.

A buffer's properties are read once, when it is first seen, and shared by the buffers of one output of one executable.
"""

cimport cython
from libc.stdint cimport int64_t, uintptr_t

from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NativeLayout, int64_block, native_layout
from pjrt.capi.export._array_type cimport stated_element_type, stated_layout, stated_shape
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._device cimport device_of, memory_space_of
from pjrt.capi.export._event cimport event_of, failed_event
from pjrt.capi.export._gen_handles cimport BufferHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._trampolines cimport (
    drop, keep, notice_trampoline, pjrt_check_size, put, python_error, quiet_trampoline, trampoline
)

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Promise


cdef class BufferTemplate:
    @staticmethod
    cdef BufferTemplate of(ClientRecord client, buffer):
        cdef BufferTemplate template = BufferTemplate.__new__(BufferTemplate)
        cdef BufferHandle *handle = &template.handle
        template.client = client
        template.shape = buffer.shape
        template.element_type = buffer.element_type
        template.data = HandleData()
        template.layout = native_layout(buffer.layout)
        handle.type = <PJRT_Buffer_Type><int>buffer.element_type
        template.data.add_int64s(template.shape, &handle.dims, &handle.num_dims)
        template.data.add_int64s(
            buffer.dynamic_dimensions, <const int64_t **>&handle.dynamic_dim_indices, &handle.num_dynamic_dims
        )
        handle.layout = template.layout.value
        handle.on_device_size_in_bytes = buffer.on_device_size
        handle.device = <PJRT_Device *>&client.device(buffer.device).handle
        handle.memory = <PJRT_Memory *>&client.memory(buffer.memory_space).handle
        handle.is_on_cpu = buffer.is_on_cpu
        return template


@cython.freelist(256)
cdef class BufferRecord:
    @staticmethod
    cdef BufferRecord of(ClientRecord client, buffer, BufferTemplate template):
        """Return a buffer's record, with the template of an earlier buffer that was made the same way, or ``None``."""
        cdef BufferRecord record = BufferRecord.__new__(BufferRecord)
        if template is None or template.shape != buffer.shape or template.element_type is not buffer.element_type:
            template = BufferTemplate.of(client, buffer)
        record.buffer = buffer
        record.template = template
        record.handle = template.handle
        record.handle.record = <void *>record
        return record

    cdef PJRT_Buffer *give(self) noexcept:
        """Return the handle, which is the framework's from now on until it destroys it."""
        keep(self)
        return <PJRT_Buffer *>&self.handle

    cdef int refresh(self) except -1:
        """Read whether the buffer was deleted or donated."""
        self.handle.is_deleted = self.buffer.is_deleted


cdef PJRT_Buffer *give_buffer(ClientRecord client, buffer) except NULL:
    """Return a handle of a buffer that nothing is known of yet; the handle is the framework's."""
    return BufferRecord.of(client, buffer, None).give()


cdef BufferRecord buffer_record(PJRT_Buffer *buffer):
    """Return the record behind a buffer's handle."""
    if buffer == NULL:
        raise InvalidArgumentError("expected a buffer, found a null pointer")
    return <BufferRecord>(<BufferHandle *>buffer).record


cdef int _unpadded_dimensions(void *raw) except -1:
    args = <PJRT_Buffer_UnpaddedDimensions_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    shape = record.buffer.unpadded_shape
    args.num_dims = record.handle.num_dims
    if shape == record.template.shape:
        args.unpadded_dims = record.handle.dims
        return 0
    if record.unpadded is None:
        record.unpadded = {}
    cdef Block block = record.unpadded.get(shape)
    if block is None:
        block = record.unpadded[shape] = int64_block(shape)
    args.unpadded_dims = <int64_t *>block.data


cdef int _delete(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_Delete_Args *>raw).buffer)
    record.buffer.delete()
    record.handle.is_deleted = True


cdef int _ready_event(void *raw) except -1:
    args = <PJRT_Buffer_ReadyEvent_Args *>raw
    args.event = event_of(buffer_record(args.buffer).buffer.ready())


cdef PJRT_Error *(*_ready_event_trampoline)(void *args) noexcept nogil


cdef PJRT_Error *_ready_event_or_failed(PJRT_Buffer_ReadyEvent_Args *args) noexcept nogil:
    # JAX ends the process if this fails, and it must fail once the interpreter is ending: the event carries the error.
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_Buffer_ReadyEvent_Args_FIRST_STRUCT_SIZE, b"PJRT_Buffer_ReadyEvent_Args"
    )
    if error != NULL:
        return error
    error = _ready_event_trampoline(args)
    if error == NULL or args.buffer == NULL:
        return error
    args.event = failed_event(error)
    return NULL if args.event != NULL else error


# Copies.

cdef int _copy_to_device(void *raw) except -1:
    args = <PJRT_Buffer_CopyToDevice_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer.copy_to(device_of(args.dst_device))
    args.dst_buffer = give_buffer(record.template.client, copy)


cdef int _copy_to_memory(void *raw) except -1:
    args = <PJRT_Buffer_CopyToMemory_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer.copy_to(memory_space_of(args.dst_memory))
    args.dst_buffer = give_buffer(record.template.client, copy)


cdef int _bitcast(void *raw) except -1:
    args = <PJRT_Buffer_Bitcast_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    cast = record.buffer.bitcast(
        stated_element_type(args.element_type),
        stated_shape(args.dims, args.num_dims, "the dimensions of a buffer"),
        stated_layout(args.device_layout),
    )
    args.out_buffer = give_buffer(record.template.client, cast)
    record.refresh()


cdef int _donate_with_control_dependency(void *raw) except -1:
    args = <PJRT_Buffer_DonateWithControlDependency_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    promise = Promise()  # the framework calls back once, with an error or without
    donated = record.buffer.donate_with_control_dependency(promise.future)
    args.out_buffer = give_buffer(record.template.client, donated)
    args.callback_data = keep(promise)
    args.dependency_ready_callback = _dependency_ready
    record.refresh()


cdef void _dependency_ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) noexcept nogil:
    if gate_enter():
        _set_dependency(args)
        gate_leave()


cdef void _set_dependency(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) noexcept with gil:
    promise = <object>args.callback_data
    drop(args.callback_data)
    if args.error_code == PJRT_Error_Code_OK:
        promise.set_result(None)
    else:
        promise.set_error(python_error(args.error_code, args.error_message, args.error_message_size))


# Its memory, used by others.

cdef int _unsafe_pointer(void *raw) except -1:
    args = <PJRT_Buffer_UnsafePointer_Args *>raw
    args.buffer_pointer = <uintptr_t>buffer_record(args.buffer).buffer.unsafe_pointer()


cdef int _increase_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_IncreaseExternalReferenceCount_Args *>raw).buffer)
    if record.references is None:
        record.references = []
    record.references.append(record.buffer.external_reference())


cdef int _decrease_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_DecreaseExternalReferenceCount_Args *>raw).buffer)
    if not record.references:
        # In XLA's words.
        raise InvalidArgumentError("Attempting to decrease reference on a buffer with zero reference count.")
    record.references.pop().release()


cdef int _device_pointer(void *raw) except -1:
    args = <PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    if record.references:
        args.device_memory_ptr = <void *><uintptr_t>record.references[0].pointer
    else:
        with record.buffer.external_reference() as reference:
            args.device_memory_ptr = <void *><uintptr_t>reference.pointer


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of buffers that are no plain getters, make no buffers, and copy nothing to the host."""
    put(&table.PJRT_Buffer_UnpaddedDimensions, trampoline(_unpadded_dimensions))
    put(&table.PJRT_Buffer_Delete, quiet_trampoline(_delete))
    global _ready_event_trampoline
    _ready_event_trampoline = <PJRT_Error *(*)(void *) noexcept nogil>trampoline(_ready_event)
    table.PJRT_Buffer_ReadyEvent = _ready_event_or_failed
    put(&table.PJRT_Buffer_CopyToDevice, trampoline(_copy_to_device))
    put(&table.PJRT_Buffer_CopyToMemory, trampoline(_copy_to_memory))
    put(&table.PJRT_Buffer_Bitcast, trampoline(_bitcast))
    put(&table.PJRT_Buffer_DonateWithControlDependency, trampoline(_donate_with_control_dependency))
    put(&table.PJRT_Buffer_UnsafePointer, trampoline(_unsafe_pointer))
    put(&table.PJRT_Buffer_IncreaseExternalReferenceCount, trampoline(_increase_references))
    put(&table.PJRT_Buffer_DecreaseExternalReferenceCount, notice_trampoline(_decrease_references))
    put(&table.PJRT_Buffer_OpaqueDeviceMemoryDataPointer, trampoline(_device_pointer))
