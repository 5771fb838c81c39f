from pjrt.capi._api cimport Api

cdef dict take_down(Api api)
cdef dict alive(Api api)
