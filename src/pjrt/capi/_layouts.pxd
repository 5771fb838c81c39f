from pjrt.capi._gen_abi cimport PJRT_Client, PJRT_Executable, PJRT_TopologyDescription
from pjrt.capi._scope cimport Handle, Scope


cdef object buffer_layout(Handle buffer)
cdef object client_layout(Scope scope, PJRT_Client *client, object element_type, object shape)
cdef object topology_layout(Scope scope, PJRT_TopologyDescription *topology, object element_type, object shape)
cdef tuple output_layouts(Handle executable)
cdef tuple parameter_layouts(Handle executable)
