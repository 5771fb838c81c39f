from pjrt.capi._scope cimport ClientScope


cdef object transfer_manager(ClientScope scope, object specs, object memory_space)
