from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._device cimport DeviceRecord, MemoryRecord
from pjrt.capi.export._gen_handles cimport ClientHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class ClientRecord:
    cdef ClientHandle handle
    cdef readonly object client
    cdef object plugin
    cdef str platform_name
    cdef HandleData data
    cdef dict devices
    cdef dict memories
    cdef object topology
    cdef dict mapped
    cdef dict templates  # of buffers, by all that a framework can ask of their type
    cdef bint has_contexts  # whether the client overrides create_execute_context

    @staticmethod
    cdef ClientRecord of(object client, object plugin)
    cdef DeviceRecord device(self, object device)
    cdef MemoryRecord memory(self, object memory_space)


cdef ClientRecord client_record(PJRT_Client *client)
cdef int fill_table(PJRT_Api *table) except -1
