from pjrt.capi._gen_abi cimport PJRT_Buffer
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
