from pjrt.capi._gen_abi cimport PJRT_Client_Create_Args


cdef int offer_store(PJRT_Client_Create_Args *args, object store) except -1
