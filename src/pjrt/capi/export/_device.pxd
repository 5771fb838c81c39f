from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues
from pjrt.capi.export._strings cimport String, Strings

# The handles that a framework holds. Each begins with what the ABI asks for, or with the record that owns it; getters
# read what follows and need neither the GIL nor Python.

cdef struct DescriptionHandle:
    void *record
    int id
    int process_index
    String kind
    String debug_string
    String to_string
    PJRT_NamedValue *attributes
    size_t num_attributes
    void **memory_descriptions
    size_t num_memory_descriptions

cdef struct MemoryDescriptionHandle:
    String kind
    int kind_id

cdef struct MemoryHandle:
    const PJRT_Memory_FunctionTable *vtable
    void *record
    void *user_data
    int id
    int kind_id
    String kind
    String debug_string
    String to_string
    void **devices
    size_t num_devices

cdef struct DeviceHandle:
    void *record
    DescriptionHandle *description
    bint is_addressable
    int local_hardware_id
    void **memories
    size_t num_memories
    void *default_memory


cdef class DescriptionRecord:
    cdef DescriptionHandle handle
    cdef readonly object description
    cdef Strings strings
    cdef NamedValues attributes
    cdef Block memory_pointers
    cdef Block memory_handles

    @staticmethod
    cdef DescriptionRecord of(object description)


cdef class MemoryRecord:
    cdef MemoryHandle handle
    cdef readonly object memory_space
    cdef Strings strings
    cdef Block devices

    @staticmethod
    cdef MemoryRecord of(object memory_space)


cdef class DeviceRecord:
    cdef DeviceHandle handle
    cdef readonly object device
    cdef DescriptionRecord description
    cdef Block memories

    @staticmethod
    cdef DeviceRecord of(object device)
    cdef int connect(self, dict memories) except -1


cdef Block pointers(list addresses)
cdef int fill_table(PJRT_Api *table) except -1
cdef int shown_kind_id(object kind_id) except? -1
cdef object own_kind_id(int shown)
cdef object device_of(PJRT_Device *device)
cdef object memory_space_of(PJRT_Memory *memory)
