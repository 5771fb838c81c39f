from libc.stdint cimport int64_t

from pjrt.abi.generated.declarations cimport PJRT_Api, PJRT_Buffer_MemoryLayout, PJRT_Error, PJRT_NamedValue

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
cdef bytes encoded(object value, str what)


cdef class Block:
    """Memory that is freed with the object."""
    cdef void *data

    @staticmethod
    cdef Block of(size_t size)


cdef class NamedValues:
    """Named values for a call: the C array and what it points to."""
    cdef Block block
    cdef PJRT_NamedValue *data
    cdef size_t size
    cdef list keep

    cdef int _fill(self, PJRT_NamedValue *target, object name, object value, str what) except -1


cdef class NativeLayout:
    """A layout for a call: the C struct and what it points to."""
    cdef PJRT_Buffer_MemoryLayout value
    cdef PJRT_Buffer_MemoryLayout *pointer
    cdef Block block


cdef dict read_named_values(const PJRT_NamedValue *values, size_t number, str what)
cdef NativeLayout fitting_layout(object layout, size_t rank)
cdef NativeLayout native_layout(object layout)
cdef object read_layout(const PJRT_Buffer_MemoryLayout *layout)
cdef Block int64_block(object numbers)
cdef Block shape_block(object shape, object element_type)
cdef size_t address(object value, str what) except? 0
cdef int64_t whole(object value, str what, int bits=*) except? -1
cdef tuple read_int64s(const int64_t *numbers, size_t number, str what)
cdef tuple read_shape(const int64_t *numbers, size_t number, str what)
cdef object element_type(int number)


cdef bint gate_enter() noexcept nogil
cdef void gate_leave() noexcept nogil


cdef void *ticket_for(object thing) except NULL
cdef object redeem(void *ticket)
