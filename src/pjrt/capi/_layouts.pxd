from pjrt.capi._scope cimport Handle, Native


cdef object buffer_layout(Handle buffer)
cdef object client_layout(Native client, object element_type, object shape)
cdef object topology_layout(Native topology, object element_type, object shape)
cdef tuple output_layouts(Handle executable)
cdef tuple parameter_layouts(Handle executable)
