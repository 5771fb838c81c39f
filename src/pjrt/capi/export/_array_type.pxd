from libc.stdint cimport int64_t

from pjrt.abi.generated.declarations cimport PJRT_Buffer_MemoryLayout


cdef object stated_element_type(int number)
cdef tuple stated_shape(const int64_t *dims, size_t num_dims, str what)
cdef object stated_layout(const PJRT_Buffer_MemoryLayout *layout)
cdef tuple dense_strides(object layout, object shape, size_t itemsize)
