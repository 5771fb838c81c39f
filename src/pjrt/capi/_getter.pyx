"""Plain getters: functions of the C API that take one handle and fill in one answer.

In the class of a noun, ``num_replicas = Getter("PJRT_Executable_NumReplicas")`` is a property. The function's slot, the
layout of its arguments and the kind of its answer are generated from the headers (``_gen_getters.pxi``), the docstring
is that of the device API. ``Constant`` is a getter whose answer never changes. A method asks one by ``Getter.ask``. A
call that needs more than that is written by hand.
"""

cimport cython
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from libc.stdint cimport int64_t
from libc.string cimport memset

from pjrt.capi._api cimport blob, count, deleter_t, take_blob, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport ClientScope, Native
from pjrt.capi._values cimport element_type, read_named_values, read_shape

cdef enum:
    BOOL
    DEVICE
    DEVICES
    ELEMENT_TYPE
    ELEMENT_TYPES
    INT
    INT64
    INTS
    MEMORIES
    MEMORY
    NAMED_VALUES
    OWNED_BYTES
    SHAPE
    SIZE
    SIZES
    TEXT

cdef enum:
    MOST_WORDS = 8  # of the arguments: struct size, extensions, handle, and at most four words of answer

include "_gen_getters.pxi"


cdef class Question:
    """A function of the C API that takes one handle and fills in one answer.

    Args:
        function: the name of the function.
        binary: whether a text is returned as bytes.
    """

    def __init__(self, str function, *, bint binary=False):
        self.what = f"the answer of {function}"
        self.slot, self.size, self.kind, self.handle_at, self.answer_at, *rest = _FUNCTIONS[function]
        self.length_at, self.owner_at, self.deleter_at = [*rest, 0, 0, 0][:3]
        assert self.size <= MOST_WORDS * sizeof(size_t)
        self.binary = binary

    def __set_name__(self, cls, name):
        """Take the docstring of the device API's property of that name."""
        self.cls = cls
        self.name = name
        self.doc = next((vars(base)[name].__doc__ for base in cls.__mro__[1:] if name in vars(base)), None)

    @cython.final
    cdef int check(self, instance) except -1:
        """Refuse an object of another class: its pointer would be one to something else."""
        if not PyObject_TypeCheck(instance, <PyTypeObject *>self.cls):
            raise TypeError(f"{self.cls.__name__}.{self.name} is no property of {instance!r}")
        return 0

    @cython.final
    cdef object ask(self, Native native):
        """Call the function on an object, and return the answer."""
        cdef size_t[MOST_WORDS] words  # of words, because the structs are aligned to 8 bytes
        cdef char *args = <char *>words
        memset(words, 0, sizeof(words))  # all of it: a size that the compiler knows costs less
        words[0] = self.size
        (<void **>(args + self.handle_at))[0] = native.use()
        native.call(self.slot, args)
        return self._read(native, args)

    @cython.final
    cdef object _read(self, Native native, const char *args):
        cdef const char *at = args + self.answer_at
        cdef const void *array = (<const void **>at)[0]
        cdef size_t number = (<const size_t *>(args + self.length_at))[0]
        cdef size_t i
        if self.kind == INT:
            return (<const int *>at)[0]
        if self.kind == SIZE:
            return (<const size_t *>at)[0]
        if self.kind == INT64:
            return (<const int64_t *>at)[0]
        if self.kind == BOOL:
            return bool((<const c_bool *>at)[0])
        if self.kind == TEXT:
            return blob(<char *>array, number, self.what) if self.binary else text(<char *>array, number, self.what)
        if self.kind == SHAPE:
            return read_shape(<const int64_t *>array, number, self.what)
        if self.kind == ELEMENT_TYPE:
            return element_type((<const int *>at)[0])
        if self.kind == DEVICE:
            return (<ClientScope>native.home()).device_at((<PJRT_Device **>at)[0])
        if self.kind == MEMORY:
            return (<ClientScope>native.home()).memory_at((<PJRT_Memory **>at)[0])
        if self.kind == NAMED_VALUES:
            return read_named_values(<const PJRT_NamedValue *>array, number, self.what)
        if self.kind == OWNED_BYTES:
            return take_blob(
                <char *>array,
                number,
                self.what,
                (<void **>(args + self.owner_at))[0],
                (<deleter_t *>(args + self.deleter_at))[0],
            )
        count(number, array, self.what)
        if self.kind == DEVICES:
            scope = <ClientScope>native.home()
            return tuple([(<ClientScope>scope).device_at((<PJRT_Device **>array)[i]) for i in range(number)])
        if self.kind == MEMORIES:
            scope = <ClientScope>native.home()
            return tuple([(<ClientScope>scope).memory_at((<PJRT_Memory **>array)[i]) for i in range(number)])
        if self.kind == ELEMENT_TYPES:
            return tuple([element_type((<const int *>array)[i]) for i in range(number)])
        if self.kind == INTS:
            return tuple([(<const int *>array)[i] for i in range(number)])
        return tuple([(<const size_t *>array)[i] for i in range(number)])  # SIZES


cdef class Getter(Question):
    """A property that asks its function each time."""

    @property
    def __doc__(self):  # in each of the two classes: a class without one has the docstring None
        return self.doc

    def __get__(self, instance, cls):
        if instance is None:
            return self
        self.check(instance)
        return self.ask(<Native>instance)

    def __set__(self, instance, value):
        # Having this method, the property comes before the object's __dict__, which Python then does not search.
        raise AttributeError(f"{self.cls.__name__}.{self.name} cannot be set")


cdef class Constant(Question):
    """A property that asks its function once, for an answer that never changes.

    The answer is kept in the object's ``__dict__``, where Python finds it before this property: nothing is faster.
    """

    @property
    def __doc__(self):
        return self.doc

    def __get__(self, instance, cls):
        if instance is None:
            return self
        self.check(instance)
        answer = instance.__dict__[self.name] = self.ask(<Native>instance)
        return answer


def read_constants(instance, *names):
    """Read constants now, so that they can be read after the client was closed, too."""
    for name in names:
        getattr(instance, name)
