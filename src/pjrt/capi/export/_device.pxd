from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block
from pjrt.capi.export._gen_handles cimport DeviceDescriptionHandle, DeviceHandle, MemoryHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class DeviceDescriptionRecord:
    cdef DeviceDescriptionHandle handle
    cdef HandleData data
    cdef Block memory_handles

    @staticmethod
    cdef DeviceDescriptionRecord of(object description)


cdef class MemoryRecord:
    cdef MemoryHandle handle
    cdef readonly object memory_space
    cdef HandleData data

    @staticmethod
    cdef MemoryRecord of(object memory_space)


cdef class DeviceRecord:
    cdef DeviceHandle handle
    cdef readonly object device
    cdef DeviceDescriptionRecord description
    cdef HandleData data

    @staticmethod
    cdef DeviceRecord of(object device)


cdef int fill_table(PJRT_Api *table) except -1
cdef int shown_kind_id(object kind_id) except? -1
cdef object own_kind_id(int shown)
cdef object device_of(PJRT_Device *device)
cdef object memory_space_of(PJRT_Memory *memory)
