from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues
from pjrt.capi.export._strings cimport String, Strings

cdef struct ExecutableHandle:
    void *record
    String name
    size_t num_replicas
    size_t num_partitions
    size_t num_outputs


cdef class ExecutableRecord:
    cdef ExecutableHandle handle
    cdef readonly object executable
    cdef Strings strings
    cdef String fingerprint
    cdef object optimized
    cdef String optimized_format
    cdef NamedValues costs
    cdef Block element_types
    cdef Block dimensions
    cdef Block ranks
    cdef dict lists

    @staticmethod
    cdef ExecutableRecord of(object executable)
    cdef void *give(self) noexcept


cdef ExecutableRecord executable_record(const PJRT_Executable *executable)
cdef int string_list(
    ExecutableRecord record, str attribute, size_t *length, const char *const **starts, const size_t **sizes
) except -1
cdef int fill_table(PJRT_Api *table) except -1
