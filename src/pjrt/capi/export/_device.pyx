"""Devices, their descriptions and their memory spaces, shown to a framework.

All that can be asked of them without work is read once, when the client is made, so that the getters answer from C.
"""

from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues, read_named_values
from pjrt.capi.export._trampolines cimport drop, trampoline, has_field, keep, put, python_error, quiet_trampoline
from pjrt.capi.export._strings cimport Strings

from pjrt.api.errors import PjrtError, UnimplementedError

cdef extern from "pjrt_support/user_data.h" nogil:
    const PJRT_Memory_FunctionTable *pjrt_memory_table()
    void pjrt_user_data_free(void **list)


cdef class DescriptionRecord:
    @staticmethod
    cdef DescriptionRecord of(description):
        cdef DescriptionRecord record = DescriptionRecord.__new__(DescriptionRecord)
        record.description = description
        record.strings = Strings()
        record.attributes = NamedValues(dict(description.attributes), f"the attributes of {description}")
        cdef DescriptionHandle *handle = &record.handle
        handle.record = <void *>record
        handle.id = description.id
        handle.process_index = description.process_index
        handle.kind = record.strings.add(description.kind)
        handle.debug_string = record.strings.add(description.debug_string)
        handle.to_string = record.strings.add(str(description))
        handle.attributes = record.attributes.data
        handle.num_attributes = record.attributes.size
        record._describe_memories()
        return record

    def _describe_memories(self):
        cdef MemoryDescriptionHandle *handles
        try:
            found = list(self.description.memory_space_descriptions)
        except UnimplementedError:
            found = []
        self.memory_handles = Block.of(len(found) * sizeof(MemoryDescriptionHandle))
        handles = <MemoryDescriptionHandle *>self.memory_handles.data
        for index, one in enumerate(found):
            handles[<size_t>index].kind = self.strings.add(one.kind)
            handles[<size_t>index].kind_id = shown_kind_id(one.kind_id)
        self.memory_pointers = pointers([<uintptr_t>&handles[<size_t>i] for i in range(len(found))])
        self.handle.memory_descriptions = <void **>self.memory_pointers.data
        self.handle.num_memory_descriptions = len(found)


cdef class MemoryRecord:
    @staticmethod
    cdef MemoryRecord of(memory_space):
        cdef MemoryRecord record = MemoryRecord.__new__(MemoryRecord)
        record.memory_space = memory_space
        record.strings = Strings()
        cdef MemoryHandle *handle = &record.handle
        handle.vtable = pjrt_memory_table()
        handle.record = <void *>record
        handle.id = memory_space.id
        handle.kind_id = shown_kind_id(memory_space.kind_id)
        handle.kind = record.strings.add(memory_space.kind)
        handle.debug_string = record.strings.add(memory_space.debug_string)
        handle.to_string = record.strings.add(str(memory_space))
        return record

    def connect(self, dict devices):
        """Notes the devices that can address it, of those that have a handle."""
        cdef DeviceRecord device
        addresses = []
        for one in self.memory_space.devices:
            device = devices.get(one)
            if device is not None:
                addresses.append(<uintptr_t>&device.handle)
        self.devices = pointers(addresses)
        self.handle.devices = <void **>self.devices.data
        self.handle.num_devices = len(addresses)

    def __dealloc__(self):
        pjrt_user_data_free(&self.handle.user_data)


cdef class DeviceRecord:
    @staticmethod
    cdef DeviceRecord of(device):
        cdef DeviceRecord record = DeviceRecord.__new__(DeviceRecord)
        record.device = device
        record.description = DescriptionRecord.of(device.description)
        record.handle.record = <void *>record
        record.handle.description = &record.description.handle
        record.handle.is_addressable = device.is_addressable
        record.handle.local_hardware_id = device.local_hardware_id
        return record

    cdef int connect(self, dict memories) except -1:
        """Notes the memory spaces that it can address."""
        cdef MemoryRecord memory
        addresses = []
        if self.device.is_addressable:
            default = self.device.default_memory_space
            for one in self.device.memory_spaces:
                memory = memories[one]
                addresses.append(<uintptr_t>&memory.handle)
                if one is default or one == default:
                    self.handle.default_memory = &memory.handle
        self.memories = pointers(addresses)
        self.handle.memories = <void **>self.memories.data
        self.handle.num_memories = len(addresses)
        return 0


cdef Block pointers(list addresses):
    """An array of pointers."""
    cdef Block block = Block.of(len(addresses) * sizeof(void *))
    cdef size_t index
    for index in range(<size_t>len(addresses)):
        (<void **>block.data)[index] = <void *><uintptr_t>addresses[index]
    return block


cdef int shown_kind_id(kind_id) except? -1:
    """Return the number by which frameworks know a kind of memory: never 0, which means none to XLA."""
    return kind_id + 1 if kind_id >= 0 else kind_id


cdef object own_kind_id(int shown):
    """Return the device's own number of a kind of memory from the one that frameworks know."""
    return shown - 1 if shown > 0 else shown


cdef object device_of(PJRT_Device *device):
    """The device behind a handle; ``None`` for a null one."""
    return None if device == NULL else (<DeviceRecord>(<DeviceHandle *>device).record).device


cdef object memory_space_of(PJRT_Memory *memory):
    """The memory space behind a handle; ``None`` for a null one."""
    return None if memory == NULL else (<MemoryRecord>(<MemoryHandle *>memory).record).memory_space


# Getters: from C, without the GIL.

cdef PJRT_Error *_description_id(PJRT_DeviceDescription_Id_Args *args) noexcept nogil:
    args.id = (<DescriptionHandle *>args.device_description).id
    return NULL


cdef PJRT_Error *_description_process_index(PJRT_DeviceDescription_ProcessIndex_Args *args) noexcept nogil:
    args.process_index = (<DescriptionHandle *>args.device_description).process_index
    return NULL


cdef PJRT_Error *_description_attributes(PJRT_DeviceDescription_Attributes_Args *args) noexcept nogil:
    args.attributes = (<DescriptionHandle *>args.device_description).attributes
    args.num_attributes = (<DescriptionHandle *>args.device_description).num_attributes
    return NULL


cdef PJRT_Error *_description_kind(PJRT_DeviceDescription_Kind_Args *args) noexcept nogil:
    args.device_kind = (<DescriptionHandle *>args.device_description).kind.data
    args.device_kind_size = (<DescriptionHandle *>args.device_description).kind.size
    return NULL


cdef PJRT_Error *_description_debug_string(PJRT_DeviceDescription_DebugString_Args *args) noexcept nogil:
    args.debug_string = (<DescriptionHandle *>args.device_description).debug_string.data
    args.debug_string_size = (<DescriptionHandle *>args.device_description).debug_string.size
    return NULL


cdef PJRT_Error *_description_to_string(PJRT_DeviceDescription_ToString_Args *args) noexcept nogil:
    args.to_string = (<DescriptionHandle *>args.device_description).to_string.data
    args.to_string_size = (<DescriptionHandle *>args.device_description).to_string.size
    return NULL


cdef PJRT_Error *_description(PJRT_Device_GetDescription_Args *args) noexcept nogil:
    args.device_description = <PJRT_DeviceDescription *>(<DeviceHandle *>args.device).description
    return NULL


cdef PJRT_Error *_is_addressable(PJRT_Device_IsAddressable_Args *args) noexcept nogil:
    args.is_addressable = (<DeviceHandle *>args.device).is_addressable
    return NULL


cdef PJRT_Error *_local_hardware_id(PJRT_Device_LocalHardwareId_Args *args) noexcept nogil:
    args.local_hardware_id = (<DeviceHandle *>args.device).local_hardware_id
    return NULL


cdef PJRT_Error *_memories(PJRT_Device_AddressableMemories_Args *args) noexcept nogil:
    args.memories = <PJRT_Memory **>(<DeviceHandle *>args.device).memories
    args.num_memories = (<DeviceHandle *>args.device).num_memories
    return NULL


cdef PJRT_Error *_default_memory(PJRT_Device_DefaultMemory_Args *args) noexcept nogil:
    args.memory = <PJRT_Memory *>(<DeviceHandle *>args.device).default_memory
    return NULL


cdef PJRT_Error *_memory_id(PJRT_Memory_Id_Args *args) noexcept nogil:
    args.id = (<MemoryHandle *>args.memory).id
    return NULL


cdef PJRT_Error *_memory_kind(PJRT_Memory_Kind_Args *args) noexcept nogil:
    args.kind = (<MemoryHandle *>args.memory).kind.data
    args.kind_size = (<MemoryHandle *>args.memory).kind.size
    return NULL


cdef PJRT_Error *_memory_kind_id(PJRT_Memory_Kind_Id_Args *args) noexcept nogil:
    args.kind_id = (<MemoryHandle *>args.memory).kind_id
    return NULL


cdef PJRT_Error *_memory_debug_string(PJRT_Memory_DebugString_Args *args) noexcept nogil:
    args.debug_string = (<MemoryHandle *>args.memory).debug_string.data
    args.debug_string_size = (<MemoryHandle *>args.memory).debug_string.size
    return NULL


cdef PJRT_Error *_memory_to_string(PJRT_Memory_ToString_Args *args) noexcept nogil:
    args.to_string = (<MemoryHandle *>args.memory).to_string.data
    args.to_string_size = (<MemoryHandle *>args.memory).to_string.size
    return NULL


cdef PJRT_Error *_memory_devices(PJRT_Memory_AddressableByDevices_Args *args) noexcept nogil:
    args.devices = <PJRT_Device **>(<MemoryHandle *>args.memory).devices
    args.num_devices = (<MemoryHandle *>args.memory).num_devices
    return NULL


# What the device itself must answer.

cdef int _memory_stats(void *raw) except -1:
    args = <PJRT_Device_MemoryStats_Args *>raw
    stats = device_of(args.device).memory_stats()
    args.bytes_in_use = stats.bytes_in_use
    _stat(args, &args.peak_bytes_in_use, &args.peak_bytes_in_use_is_set, stats.peak_bytes_in_use)
    _stat(args, &args.num_allocs, &args.num_allocs_is_set, stats.num_allocs)
    _stat(args, &args.largest_alloc_size, &args.largest_alloc_size_is_set, stats.largest_alloc_size)
    _stat(args, &args.bytes_limit, &args.bytes_limit_is_set, stats.bytes_limit)
    _stat(args, &args.bytes_reserved, &args.bytes_reserved_is_set, stats.bytes_reserved)
    _stat(args, &args.peak_bytes_reserved, &args.peak_bytes_reserved_is_set, stats.peak_bytes_reserved)
    _stat(args, &args.bytes_reservable_limit, &args.bytes_reservable_limit_is_set, stats.bytes_reservable_limit)
    _stat(args, &args.largest_free_block_bytes, &args.largest_free_block_bytes_is_set, stats.largest_free_block_bytes)
    _stat(args, &args.pool_bytes, &args.pool_bytes_is_set, stats.pool_bytes)
    _stat(args, &args.peak_pool_bytes, &args.peak_pool_bytes_is_set, stats.peak_pool_bytes)
    _stat(args, &args.peak_allocated_bytes, &args.peak_allocated_bytes_is_set, stats.peak_allocated_bytes)
    return 0


cdef int _stat(void *args, int64_t *target, c_bool *is_set, value) except -1:
    if not has_field(args, is_set, sizeof(c_bool)):
        return 0
    is_set[0] = value is not None
    target[0] = 0 if value is None else value
    return 0


cdef int _clear_memory_stats(void *raw) except -1:
    device_of((<PJRT_Device_ClearMemoryStats_Args *>raw).device).clear_memory_stats()
    return 0


cdef int _poison_execution(void *raw) except -1:
    args = <PJRT_Device_PoisonExecution_Args *>raw
    error = python_error(args.error_code, args.error_message, args.error_message_size)
    if has_field(args, &args.num_payload, sizeof(size_t)) and args.num_payload:
        payloads = read_named_values(args.payload, args.num_payload, "payloads")
        error = PjrtError.of(int(error.code), error.message, {name: _payload(value) for name, value in payloads.items()})
    args.poisoned = device_of(args.device).poison_execution(args.launch_id, error)
    return 0


cdef bytes _payload(value):
    return value.encode() if isinstance(value, str) else bytes(value)


cdef int _create_async_tracking_event(void *raw) except -1:
    args = <PJRT_Device_CreateAsyncTrackingEvent_Args *>raw
    text = args.description[:args.description_size].decode("utf-8", "replace") if args.description_size else ""
    args.event = <PJRT_AsyncTrackingEvent *>keep(device_of(args.device).create_async_tracking_event(text))
    return 0


cdef int _destroy_async_tracking_event(void *raw) except -1:
    args = <PJRT_AsyncTrackingEvent_Destroy_Args *>raw
    event = <object><void *>args.event
    drop(<void *>args.event)
    event.close()
    return 0


cdef int _get_attributes(void *raw) except -1:
    args = <PJRT_Device_GetAttributes_Args *>raw
    device = device_of(args.device)
    cdef NamedValues values = NamedValues(dict(device.attributes), f"the attributes of {device}")
    args.attributes = values.data
    args.num_attributes = values.size
    args.device_attributes = <PJRT_Device_Attributes *>keep(values)
    args.attributes_deleter = <void (*)(PJRT_Device_Attributes *) noexcept nogil>drop
    return 0


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of devices, descriptions and memories."""
    table.PJRT_DeviceDescription_Id = _description_id
    table.PJRT_DeviceDescription_ProcessIndex = _description_process_index
    table.PJRT_DeviceDescription_Attributes = _description_attributes
    table.PJRT_DeviceDescription_Kind = _description_kind
    table.PJRT_DeviceDescription_DebugString = _description_debug_string
    table.PJRT_DeviceDescription_ToString = _description_to_string
    table.PJRT_Device_GetDescription = _description
    table.PJRT_Device_IsAddressable = _is_addressable
    table.PJRT_Device_LocalHardwareId = _local_hardware_id
    table.PJRT_Device_AddressableMemories = _memories
    table.PJRT_Device_DefaultMemory = _default_memory
    put(table, SLOT_PJRT_Device_MemoryStats, trampoline(_memory_stats))
    put(table, SLOT_PJRT_Device_ClearMemoryStats, trampoline(_clear_memory_stats))
    put(table, SLOT_PJRT_Device_PoisonExecution, trampoline(_poison_execution))
    put(table, SLOT_PJRT_Device_CreateAsyncTrackingEvent, trampoline(_create_async_tracking_event))
    put(table, SLOT_PJRT_AsyncTrackingEvent_Destroy, quiet_trampoline(_destroy_async_tracking_event))
    put(table, SLOT_PJRT_Device_GetAttributes, trampoline(_get_attributes))
    table.PJRT_Memory_Id = _memory_id
    table.PJRT_Memory_Kind = _memory_kind
    table.PJRT_Memory_Kind_Id = _memory_kind_id
    table.PJRT_Memory_DebugString = _memory_debug_string
    table.PJRT_Memory_ToString = _memory_to_string
    table.PJRT_Memory_AddressableByDevices = _memory_devices
    return 0
