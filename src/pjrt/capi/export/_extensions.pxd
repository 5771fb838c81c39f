from pjrt.abi.generated.declarations cimport PJRT_Extension_Base

cdef PJRT_Extension_Base *chain(int plugin, bint has_profiler, bint has_abi_versions) except NULL
