from pjrt.capi._api cimport Api
from pjrt.abi.generated.declarations cimport PJRT_TopologyDescription
from pjrt.capi._scope cimport Handle, Native, Scope

cdef object create_client(Api api, object attributes, object store, object options)


cdef class TopologyCore(Native):
    cdef Scope scope
    cdef Handle handle
    cdef object attributes_of_plugin
    cdef tuple _descriptions


cdef object create_topology(Scope scope, object name, object options, object attributes)
cdef object deserialize_topology(Scope scope, object serialized, object attributes)
cdef object own_topology(Scope scope, PJRT_TopologyDescription *native, object attributes)
