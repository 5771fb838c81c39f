cdef struct String:
    const char *data
    size_t size

cdef class Strings:
    """Strings for the framework, alive as long as the object."""
    cdef list keep
    cdef String add(self, object string) except *
