from pjrt.capi._gen_abi cimport PJRT_Buffer, PJRT_Client
from pjrt.capi._scope cimport ClientScope, Handle, pjrt_counter, pjrt_pointer

cdef class BufferCore(Handle):
    cdef pjrt_counter references
    cdef object _shape
    cdef object _element_type
    cdef object _layout
    cdef object _device
    cdef object _memory_space


cdef class ExternalReferenceCore:
    cdef BufferCore buffer
    cdef size_t address
    cdef pjrt_pointer held  # not null until the count was given back


cdef object new_buffer(ClientScope scope, PJRT_Buffer *native)


cdef object read_array(Handle buffer, object out, object layout)
cdef object copy_raw(Handle buffer, object out, object offset, object size)
cdef object copy_raw_later(Handle buffer, object out, object offset, object size)


cdef object from_host(ClientScope scope, object array, object device, object memory_space, object layout, object semantics, object on_done)
cdef object uninitialized(ClientScope scope, object spec, object memory_space)
cdef object of_error(ClientScope scope, object error, object spec, object memory_space)
cdef tuple alias(ClientScope scope, object spec, object memory_space)
cdef object view_of_device(ClientScope scope, object pointer, object spec, object device, object memory_space, object on_delete, object stream)
