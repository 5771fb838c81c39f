from pjrt.capi._gen_abi cimport PJRT_Api, PJRT_ExecuteOptions

cdef object read_execute_options(PJRT_ExecuteOptions *options, size_t num_devices, object client)
cdef int fill_table(PJRT_Api *table) except -1
