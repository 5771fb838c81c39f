from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block, NativeLayout
from pjrt.capi.export._client cimport ClientRecord
from pjrt.capi.export._gen_handles cimport BufferHandle
from pjrt.capi.export._handle_data cimport HandleData


cdef class BufferTemplate:
    """A handle to copy for each buffer of one type in one memory space; the buffers share the data behind it."""
    cdef BufferHandle handle
    cdef object shape
    cdef object element_type
    cdef ClientRecord client
    cdef HandleData data
    cdef NativeLayout layout

    @staticmethod
    cdef BufferTemplate of(ClientRecord client, object buffer)


cdef class BufferRecord:
    cdef BufferHandle handle
    cdef object _buffer  # None until something needs it
    cdef object _value  # what a value path uses; None if that is not known, or the buffer was deleted
    cdef object _maker  # makes the buffer of the value
    cdef BufferTemplate template
    cdef dict unpadded  # blocks by shape: what a call returned lives as long as the buffer
    cdef list references

    @staticmethod
    cdef BufferRecord of(ClientRecord client, object buffer, BufferTemplate template)
    @staticmethod
    cdef BufferRecord of_value(object value, object maker, BufferTemplate template)
    cdef void _fill(self, BufferTemplate template) noexcept
    cdef object buffer(self)
    cdef object value(self, object path)
    cdef PJRT_Buffer *give(self) noexcept
    cdef int delete(self) except -1
    cdef int refresh(self) except -1
    cdef void _forget(self) noexcept


cdef PJRT_Buffer *give_buffer(ClientRecord client, object buffer) except NULL
cdef BufferRecord buffer_record(PJRT_Buffer *buffer)
cdef int fill_table(PJRT_Api *table) except -1
