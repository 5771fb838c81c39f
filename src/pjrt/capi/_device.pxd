from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_DeviceDescription, PJRT_Memory
from pjrt.capi._scope cimport Borrowed, ClientScope, Scope
from pjrt.capi._values cimport NamedValues


cdef class DescriptionCore(Borrowed):
    cdef str _text
    cdef tuple _memories


cdef class DeviceCore(Borrowed):
    cdef readonly object description
    cdef readonly int id


cdef class MemorySpaceCore(Borrowed):
    cdef str _text


cdef object new_description(Scope scope, PJRT_DeviceDescription *native)
cdef object new_device(ClientScope scope, PJRT_Device *native)
cdef object new_memory_space(ClientScope scope, PJRT_Memory *native)
cdef PJRT_Device *native_device(ClientScope scope, object device) except? NULL
cdef PJRT_Memory *native_memory(ClientScope scope, object memory_space) except? NULL
cdef NamedValues payload_values(object error)
