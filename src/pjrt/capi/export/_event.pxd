from pjrt.capi._gen_abi cimport *

cdef PJRT_Event *event_of(object future) except NULL
cdef int fill_table(PJRT_Api *table) except -1
