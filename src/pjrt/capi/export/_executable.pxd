from libc.stdint cimport int64_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport NamedValues
from pjrt.capi.export._gen_handles cimport ExecutableHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class ExecutableRecord:
    cdef ExecutableHandle handle
    cdef readonly object executable
    cdef HandleData data
    cdef bytes fingerprint
    cdef object optimized
    cdef bytes optimized_format
    cdef NamedValues costs
    cdef const int *output_types
    cdef size_t num_output_types
    cdef const int64_t *output_dims
    cdef const int64_t *output_ranks
    cdef dict lists

    @staticmethod
    cdef ExecutableRecord of(object executable)
    cdef void *give(self) noexcept


cdef ExecutableRecord executable_record(const PJRT_Executable *executable)
cdef int string_list(
    ExecutableRecord record, str attribute, size_t *number, const char *const **starts, const size_t **sizes
) except -1
cdef int fill_table(PJRT_Api *table) except -1
