from pjrt.abi.generated.declarations cimport PJRT_Buffer
from pjrt.capi._scope cimport ClientScope, Handle, pjrt_counter

cdef enum:
    NEVER_SEEN = 0
    PERHAPS_GONE = 1  # an execution may have donated it
    GONE = 2  # it was deleted or donated through this package


cdef class BufferCore(Handle):
    cdef pjrt_counter references
    cdef size_t standing
    cdef object _shape
    cdef object _element_type
    cdef object _layout
    cdef object _device
    cdef object _memory_space

    cdef void *alive(self) except NULL
    cdef bint is_gone(self) except -1
    cdef bint was_taken(self) except -1


cdef int check_range(object buffer, object offset, object size) except -1
cdef object new_buffer(ClientScope scope, PJRT_Buffer *native)
cdef object from_host(ClientScope scope, object array, object device, object memory_space, object layout, object semantics, object on_done)
cdef object uninitialized(ClientScope scope, object spec, object memory_space)
cdef object of_error(ClientScope scope, object error, object spec, object memory_space)
cdef tuple alias(ClientScope scope, object spec, object memory_space)
cdef object view_of_device(ClientScope scope, object pointer, object spec, object device, object memory_space, object on_delete, object stream)
