from pjrt.abi.generated.declarations cimport PJRT_Executable, PJRT_LoadedExecutable
from pjrt.capi._scope cimport ClientScope, Handle, Scope


cdef class ExecutableCore(Handle):
    cdef readonly str platform_name
    cdef bint _call_shardings(self, size_t slot, void *args) except -1


cdef object new_executable(Scope scope, str platform, PJRT_Executable *native)
cdef object new_loaded_executable(ClientScope scope, PJRT_LoadedExecutable *native, object source)
cdef object new_context(ClientScope scope)
