from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Api, PJRT_Error, PJRT_Event
from pjrt.capi._scope cimport Scope, pjrt_counter, pjrt_pointer

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
