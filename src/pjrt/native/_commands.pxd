cdef class Loaded:
    cdef object _execute
    cdef object _execute_all
    cdef readonly list parameters
    cdef object _devices
    cdef object _path
    cdef object _run
    cdef list _makers
    cdef list _types
    cdef list _result_types
    cdef dict _options
    cdef public Py_ssize_t users

    cdef object options(self, bytes is_kept)


cdef object type_of(value)
