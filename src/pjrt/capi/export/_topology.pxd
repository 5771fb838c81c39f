from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues
from pjrt.capi.export._strings cimport String, Strings

cdef struct TopologyHandle:
    void *record
    String platform_name
    String platform_version
    void **descriptions
    size_t num_descriptions
    PJRT_NamedValue *attributes
    size_t num_attributes


cdef class TopologyRecord:
    cdef TopologyHandle handle
    cdef readonly object topology
    cdef Strings strings
    cdef list descriptions
    cdef Block pointers
    cdef NamedValues attributes
    cdef Block kind_ids

    @staticmethod
    cdef TopologyRecord of(object topology, str platform_name, object client)


cdef int fill_table(PJRT_Api *table) except -1
