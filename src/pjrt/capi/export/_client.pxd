from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block
from pjrt.capi.export._device cimport DeviceRecord, MemoryRecord
from pjrt.capi.export._strings cimport String, Strings

cdef struct ClientHandle:
    void *record
    String platform_name
    String platform_version
    int process_index
    void **devices
    size_t num_devices
    void **addressable_devices
    size_t num_addressable_devices
    void **memories
    size_t num_memories


cdef class ClientRecord:
    cdef ClientHandle handle
    cdef readonly object client
    cdef str platform_name
    cdef Strings strings
    cdef dict devices
    cdef dict memories
    cdef Block device_pointers
    cdef Block addressable_pointers
    cdef Block memory_pointers
    cdef object topology
    cdef dict mapped

    @staticmethod
    cdef ClientRecord of(object client, str platform_name)
    cdef DeviceRecord device(self, object device)
    cdef MemoryRecord memory(self, object memory_space)


cdef ClientRecord client_record(PJRT_Client *client)
cdef int fill_table(PJRT_Api *table) except -1
