from libc.stdint cimport int64_t

from pjrt.abi.generated.declarations cimport PJRT_NamedValue


cdef class HandleData:
    """The strings and arrays that a framework reads through one handle; they live as long as this object."""
    cdef list owners

    cdef int add_string(self, object value, const char **start, size_t *size) except -1
    cdef int add_strings(
        self, object values, const char *const **starts, const size_t **sizes, size_t *number
    ) except -1
    cdef int add_pointers(self, list addresses, void *start, size_t *number) except -1
    cdef int add_ints(self, object values, const int **start, size_t *number) except -1
    cdef int add_int64s(self, object values, const int64_t **start, size_t *number) except -1
    cdef int add_named_values(self, object values, str what, const PJRT_NamedValue **start, size_t *number) except -1
