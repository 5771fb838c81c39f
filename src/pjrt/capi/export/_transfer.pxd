from pjrt.capi._gen_abi cimport PJRT_Api

cdef int fill_table(PJRT_Api *table) except -1
