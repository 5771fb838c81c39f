from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._executable cimport ExecutableRecord
from pjrt.capi.export._gen_handles cimport LoadedExecutableHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class LoadedExecutableRecord:
    cdef LoadedExecutableHandle handle
    cdef ClientRecord client
    cdef readonly object loaded
    cdef object run_all
    cdef object run_one
    cdef object run_portable
    cdef object first
    cdef size_t num_outputs
    cdef HandleData data
    cdef Block logical_ids
    cdef list templates  # of the results, for each device; None until one is there
    cdef object path  # the value path; None if the program has none
    cdef object run_values
    cdef list makers
    cdef list parameters  # templates of arguments that the device has taken; None before the first execution
    cdef bytes fingerprint

    @staticmethod
    cdef LoadedExecutableRecord of(ClientRecord client, object loaded)
    cdef PJRT_LoadedExecutable *give(self) noexcept


cdef int fill_table(PJRT_Api *table) except -1
