cdef struct Text:
    const char *data
    size_t size

cdef class Texts:
    """Strings for the framework, alive as long as the object."""
    cdef list keep
    cdef Text add(self, object string) except *
