"""Buffers shown to a framework: what they are, their life, and copies of them.

What they are is read once, when a buffer is first seen, and shared by the buffers of one output of one executable.
"""

cimport cython
from libc.stdint cimport int64_t, uintptr_t

from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NativeLayout, element_type, int64_block, native_layout, read_int64s, read_layout
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._device cimport device_of, memory_space_of
from pjrt.capi.export._trampolines cimport drop, trampoline, keep, notice_trampoline, put, python_error, quiet_trampoline
from pjrt.capi.export._event cimport event_of, failed_event

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Promise


cdef class Facts:
    @staticmethod
    cdef Facts of(ClientRecord client, buffer):
        cdef Facts facts = Facts.__new__(Facts)
        cdef size_t index
        facts.client = client
        facts.shape = buffer.shape
        facts.element_type = buffer.element_type
        facts.type = <PJRT_Buffer_Type><int>buffer.element_type
        facts.dims = int64_block(facts.shape)
        facts.num_dims = len(facts.shape)
        facts.layout = native_layout(buffer.layout)
        facts.on_device_size = buffer.on_device_size
        facts.device = buffer.device
        facts.memory_space = buffer.memory_space
        facts.device_handle = <PJRT_Device *>&client.device(facts.device).handle
        facts.memory_handle = <PJRT_Memory *>&client.memory(facts.memory_space).handle
        facts.is_on_cpu = buffer.is_on_cpu
        dynamic = buffer.dynamic_dimensions
        facts.num_dynamic = len(dynamic)
        facts.dynamic = Block.of(len(dynamic) * sizeof(size_t))
        for index in range(facts.num_dynamic):
            (<size_t *>facts.dynamic.data)[index] = dynamic[index]
        return facts


@cython.freelist(256)
cdef class BufferRecord:
    @staticmethod
    cdef BufferRecord of(ClientRecord client, buffer, Facts like):
        """The record of a buffer; ``like`` has the facts of an earlier one that was made the same way, or is ``None``."""
        cdef BufferRecord record = BufferRecord.__new__(BufferRecord)
        cdef Facts facts = like
        if facts is None or facts.shape != buffer.shape or facts.element_type is not buffer.element_type:
            facts = Facts.of(client, buffer)
        record.buffer = buffer
        record.facts = facts
        cdef BufferHandle *handle = &record.handle
        handle.record = <void *>record
        handle.type = facts.type
        handle.dims = <int64_t *>facts.dims.data
        handle.num_dims = facts.num_dims
        handle.device = facts.device_handle
        handle.memory = facts.memory_handle
        handle.on_device_size = facts.on_device_size
        handle.is_on_cpu = facts.is_on_cpu
        handle.layout = facts.layout.pointer
        handle.dynamic = <size_t *>facts.dynamic.data
        handle.num_dynamic = facts.num_dynamic
        return record

    cdef PJRT_Buffer *give(self) noexcept:
        """The handle, which now is the framework's until it destroys it."""
        keep(self)
        return <PJRT_Buffer *>&self.handle

    cdef int refresh(self) except -1:
        """Learns whether the buffer was deleted or donated."""
        self.handle.is_deleted = self.buffer.is_deleted
        return 0


cdef BufferRecord buffer_record(PJRT_Buffer *buffer):
    """The record behind a buffer's handle."""
    if buffer == NULL:
        raise InvalidArgumentError("expected a buffer, found a null pointer")
    return <BufferRecord>(<BufferHandle *>buffer).record


# What it is: from C, without the GIL.

cdef PJRT_Error *_element_type(PJRT_Buffer_ElementType_Args *args) noexcept nogil:
    args.type = (<BufferHandle *>args.buffer).type
    return NULL


cdef PJRT_Error *_dimensions(PJRT_Buffer_Dimensions_Args *args) noexcept nogil:
    args.dims = (<BufferHandle *>args.buffer).dims
    args.num_dims = (<BufferHandle *>args.buffer).num_dims
    return NULL


cdef PJRT_Error *_dynamic_dimension_indices(PJRT_Buffer_DynamicDimensionIndices_Args *args) noexcept nogil:
    args.dynamic_dim_indices = (<BufferHandle *>args.buffer).dynamic
    args.num_dynamic_dims = (<BufferHandle *>args.buffer).num_dynamic
    return NULL


cdef PJRT_Error *_memory_layout(PJRT_Buffer_GetMemoryLayout_Args *args) noexcept nogil:
    args.layout = (<BufferHandle *>args.buffer).layout[0]
    return NULL


cdef PJRT_Error *_on_device_size(PJRT_Buffer_OnDeviceSizeInBytes_Args *args) noexcept nogil:
    args.on_device_size_in_bytes = (<BufferHandle *>args.buffer).on_device_size
    return NULL


cdef PJRT_Error *_device(PJRT_Buffer_Device_Args *args) noexcept nogil:
    args.device = (<BufferHandle *>args.buffer).device
    return NULL


cdef PJRT_Error *_memory(PJRT_Buffer_Memory_Args *args) noexcept nogil:
    args.memory = (<BufferHandle *>args.buffer).memory
    return NULL


cdef PJRT_Error *_is_on_cpu(PJRT_Buffer_IsOnCpu_Args *args) noexcept nogil:
    args.is_on_cpu = (<BufferHandle *>args.buffer).is_on_cpu
    return NULL


cdef PJRT_Error *_is_deleted(PJRT_Buffer_IsDeleted_Args *args) noexcept nogil:
    args.is_deleted = (<BufferHandle *>args.buffer).is_deleted
    return NULL


cdef int _unpadded_dimensions(void *raw) except -1:
    args = <PJRT_Buffer_UnpaddedDimensions_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    record.unpadded = int64_block(record.buffer.unpadded_shape)
    args.unpadded_dims = <int64_t *>record.unpadded.data
    args.num_dims = record.handle.num_dims
    return 0


# Its life.

cdef PJRT_Error *_destroy(PJRT_Buffer_Destroy_Args *args) noexcept nogil:
    if args.buffer != NULL:
        drop((<BufferHandle *>args.buffer).record)
    return NULL


cdef int _delete(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_Delete_Args *>raw).buffer)
    record.buffer.delete()
    record.handle.is_deleted = True
    return 0


cdef int _ready_event(void *raw) except -1:
    args = <PJRT_Buffer_ReadyEvent_Args *>raw
    args.event = event_of(buffer_record(args.buffer).buffer.ready())
    return 0


cdef PJRT_Error *(*_ready_event_trampoline)(void *args) noexcept nogil


cdef PJRT_Error *_ready_event_or_failed(PJRT_Buffer_ReadyEvent_Args *args) noexcept nogil:
    # JAX ends the process where this fails, as it must once the interpreter is ending: the error goes into the event.
    cdef PJRT_Error *error = _ready_event_trampoline(args)
    if error == NULL or args.buffer == NULL:
        return error
    args.event = failed_event(error)
    return NULL if args.event != NULL else error


# Copies.

cdef int _copy_to_device(void *raw) except -1:
    args = <PJRT_Buffer_CopyToDevice_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer.copy_to(device_of(args.dst_device))
    args.dst_buffer = BufferRecord.of(record.facts.client, copy, None).give()
    return 0


cdef int _copy_to_memory(void *raw) except -1:
    args = <PJRT_Buffer_CopyToMemory_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer.copy_to(memory_space_of(args.dst_memory))
    args.dst_buffer = BufferRecord.of(record.facts.client, copy, None).give()
    return 0


cdef int _bitcast(void *raw) except -1:
    args = <PJRT_Buffer_Bitcast_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    cast = record.buffer.bitcast(
        element_type(args.element_type),
        read_int64s(args.dims, args.num_dims, "the dimensions of a buffer"),
        None if args.device_layout == NULL else read_layout(args.device_layout),
    )
    args.out_buffer = BufferRecord.of(record.facts.client, cast, None).give()
    record.refresh()
    return 0


cdef class _Dependency:
    """A framework's promise that a donation waits for: it calls back once, with an error or without."""

    cdef object promise


cdef int _donate_with_control_dependency(void *raw) except -1:
    args = <PJRT_Buffer_DonateWithControlDependency_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    cdef _Dependency dependency = _Dependency()
    dependency.promise = Promise()
    donated = record.buffer.donate_with_control_dependency(dependency.promise.future)
    args.out_buffer = BufferRecord.of(record.facts.client, donated, None).give()
    args.callback_data = keep(dependency)
    args.dependency_ready_callback = _dependency_ready
    record.refresh()
    return 0


cdef void _dependency_ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) noexcept nogil:
    if gate_enter():
        _keep_dependency(args)
        gate_leave()


cdef void _keep_dependency(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) noexcept with gil:
    dependency = <_Dependency>args.callback_data
    drop(args.callback_data)
    if args.error_code == PJRT_Error_Code_OK:
        dependency.promise.set_result(None)
    else:
        dependency.promise.set_error(python_error(args.error_code, args.error_message, args.error_message_size))


# Its memory in other hands.

cdef int _unsafe_pointer(void *raw) except -1:
    args = <PJRT_Buffer_UnsafePointer_Args *>raw
    args.buffer_pointer = <uintptr_t>buffer_record(args.buffer).buffer.unsafe_pointer()
    return 0


cdef int _increase_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_IncreaseExternalReferenceCount_Args *>raw).buffer)
    if record.references is None:
        record.references = []
    record.references.append(record.buffer.external_reference())
    return 0


cdef int _decrease_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_DecreaseExternalReferenceCount_Args *>raw).buffer)
    if not record.references:
        raise InvalidArgumentError("Attempting to decrease reference on a buffer with zero reference count.")  # XLA's words
    record.references.pop().release()
    return 0


cdef int _device_pointer(void *raw) except -1:
    args = <PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    if record.references:
        args.device_memory_ptr = <void *><uintptr_t>record.references[0].pointer
        return 0
    with record.buffer.external_reference() as reference:
        args.device_memory_ptr = <void *><uintptr_t>reference.pointer
    return 0


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of buffers, but for those that make them or bring them to the host."""
    table.PJRT_Buffer_ElementType = _element_type
    table.PJRT_Buffer_Dimensions = _dimensions
    table.PJRT_Buffer_DynamicDimensionIndices = _dynamic_dimension_indices
    table.PJRT_Buffer_GetMemoryLayout = _memory_layout
    table.PJRT_Buffer_OnDeviceSizeInBytes = _on_device_size
    table.PJRT_Buffer_Device = _device
    table.PJRT_Buffer_Memory = _memory
    table.PJRT_Buffer_IsOnCpu = _is_on_cpu
    table.PJRT_Buffer_IsDeleted = _is_deleted
    table.PJRT_Buffer_Destroy = _destroy
    put(table, SLOT_PJRT_Buffer_UnpaddedDimensions, trampoline(_unpadded_dimensions))
    put(table, SLOT_PJRT_Buffer_Delete, quiet_trampoline(_delete))
    global _ready_event_trampoline
    _ready_event_trampoline = <PJRT_Error *(*)(void *) noexcept nogil>trampoline(_ready_event)
    table.PJRT_Buffer_ReadyEvent = _ready_event_or_failed
    put(table, SLOT_PJRT_Buffer_CopyToDevice, trampoline(_copy_to_device))
    put(table, SLOT_PJRT_Buffer_CopyToMemory, trampoline(_copy_to_memory))
    put(table, SLOT_PJRT_Buffer_Bitcast, trampoline(_bitcast))
    put(table, SLOT_PJRT_Buffer_DonateWithControlDependency, trampoline(_donate_with_control_dependency))
    put(table, SLOT_PJRT_Buffer_UnsafePointer, trampoline(_unsafe_pointer))
    put(table, SLOT_PJRT_Buffer_IncreaseExternalReferenceCount, trampoline(_increase_references))
    put(table, SLOT_PJRT_Buffer_DecreaseExternalReferenceCount, notice_trampoline(_decrease_references))
    put(table, SLOT_PJRT_Buffer_OpaqueDeviceMemoryDataPointer, trampoline(_device_pointer))
    return 0
