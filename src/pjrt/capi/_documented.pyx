"""The docstrings of the C boundary: those of the device API, said once there.

A class that users meet is made of a core in Cython, first, and of its class of the device API. Python looks for the
docstring of a core's method or property in the core alone, and a property of a compiled class cannot be given one in
Python: its docstring is read from the C struct that describes it.
"""

from types import GetSetDescriptorType

cdef extern from "Python.h":
    ctypedef struct PyGetSetDef:
        const char *doc

    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef *d_getset

# What the structs point to, for as long as the classes live: to the end.
cdef list _texts = []


def documented(cls):
    """Gives the public methods and properties of a class and its cores, where they have none, the docstrings of its
    other bases; a decorator.
    """
    for position, core in enumerate(cls.__mro__):
        if not core.__module__.startswith("pjrt.capi."):
            continue
        for name, member in list(vars(core).items()):
            if not name.startswith("_") and not getattr(member, "__doc__", None):
                _document(member, _doc_of(name, cls.__mro__[position + 1:]))
    return cls


def _doc_of(name, bases):
    """The docstring of a member in the first base that has one."""
    for base in bases:
        doc = getattr(vars(base).get(name), "__doc__", None)
        if doc:
            return doc
    return None


cdef int _document(member, doc) except -1:
    cdef bytes text
    if doc is None:
        return 0
    if isinstance(member, GetSetDescriptorType):
        text = doc.encode()
        _texts.append(text)
        (<PyGetSetDescrObject *><void *>member).d_getset.doc = text
    elif type(member).__name__ == "cython_function_or_method":
        member.__doc__ = doc
    return 0
