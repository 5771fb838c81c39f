"""Events of a plugin as futures.

Events are the caller's, and outlive the client they come from: closing it does not end them.

An event that is ready at once gets no future of its own. Any other is polled (``IsReady``) when its future is asked,
and watched (``OnReady``) only from the first callback or the first wait on: a future that is not used costs nothing.
No thread waits for an event, unless the plugin leaves ``OnReady`` out and has no more than ``Await``. The plugin's
callback runs on any thread without the GIL; it takes the GIL only where a future waits for it, and never once the gate
is shut.

Where the plugin uses memory of Python's until the event is ready, the future is watched from the start: the watch keeps
it, and what it keeps, alive however soon the caller drops it.
"""

cimport cython
from cpython.ref cimport Py_DECREF, Py_INCREF

from pjrt.capi._api cimport Api, function_t, start
from pjrt.capi._gate cimport gate_enter, gate_leave
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope, pjrt_counter_add, pjrt_pointer_set_first, pjrt_pointer_take

import threading

from pjrt.api.errors import PjrtError, ResourceExhaustedError, UnavailableError, UnimplementedError
from pjrt.api.future import Future

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
