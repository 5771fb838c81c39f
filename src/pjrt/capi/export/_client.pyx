"""Clients shown to a framework, with their devices and memory spaces."""

from libc.stdint cimport uintptr_t

from pjrt.abi.generated.declarations cimport *
from pjrt.capi.export._device cimport DeviceRecord, MemoryRecord
from pjrt.capi.export._gen_handles cimport ClientHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._host_memory cimport host_memory
from pjrt.capi.export._trampolines cimport drop, notice_trampoline, put, python_error, quiet_trampoline, trampoline

from pjrt.api.client import Client
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.key_value_store import ProcessInfo, ProcessState
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, NotFoundError, UnimplementedError
)
from pjrt.capi.export._event import working


cdef class ClientRecord:
    @staticmethod
    cdef ClientRecord of(client, plugin):
        cdef ClientRecord record = ClientRecord.__new__(ClientRecord)
        cdef ClientHandle *handle = &record.handle
        cdef HandleData data = HandleData()
        record.client = client
        record.plugin = plugin
        record.platform_name = plugin.platform_name
        record.data = data
        record.mapped = {}
        record.templates = {}
        record.has_contexts = type(client).create_execute_context is not Client.create_execute_context
        record._read_places()
        working.add(client)
        handle.record = <void *>record
        data.add_string(record.platform_name or client.platform_name, &handle.platform_name, &handle.platform_name_size)
        data.add_string(client.platform_version, &handle.platform_version, &handle.platform_version_size)
        handle.process_index = client.process_index
        return record

    def _read_places(self):
        cdef ClientHandle *handle = &self.handle
        self.devices = {device: DeviceRecord.of(device) for device in self.client.devices}
        self.memories = {space: MemoryRecord.of(space) for space in self.client.memory_spaces}
        for record in self.memories.values():
            record.connect(self.devices)
        for record in self.devices.values():
            record.connect(self.memories)
        every = [<uintptr_t>&(<DeviceRecord>record).handle for record in self.devices.values()]
        addressable = [<uintptr_t>&self.device(device).handle for device in self.client.addressable_devices]
        memories = [<uintptr_t>&(<MemoryRecord>record).handle for record in self.memories.values()]
        self.data.add_pointers(every, &handle.devices, &handle.num_devices)
        self.data.add_pointers(addressable, &handle.addressable_devices, &handle.num_addressable_devices)
        self.data.add_pointers(memories, &handle.addressable_memories, &handle.num_addressable_memories)

    cdef DeviceRecord device(self, device):
        record = self.devices.get(device)
        if record is None:
            raise InternalError(f"the client returned {device}, which is none of its devices")
        return <DeviceRecord>record

    cdef MemoryRecord memory(self, memory_space):
        record = self.memories.get(memory_space)
        if record is None:
            raise InternalError(f"the client returned {memory_space}, which is none of its memory spaces")
        return <MemoryRecord>record


cdef ClientRecord client_record(PJRT_Client *client):
    """Return the record behind a client's handle."""
    if client == NULL:
        raise InvalidArgumentError("expected a client, found a null pointer")
    return <ClientRecord>(<ClientHandle *>client).record


cdef int _destroy(void *raw) except -1:
    args = <PJRT_Client_Destroy_Args *>raw
    cdef ClientRecord record
    if args.client != NULL:
        record = client_record(args.client)
        drop((<ClientHandle *>args.client).record)
        record.plugin.release(record.client)


cdef int _lookup_device(void *raw) except -1:
    args = <PJRT_Client_LookupDevice_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    try:
        device = record.client.lookup_device(args.id)
    except NotFoundError as error:  # XLA has another code and message for this, which frameworks look for
        raise InvalidArgumentError(f"No matching device found for device_id {args.id}") from error
    args.device = <PJRT_Device *>&record.device(device).handle


cdef int _lookup_addressable_device(void *raw) except -1:
    args = <PJRT_Client_LookupAddressableDevice_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    try:
        device = record.client.lookup_addressable_device(args.local_hardware_id)
    except NotFoundError as error:
        message = f"No matching device found for local_hardware_id {args.local_hardware_id}"
        raise InvalidArgumentError(message) from error
    args.addressable_device = <PJRT_Device *>&record.device(device).handle


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
                raise InternalError(f"{client!r} returned a device assignment of more than {wanted} devices")
            args.default_assignment[index] = device_id
            index += 1


def _default_assignment(client, replicas, partitions):
    """Return the client's assignment, or, where the client has too few devices for one, ids in order.

    XLA answers for any number of devices, also for more than the client has: the answer is how they would be numbered.
    Only compiling for missing devices fails.
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


cdef int _dma_unmap(void *raw) except -1:
    args = <PJRT_Client_DmaUnmap_Args *>raw
    cdef ClientRecord record = client_record(args.client)
    memory = record.mapped.get(<uintptr_t>args.data)
    if memory is None:
        if type(record.client).dma_unmap is Client.dma_unmap:
            record.client.dma_unmap(None)  # raises UnimplementedError in the client's words
        raise InvalidArgumentError(
            f"the memory at {<uintptr_t>args.data:#x} is not mapped; map it with PJRT_Client_DmaMap first"
        )
    record.client.dma_unmap(memory)
    del record.mapped[<uintptr_t>args.data]


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
        pass  # the device knows no other processes; XLA ends the process on any error


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of clients, but for those that make buffers, executables and topologies."""
    put(&table.PJRT_Client_Destroy, quiet_trampoline(_destroy))
    put(&table.PJRT_Client_LookupDevice, trampoline(_lookup_device))
    put(&table.PJRT_Client_LookupAddressableDevice, trampoline(_lookup_addressable_device))
    put(&table.PJRT_Client_DefaultDeviceAssignment, trampoline(_default_device_assignment))
    put(&table.PJRT_Client_DmaMap, trampoline(_dma_map))
    put(&table.PJRT_Client_DmaUnmap, trampoline(_dma_unmap))
    put(&table.PJRT_Client_UpdateGlobalProcessInfo, notice_trampoline(_update_global_process_info))
