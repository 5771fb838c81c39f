cdef struct OwnedBytes:
    const char *start
    size_t size
    void *holder
    void (*deleter)(void *holder) noexcept nogil

cdef int give_bytes(bytes data, const char **fields) except -1
