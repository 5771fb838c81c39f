"""Ownership: native objects, and the scope (a client, a topology or a plugin) that they live in.

A handle is freed with its Python object, or by hand, or when its scope is closed, whichever comes first; the scope
keeps a list of its handles for that. Scopes outlive their handles because each handle holds its scope, and nothing is
freed while a call that uses it is under way, in whichever thread. The bookkeeping (``pjrt_support/lanes.h``) is right
with the GIL and without.

Then what all native objects share: memory that they use, plain getters, docstrings, and events as futures.
"""

import threading
from types import GetSetDescriptorType

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject_TypeCheck, PyTypeObject
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport int64_t
from libc.string cimport memset

from pjrt.capi._api cimport (
    blob, count, deleter_t, element_type, function_t, gate_enter, gate_leave, read_named_values, read_shape,
    start, take_blob, text
)
from pjrt.abi.generated.declarations cimport *

from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, OutOfRangeError, PjrtError, ResourceExhaustedError,
    UnavailableError, UnimplementedError
)
from pjrt.api.future import Future

cdef extern from "pjrt_support/system.h" nogil:
    void pjrt_sleep(double seconds)

# How long a thread that closes a scope sleeps between two looks at the calls under way: longer from look to look.
cdef double _FIRST_SLEEP_SECONDS = 20e-6
cdef double _LONGEST_SLEEP_SECONDS = 5e-3


cdef class Native:
    """An object of the plugin, as what calls are made on."""

    cdef void *use(self) except? NULL:
        """Return the pointer for a call."""
        return self.native

    cdef int call(self, size_t slot, void *args) except -1:
        """Call a function of the plugin for as long as the object may be used."""
        raise NotImplementedError

    cdef Scope home(self):
        """Return the scope that the object lives in."""
        raise NotImplementedError


@cython.no_gc_clear
cdef class Scope(Native):
    """The owner of handles; the scopes of a topology and of a plugin are never closed."""

    cdef int call(self, size_t slot, void *args) except -1:
        self.enter()
        try:
            self.api.call(slot, args)
        except ResourceExhaustedError as error:
            raise self.explain(error) from None
        finally:
            self.leave()
        return 0

    cdef Scope home(self):
        return self

    cdef bint is_shut(self) noexcept:
        """Whether new calls are refused, because the scope was closed."""
        return pjrt_lanes_closed(&self.lanes)

    cdef bint try_to_enter(self) noexcept:
        """Count a call that begins; return False, and count nothing, where new calls are refused."""
        return pjrt_lanes_begin(&self.lanes)

    cdef int enter(self) except -1:
        if not pjrt_lanes_begin(&self.lanes):
            raise FailedPreconditionError("the client was closed; make a new one with plugin.client()")
        return 0

    cdef void leave(self) noexcept:
        pjrt_lanes_end(&self.lanes)

    cdef object explain(self, error):
        """Return an error with what this scope can add to it."""
        return error

    cdef int close_handles(self) except -1:
        """Wait for the calls under way in a scope that refuses new ones, then free all handles.

        Raises:
            PjrtError: freeing a handle failed. The others were freed all the same, and this is the first error.
        """
        cdef Handle handle
        cdef PyObject *listed
        cdef bint left = True
        cdef double pause = _FIRST_SLEEP_SECONDS
        failure = None
        # Calls may add handles until they end. Those that free one take it off the list first, and are counted meanwhile.
        while pjrt_lanes_busy(&self.lanes) or left:
            if not pjrt_lanes_busy(&self.lanes):
                listed = pjrt_lanes_any(&self.lanes, _LINK_OFFSET, &left)
                if listed != NULL:
                    handle = <Handle>listed
                    Py_DECREF(handle)
                    try:
                        handle.free()
                    except Exception as error:
                        failure = failure or error
                    handle = None
                    continue
                if not left:
                    continue
            PyErr_CheckSignals()
            with nogil:
                pjrt_sleep(pause)
            pause = min(2 * pause, _LONGEST_SLEEP_SECONDS)
        if failure is not None:
            raise failure
        return 0


@cython.no_gc_clear
cdef class ClientScope(Scope):
    """The scope of a client, with its devices and memories by their address, and the kinds of arguments of programs."""

    def __cinit__(self):
        self.devices_by_address = {}
        self.memories_by_address = {}
        self.kinds = {}

    cdef object device_at(self, PJRT_Device *native):
        """Return the device behind a pointer of the plugin: the same object each time."""
        raise NotImplementedError

    cdef object memory_at(self, PJRT_Memory *native):
        """Return the memory space behind a pointer of the plugin: the same object each time."""
        raise NotImplementedError


cdef class Borrowed(Native):
    """An object that the plugin owns, and frees with its client or topology."""

    cdef int call(self, size_t slot, void *args) except -1:
        return self.scope.call(slot, args)

    cdef Scope home(self):
        return self.scope


@cython.no_gc_clear
cdef class Handle(Native):
    """A native object that is to be freed, once.

    ``no_gc_clear`` keeps the scope until the handle is freed even where both are in one garbage cycle.
    """

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1:
        """Take a native object over. ``destroy_slot`` is 0 where its owner frees it, or ``destroy`` is overridden.

        Raises:
            InternalError: the plugin gave no object, and no error.
        """
        if native == NULL:
            raise InternalError(f"{scope.api.path}: a call succeeded and gave no object for a {type(self).__name__}")
        self.scope = scope
        self.native = native
        self.destroy_slot = destroy_slot
        pjrt_lanes_add(&scope.lanes, &self.link, <PyObject *>self)
        return 0

    def __del__(self):
        # A finalizer, which runs while the object is whole. When __dealloc__ runs, the members of subclasses are gone.
        # Dropping them may have let another thread in, which would find a dying object in the scope's list.
        if self.native != NULL:
            self.free()

    def __dealloc__(self):
        if self.native != NULL:  # it was opened after its finalizer had run
            self.free()

    cdef Scope home(self):
        return self.scope

    cdef void *use(self) except? NULL:
        if self.native == NULL:
            raise FailedPreconditionError(
                f"this {type(self).__name__} was closed, or its client was; it cannot be used any more"
            )
        return self.native

    cdef int call(self, size_t slot, void *args) except -1:
        # As Scope.call, and the handle is not freed meanwhile. Both are written out: this is the hot path.
        self.hold()
        try:
            self.scope.api.call(slot, args)
        except ResourceExhaustedError as error:
            raise self.scope.explain(error) from None
        finally:
            self.let_go()
        return 0

    cdef int hold(self) except -1:
        """Begin a use. The caller has a reference to the handle, and the scope stays open: nothing else frees it."""
        return self.scope.enter()

    cdef int let_go(self) except -1:
        """End a use."""
        self.scope.leave()
        return 0

    cdef int free(self) except -1:
        """Free the native object, or have the last call under way free it. May be called again."""
        cdef void *native
        if self.native == NULL:
            return 0
        pjrt_lanes_begin_always(&self.scope.lanes)
        try:
            native = self.take()
            if native != NULL:
                self.retire(native)
        finally:
            self.scope.leave()
        return 0

    cdef void *take(self) noexcept:
        """Return the native object to the one caller who gets it, and take the handle off the scope's list."""
        cdef void *native = pjrt_pointer_take(&self.native)
        if native != NULL:
            pjrt_lanes_remove(&self.scope.lanes, &self.link)
        return native

    cdef int retire(self, void *native) except -1:
        """Free the native object that was taken."""
        return self.destroy(native)

    cdef int destroy(self, void *native) except -1:
        """Free the native object; the destroy functions of the table are all alike."""
        if self.destroy_slot:
            self.scope.api.drop(self.destroy_slot, native)
        return 0


@cython.no_gc_clear
cdef class ClosableHandle(Handle):
    """A handle that its user may free by hand, also while another thread calls it: the last of them frees the object."""

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1:
        self.holders = 1
        return Handle.open(self, scope, native, destroy_slot)

    cdef int hold(self) except -1:
        Handle.hold(self)
        if not pjrt_counter_join(&self.holders):
            Handle.let_go(self)
            self.use()  # raises: nothing is left to hold
        return 0

    cdef int let_go(self) except -1:
        try:
            self._drop_hold()
        finally:
            Handle.let_go(self)
        return 0

    cdef int retire(self, void *native) except -1:
        self.doomed = native
        return self._drop_hold()

    cdef int _drop_hold(self) except -1:
        if pjrt_counter_add(&self.holders, -1) == 0:
            self.destroy(self.doomed)
        return 0


cdef size_t _link_offset():
    cdef Handle handle = Handle.__new__(Handle)
    return <size_t>&handle.link - <size_t><PyObject *>handle


# Where a handle's link lies in the handle.
cdef size_t _LINK_OFFSET = _link_offset()


cdef Scope free_scope(Scope scope):
    """Return a scope that is never closed, for what outlives a client or a topology."""
    cdef Scope free = Scope.__new__(Scope)
    free.api = scope.api
    return free


# Pins: they hold a scope open over more than one call: from before a call until its result is in the scope's list.
# Without that, another thread could close the client in between, and the result would outlive it.


@cython.no_gc
@cython.freelist(16)
cdef class Pin:
    """Holds a scope open for as long as the object lives: a local variable, until the function returns."""

    @staticmethod
    cdef Pin of(Scope scope):
        scope.enter()
        cdef Pin pin = Pin.__new__(Pin)
        pin.scope = scope
        return pin

    def __dealloc__(self):
        if self.scope is not None:
            self.scope.leave()


# Memory of Python objects that a plugin reads or writes.

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


# Plain getters: functions of the C API that take one handle and fill in one answer.
#
# In the class of a noun, ``num_replicas = Getter("PJRT_Executable_NumReplicas")`` is a property. The function's slot, the
# layout of its arguments and the kind of its answer are generated from the headers (``getters.pxi``), the docstring
# is that of the device API. ``Constant`` is a getter whose answer never changes. A method asks one by ``Getter.ask``. A
# call that needs more than that is written by hand.

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

include "pjrt/abi/generated/getters.pxi"


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


# The docstrings of methods and properties that override those of the device API, where they are written once.
#
# A class that users meet has two bases: a core in Cython, and its class of the device API. Python looks for the docstring
# of a core's method or property in the core alone. A property of a compiled class cannot be given one in Python: Python
# reads its docstring from the C struct that describes it.

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


# Events of a plugin as futures.
#
# Events are the caller's, and outlive the client they come from: closing it does not end them.
#
# An event that is ready at once gets no future of its own. Any other is polled (``IsReady``) when its future is asked,
# and watched (``OnReady``) only from the first callback or the first wait on: a future that is not used costs nothing.
# No thread waits for an event, unless the plugin leaves ``OnReady`` out and has no more than ``Await``. The plugin's
# callback runs on any thread without the GIL; it takes the GIL only where a future waits for it, and never once the gate
# is shut.
#
# Where the plugin uses memory of Python's until the event is ready, the future is watched from the start: the watch keeps
# it, and what it keeps, alive however soon the caller drops it.

cdef extern from "Python.h":
    void PyErr_SetInterrupt()

cdef extern from "pjrt_support/ticket.h" nogil:
    void *pjrt_ticket_new(void *thing)
    void *pjrt_ticket_redeem(void *ticket)


@cython.no_gc_clear
cdef class Event:
    """A ``PJRT_Event`` that is destroyed with the object."""

    @staticmethod
    cdef Event of(Scope scope, PJRT_Event *native):
        cdef Event event = Event.__new__(Event)
        event.scope = scope
        event.api = scope.api
        event.native = native
        return event

    def __dealloc__(self):
        cdef PJRT_Event *native = self.native
        cdef pjrt_wait *failed
        self.native = NULL
        pjrt_wait_release(<pjrt_wait *>self.wait)
        while self.failed != NULL:
            failed = self.failed
            self.failed = failed.failed_before
            pjrt_wait_release(failed)
        if native != NULL:
            self.api.drop(SLOT_PJRT_Event_Destroy, native)  # Future: when it is dropped

    def is_ready(self):
        """Return whether the event is ready, and its error: ``(False, None)`` while it is pending."""
        cdef PJRT_Event_IsReady_Args args
        cdef pjrt_wait *wait = <pjrt_wait *>self.wait
        if wait != NULL:
            if not pjrt_wait_is_done(wait):
                return False, None
            return True, (self._explained(self.api.read_error(wait.error)) if wait.error != NULL else None)
        start(&args, PJRT_Event_IsReady_Args_STRUCT_SIZE)
        args.event = self.native
        self.api.call(SLOT_PJRT_Event_IsReady, &args)  # Future.done
        return (True, self._error()) if args.is_ready else (False, None)

    def _error(self):
        """Return the error of the ready event (``PJRT_Event_Error``): here an error that comes back is the answer."""
        cdef PJRT_Event_Error_Args args
        start(&args, PJRT_Event_Error_Args_STRUCT_SIZE)
        args.event = self.native
        try:
            self.api.call(SLOT_PJRT_Event_Error, &args)  # Future.exception
        except PjrtError as error:
            return self._explained(error)
        return None

    def _explained(self, error):
        return self.scope.explain(error) if isinstance(error, ResourceExhaustedError) else error

    def wait_for(self):
        """Block until the event is ready. It cannot be interrupted, so only threads of our own call it."""
        cdef PJRT_Event_Await_Args args
        start(&args, PJRT_Event_Await_Args_STRUCT_SIZE)
        args.event = self.native
        try:
            self.api.call(SLOT_PJRT_Event_Await, &args)  # Future.result
        except PjrtError:
            return  # the error is the event's, and is_ready asks for it again

    def block(self, double seconds):
        """Wait until the event is ready, for so many seconds at most."""
        cdef pjrt_wait *wait = self._waiting()
        with nogil:
            pjrt_wait_block(wait, seconds)

    cdef int register(self, watcher) except -1:
        """Have the plugin call back when the event is ready, and then call ``watcher._poll``. May be called again."""
        cdef pjrt_wait *wait = self._waiting()
        if watcher is not None and pjrt_counter_add(&self.watchers, 1) == 1:  # the reference is given once
            Py_INCREF(watcher)
            if not pjrt_wait_watch(wait, <void *>watcher):
                Py_DECREF(watcher)
                watcher._poll()
        return 0

    cdef pjrt_wait *_waiting(self) except NULL:
        """Return the wait for the event, which lives as long as this object; begin it if no other thread has."""
        cdef pjrt_wait *wait = <pjrt_wait *>self.wait
        if wait != NULL:
            return wait
        wait = pjrt_wait_new(self.api.table)
        if wait == NULL:
            raise MemoryError("no memory to wait for an event")
        if not pjrt_pointer_set_first(&self.wait, wait):
            pjrt_wait_release(wait)
            return <pjrt_wait *>self.wait
        self._start_waiting(wait)
        return wait

    cdef int _start_waiting(self, pjrt_wait *wait) except -1:
        """Register a callback for the event; where the plugin has no ``OnReady``, a thread waits for it."""
        cdef PJRT_Event_OnReady_Args args
        cdef void *ticket = pjrt_ticket_new(wait)
        if ticket == NULL:
            self._stop_waiting(wait)
            raise MemoryError("no memory to wait for an event")
        pjrt_wait_acquire(wait)  # released with the redeemed ticket
        start(&args, PJRT_Event_OnReady_Args_STRUCT_SIZE)
        args.event = self.native
        args.callback = _on_ready
        args.user_arg = ticket
        try:
            try:
                self.api.call(SLOT_PJRT_Event_OnReady, &args)  # Future.add_done_callback
            except UnimplementedError:
                self._await_aside(<size_t>ticket)
        except BaseException:
            pjrt_wait_release(<pjrt_wait *>pjrt_ticket_redeem(ticket))
            self._stop_waiting(wait)
            raise
        return 0

    cdef void _stop_waiting(self, pjrt_wait *wait) noexcept:
        """Have the next caller begin anew. Other threads may use this wait still, so it lives as long as the event."""
        with cython.critical_section(self):
            wait.failed_before = self.failed
            self.failed = wait
        pjrt_pointer_take(&self.wait)

    def _await_aside(self, size_t ticket):
        """Start a thread that waits in the plugin, so that all other waits can be interrupted and end in time."""
        cdef size_t function = <size_t>self.api.find(SLOT_PJRT_Event_Await)
        try:
            threading.Thread(target=_await, args=(self, function, ticket), name="pjrt event", daemon=True).start()
        except RuntimeError as error:
            raise UnavailableError(f"no thread can be started to wait for an event: {error}") from error


def _await(Event event, size_t function, size_t ticket):
    """Wait for an event in the plugin, then wake those who wait for it here. The thread keeps the event alive."""
    cdef PJRT_Event_Await_Args args
    start(&args, PJRT_Event_Await_Args_STRUCT_SIZE)
    args.event = event.native
    with nogil:
        _on_ready((<function_t>function)(&args), <void *>ticket)


cdef void _on_ready(PJRT_Error *error, void *ticket) noexcept nogil:
    # Any thread, without the GIL, or inside OnReady itself. Takes the GIL only if a future waits. A plugin that calls
    # again finds its ticket spent. Its second error may be the first one again, so it is not freed.
    cdef pjrt_wait *wait = <pjrt_wait *>pjrt_ticket_redeem(ticket)
    cdef void *watcher
    if wait == NULL:
        return
    watcher = pjrt_wait_finish(wait, error)
    if watcher != NULL and gate_enter():
        _tell(watcher)
        gate_leave()
    pjrt_wait_release(wait)


cdef void _tell(void *watcher) noexcept with gil:
    future = <object>watcher
    Py_DECREF(future)
    try:
        future._poll()
    except KeyboardInterrupt:
        PyErr_SetInterrupt()  # Ctrl-C in the main thread, inside a call of the plugin: Python raises it after that


class EventFuture(Future):
    """A future that an event of a plugin completes."""

    __slots__ = ("_event", "_given", "_keep")

    def __init__(self, event, value, keep):
        Future.__init__(self)
        self._event = event
        self._given = value
        self._keep = keep

    def _poll(self):
        if self._done:
            return
        try:
            ready, error = self._event.is_ready()
        except PjrtError as failure:
            self._complete(None, failure)  # and keeps what it keeps: the event may still be pending
            return
        if ready:
            # Two threads may come here at once: the value is dropped only when the future is complete.
            self._complete(self._given if error is None else None, error)
            self._given = self._keep = None

    def _block(self, timeout):
        try:
            self._event.block(timeout)
        except PjrtError as failure:
            self._complete(None, failure)  # not watched, so no memory of ours is in use
            return
        self._poll()

    def _watch(self):
        try:
            (<Event>self._event).register(self)
        except PjrtError as failure:
            # The event may be pending all the same: a thread waits for it, and keeps the memory that the plugin uses.
            threading.Thread(target=_wait_aside, args=(self,), name="pjrt event", daemon=True).start()
            self._complete(None, failure)


_DONE = Future.completed(None)


def _wait_aside(future):
    """Wait for the event of a future for which no callback could be registered."""
    future._event.wait_for()
    future._poll()


cdef object lazy_future(Scope scope, PJRT_Event *event, value):
    """Return a future for an event, and take the event over: no memory of Python's is in use. A null event is done."""
    try:
        if event == NULL or _is_over(scope, event):
            return _DONE if value is None else Future.completed(value)
    except PjrtError as failure:
        Event.of(scope, event)  # dropped at once, and the event with it
        return Future.failed(failure)
    return EventFuture(Event.of(scope, event), value, None)


cdef object eager_future(Scope scope, PJRT_Event *event, value, keep):
    """Return a future that keeps ``value`` and ``keep`` until the event is ready, also when it is dropped itself."""
    failure = None
    try:
        if event == NULL or _is_over(scope, event):
            return _DONE if value is None else Future.completed(value)
    except PjrtError as error:
        failure = error
    future = EventFuture(Event.of(scope, event), value, keep)
    future._watch()
    if failure is not None:
        future._complete(None, failure)
    return future


cdef bint _is_over(Scope scope, PJRT_Event *event) except? True:
    """Whether an event is ready already, without an error. It then needs no future of its own, and is destroyed."""
    cdef PJRT_Event_IsReady_Args ready
    cdef PJRT_Event_Error_Args error
    start(&ready, PJRT_Event_IsReady_Args_STRUCT_SIZE)
    ready.event = event
    start(&error, PJRT_Event_Error_Args_STRUCT_SIZE)
    error.event = event
    scope.api.call(SLOT_PJRT_Event_IsReady, &ready)  # Future.done
    if not ready.is_ready:
        return False
    try:
        scope.api.call(SLOT_PJRT_Event_Error, &error)  # Future.exception
    except PjrtError:
        return False  # it ended with an error, which a future reports
    Event.of(scope, event)  # dropped at once, and the event with it
    return True
