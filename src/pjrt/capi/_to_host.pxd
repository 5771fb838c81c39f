from pjrt.capi._scope cimport Handle


cdef object read_array(Handle buffer, object out, object layout)
cdef object copy_raw(Handle buffer, object out, object offset, object size)
cdef object copy_raw_later(Handle buffer, object out, object offset, object size)
