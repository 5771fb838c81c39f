from pjrt.capi._gen_abi cimport PJRT_Profiler_Extension

cdef int fill_profiler(PJRT_Profiler_Extension *extension, int plugin) except -1
