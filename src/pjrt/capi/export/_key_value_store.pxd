from pjrt.abi.generated.declarations cimport PJRT_Client_Create_Args

cdef object key_value_store(PJRT_Client_Create_Args *args)
