cdef int give_bytes(bytes data, const char **start, size_t *size, void **holder, void **deleter) except -1
