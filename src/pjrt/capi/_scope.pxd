cimport cython
from cpython.buffer cimport Py_buffer
from cpython.ref cimport PyObject

from pjrt.capi._api cimport Api
from pjrt.abi.generated.declarations cimport PJRT_Api, PJRT_Device, PJRT_Error, PJRT_Event, PJRT_Memory

cdef extern from "pjrt_support/lanes.h" nogil:
    ctypedef struct pjrt_link:
        pass
    ctypedef struct pjrt_lanes:
        pass
    ctypedef int pjrt_counter
    ctypedef void *pjrt_pointer
    int pjrt_counter_add(pjrt_counter *counter, int number)
    int pjrt_counter_read(pjrt_counter *counter)
    bint pjrt_counter_join(pjrt_counter *counter)
    void *pjrt_pointer_take(pjrt_pointer *pointer)
    bint pjrt_pointer_set_first(pjrt_pointer *pointer, void *value)
    bint pjrt_lanes_closed(pjrt_lanes *lanes)
    void pjrt_lanes_begin_always(pjrt_lanes *lanes)
    bint pjrt_lanes_begin(pjrt_lanes *lanes)
    void pjrt_lanes_end(pjrt_lanes *lanes)
    bint pjrt_lanes_close(pjrt_lanes *lanes)
    bint pjrt_lanes_busy(pjrt_lanes *lanes)
    void pjrt_lanes_add(pjrt_lanes *lanes, pjrt_link *link, PyObject *handle)
    void pjrt_lanes_remove(pjrt_lanes *lanes, pjrt_link *link)
    PyObject *pjrt_lanes_any(pjrt_lanes *lanes, size_t offset, bint *left)


cdef class Native
cdef class Scope(Native)


cdef class Native:
    cdef pjrt_pointer native

    cdef void *use(self) except? NULL
    cdef int call(self, size_t slot, void *args) except -1
    cdef Scope home(self)


cdef class Scope(Native):
    cdef Api api
    cdef pjrt_lanes lanes

    cdef bint is_shut(self) noexcept
    cdef bint try_to_enter(self) noexcept
    cdef int enter(self) except -1
    cdef void leave(self) noexcept
    cdef int close_handles(self) except -1
    cdef object explain(self, object error)


cdef class ClientScope(Scope):
    cdef str platform
    cdef dict devices_by_address
    cdef dict memories_by_address
    cdef dict kinds
    cdef object options
    cdef int reading  # how values come to numpy; see `read_value`

    cdef object device_at(self, PJRT_Device *native)
    cdef object memory_at(self, PJRT_Memory *native)


cdef class Borrowed(Native):
    cdef Scope scope


cdef class Handle(Native):
    cdef Scope scope
    cdef size_t destroy_slot
    cdef pjrt_link link

    cdef int open(self, Scope scope, void *native, size_t destroy_slot) except -1
    cdef int hold(self) except -1
    cdef int let_go(self) except -1
    cdef int free(self) except -1
    cdef void *take(self) noexcept
    cdef int retire(self, void *native) except -1
    cdef int destroy(self, void *native) except -1


cdef class ClosableHandle(Handle):
    cdef void *doomed
    cdef pjrt_counter holders

    cdef int _drop_hold(self) except -1


cdef Scope free_scope(Scope scope)


cdef class Pin:
    cdef Scope scope

    @staticmethod
    cdef Pin of(Scope scope)


cdef class HostMemory:
    """Memory of a Python object, held until the object is dropped."""
    cdef Py_buffer view
    cdef bint held

    @staticmethod
    cdef HostMemory of(object source, bint writable, str what)
    cdef void *at(self, ssize_t offset, ssize_t size) except NULL


cdef class Question:
    cdef size_t slot
    cdef size_t size
    cdef int kind
    cdef size_t handle_at
    cdef size_t answer_at
    cdef size_t length_at
    cdef size_t owner_at
    cdef size_t deleter_at
    cdef str what
    cdef object cls
    cdef str name
    cdef bint binary
    cdef str doc

    @cython.final
    cdef int check(self, object instance) except -1
    @cython.final
    cdef object ask(self, Native native)
    @cython.final
    cdef object _read(self, Native native, const char *args)


cdef class Getter(Question):
    pass


cdef class Constant(Question):
    pass


cdef extern from "pjrt_support/wait.h" nogil:
    ctypedef struct pjrt_wait:
        const PJRT_Api *api
        PJRT_Error *error
        pjrt_wait *failed_before
    pjrt_wait *pjrt_wait_new(const PJRT_Api *api)
    void pjrt_wait_acquire(pjrt_wait *wait)
    void pjrt_wait_release(pjrt_wait *wait)
    void *pjrt_wait_finish(pjrt_wait *wait, PJRT_Error *error)
    bint pjrt_wait_is_done(pjrt_wait *wait)
    bint pjrt_wait_watch(pjrt_wait *wait, void *watcher)
    bint pjrt_wait_block(pjrt_wait *wait, double seconds)


cdef class Event:
    cdef Scope scope
    cdef Api api
    cdef PJRT_Event *native
    cdef pjrt_pointer wait  # a pjrt_wait, set once, and again only after a failure
    cdef pjrt_wait *failed
    cdef pjrt_counter watchers

    @staticmethod
    cdef Event of(Scope scope, PJRT_Event *native)
    cdef int register(self, object watcher) except -1
    cdef pjrt_wait *_waiting(self) except NULL
    cdef int _start_waiting(self, pjrt_wait *wait) except -1
    cdef void _stop_waiting(self, pjrt_wait *wait) noexcept


cdef object lazy_future(Scope scope, PJRT_Event *event, object value)
cdef object eager_future(Scope scope, PJRT_Event *event, object value, object keep)
