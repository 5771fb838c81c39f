from libc.stdint cimport int64_t

from pjrt.capi._gen_abi cimport PJRT_Buffer_MemoryLayout, PJRT_NamedValue



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
cdef NativeLayout native_layout(object layout)
cdef object read_layout(const PJRT_Buffer_MemoryLayout *layout)
cdef Block int64_block(object numbers)
cdef int64_t whole(object value, str what, int bits=*) except? -1
cdef tuple read_int64s(const int64_t *numbers, size_t number, str what)
cdef tuple read_shape(const int64_t *numbers, size_t number, str what)
cdef object element_type(int number)
