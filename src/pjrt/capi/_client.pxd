from pjrt.capi._api cimport Api
from pjrt.capi._scope cimport ClientScope


cdef object create_client(Api api, object attributes, object store, object options)
