from pjrt.capi._gen_abi cimport (
    PJRT_Buffer, PJRT_Event, PJRT_Executable, PJRT_ExecuteOptions, PJRT_LoadedExecutable,
    PJRT_LoadedExecutable_Execute_Args
)
from pjrt.capi._scope cimport ClientScope, ClosableHandle, Handle, Scope

cdef class ExecutableCore(Handle):
    cdef readonly str platform_name


cdef object new_executable(Scope scope, str platform, PJRT_Executable *native)


cdef class LoadedExecutableCore(Handle):
    cdef object executable_
    cdef size_t outputs
    cdef tuple _devices

    cdef list run(self, list arguments, object device, object options, object futures)
    cdef list _run_pinned(self, list arguments, object device, object options, object futures)
    cdef int _lay_out(
        self, PJRT_LoadedExecutable_Execute_Args *args, void **pointers, list arguments, size_t num_devices, size_t num_args
    ) except -1
    cdef PJRT_Buffer *_argument(self, object argument, size_t device, size_t position) except NULL
    cdef int _give_futures(self, PJRT_Event **events, size_t num_devices, ExecuteCall call, object futures) except -1
    cdef list _take_outputs(self, PJRT_Buffer **const *lists, size_t num_devices)


cdef object new_loaded_executable(ClientScope scope, PJRT_LoadedExecutable *native)


cdef class ExecuteCall:
    cdef PJRT_ExecuteOptions options
    cdef list keep
    cdef Handle held
    cdef bint outlives


cdef ExecuteCall execute_call(ClientScope scope, object options, size_t num_devices)


cdef class ContextCore(ClosableHandle):
    pass


cdef object new_context(ClientScope scope)
