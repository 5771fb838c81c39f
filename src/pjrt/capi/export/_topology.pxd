from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues
from pjrt.capi.export._text cimport Text, Texts

cdef struct TopologyHandle:
    void *record
    Text platform_name
    Text platform_version
    void **descriptions
    size_t num_descriptions
    PJRT_NamedValue *attributes
    size_t num_attributes


cdef class TopologyRecord:
    cdef TopologyHandle handle
    cdef readonly object topology
    cdef Texts texts
    cdef list descriptions
    cdef Block pointers
    cdef NamedValues attributes
    cdef Block kind_ids

    @staticmethod
    cdef TopologyRecord of(object topology, str platform_name, object client)


cdef int fill_table(PJRT_Api *table) except -1
