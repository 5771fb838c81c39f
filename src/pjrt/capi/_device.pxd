from pjrt.capi._api cimport NamedValues
from pjrt.abi.generated.declarations cimport PJRT_Device, PJRT_DeviceDescription, PJRT_Memory
from pjrt.capi._scope cimport Borrowed, ClientScope, Handle, Native, Scope

cdef class DeviceCore(Borrowed):
    cdef readonly object description
    cdef readonly int id


cdef class MemorySpaceCore(Borrowed):
    cdef str _text


cdef object new_description(Scope scope, PJRT_DeviceDescription *native)
cdef object new_device(ClientScope scope, PJRT_Device *native)
cdef object new_memory_space(ClientScope scope, PJRT_Memory *native)
cdef PJRT_Device *addressable_device(ClientScope scope, object device) except? NULL
cdef PJRT_Device *native_device(ClientScope scope, object device) except? NULL
cdef PJRT_Memory *native_memory(ClientScope scope, object memory_space) except? NULL
cdef NamedValues payload_values(object error)


cdef object buffer_layout(Handle buffer)
cdef object client_layout(Native client, object element_type, object shape)
cdef object topology_layout(Native topology, object element_type, object shape)
cdef tuple output_layouts(Handle executable)
cdef tuple parameter_layouts(Handle executable)
