from pjrt.capi._api cimport Api
from pjrt.capi._gen_abi cimport PJRT_Api, PJRT_Error, PJRT_Event
from pjrt.capi._scope cimport Scope

cdef extern from "pjrt_support/wait.h" nogil:
    ctypedef struct pjrt_wait:
        const PJRT_Api *api
        PJRT_Error *error
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
    cdef pjrt_wait *wait
    cdef bint watched

    @staticmethod
    cdef Event of(Scope scope, PJRT_Event *native)
    cdef int register(self, object watcher) except -1


cdef object lazy_future(Scope scope, PJRT_Event *event, object value)
cdef object eager_future(Scope scope, PJRT_Event *event, object value, object keep)
