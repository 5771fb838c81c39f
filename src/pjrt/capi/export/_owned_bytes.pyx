"""Bytes that are handed over: the framework frees them, whenever it likes, without Python."""

from libc.stdlib cimport free

cdef extern from "pjrt_support/error.h" nogil:
    char *pjrt_copy_bytes(const char *data, size_t size)


cdef int give_bytes(bytes data, const char **start, size_t *size, void **holder, void **deleter) except -1:
    """Bytes that the framework keeps until it calls the deleter with the holder, which is the start of the bytes."""
    cdef size_t length = len(data)
    cdef char *copy = pjrt_copy_bytes(data, length)
    if copy == NULL:
        raise MemoryError(f"no {length} bytes of memory to hand out")
    start[0] = copy
    size[0] = length
    holder[0] = copy
    deleter[0] = <void *>free
    return 0
