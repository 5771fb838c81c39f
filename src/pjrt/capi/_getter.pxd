cimport cython

from pjrt.capi._scope cimport Native


cdef class Question:
    cdef size_t slot
    cdef size_t size
    cdef int kind
    cdef size_t handle_at
    cdef size_t answer_at
    cdef size_t length_at
    cdef size_t owner_at
    cdef size_t deleter_at
    cdef str what
    cdef object cls
    cdef str name
    cdef bint binary
    cdef str doc

    @cython.final
    cdef int check(self, object instance) except -1
    @cython.final
    cdef object ask(self, Native native)
    @cython.final
    cdef object _read(self, Native native, const char *args)


cdef class Getter(Question):
    pass


cdef class Constant(Question):
    pass
