"""Memory of the framework as Python objects, without a copy."""

from cpython.buffer cimport PyBUF_READ, PyBUF_WRITE
from cpython.memoryview cimport PyMemoryView_FromMemory

import numpy as np

from pjrt.api.shape_spec import row_major_strides


cdef object host_memory(const void *data, size_t size, bint writable):
    """Return a view of the framework's bytes."""
    if data == NULL or size == 0:
        return memoryview(bytearray())
    return PyMemoryView_FromMemory(<char *>data, size, PyBUF_WRITE if writable else PyBUF_READ)


cdef object host_array(void *data, shape, dtype, strides, bint writable):
    """Return an array over the framework's memory, in row-major order or with strides in bytes, also negative ones."""
    cdef Py_ssize_t low = 0, high = dtype.itemsize
    if strides is None:
        strides = row_major_strides(shape, dtype.itemsize)
    if data == NULL or 0 in shape:
        return np.empty(shape, dtype)
    for size, stride in zip(shape, strides):
        if stride < 0:
            low += stride * (size - 1)
        else:
            high += stride * (size - 1)
    memory = host_memory(<char *>data + low, high - low, writable)
    return np.ndarray(shape, dtype, memory, -low, strides)
