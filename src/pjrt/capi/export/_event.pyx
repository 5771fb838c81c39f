"""Futures shown as events. Everything that a framework does with an event runs without Python."""

cimport cython

from pjrt.capi._api import close_at_exit
from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._trampolines cimport (
    native_error, pjrt_check_size, pjrt_error_new, pjrt_error_of_text, pjrt_error_release, pjrt_error_share
)

import logging
import time
import weakref

from pjrt.api.errors import CancelledError
from pjrt.api.future import Future
from pjrt.api.waits import time_left

_log = logging.getLogger("pjrt")
_ENDING = "the Python interpreter that this device runs in is ending"
# How long unfinished work may go on when the interpreter ends, before functions that ask learn that it ends.
cdef double _MOMENT_SECONDS = 0.2
# The part of that time that is kept for calls that are inside a device when their work is failed.
cdef double _RESERVE_SECONDS = 0.5

cdef extern from "pjrt_support/event.h" nogil:
    ctypedef struct pjrt_event:
        PJRT_Error *error
    ctypedef struct pjrt_pending:
        pjrt_event *first
    void pjrt_pending_init(pjrt_pending *pending)
    pjrt_event *pjrt_event_new(pjrt_pending *pending, int references)
    pjrt_event *pjrt_event_ready(PJRT_Error *error)
    void pjrt_event_hold(pjrt_event *event)
    void pjrt_event_release(pjrt_pending *pending, pjrt_event *event)
    bint pjrt_event_set(pjrt_pending *pending, pjrt_event *event, PJRT_Error *error)
    bint pjrt_event_is_ready(pjrt_event *event)
    PJRT_Error *pjrt_event_await(pjrt_pending *pending, pjrt_event *event)
    bint pjrt_event_on_ready(pjrt_event *event, PJRT_Event_OnReadyCallback function, void *user_arg)
    void pjrt_pending_fail(pjrt_pending *pending, PJRT_Error_Code code, const char *message)

cdef extern from "pjrt_support/gil.h" nogil:
    ctypedef struct PyThreadState:
        pass
    PyThreadState *pjrt_gil_let_go()
    void pjrt_gil_take_back(PyThreadState *state)

cdef pjrt_pending _pending
pjrt_pending_init(&_pending)

# The last plain future that succeeded with no value: a device may return the same one for all work that is done at
# once. A future of a subclass may hold objects of its device, and is not kept.
cdef object _ready_future = None
cdef object _ready_guard = []  # its critical section is where the future is replaced


cdef PJRT_Event *event_of(future) except NULL:
    """Return an event that the caller owns and that becomes ready with the future."""
    global _ready_future
    if future is _ready_future:
        return done_event(NULL)
    if not future.done():
        return _pending_event(future, &_pending)
    error = future.exception()
    if type(future) is Future and error is None and future.result() is None:
        with cython.critical_section(_ready_guard):
            _ready_future = future
    return done_event(NULL if error is None else native_error(error))


cdef PJRT_Event *done_event(PJRT_Error *error) except NULL:
    cdef pjrt_event *event = pjrt_event_ready(error)
    if event == NULL:
        raise MemoryError("no memory for an event")
    return <PJRT_Event *>event


# Completions: references to the events of executions, by which buffers know that they are ready.

# The completion of every execution that has succeeded before it returned.
cdef pjrt_event *_succeeded = pjrt_event_ready(NULL)


cdef void *succeeded() noexcept nogil:
    return _succeeded


cdef void *completion_of(PJRT_Event *event) noexcept nogil:
    """Return a new reference to an event, as a completion."""
    pjrt_event_hold(<pjrt_event *>event)
    return event


cdef void release_completion(void *completion) noexcept nogil:
    if completion != NULL and completion != _succeeded:
        pjrt_event_release(&_pending, <pjrt_event *>completion)


cdef PJRT_Event *event_following(void *completion) noexcept nogil:
    """Return a new event that is ready, or fails, with an execution; null without memory."""
    cdef pjrt_event *execution = <pjrt_event *>completion
    cdef pjrt_event *event
    cdef PJRT_Error *error
    if pjrt_event_is_ready(execution):
        error = pjrt_error_share(execution.error)
        event = pjrt_event_ready(error)
        if event == NULL:
            pjrt_error_release(error)
        return <PJRT_Event *>event
    event = pjrt_event_new(&_pending, 2)
    if event == NULL:
        return NULL
    if pjrt_event_on_ready(execution, _follow, event):
        return <PJRT_Event *>event
    pjrt_event_release(&_pending, event)
    pjrt_event_release(&_pending, event)
    return NULL


cdef void _follow(PJRT_Error *error, void *event) noexcept nogil:
    pjrt_event_set(&_pending, <pjrt_event *>event, error)
    pjrt_event_release(&_pending, <pjrt_event *>event)


cdef PJRT_Event *loan_event_of(future) except NULL:
    """Return an event that the caller owns and that becomes ready when the device uses lent memory no more.

    The event stands for no work: the end of the interpreter does not wait for it, and ``fail_pending`` does not fail
    it, because the lender would take the failure for the return of its memory.
    """
    return event_of(future) if future.done() else _pending_event(future, NULL)


cdef PJRT_Event *_pending_event(future, pjrt_pending *pending) except NULL:
    cdef pjrt_event *event = pjrt_event_new(pending, 2)
    cdef _Setter setter
    if event == NULL:
        raise MemoryError("no memory for an event")
    setter = _Setter.__new__(_Setter)
    setter.event = event
    future.add_done_callback(setter)
    return <PJRT_Event *>event


cdef PJRT_Event *failed_event(PJRT_Error *error) noexcept nogil:
    """Return an event that has failed with the error, which it owns; null, without owning it, if there is no memory."""
    return <PJRT_Event *>pjrt_event_ready(error)


cdef class _Setter:
    """A future's callback that sets an event. Dropped uncalled, it fails the event: no caller waits for ever."""

    cdef pjrt_event *event

    def __call__(self, future):
        error = future.exception()
        self.finish(NULL if error is None else native_error(error))

    def __dealloc__(self):
        if self.event != NULL:
            self.finish(pjrt_error_of_text(PJRT_Error_Code_INTERNAL, b"the device dropped the work of this event"))

    cdef void finish(self, PJRT_Error *error) noexcept:
        cdef pjrt_event *event = self.event
        self.event = NULL
        if event == NULL:
            pjrt_error_release(error)
            return
        with nogil:
            pjrt_event_set(&_pending, event, error)
            pjrt_event_release(&_pending, event)


working = weakref.WeakSet()
"""The clients whose work the events stand for."""


def fail_pending(str message):
    """Fail all pending events with ``CANCELLED``: the device does not answer, or will not answer any more.

    The clients are notified that no caller waits any more, so that a device's function that asks can end.
    """
    cdef bytes text = message.encode()
    cdef const char *data = text
    with nogil:
        pjrt_pending_fail(&_pending, PJRT_Error_Code_CANCELLED, data)
    _notify_clients(message, only_ask=False)


def _notify_clients(message, *, only_ask):
    for client in list(working):
        try:
            client.give_up_work(CancelledError(message), only_ask=only_ask)
        except Exception:
            _log.exception("a device of an exported plugin failed to give up its work")


def wait_for_pending():
    """Wait for pending events, for as long as the end of the interpreter may wait; return whether none is left."""
    moment = time_left() - _MOMENT_SECONDS
    while _pending.first != NULL and time_left() > _RESERVE_SECONDS:
        if moment is not None and time_left() < moment:
            _notify_clients(_ENDING, only_ask=True)
            moment = None
        time.sleep(0.001)
    return _pending.first == NULL


class _AtExit:
    """The hook for the interpreter's end: it waits for pending events, then fails those that are left."""

    def _close_at_exit(self):
        wait_for_pending()
        fail_pending(_ENDING)


_at_exit = _AtExit()
close_at_exit.add(_at_exit)


cdef PJRT_Error *_destroy(PJRT_Event_Destroy_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_Destroy_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_Destroy_Args")
    if error == NULL:
        pjrt_event_release(&_pending, <pjrt_event *>args.event)
    return error


cdef PJRT_Error *_is_ready(PJRT_Event_IsReady_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_IsReady_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_IsReady_Args")
    if error == NULL:
        args.is_ready = pjrt_event_is_ready(<pjrt_event *>args.event)
    return error


cdef PJRT_Error *_error(PJRT_Event_Error_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_Error_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_Error_Args")
    if error != NULL:
        return error
    cdef pjrt_event *event = <pjrt_event *>args.event
    if not pjrt_event_is_ready(event):
        return pjrt_error_of_text(
            PJRT_Error_Code_FAILED_PRECONDITION, b"the event is not ready; await it first"
        )
    return pjrt_error_share(event.error)


cdef PJRT_Error *_await(PJRT_Event_Await_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_Await_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_Await_Args")
    if error != NULL:
        return error
    # The caller may hold the GIL, which the device needs to finish.
    cdef PyThreadState *state = pjrt_gil_let_go()
    error = pjrt_event_await(&_pending, <pjrt_event *>args.event)
    pjrt_gil_take_back(state)
    return error


cdef PJRT_Error *_on_ready(PJRT_Event_OnReady_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_OnReady_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_OnReady_Args")
    if error != NULL:
        return error
    if pjrt_event_on_ready(<pjrt_event *>args.event, args.callback, args.user_arg):
        return NULL
    return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, b"no memory for a callback")


cdef PJRT_Error *_create(PJRT_Event_Create_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_Create_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_Create_Args")
    if error != NULL:
        return error
    # The handle is the only reference: the caller can destroy an event that was never set, and no other caller waits.
    args.event = <PJRT_Event *>pjrt_event_new(&_pending, 1)
    if args.event == NULL:
        return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, b"no memory for an event")
    return NULL


cdef PJRT_Error *_set(PJRT_Event_Set_Args *args) noexcept nogil:
    cdef PJRT_Error *error = pjrt_check_size(args, PJRT_Event_Set_Args_FIRST_STRUCT_SIZE, b"PJRT_Event_Set_Args")
    if error != NULL:
        return error
    if args.error_code != PJRT_Error_Code_OK:
        error = pjrt_error_new(args.error_code, args.error_message, args.error_message_size)
    if pjrt_event_set(&_pending, <pjrt_event *>args.event, error):
        return NULL
    return pjrt_error_of_text(PJRT_Error_Code_FAILED_PRECONDITION, b"the event was set before; events are set once")


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of events."""
    table.PJRT_Event_Destroy = _destroy
    table.PJRT_Event_IsReady = _is_ready
    table.PJRT_Event_Error = _error
    table.PJRT_Event_Await = _await
    table.PJRT_Event_OnReady = _on_ready
    table.PJRT_Event_Create = _create
    table.PJRT_Event_Set = _set
