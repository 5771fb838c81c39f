from pjrt.capi._gen_abi cimport PJRT_Api, PJRT_Error, PJRT_Extension_Base

ctypedef PJRT_Error *(*function_t)(void *args) noexcept nogil
ctypedef void (*deleter_t)(void *owner) noexcept nogil


cdef class Api:
    cdef const PJRT_Api *table
    cdef size_t readable
    cdef readonly str path
    cdef readonly int major_version
    cdef readonly int minor_version
    cdef object _extensions
    cdef object _owner

    @staticmethod
    cdef Api of(const PJRT_Api *table, str path, object owner)
    cdef size_t _expected_size(self) except? 0
    cdef object _payloads(self, PJRT_Error *error)
    cdef void _swallow(self, PJRT_Error *error) noexcept
    cdef function_t find(self, size_t slot) except NULL
    cdef function_t find_in_extension(self, size_t slot) except? NULL
    cdef int call(self, size_t slot, void *args) except -1
    cdef int drop(self, size_t slot, void *handle) except -1
    cdef object take_error(self, PJRT_Error *error)
    cdef object read_error(self, PJRT_Error *error)
    cdef void destroy_error(self, PJRT_Error *error) noexcept
    cdef void *extension(self, int kind, size_t needed) except NULL


cdef void start(void *args, size_t size) noexcept nogil
cdef str text(const char *data, size_t size, str what)
cdef bytes blob(const char *data, size_t size, str what)
cdef bytes take_blob(const char *data, size_t size, str what, void *owner, deleter_t deleter)
cdef size_t count(size_t number, const void *array, str what) except? 1
