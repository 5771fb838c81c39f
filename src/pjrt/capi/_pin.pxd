from pjrt.capi._scope cimport Scope


cdef class Pin:
    cdef Scope scope

    @staticmethod
    cdef Pin of(Scope scope)
