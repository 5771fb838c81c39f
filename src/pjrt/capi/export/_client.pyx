"""Clients shown to a framework, with their devices and memory spaces."""

from libc.stdint cimport uintptr_t

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block
from pjrt.capi.export._device cimport DeviceRecord, MemoryRecord, pointers
from pjrt.capi.export._trampolines cimport drop, trampoline, notice_trampoline, put, python_error, quiet_trampoline
from pjrt.capi.export._host_memory cimport host_memory
from pjrt.capi.export._strings cimport Strings

from pjrt.api.client import Client
from pjrt.api.process_info import ProcessInfo, ProcessState
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, NotFoundError, UnimplementedError
)
from pjrt.capi.export._event import working


cdef class ClientRecord:
    @staticmethod
    cdef ClientRecord of(client, str platform_name):
        cdef ClientRecord record = ClientRecord.__new__(ClientRecord)
        record.client = client
        record.platform_name = platform_name
        record.strings = Strings()
        record.mapped = {}
        record._read_places()
        working.add(client)
        cdef ClientHandle *handle = &record.handle
        handle.record = <void *>record
        handle.platform_name = record.strings.add(platform_name or client.platform_name)
        handle.platform_version = record.strings.add(client.platform_version)
        handle.process_index = client.process_index
        return record

    def _read_places(self):
        cdef DeviceRecord device
        cdef MemoryRecord memory
        self.devices = {one: DeviceRecord.of(one) for one in self.client.devices}
        self.memories = {one: MemoryRecord.of(one) for one in self.client.memory_spaces}
        for memory in self.memories.values():
            memory.connect(self.devices)
        for device in self.devices.values():
            device.connect(self.memories)
        every = [<uintptr_t>&(<DeviceRecord>d).handle for d in self.devices.values()]
        here = [<uintptr_t>&self.device(d).handle for d in self.client.addressable_devices]
        memories = [<uintptr_t>&(<MemoryRecord>m).handle for m in self.memories.values()]
        self.device_pointers, self.handle.num_devices = pointers(every), len(every)
        self.addressable_pointers, self.handle.num_addressable_devices = pointers(here), len(here)
        self.memory_pointers, self.handle.num_memories = pointers(memories), len(memories)
        self.handle.devices = <void **>self.device_pointers.data
        self.handle.addressable_devices = <void **>self.addressable_pointers.data
        self.handle.memories = <void **>self.memory_pointers.data

    cdef DeviceRecord device(self, device):
        found = self.devices.get(device)
        if found is None:
            raise InternalError(f"the client gave {device}, which is none of its devices")
        return <DeviceRecord>found

    cdef MemoryRecord memory(self, memory_space):
        found = self.memories.get(memory_space)
        if found is None:
            raise InternalError(f"the client gave {memory_space}, which is none of its memory spaces")
        return <MemoryRecord>found


cdef ClientRecord client_record(PJRT_Client *client):
    """The record behind a client's handle."""
    if client == NULL:
        raise InvalidArgumentError("expected a client, found a null pointer")
    return <ClientRecord>(<ClientHandle *>client).record


cdef PJRT_Error *_platform_name(PJRT_Client_PlatformName_Args *args) noexcept nogil:
    args.platform_name = (<ClientHandle *>args.client).platform_name.data
    args.platform_name_size = (<ClientHandle *>args.client).platform_name.size
    return NULL


cdef PJRT_Error *_platform_version(PJRT_Client_PlatformVersion_Args *args) noexcept nogil:
    args.platform_version = (<ClientHandle *>args.client).platform_version.data
    args.platform_version_size = (<ClientHandle *>args.client).platform_version.size
    return NULL


cdef PJRT_Error *_process_index(PJRT_Client_ProcessIndex_Args *args) noexcept nogil:
    args.process_index = (<ClientHandle *>args.client).process_index
    return NULL


cdef PJRT_Error *_devices(PJRT_Client_Devices_Args *args) noexcept nogil:
    args.devices = <PJRT_Device **>(<ClientHandle *>args.client).devices
    args.num_devices = (<ClientHandle *>args.client).num_devices
    return NULL


cdef PJRT_Error *_addressable_devices(PJRT_Client_AddressableDevices_Args *args) noexcept nogil:
    args.addressable_devices = <PJRT_Device **>(<ClientHandle *>args.client).addressable_devices
    args.num_addressable_devices = (<ClientHandle *>args.client).num_addressable_devices
    return NULL


cdef PJRT_Error *_memories(PJRT_Client_AddressableMemories_Args *args) noexcept nogil:
    args.addressable_memories = <PJRT_Memory **>(<ClientHandle *>args.client).memories
    args.num_addressable_memories = (<ClientHandle *>args.client).num_memories
    return NULL


cdef int _destroy(void *raw) except -1:
    args = <PJRT_Client_Destroy_Args *>raw
    if args.client == NULL:
        return 0
    client = client_record(args.client).client
    drop((<ClientHandle *>args.client).record)
    client.close()
    return 0


cdef int _lookup_device(void *raw) except -1:
    args = <PJRT_Client_LookupDevice_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    try:
        device = record.client.lookup_device(args.id)
    except NotFoundError as error:  # which has another code in XLA, and other words, that frameworks look for
        raise InvalidArgumentError(f"No matching device found for device_id {args.id}") from error
    args.device = <PJRT_Device *>&record.device(device).handle
    return 0


cdef int _lookup_addressable_device(void *raw) except -1:
    args = <PJRT_Client_LookupAddressableDevice_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    try:
        device = record.client.lookup_addressable_device(args.local_hardware_id)
    except NotFoundError as error:
        raise InvalidArgumentError(
            f"No matching device found for local_hardware_id {args.local_hardware_id}"
        ) from error
    args.addressable_device = <PJRT_Device *>&record.device(device).handle
    return 0


cdef int _default_device_assignment(void *raw) except -1:
    args = <PJRT_Client_DefaultDeviceAssignment_Args *>raw
    cdef size_t index = 0
    cdef object replicas = args.num_replicas, partitions = args.num_partitions  # whose product may not fit an int
    client = client_record(args.client).client
    if replicas < 1 or partitions < 1:
        raise InvalidArgumentError(
            f"a device assignment has at least 1 replica and 1 partition, found {replicas} and {partitions}"
        )
    wanted = replicas * partitions
    if args.default_assignment_size < wanted:
        raise FailedPreconditionError(
            f"PJRT_Client_DefaultDeviceAssignment: `default_assignment_size` {args.default_assignment_size} < "
            f"`num_replicas * num_partitions`, {replicas} * {partitions} = {wanted}"
        )
    for row in _default_assignment(client, replicas, partitions).device_ids:
        for device_id in row:
            if index == args.default_assignment_size:
                raise InternalError(f"{client!r} gave a device assignment of more than the {wanted} devices asked for")
            args.default_assignment[index] = device_id
            index += 1
    return 0


def _default_assignment(client, replicas, partitions):
    """Return the client's assignment, or, where it has too few devices for one, ids in order.

    XLA answers this question of any number, also of more devices than there are: it says how devices would be counted.
    Compiling for devices that are not there fails.
    """
    try:
        return client.default_device_assignment(replicas, partitions)
    except InvalidArgumentError:
        if replicas * partitions <= len(client.devices):
            raise
        return DeviceAssignment.in_order(range(replicas * partitions), replicas, partitions)


cdef int _dma_map(void *raw) except -1:
    args = <PJRT_Client_DmaMap_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    memory = host_memory(args.data, args.size, False)
    record.client.dma_map(memory)
    record.mapped[<uintptr_t>args.data] = memory
    return 0


cdef int _dma_unmap(void *raw) except -1:
    args = <PJRT_Client_DmaUnmap_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    memory = record.mapped.get(<uintptr_t>args.data)
    if memory is None:
        if type(record.client).dma_unmap is Client.dma_unmap:
            record.client.dma_unmap(None)  # it says that it does not offer this
        raise InvalidArgumentError(
            f"the memory at {<uintptr_t>args.data:#x} is not mapped; map it with PJRT_Client_DmaMap first"
        )
    record.client.dma_unmap(memory)
    del record.mapped[<uintptr_t>args.data]
    return 0


cdef int _update_global_process_info(void *raw) except -1:
    args = <PJRT_Client_UpdateGlobalProcessInfo_Args *>raw
    cdef size_t index
    cdef PJRT_ProcessInfo *info
    processes = []
    for index in range(args.num_process_infos):
        info = &args.process_infos[index]
        error = None
        if info.error_code:
            error = python_error(<PJRT_Error_Code>info.error_code, info.error_message, info.error_message_size)
        processes.append(ProcessInfo(info.task_id, info.incarnation_id, ProcessState(<int>info.state), error))
    try:
        client_record(args.client).client.update_global_process_info(processes)
    except UnimplementedError:
        pass  # a device that knows no other processes has nothing to note; XLA ends the process on any error
    return 0


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of clients, but for those that make buffers, executables and topologies."""
    table.PJRT_Client_PlatformName = _platform_name
    table.PJRT_Client_PlatformVersion = _platform_version
    table.PJRT_Client_ProcessIndex = _process_index
    table.PJRT_Client_Devices = _devices
    table.PJRT_Client_AddressableDevices = _addressable_devices
    table.PJRT_Client_AddressableMemories = _memories
    put(table, SLOT_PJRT_Client_Destroy, quiet_trampoline(_destroy))
    put(table, SLOT_PJRT_Client_LookupDevice, trampoline(_lookup_device))
    put(table, SLOT_PJRT_Client_LookupAddressableDevice, trampoline(_lookup_addressable_device))
    put(table, SLOT_PJRT_Client_DefaultDeviceAssignment, trampoline(_default_device_assignment))
    put(table, SLOT_PJRT_Client_DmaMap, trampoline(_dma_map))
    put(table, SLOT_PJRT_Client_DmaUnmap, trampoline(_dma_unmap))
    put(table, SLOT_PJRT_Client_UpdateGlobalProcessInfo, notice_trampoline(_update_global_process_info))
    return 0
