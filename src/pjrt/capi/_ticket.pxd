cdef void *ticket_for(object thing) except NULL
cdef object redeem(void *ticket)
