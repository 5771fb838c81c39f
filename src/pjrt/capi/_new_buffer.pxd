from pjrt.capi._gen_abi cimport PJRT_Client
from pjrt.capi._scope cimport ClientScope


cdef object from_host(ClientScope scope, object array, object device, object memory_space, object layout, object semantics, object on_done)
cdef object uninitialized(ClientScope scope, object spec, object memory_space)
cdef object of_error(ClientScope scope, object error, object spec, object memory_space)
cdef tuple alias(ClientScope scope, object spec, object memory_space)
cdef object view_of_device(ClientScope scope, object pointer, object spec, object device, object memory_space, object on_delete, object stream)
