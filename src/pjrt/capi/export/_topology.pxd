from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._gen_handles cimport TopologyDescriptionHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class TopologyRecord:
    cdef TopologyDescriptionHandle handle
    cdef readonly object topology
    cdef HandleData data
    cdef list descriptions
    cdef const int *kind_ids
    cdef size_t num_kind_ids

    @staticmethod
    cdef TopologyRecord of(object topology, str platform_name, object client)
    cdef PJRT_TopologyDescription *give(self) noexcept


cdef TopologyRecord topology_record(const PJRT_TopologyDescription *topology)
cdef int fill_table(PJRT_Api *table) except -1
