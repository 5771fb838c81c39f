"""Devices, their descriptions and their memory spaces.

The plugin owns all of them for as long as its client or topology lives, so there is nothing to free here. What never
changes is asked once.
"""

from pjrt.capi._api cimport count, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport ClientScope, Handle, Scope
from pjrt.capi._values cimport NamedValues, read_named_values, whole

from pjrt.api.device import AllocatorStats, AsyncTrackingEvent, Device, DeviceDescription
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.checks import expect
from pjrt.api.memory_space import MemorySpace, MemorySpaceDescription
from pjrt.capi._documented import documented

cdef size_t _NO_DEFAULT = <size_t>-1


cdef class DescriptionCore:
    """A ``PJRT_DeviceDescription`` of a client or a topology."""

    def _read(self):
        cdef PJRT_DeviceDescription_Id_Args number
        cdef PJRT_DeviceDescription_ProcessIndex_Args process
        cdef PJRT_DeviceDescription_Kind_Args kind
        cdef PJRT_DeviceDescription_ToString_Args string
        start(&number, PJRT_DeviceDescription_Id_Args_STRUCT_SIZE)
        number.device_description = self.native
        self.scope.call(SLOT_PJRT_DeviceDescription_Id, &number)  # DeviceDescription.id
        self.id = number.id
        start(&process, PJRT_DeviceDescription_ProcessIndex_Args_STRUCT_SIZE)
        process.device_description = self.native
        self.scope.call(SLOT_PJRT_DeviceDescription_ProcessIndex, &process)  # DeviceDescription.process_index
        self.process_index = process.process_index
        start(&kind, PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE)
        kind.device_description = self.native
        self.scope.call(SLOT_PJRT_DeviceDescription_Kind, &kind)  # DeviceDescription.kind
        self.kind = text(kind.device_kind, kind.device_kind_size, "the kind of a device")
        start(&string, PJRT_DeviceDescription_ToString_Args_STRUCT_SIZE)
        string.device_description = self.native
        self.scope.call(SLOT_PJRT_DeviceDescription_ToString, &string)  # DeviceDescription.__str__
        self._text = text(string.to_string, string.to_string_size, "the name of a device")

    @property
    def attributes(self):
        cdef PJRT_DeviceDescription_Attributes_Args args
        if self._attributes is None:
            start(&args, PJRT_DeviceDescription_Attributes_Args_STRUCT_SIZE)
            args.device_description = self.native
            self.scope.call(SLOT_PJRT_DeviceDescription_Attributes, &args)
            self._attributes = read_named_values(args.attributes, args.num_attributes, "the attributes of a device")
        return self._attributes

    @property
    def debug_string(self):
        cdef PJRT_DeviceDescription_DebugString_Args args
        if self._debug is None:
            start(&args, PJRT_DeviceDescription_DebugString_Args_STRUCT_SIZE)
            args.device_description = self.native
            self.scope.call(SLOT_PJRT_DeviceDescription_DebugString, &args)
            self._debug = text(args.debug_string, args.debug_string_size, "the description of a device")
        return self._debug

    @property
    def memory_space_descriptions(self):
        cdef PJRT_MemoryDescriptions_Extension *extension
        cdef PJRT_DeviceDescription_MemoryDescriptions_Args args
        cdef size_t index
        if self._memories is not None:
            return self._memories
        extension = <PJRT_MemoryDescriptions_Extension *>self.scope.api.extension(
            PJRT_Extension_Type_MemoryDescriptions, PJRT_MemoryDescriptions_Extension_STRUCT_SIZE, "MemoryDescriptions"
        )
        start(&args, PJRT_DeviceDescription_MemoryDescriptions_Args_STRUCT_SIZE)
        args.device_description = self.native
        self.scope.call_extension(
            <void *>extension.PJRT_DeviceDescription_MemoryDescriptions,
            &args,
            "PJRT_DeviceDescription_MemoryDescriptions",
        )
        found = [
            self._memory(<size_t>args.memory_descriptions[index])
            for index in range(
                count(args.num_memory_descriptions, args.memory_descriptions, "the memories of a device")
            )
        ]
        if args.default_memory_index != _NO_DEFAULT and args.default_memory_index < <size_t>len(found):
            found.insert(0, found.pop(args.default_memory_index))
        self._memories = tuple(found)
        return self._memories

    def _memory(self, size_t native):
        cdef PJRT_MemoryDescriptions_Extension *extension
        cdef PJRT_MemoryDescription_Kind_Args args
        extension = <PJRT_MemoryDescriptions_Extension *>self.scope.api.extension(
            PJRT_Extension_Type_MemoryDescriptions, PJRT_MemoryDescriptions_Extension_STRUCT_SIZE, "MemoryDescriptions"
        )
        start(&args, PJRT_MemoryDescription_Kind_Args_STRUCT_SIZE)
        args.memory_description = <PJRT_MemoryDescription *>native
        self.scope.call_extension(<void *>extension.PJRT_MemoryDescription_Kind, &args, "PJRT_MemoryDescription_Kind")
        return MemorySpaceDescription(text(args.kind, args.kind_size, "the kind of a memory"), args.kind_id)

    def __str__(self):
        return self._text


@documented
class PluginDeviceDescription(DescriptionCore, DeviceDescription):
    """What a plugin knows of a device (``PJRT_DeviceDescription``)."""

    __slots__ = ()


cdef class DeviceCore:
    """A ``PJRT_Device``."""

    def _read(self):
        cdef PJRT_Device_GetDescription_Args description
        cdef PJRT_Device_IsAddressable_Args addressable
        start(&description, PJRT_Device_GetDescription_Args_STRUCT_SIZE)
        description.device = self.native
        self.scope.call(SLOT_PJRT_Device_GetDescription, &description)  # Device.description
        self.description = description_at(self.scope, description.device_description)
        self.id = self.description.id
        start(&addressable, PJRT_Device_IsAddressable_Args_STRUCT_SIZE)
        addressable.device = self.native
        self.scope.call(SLOT_PJRT_Device_IsAddressable, &addressable)  # Device.is_addressable
        self.is_addressable = addressable.is_addressable

    @property
    def client(self):
        return self.scope

    @property
    def local_hardware_id(self):
        cdef PJRT_Device_LocalHardwareId_Args args
        start(&args, PJRT_Device_LocalHardwareId_Args_STRUCT_SIZE)
        args.device = self.native
        self.scope.call(SLOT_PJRT_Device_LocalHardwareId, &args)
        return args.local_hardware_id

    @property
    def memory_spaces(self):
        cdef PJRT_Device_AddressableMemories_Args args
        if self._memory_spaces is None:
            start(&args, PJRT_Device_AddressableMemories_Args_STRUCT_SIZE)
            args.device = self.native
            self.scope.call(SLOT_PJRT_Device_AddressableMemories, &args)
            self._memory_spaces = memories_in(
                self.scope, <PJRT_Memory **>args.memories, args.num_memories, "the memories of a device"
            )
        return self._memory_spaces

    @property
    def default_memory_space(self):
        cdef PJRT_Device_DefaultMemory_Args args
        if self._default is None:
            start(&args, PJRT_Device_DefaultMemory_Args_STRUCT_SIZE)
            args.device = self.native
            self.scope.call(SLOT_PJRT_Device_DefaultMemory, &args)
            self._default = memory_at(self.scope, args.memory)
        return self._default

    @property
    def attributes(self):
        """Facts of the running device; of a plugin without ``PJRT_Device_GetAttributes`` those of its description."""
        cdef PJRT_Device_GetAttributes_Args args
        start(&args, PJRT_Device_GetAttributes_Args_STRUCT_SIZE)
        args.device = self.native
        try:
            self.scope.call(SLOT_PJRT_Device_GetAttributes, &args)
        except UnimplementedError:
            return self.description.attributes
        try:
            return read_named_values(args.attributes, args.num_attributes, "the attributes of a device")
        finally:
            if args.attributes_deleter != NULL:
                with nogil:
                    args.attributes_deleter(args.device_attributes)

    def memory_stats(self):
        cdef PJRT_Device_MemoryStats_Args a
        start(&a, PJRT_Device_MemoryStats_Args_STRUCT_SIZE)
        a.device = self.native
        self.scope.call(SLOT_PJRT_Device_MemoryStats, &a)
        return AllocatorStats(
            bytes_in_use=a.bytes_in_use,
            peak_bytes_in_use=a.peak_bytes_in_use if a.peak_bytes_in_use_is_set else None,
            num_allocs=a.num_allocs if a.num_allocs_is_set else None,
            largest_alloc_size=a.largest_alloc_size if a.largest_alloc_size_is_set else None,
            bytes_limit=a.bytes_limit if a.bytes_limit_is_set else None,
            bytes_reserved=a.bytes_reserved if a.bytes_reserved_is_set else None,
            peak_bytes_reserved=a.peak_bytes_reserved if a.peak_bytes_reserved_is_set else None,
            bytes_reservable_limit=a.bytes_reservable_limit if a.bytes_reservable_limit_is_set else None,
            largest_free_block_bytes=a.largest_free_block_bytes if a.largest_free_block_bytes_is_set else None,
            pool_bytes=a.pool_bytes if a.pool_bytes_is_set else None,
            peak_pool_bytes=a.peak_pool_bytes if a.peak_pool_bytes_is_set else None,
            peak_allocated_bytes=a.peak_allocated_bytes if a.peak_allocated_bytes_is_set else None,
        )

    def clear_memory_stats(self):
        cdef PJRT_Device_ClearMemoryStats_Args args
        start(&args, PJRT_Device_ClearMemoryStats_Args_STRUCT_SIZE)
        args.device = self.native
        self.scope.call(SLOT_PJRT_Device_ClearMemoryStats, &args)

    def poison_execution(self, launch_id, error):
        cdef PJRT_Device_PoisonExecution_Args args
        cdef NamedValues payload = payload_values(expect(error, PjrtError, "an error as pjrt.PjrtError"))
        cdef bytes message = error.message.encode()
        start(&args, PJRT_Device_PoisonExecution_Args_STRUCT_SIZE)
        args.device = self.native
        args.launch_id = <int>whole(launch_id, "a launch id as a whole number", 32)
        args.error_code = <PJRT_Error_Code><int>error.code
        args.error_message = message
        args.error_message_size = len(message)
        args.payload = payload.data
        args.num_payload = payload.size
        self.scope.call(SLOT_PJRT_Device_PoisonExecution, &args)
        return bool(args.poisoned)

    def create_async_tracking_event(self, description):
        cdef PJRT_Device_CreateAsyncTrackingEvent_Args args
        cdef bytes said = expect(description, str, "a description as a str").encode()
        start(&args, PJRT_Device_CreateAsyncTrackingEvent_Args_STRUCT_SIZE)
        args.device = self.native
        args.description = said
        args.description_size = len(said)
        self.scope.call(SLOT_PJRT_Device_CreateAsyncTrackingEvent, &args)
        event = PluginAsyncTrackingEvent()
        (<Handle>event).open(self.scope, args.event, SLOT_PJRT_AsyncTrackingEvent_Destroy)  # AsyncTrackingEvent.close
        return event

    def stream_for_external_ready_events(self):
        cdef PJRT_Stream_Extension *extension
        cdef PJRT_Get_Stream_For_External_Ready_Events_Args args
        extension = <PJRT_Stream_Extension *>self.scope.api.extension(
            PJRT_Extension_Type_Stream, PJRT_Stream_Extension_STRUCT_SIZE, "Stream"
        )
        start(&args, PJRT_Get_Stream_For_External_Ready_Events_Args_STRUCT_SIZE)
        args.device = self.native
        self.scope.call_extension(<void *>extension.get_stream, &args, "PJRT_Get_Stream_For_External_Ready_Events")
        return args.stream


@documented
class PluginDevice(DeviceCore, Device):
    """A device of a plugin's client (``PJRT_Device``)."""

    __slots__ = ()


cdef class TrackingEventCore(Handle):
    """A ``PJRT_AsyncTrackingEvent``."""

    def close(self):
        self.free()


@documented
class PluginAsyncTrackingEvent(TrackingEventCore, AsyncTrackingEvent):
    """A mark that something asynchronous goes on (``PJRT_AsyncTrackingEvent``)."""

    __slots__ = ()


cdef class MemorySpaceCore:
    """A ``PJRT_Memory``."""

    def _read(self):
        cdef PJRT_Memory_Id_Args number
        cdef PJRT_Memory_Kind_Args kind
        cdef PJRT_Memory_ToString_Args string
        start(&number, PJRT_Memory_Id_Args_STRUCT_SIZE)
        number.memory = self.native
        self.scope.call(SLOT_PJRT_Memory_Id, &number)  # MemorySpace.id
        self.id = number.id
        start(&kind, PJRT_Memory_Kind_Args_STRUCT_SIZE)
        kind.memory = self.native
        self.scope.call(SLOT_PJRT_Memory_Kind, &kind)  # MemorySpace.kind
        self.kind = text(kind.kind, kind.kind_size, "the kind of a memory")
        start(&string, PJRT_Memory_ToString_Args_STRUCT_SIZE)
        string.memory = self.native
        self.scope.call(SLOT_PJRT_Memory_ToString, &string)  # MemorySpace.__str__
        self._text = text(string.to_string, string.to_string_size, "the name of a memory")

    @property
    def client(self):
        return self.scope

    @property
    def kind_id(self):
        cdef PJRT_Memory_Kind_Id_Args args
        start(&args, PJRT_Memory_Kind_Id_Args_STRUCT_SIZE)
        args.memory = self.native
        self.scope.call(SLOT_PJRT_Memory_Kind_Id, &args)
        return args.kind_id

    @property
    def devices(self):
        cdef PJRT_Memory_AddressableByDevices_Args args
        if self._devices is None:
            start(&args, PJRT_Memory_AddressableByDevices_Args_STRUCT_SIZE)
            args.memory = self.native
            self.scope.call(SLOT_PJRT_Memory_AddressableByDevices, &args)
            self._devices = devices_in(
                self.scope, <PJRT_Device **>args.devices, args.num_devices, "the devices of a memory"
            )
        return self._devices

    @property
    def debug_string(self):
        cdef PJRT_Memory_DebugString_Args args
        start(&args, PJRT_Memory_DebugString_Args_STRUCT_SIZE)
        args.memory = self.native
        self.scope.call(SLOT_PJRT_Memory_DebugString, &args)
        return text(args.debug_string, args.debug_string_size, "the description of a memory")

    def __str__(self):
        return self._text


@documented
class PluginMemorySpace(MemorySpaceCore, MemorySpace):
    """A memory space of a plugin's client (``PJRT_Memory``)."""

    __slots__ = ()


cdef object description_at(Scope scope, PJRT_DeviceDescription *native):
    """The description behind a pointer of the plugin's."""
    if native == NULL:
        raise InternalError("the plugin gave no description of a device; report it to its vendor")
    description = PluginDeviceDescription()
    (<DescriptionCore>description).scope = scope
    (<DescriptionCore>description).native = native
    (<DescriptionCore>description)._read()
    return description


cdef object device_at(ClientScope scope, PJRT_Device *native):
    """The device behind a pointer of the plugin's: the same object each time."""
    device = scope.devices_by_address.get(<size_t>native)
    if device is None:
        if native == NULL:
            raise InternalError("the plugin gave no device where one was expected; report it to its vendor")
        device = PluginDevice()
        (<DeviceCore>device).scope = scope
        (<DeviceCore>device).native = native
        (<DeviceCore>device)._read()
        device = scope.devices_by_address.setdefault(<size_t>native, device)
    return device


cdef object memory_at(ClientScope scope, PJRT_Memory *native):
    """The memory space behind a pointer of the plugin's: the same object each time."""
    memory = scope.memories_by_address.get(<size_t>native)
    if memory is None:
        if native == NULL:
            raise InternalError("the plugin gave no memory where one was expected; report it to its vendor")
        memory = PluginMemorySpace()
        (<MemorySpaceCore>memory).scope = scope
        (<MemorySpaceCore>memory).native = native
        (<MemorySpaceCore>memory)._read()
        memory = scope.memories_by_address.setdefault(<size_t>native, memory)
    return memory


cdef tuple devices_in(ClientScope scope, PJRT_Device **array, size_t number, str what):
    """The devices of an array of the plugin's."""
    cdef size_t index
    return tuple([device_at(scope, array[index]) for index in range(count(number, array, what))])


cdef tuple memories_in(ClientScope scope, PJRT_Memory **array, size_t number, str what):
    """The memory spaces of an array of the plugin's."""
    cdef size_t index
    return tuple([memory_at(scope, array[index]) for index in range(count(number, array, what))])


cdef PJRT_Device *native_device(ClientScope scope, device) except? NULL:
    """The pointer for a device; null for ``None``."""
    if device is None:
        return NULL
    if not isinstance(device, DeviceCore) or (<DeviceCore>device).scope is not scope:
        raise InvalidArgumentError(f"{device!r} is no device of this client; use one of client.devices")
    return (<DeviceCore>device).native


cdef PJRT_Memory *native_memory(ClientScope scope, memory_space) except? NULL:
    """The pointer for a memory space; null for ``None``."""
    if memory_space is None:
        return NULL
    if not isinstance(memory_space, MemorySpaceCore) or (<MemorySpaceCore>memory_space).scope is not scope:
        raise InvalidArgumentError(
            f"{memory_space!r} is no memory space of this client; use one of client.memory_spaces"
        )
    return (<MemorySpaceCore>memory_space).native


cdef NamedValues payload_values(error):
    """The payloads of an error that goes to the plugin."""
    return NamedValues(error.payloads, "the payloads of an error")
