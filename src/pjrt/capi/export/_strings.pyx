"""Strings that a framework reads for as long as a handle lives."""


cdef class Strings:
    def __cinit__(self):
        self.keep = []

    cdef String add(self, string) except *:
        cdef String text
        cdef bytes data = string if isinstance(string, bytes) else str(string).encode("utf-8", "replace")
        self.keep.append(data)
        text.data = data
        text.size = len(data)
        return text
