from pjrt.capi._gen_abi cimport PJRT_Client_Create_Args

cdef object key_value_store(PJRT_Client_Create_Args *args)
