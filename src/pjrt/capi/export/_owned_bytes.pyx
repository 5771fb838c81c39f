"""Bytes that a framework owns: it frees them when it likes, and without Python."""

from libc.stdlib cimport free

cdef extern from "pjrt_support/error.h" nogil:
    char *pjrt_copy_bytes(const char *data, size_t size)


cdef int give_bytes(bytes data, const char **fields) except -1:
    """Copy bytes for the framework, which keeps the copy until it calls the deleter with the holder.

    Args:
        data: the bytes.
        fields: the first of the four fields that every struct of the ABI that returns such bytes has in a row:
            those of ``OwnedBytes``.
    """
    cdef OwnedBytes *owned = <OwnedBytes *>fields
    cdef size_t size = len(data)
    cdef char *copy = pjrt_copy_bytes(data, size)
    if copy == NULL:
        raise MemoryError(f"no {size} bytes of memory for serialized data")
    owned.start = copy
    owned.size = size
    owned.holder = copy
    owned.deleter = free
