from cpython.buffer cimport Py_buffer


cdef class HostMemory:
    """Memory of a Python object, held until the object is dropped."""
    cdef Py_buffer view
    cdef bint held

    @staticmethod
    cdef HostMemory of(object source, bint writable, str what)
    cdef void *at(self, ssize_t offset, ssize_t size) except NULL
