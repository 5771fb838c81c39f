from pjrt.capi._gen_abi cimport PJRT_Executable
from pjrt.capi._scope cimport Handle, Scope


cdef class ExecutableCore(Handle):
    cdef readonly str platform_name


cdef object new_executable(Scope scope, str platform, PJRT_Executable *native)
