"""Memory of Python objects that a plugin reads or writes."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer

from pjrt.api.errors import InvalidArgumentError, OutOfRangeError

cdef char _EMPTY = 0


cdef class HostMemory:
    @staticmethod
    cdef HostMemory of(source, bint writable, str what):
        """Hold the bytes of an object with the buffer protocol, so that their address stays the same meanwhile.

        Raises:
            InvalidArgumentError: the object has no bytes in one piece, or they cannot be written to.
        """
        cdef HostMemory memory = HostMemory.__new__(HostMemory)
        try:
            PyObject_GetBuffer(source, &memory.view, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        except (BufferError, TypeError, ValueError) as error:
            raise InvalidArgumentError(
                f"{what} must be an object with {'writable ' if writable else ''}contiguous memory, such as a numpy "
                "array or a bytearray; "
                f"found {type(source).__name__}: {error}"
            ) from error
        memory.held = True
        return memory

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)

    cdef void *at(self, ssize_t offset, ssize_t size) except NULL:
        """Return the address of a range of the bytes."""
        if offset < 0 or size < 0 or offset + size > self.view.len:
            raise OutOfRangeError(f"bytes {offset} to {offset + size} were asked for, the memory has {self.view.len}")
        if self.view.buf == NULL:
            return &_EMPTY
        return <char *>self.view.buf + offset
