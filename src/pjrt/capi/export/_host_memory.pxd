cdef object host_memory(const void *data, size_t size, bint writable)
cdef object host_array(void *data, object shape, object dtype, object strides, bint writable)
