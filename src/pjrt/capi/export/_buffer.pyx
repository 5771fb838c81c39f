"""Buffers shown to a framework: their properties, their lifetime, and copies of them.

A buffer's properties are read once, when it is first seen, and shared by all buffers of its type. The result of an
execution on a value path has no buffer in Python until something other than an execution uses it.
"""

cimport cython
from libc.stdint cimport int64_t, uintptr_t

from pjrt.capi._api cimport gate_enter, gate_leave
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block, NativeLayout, int64_block, native_layout
from pjrt.capi.export._array_type cimport stated_element_type, stated_layout, stated_shape
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._device cimport device_of, memory_space_of
from pjrt.capi.export._event cimport event_following, event_of, failed_event, release_completion
from pjrt.capi.export._gen_handles cimport BufferHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._trampolines cimport (
    drop, keep, notice_trampoline, pjrt_check_size, put, python_error, quiet_trampoline, trampoline
)

from pjrt.api.errors import InvalidArgumentError
from pjrt.api.future import Promise

cdef int _MOST_TEMPLATES = 4096


cdef class BufferTemplate:
    @staticmethod
    cdef BufferTemplate of(ClientRecord client, buffer):
        """Return the template of a buffer's type: the same one for all buffers of the type."""
        cdef BufferTemplate template
        shape, element_type, layout, space = buffer.shape, buffer.element_type, buffer.layout, buffer.memory_space
        dynamic, size, is_on_cpu = tuple(buffer.dynamic_dimensions), buffer.on_device_size, buffer.is_on_cpu
        key = (shape, int(element_type), layout, space, buffer.device, dynamic, size, is_on_cpu)
        template = client.templates.get(key)
        if template is not None:
            return template
        template = BufferTemplate.__new__(BufferTemplate)
        cdef BufferHandle *handle = &template.handle
        template.client = client
        template.shape = shape
        template.element_type = element_type
        template.data = HandleData()
        template.layout = native_layout(layout)
        handle.type = <PJRT_Buffer_Type><int>element_type
        template.data.add_int64s(shape, &handle.dims, &handle.num_dims)
        template.data.add_int64s(dynamic, <const int64_t **>&handle.dynamic_dim_indices, &handle.num_dynamic_dims)
        handle.layout = template.layout.value
        handle.on_device_size_in_bytes = size
        handle.device = <PJRT_Device *>&client.device(buffer.device).handle
        handle.memory = <PJRT_Memory *>&client.memory(space).handle
        handle.is_on_cpu = is_on_cpu
        if len(client.templates) >= _MOST_TEMPLATES:
            client.templates.clear()  # an execution compares templates, and finds out again what it has forgotten
        client.templates[key] = template
        return template


@cython.freelist(256)
cdef class BufferRecord:
    @staticmethod
    cdef BufferRecord of(ClientRecord client, buffer, BufferTemplate template):
        """Return a buffer's record, with the template of an earlier buffer that was made the same way, or ``None``."""
        cdef BufferRecord record = BufferRecord.__new__(BufferRecord)
        if template is None or template.shape != buffer.shape or template.element_type is not buffer.element_type:
            template = BufferTemplate.of(client, buffer)
        record._buffer = buffer
        record._fill(template)
        return record

    @staticmethod
    cdef BufferRecord of_value(value, maker, BufferTemplate template):
        """Return the record of a value, from which ``maker`` makes a buffer when one is needed."""
        cdef BufferRecord record = BufferRecord.__new__(BufferRecord)
        record._value = value
        record._maker = maker
        record._fill(template)
        return record

    def __dealloc__(self):
        release_completion(self.handle.completion)

    cdef void _fill(self, BufferTemplate template) noexcept:
        self.template = template
        self.handle = template.handle
        self.handle.record = <void *>self

    cdef object buffer(self):
        """Return the buffer, which is made now if nothing has needed it before."""
        if self._buffer is None:  # it is set once, so it can be read without a lock
            with cython.critical_section(self):
                maker, value = self._maker, self._value
            if maker is not None:  # no other thread has made it meanwhile
                buffer = maker(value)
                with cython.critical_section(self):
                    if self._buffer is None:
                        self._buffer = buffer
                        self._maker = None
        return self._buffer

    cdef object value(self, path):
        """Return the value for a value path, or ``None`` if the buffer has none."""
        if self.handle.is_deleted:
            return None
        with cython.critical_section(self):
            value = self._value
        if value is None:
            value = path.value(self._buffer)
            with cython.critical_section(self):
                if not self.handle.is_deleted:
                    self._value = value
        return value

    cdef PJRT_Buffer *give(self) noexcept:
        """Return the handle, which is the framework's from now on until it destroys it."""
        keep(self)
        return <PJRT_Buffer *>&self.handle

    cdef int delete(self) except -1:
        if self._buffer is not None:
            self._buffer.delete()
        self._forget()

    cdef int refresh(self) except -1:
        """Read whether the buffer was deleted or donated."""
        if self._buffer is not None and self._buffer.is_deleted:
            self._forget()

    cdef void _forget(self) noexcept:
        with cython.critical_section(self):
            self.handle.is_deleted = True
            self._value = None  # from which a deleted buffer is made, if one is needed


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
    shape = record.buffer().unpadded_shape
    args.num_dims = record.handle.num_dims
    if shape == record.template.shape:
        args.unpadded_dims = record.handle.dims
        return 0
    cdef Block block
    unpadded = {}  # made before the critical section: what allocates there lets another thread in
    with cython.critical_section(record):
        if record.unpadded is None:
            record.unpadded = unpadded
    block = record.unpadded.get(shape)
    if block is None:
        block = record.unpadded.setdefault(shape, int64_block(shape))
    args.unpadded_dims = <int64_t *>block.data


cdef int _delete(void *raw) except -1:
    buffer_record((<PJRT_Buffer_Delete_Args *>raw).buffer).delete()


cdef int _ready_event(void *raw) except -1:
    args = <PJRT_Buffer_ReadyEvent_Args *>raw
    args.event = event_of(buffer_record(args.buffer).buffer().ready())


cdef PJRT_Error *(*_ready_event_trampoline)(void *args) noexcept nogil


cdef PJRT_Error *_ready_event_or_failed(PJRT_Buffer_ReadyEvent_Args *args) noexcept nogil:
    # JAX ends the process if this fails, and it must fail once the interpreter is ending: the event carries the error.
    cdef PJRT_Error *error = pjrt_check_size(
        args, PJRT_Buffer_ReadyEvent_Args_FIRST_STRUCT_SIZE, b"PJRT_Buffer_ReadyEvent_Args"
    )
    if error != NULL:
        return error
    cdef BufferHandle *handle = <BufferHandle *>args.buffer
    if handle != NULL and handle.completion != NULL and not handle.is_deleted:
        args.event = event_following(handle.completion)
        if args.event != NULL:
            return NULL
    error = _ready_event_trampoline(args)
    if error == NULL or args.buffer == NULL:
        return error
    args.event = failed_event(error)
    return NULL if args.event != NULL else error


# Copies.

cdef int _copy_to_device(void *raw) except -1:
    args = <PJRT_Buffer_CopyToDevice_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer().copy_to(device_of(args.dst_device))
    args.dst_buffer = give_buffer(record.template.client, copy)


cdef int _copy_to_memory(void *raw) except -1:
    args = <PJRT_Buffer_CopyToMemory_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    copy = record.buffer().copy_to(memory_space_of(args.dst_memory))
    args.dst_buffer = give_buffer(record.template.client, copy)


cdef int _bitcast(void *raw) except -1:
    args = <PJRT_Buffer_Bitcast_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    cast = record.buffer().bitcast(
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
    donated = record.buffer().donate_with_control_dependency(promise.future)
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
    args.buffer_pointer = <uintptr_t>buffer_record(args.buffer).buffer().unsafe_pointer()


cdef int _increase_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_IncreaseExternalReferenceCount_Args *>raw).buffer)
    references = []  # made before the critical section: what allocates there lets another thread in
    with cython.critical_section(record):
        if record.references is None:
            record.references = references
    record.references.append(record.buffer().external_reference())


cdef int _decrease_references(void *raw) except -1:
    cdef BufferRecord record = buffer_record((<PJRT_Buffer_DecreaseExternalReferenceCount_Args *>raw).buffer)
    try:
        reference = (record.references or []).pop()
    except IndexError:  # in XLA's words
        raise InvalidArgumentError("Attempting to decrease reference on a buffer with zero reference count.") from None
    reference.release()


cdef int _device_pointer(void *raw) except -1:
    args = <PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *>raw
    cdef BufferRecord record = buffer_record(args.buffer)
    if record.references:
        args.device_memory_ptr = <void *><uintptr_t>record.references[0].pointer
    else:
        with record.buffer().external_reference() as reference:
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
