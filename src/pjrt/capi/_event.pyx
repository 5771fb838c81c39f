"""Events of a plugin as futures.

Events are the caller's, and outlive the client they come from: closing it does not end them.

An event that is ready at once gets no future of its own. Any other is asked (``IsReady``) when somebody asks, and
watched (``OnReady``) only from the first callback or the first wait on: nothing is spent on a future that nobody looks
at, and no thread waits for an event. The plugin's callback runs on any thread without the GIL; it takes it only where
Python is to be told, and never once the gate is shut.

Where the plugin uses memory of Python's until the event is ready, the future is watched from the start: the watch keeps
it, and what it keeps, alive however soon the caller drops it.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF

from pjrt.capi._api cimport Api, start
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope

import threading

from pjrt.api.errors import PjrtError, ResourceExhaustedError, UnimplementedError
from pjrt.api.future import Future


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
        self.native = NULL
        pjrt_wait_release(self.wait)
        if native != NULL:
            self.api.drop(SLOT_PJRT_Event_Destroy, native)  # Future: when it is dropped

    def is_ready(self):
        """Whether it is, and with which error: ``(True, None)`` for success, ``(False, None)`` while it is pending."""
        cdef PJRT_Event_IsReady_Args args
        if self.wait != NULL:
            if not pjrt_wait_is_done(self.wait):
                return False, None
            return True, (self._explained(self.api.read_error(self.wait.error)) if self.wait.error != NULL else None)
        start(&args, PJRT_Event_IsReady_Args_STRUCT_SIZE)
        args.event = self.native
        self.api.call(SLOT_PJRT_Event_IsReady, &args)  # Future.done
        return (True, self._error()) if args.is_ready else (False, None)

    def _error(self):
        """The error of the ready event (``PJRT_Event_Error``): here an error that comes back is the answer."""
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
        """Blocks until the event is ready. Cannot be interrupted, so only for a plugin that leaves OnReady out."""
        cdef PJRT_Event_Await_Args args
        start(&args, PJRT_Event_Await_Args_STRUCT_SIZE)
        args.event = self.native
        try:
            self.api.call(SLOT_PJRT_Event_Await, &args)  # Future.result
        except PjrtError:
            return  # the event's error, which is asked for anew

    def block(self, double seconds):
        """Waits until the event is ready or the time is over; longer where the plugin cannot tell (without OnReady)."""
        try:
            self.register(None)
        except UnimplementedError:
            self.wait_for()
            return
        cdef pjrt_wait *wait = self.wait
        pjrt_wait_acquire(wait)  # another thread whose OnReady fails would let go of it
        with nogil:
            pjrt_wait_block(wait, seconds)
        pjrt_wait_release(wait)

    cdef int register(self, watcher) except -1:
        """Has the plugin tell when the event is ready; ``watcher._poll`` is then called. May be called again."""
        cdef PJRT_Event_OnReady_Args args
        if self.wait == NULL:
            start(&args, PJRT_Event_OnReady_Args_STRUCT_SIZE)
            args.event = self.native
            args.callback = _on_ready
            args.user_arg = self.wait = pjrt_wait_new(self.api.table)
            if self.wait == NULL:
                raise MemoryError("no memory to wait for an event")
            pjrt_wait_acquire(self.wait)
            try:
                self.api.call(SLOT_PJRT_Event_OnReady, &args)  # Future.add_done_callback
            except BaseException:
                pjrt_wait_release(self.wait)
                pjrt_wait_release(self.wait)
                self.wait = NULL
                raise
        if watcher is not None and not self.watched:
            self.watched = True  # the reference is given once
            Py_INCREF(watcher)
            if not pjrt_wait_watch(self.wait, <void *>watcher):
                Py_DECREF(watcher)
                watcher._poll()
        return 0


cdef void _on_ready(PJRT_Error *error, void *arg) noexcept nogil:
    # Any thread, without the GIL, or inside OnReady itself. Takes the GIL only if a future is to be told.
    cdef pjrt_wait *wait = <pjrt_wait *>arg
    cdef void *watcher = pjrt_wait_finish(wait, error)
    if watcher != NULL and gate_enter():
        _tell(watcher)
        gate_leave()
    pjrt_wait_release(wait)


cdef void _tell(void *watcher) noexcept with gil:
    future = <object>watcher
    Py_DECREF(future)
    future._poll()


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
            # Two threads may come here at once: what the future gives is let go only when it is complete.
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
            # A thread waits instead of the caller, whose next call may be what the event waits for; it keeps the memory.
            threading.Thread(target=_wait_aside, args=(self,), name="pjrt event", daemon=True).start()
            if not isinstance(failure, UnimplementedError):
                self._complete(None, failure)


_DONE = Future.completed(None)


def _wait_aside(future):
    """Waits for the event of a future that the plugin will not tell of."""
    future._event.wait_for()
    future._poll()


cdef object lazy_future(Scope scope, PJRT_Event *event, value):
    """A future for an event behind which no memory of ours is in use; takes the event over. A null event is done."""
    try:
        if event == NULL or _is_over(scope, event):
            return _DONE if value is None else Future.completed(value)
    except PjrtError as failure:
        Event.of(scope, event)  # dropped at once, and the event with it
        return Future.failed(failure)
    return EventFuture(Event.of(scope, event), value, None)


cdef object eager_future(Scope scope, PJRT_Event *event, value, keep):
    """A future that keeps ``value`` and ``keep`` until the event is ready, whoever drops it; takes the event over."""
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
    """Whether an event is ready already, and without an error: then it needs no future of its own, and is destroyed."""
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
        return False  # it ended with an error: a future tells that
    Event.of(scope, event)  # dropped at once, and the event with it
    return True
