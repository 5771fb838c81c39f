# cython: language_level=3
"""Counts of references: whether anything else holds an object, so that its memory may be used again.

How many references a local variable, an argument or the evaluation stack of Python code adds differs from version to
version. So the caller keeps none of them while it asks: what is counted is the item of a list, or the attribute of an
object, and not a value that is handed over. Without the GIL the counts are right for objects that no other thread can
reach, which are those with one reference.
"""

from cpython.list cimport PyList_CheckExact
from cpython.ref cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact

from numpy import ndarray

cdef extern from "Python.h":
    # Borrowed references: an owned one would be counted.
    PyObject *PyList_GET_ITEM(object items, Py_ssize_t index)
    PyObject *PyTuple_GET_ITEM(object items, Py_ssize_t index)

cdef extern from "pjrt_support/reference_count.h":
    Py_ssize_t pjrt_reference_count(PyObject *object)


def to_item(items, Py_ssize_t index) -> int:
    """Return how many references an item of a list or tuple has: 1 is that of the list or tuple alone."""
    if index < 0 or index >= len(items):
        raise IndexError(f"expected an index below {len(items)}, found {index}")
    if PyList_CheckExact(items):
        return pjrt_reference_count(PyList_GET_ITEM(items, index))
    if PyTuple_CheckExact(items):
        return pjrt_reference_count(PyTuple_GET_ITEM(items, index))
    item = items[index]
    return pjrt_reference_count(<PyObject *>item) - 1


def to_attribute(owner, str name) -> int:
    """Return how many references the value of an attribute has: 1 is that of the owner alone."""
    value = getattr(owner, name)
    return pjrt_reference_count(<PyObject *>value) - 1


def to_argument(argument) -> int:
    """Return how many references an object has, together with those that the call adds on this version of Python."""
    return pjrt_reference_count(<PyObject *>argument)


def is_sole_base(array) -> bool:
    """Whether the memory of a numpy array cannot be seen through any other array than this one."""
    return _is_sole_base(array)


cdef bint _is_sole_base(array) except -1:
    base = array.base
    if type(base) is not ndarray:
        return True
    # One reference is the array's, one the local variable's, which is counted in compiled code.
    return pjrt_reference_count(<PyObject *>base) == 2 and _is_sole_base(base)
