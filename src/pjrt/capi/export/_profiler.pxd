from pjrt.abi.generated.declarations cimport PJRT_Profiler_Extension, PLUGIN_Profiler_Api

cdef int fill_profiler(PLUGIN_Profiler_Api *api) except -1
cdef void own_profiler(PJRT_Profiler_Extension *extension, PLUGIN_Profiler_Api *api, int plugin) noexcept
