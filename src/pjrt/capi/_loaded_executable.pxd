from pjrt.capi._execute_options cimport ExecuteCall
from pjrt.capi._gen_abi cimport PJRT_Buffer, PJRT_Event, PJRT_LoadedExecutable, PJRT_LoadedExecutable_Execute_Args
from pjrt.capi._scope cimport ClientScope, Handle


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
