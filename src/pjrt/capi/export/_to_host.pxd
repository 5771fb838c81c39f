from pjrt.abi.generated.declarations cimport PJRT_Api

cdef int fill_table(PJRT_Api *table) except -1
