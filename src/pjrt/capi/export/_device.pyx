"""Devices, their descriptions and their memory spaces, shown to a framework.

All that can be asked of them without work is read once, when the client is made, so that the getters need no Python.
"""

from libc.stdint cimport int64_t, uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport Block, NamedValues
from pjrt.capi.export._gen_handles cimport DeviceDescriptionHandle, DeviceHandle, MemoryDescriptionHandle, MemoryHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._trampolines cimport (
    drop, has_field, keep, put, python_error, quiet_trampoline, trampoline, with_payloads
)

from pjrt.api.errors import UnimplementedError

cdef extern from "pjrt_support/user_data.h" nogil:
    const PJRT_Memory_FunctionTable *pjrt_memory_table()
    void pjrt_user_data_free(void **list)


cdef class DeviceDescriptionRecord:
    @staticmethod
    cdef DeviceDescriptionRecord of(description):
        cdef DeviceDescriptionRecord record = DeviceDescriptionRecord.__new__(DeviceDescriptionRecord)
        cdef DeviceDescriptionHandle *handle = &record.handle
        cdef HandleData data = HandleData()
        record.data = data
        handle.record = <void *>record
        handle.id = description.id
        handle.process_index = description.process_index
        data.add_string(description.kind, &handle.device_kind, &handle.device_kind_size)
        data.add_string(description.debug_string, &handle.debug_string, &handle.debug_string_size)
        data.add_string(str(description), &handle.to_string, &handle.to_string_size)
        what = f"the attributes of {description}"
        data.add_named_values(description.attributes, what, &handle.attributes, &handle.num_attributes)
        record._describe_memories(description)
        return record

    def _describe_memories(self, description):
        cdef MemoryDescriptionHandle *handles
        cdef DeviceDescriptionHandle *handle = &self.handle
        cdef size_t index
        try:
            spaces = list(description.memory_space_descriptions)
        except UnimplementedError:
            spaces = []
        self.memory_handles = Block.of(len(spaces) * sizeof(MemoryDescriptionHandle))
        handles = <MemoryDescriptionHandle *>self.memory_handles.data
        for index in range(<size_t>len(spaces)):
            self.data.add_string(spaces[index].kind, &handles[index].kind, &handles[index].kind_size)
            handles[index].kind_id = shown_kind_id(spaces[index].kind_id)
        addresses = [<uintptr_t>&handles[index] for index in range(<size_t>len(spaces))]
        self.data.add_pointers(addresses, &handle.memory_descriptions, &handle.num_memory_descriptions)
        handle.default_memory_index = 0 if spaces else <size_t>-1


cdef class MemoryRecord:
    @staticmethod
    cdef MemoryRecord of(memory_space):
        cdef MemoryRecord record = MemoryRecord.__new__(MemoryRecord)
        cdef MemoryHandle *handle = &record.handle
        cdef HandleData data = HandleData()
        record.memory_space = memory_space
        record.data = data
        handle.vtable = pjrt_memory_table()
        handle.record = <void *>record
        handle.id = memory_space.id
        handle.kind_id = shown_kind_id(memory_space.kind_id)
        data.add_string(memory_space.kind, &handle.kind, &handle.kind_size)
        data.add_string(memory_space.debug_string, &handle.debug_string, &handle.debug_string_size)
        data.add_string(str(memory_space), &handle.to_string, &handle.to_string_size)
        return record

    def connect(self, dict devices):
        """Set the devices that can address it, of those that have a handle."""
        addresses = [<uintptr_t>&(<DeviceRecord>devices[d]).handle for d in self.memory_space.devices if d in devices]
        self.data.add_pointers(addresses, &self.handle.devices, &self.handle.num_devices)

    def __dealloc__(self):
        pjrt_user_data_free(&self.handle.user_data)


cdef class DeviceRecord:
    @staticmethod
    cdef DeviceRecord of(device):
        cdef DeviceRecord record = DeviceRecord.__new__(DeviceRecord)
        record.device = device
        record.description = DeviceDescriptionRecord.of(device.description)
        record.data = HandleData()
        record.handle.record = <void *>record
        record.handle.device_description = <PJRT_DeviceDescription *>&record.description.handle
        record.handle.is_addressable = device.is_addressable
        record.handle.local_hardware_id = device.local_hardware_id
        return record

    def connect(self, dict memories):
        """Set the memory spaces that it can address."""
        spaces = self.device.memory_spaces if self.device.is_addressable else ()
        addresses = [<uintptr_t>&(<MemoryRecord>memories[space]).handle for space in spaces]
        self.data.add_pointers(addresses, &self.handle.memories, &self.handle.num_memories)
        if spaces and (default := memories.get(self.device.default_memory_space)) is not None:
            self.handle.memory = <PJRT_Memory *>&(<MemoryRecord>default).handle


cdef int shown_kind_id(kind_id) except? -1:
    """Return the number by which frameworks know a kind of memory: never 0, which XLA takes for no kind."""
    return kind_id + 1 if kind_id >= 0 else kind_id


cdef object own_kind_id(int shown):
    """Return the device's own number of a kind of memory from the one that frameworks know."""
    return shown - 1 if shown > 0 else shown


cdef object device_of(PJRT_Device *device):
    """Return the device behind a handle; ``None`` for a null one."""
    return None if device == NULL else (<DeviceRecord>(<DeviceHandle *>device).record).device


cdef object memory_space_of(PJRT_Memory *memory):
    """Return the memory space behind a handle; ``None`` for a null one."""
    return None if memory == NULL else (<MemoryRecord>(<MemoryHandle *>memory).record).memory_space


cdef struct _OptionalStat:  # how the optional numbers lie in PJRT_Device_MemoryStats_Args, one behind the other
    int64_t value
    c_bool is_set


cdef int _memory_stats(void *raw) except -1:
    args = <PJRT_Device_MemoryStats_Args *>raw
    cdef _OptionalStat *target = <_OptionalStat *>&args.peak_bytes_in_use
    stats = device_of(args.device).memory_stats()
    args.bytes_in_use = stats.bytes_in_use
    for value in (
        stats.peak_bytes_in_use,
        stats.num_allocs,
        stats.largest_alloc_size,
        stats.bytes_limit,
        stats.bytes_reserved,
        stats.peak_bytes_reserved,
        stats.bytes_reservable_limit,
        stats.largest_free_block_bytes,
        stats.pool_bytes,
        stats.peak_pool_bytes,
        stats.peak_allocated_bytes,
    ):
        # The struct has grown over the years, and an older caller's ends earlier.
        if not has_field(args, &target.is_set, sizeof(c_bool)):
            break
        target.is_set = value is not None
        target.value = 0 if value is None else value
        target += 1


cdef int _clear_memory_stats(void *raw) except -1:
    device_of((<PJRT_Device_ClearMemoryStats_Args *>raw).device).clear_memory_stats()


cdef int _poison_execution(void *raw) except -1:
    args = <PJRT_Device_PoisonExecution_Args *>raw
    error = python_error(args.error_code, args.error_message, args.error_message_size)
    if has_field(args, &args.num_payload, sizeof(size_t)):
        error = with_payloads(error, args.payload, args.num_payload)
    args.poisoned = device_of(args.device).poison_execution(args.launch_id, error)


cdef int _create_async_tracking_event(void *raw) except -1:
    args = <PJRT_Device_CreateAsyncTrackingEvent_Args *>raw
    text = args.description[:args.description_size].decode("utf-8", "replace") if args.description_size else ""
    args.event = <PJRT_AsyncTrackingEvent *>keep(device_of(args.device).create_async_tracking_event(text))


cdef int _destroy_async_tracking_event(void *raw) except -1:
    args = <PJRT_AsyncTrackingEvent_Destroy_Args *>raw
    event = <object><void *>args.event
    drop(<void *>args.event)
    event.close()


cdef int _get_attributes(void *raw) except -1:
    args = <PJRT_Device_GetAttributes_Args *>raw
    device = device_of(args.device)
    cdef NamedValues values = NamedValues(dict(device.attributes), f"the attributes of {device}")
    args.attributes = values.data
    args.num_attributes = values.size
    args.device_attributes = <PJRT_Device_Attributes *>keep(values)
    args.attributes_deleter = <void (*)(PJRT_Device_Attributes *) noexcept nogil>drop


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of devices, but for their getters."""
    put(&table.PJRT_Device_MemoryStats, trampoline(_memory_stats))
    put(&table.PJRT_Device_ClearMemoryStats, trampoline(_clear_memory_stats))
    put(&table.PJRT_Device_PoisonExecution, trampoline(_poison_execution))
    put(&table.PJRT_Device_CreateAsyncTrackingEvent, trampoline(_create_async_tracking_event))
    put(&table.PJRT_AsyncTrackingEvent_Destroy, quiet_trampoline(_destroy_async_tracking_event))
    put(&table.PJRT_Device_GetAttributes, trampoline(_get_attributes))
