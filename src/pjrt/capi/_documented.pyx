"""The docstrings of methods and properties that override those of the device API, where they are written once.

A class that users meet has two bases: a core in Cython, and its class of the device API. Python looks for the docstring
of a core's method or property in the core alone. A property of a compiled class cannot be given one in Python: Python
reads its docstring from the C struct that describes it.
"""

from types import GetSetDescriptorType

cdef extern from "Python.h":
    ctypedef struct PyGetSetDef:
        const char *doc

    ctypedef struct PyGetSetDescrObject:
        PyGetSetDef *d_getset

# The texts that the structs point to: kept for as long as the classes live, which is to the end.
cdef list _texts = []


def documented(cls):
    """Decorate a class: copy docstrings from its other bases to the public members of it and its cores without one."""
    for position, core in enumerate(cls.__mro__):
        if not core.__module__.startswith("pjrt.capi."):
            continue
        for name, member in list(vars(core).items()):
            if not name.startswith("_") and not getattr(member, "__doc__", None):
                _document(member, _doc_of(name, cls.__mro__[position + 1:]))
    return cls


def _doc_of(name, bases):
    """Return the docstring of a member in the first base that has one."""
    for base in bases:
        if name in vars(base):  # None has a docstring of its own from Python 3.13 on
            doc = getattr(vars(base)[name], "__doc__", None)
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
