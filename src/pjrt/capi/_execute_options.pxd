from pjrt.capi._gen_abi cimport PJRT_ExecuteOptions
from pjrt.capi._scope cimport ClientScope, ClosableHandle, Handle


cdef class ExecuteCall:
    cdef PJRT_ExecuteOptions options
    cdef list keep
    cdef Handle held
    cdef bint outlives


cdef ExecuteCall execute_call(ClientScope scope, object options, size_t num_devices)


cdef class ContextCore(ClosableHandle):
    pass


cdef object new_context(ClientScope scope)
