from pjrt.abi.generated.declarations cimport PJRT_FFI_Extension

cdef int fill_ffi(PJRT_FFI_Extension *extension) except -1
cdef void own_ffi(PJRT_FFI_Extension *extension, int plugin) noexcept
