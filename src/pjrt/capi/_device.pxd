from pjrt.capi._gen_abi cimport PJRT_Device, PJRT_DeviceDescription, PJRT_Memory
from pjrt.capi._scope cimport ClientScope, Handle, Scope
from pjrt.capi._values cimport NamedValues


cdef class DescriptionCore:
    cdef Scope scope
    cdef PJRT_DeviceDescription *native
    cdef readonly int id
    cdef readonly int process_index
    cdef readonly str kind
    cdef str _text
    cdef str _debug
    cdef dict _attributes
    cdef tuple _memories


cdef class DeviceCore:
    cdef ClientScope scope
    cdef PJRT_Device *native
    cdef readonly object description
    cdef readonly int id
    cdef readonly bint is_addressable
    cdef tuple _memory_spaces
    cdef object _default


cdef class MemorySpaceCore:
    cdef ClientScope scope
    cdef PJRT_Memory *native
    cdef readonly int id
    cdef readonly str kind
    cdef str _text
    cdef tuple _devices


cdef object device_at(ClientScope scope, PJRT_Device *native)
cdef object memory_at(ClientScope scope, PJRT_Memory *native)
cdef object description_at(Scope scope, PJRT_DeviceDescription *native)
cdef tuple devices_in(ClientScope scope, PJRT_Device **array, size_t number, str what)
cdef tuple memories_in(ClientScope scope, PJRT_Memory **array, size_t number, str what)
cdef PJRT_Device *native_device(ClientScope scope, object device) except? NULL
cdef PJRT_Memory *native_memory(ClientScope scope, object memory_space) except? NULL
cdef NamedValues payload_values(object error)
