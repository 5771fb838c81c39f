"""Python objects for callbacks that a plugin makes once, and must not be trusted to make only once."""

from cpython.ref cimport Py_DECREF, Py_INCREF

cdef extern from "pjrt_support/ticket.h" nogil:
    void *pjrt_ticket_new(void *thing)
    void *pjrt_ticket_redeem(void *ticket)


cdef void *ticket_for(thing) except NULL:
    """Return a ticket that stands for an object, and keep the object until the ticket is redeemed."""
    cdef void *ticket = pjrt_ticket_new(<void *>thing)
    if ticket == NULL:
        raise MemoryError("no memory to have a plugin call back")
    Py_INCREF(thing)
    return ticket


cdef object redeem(void *ticket):
    """Return the object that a ticket stands for, which is spent by that; ``None`` for one that was spent, or null."""
    cdef void *thing = pjrt_ticket_redeem(ticket)
    if thing == NULL:
        return None
    owner = <object>thing
    Py_DECREF(owner)
    return owner
