from libc.stdint cimport int64_t

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NativeLayout
from pjrt.capi.export._client cimport ClientRecord


cdef class Facts:
    """What is the same for all buffers of one shape in one place; shared by them."""
    cdef readonly object shape
    cdef readonly object element_type
    cdef object device
    cdef object memory_space
    cdef ClientRecord client
    cdef PJRT_Buffer_Type type
    cdef Block dims
    cdef size_t num_dims
    cdef NativeLayout layout
    cdef size_t on_device_size
    cdef PJRT_Device *device_handle
    cdef PJRT_Memory *memory_handle
    cdef bint is_on_cpu
    cdef Block dynamic
    cdef size_t num_dynamic

    @staticmethod
    cdef Facts of(ClientRecord client, object buffer)


cdef struct BufferHandle:
    void *record
    PJRT_Buffer_Type type
    const int64_t *dims
    size_t num_dims
    PJRT_Device *device
    PJRT_Memory *memory
    size_t on_device_size
    bint is_on_cpu
    bint is_deleted
    PJRT_Buffer_MemoryLayout *layout
    const size_t *dynamic
    size_t num_dynamic


cdef class BufferRecord:
    cdef BufferHandle handle
    cdef readonly object buffer
    cdef Facts facts
    cdef Block unpadded
    cdef list references

    @staticmethod
    cdef BufferRecord of(ClientRecord client, object buffer, Facts like)
    cdef PJRT_Buffer *give(self) noexcept
    cdef int refresh(self) except -1


cdef BufferRecord buffer_record(PJRT_Buffer *buffer)
cdef int fill_table(PJRT_Api *table) except -1
