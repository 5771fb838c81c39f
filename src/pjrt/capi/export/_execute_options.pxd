from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._client cimport ClientRecord

cdef object read_execute_options(PJRT_ExecuteOptions *options, size_t num_devices, ClientRecord client)
cdef bint is_plain(PJRT_ExecuteOptions *options, int *launch_id) noexcept nogil
cdef PJRT_Error *add_user_data(PJRT_FFI_UserData_Add_Args *args) noexcept nogil
cdef int fill_table(PJRT_Api *table) except -1
