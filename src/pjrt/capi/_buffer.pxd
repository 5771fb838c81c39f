from pjrt.abi.generated.declarations cimport PJRT_Buffer
from pjrt.capi._scope cimport ClientScope, Handle, pjrt_counter

cdef class BufferCore(Handle):
    cdef pjrt_counter references
    cdef object _shape
    cdef object _element_type
    cdef object _layout
    cdef object _device
    cdef object _memory_space


cdef object new_buffer(ClientScope scope, PJRT_Buffer *native)
cdef object from_host(ClientScope scope, object array, object device, object memory_space, object layout, object semantics, object on_done)
cdef object uninitialized(ClientScope scope, object spec, object memory_space)
cdef object of_error(ClientScope scope, object error, object spec, object memory_space)
cdef tuple alias(ClientScope scope, object spec, object memory_space)
cdef object view_of_device(ClientScope scope, object pointer, object spec, object device, object memory_space, object on_delete, object stream)
