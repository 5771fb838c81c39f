"""Devices, their descriptions and their memory spaces; and how arrays lie on them.

The plugin owns all of them for as long as its client or topology lives, so there is nothing to free here. What never
changes is read once; names and numbers are read at once, because they are shown after the client was closed, too.
"""

cimport cython
from libc.stdint cimport int64_t

from pjrt.capi._api cimport (
    Block, NamedValues, count, deleter_t, encoded, read_named_values, shape_block, start, take_blob, text, whole
)
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport Borrowed, ClientScope, ClosableHandle, Constant, Getter, Handle, Native, Pin, Scope

from pjrt.api.checks import expect
from pjrt.api.device import (
    AllocatorStats, AsyncTrackingEvent, Device, DeviceDescription, MemorySpace, MemorySpaceDescription
)
from pjrt.api.element_type import ElementType
from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.shape_spec import TiledLayout
from pjrt.capi._scope import documented, read_constants

cdef size_t _NO_DEFAULT = <size_t>-1
cdef Getter _DESCRIPTION_TEXT = Getter("PJRT_DeviceDescription_ToString")  # DeviceDescription.__str__
cdef Getter _MEMORY_TEXT = Getter("PJRT_Memory_ToString")  # MemorySpace.__str__


cdef class DescriptionCore(Borrowed):
    """A ``PJRT_DeviceDescription`` of a client or a topology."""

    cdef str _text
    cdef tuple _memories

    @property
    def memory_space_descriptions(self):
        if self._memories is None:
            memories = self._read_memories()
            with cython.critical_section(self):
                if self._memories is None:
                    self._memories = memories
        return self._memories

    def _read_memories(self):
        """Return the descriptions of the device's memories, the default one first."""
        cdef PJRT_DeviceDescription_MemoryDescriptions_Args args
        cdef size_t index
        start(&args, PJRT_DeviceDescription_MemoryDescriptions_Args_STRUCT_SIZE)
        args.device_description = <PJRT_DeviceDescription *>self.native
        self.call(SLOT_PJRT_DeviceDescription_MemoryDescriptions, &args)
        number = count(args.num_memory_descriptions, args.memory_descriptions, "the memories of a device")
        memories = [self._memory(<size_t>args.memory_descriptions[index]) for index in range(number)]
        if args.default_memory_index != _NO_DEFAULT and args.default_memory_index < number:
            memories.insert(0, memories.pop(args.default_memory_index))
        return tuple(memories)

    def _memory(self, size_t native):
        cdef PJRT_MemoryDescription_Kind_Args args
        start(&args, PJRT_MemoryDescription_Kind_Args_STRUCT_SIZE)
        args.memory_description = <PJRT_MemoryDescription *>native
        self.call(SLOT_PJRT_MemoryDescription_Kind, &args)
        return MemorySpaceDescription(text(args.kind, args.kind_size, "the kind of a memory"), args.kind_id)

    def __str__(self):
        return self._text


@documented
class PluginDeviceDescription(DescriptionCore, DeviceDescription):
    """A plugin's description of a device (``PJRT_DeviceDescription``)."""

    id = Constant("PJRT_DeviceDescription_Id")
    process_index = Constant("PJRT_DeviceDescription_ProcessIndex")
    kind = Constant("PJRT_DeviceDescription_Kind")
    attributes = Constant("PJRT_DeviceDescription_Attributes")
    debug_string = Constant("PJRT_DeviceDescription_DebugString")


cdef class DeviceCore(Borrowed):
    """A ``PJRT_Device``."""

    def _read(self):
        cdef PJRT_Device_GetDescription_Args args
        start(&args, PJRT_Device_GetDescription_Args_STRUCT_SIZE)
        args.device = <PJRT_Device *>self.native
        self.call(SLOT_PJRT_Device_GetDescription, &args)  # Device.description
        self.description = new_description(self.scope, args.device_description)
        self.id = self.description.id
        read_constants(self, "is_addressable")

    @property
    def client(self):
        return self.scope

    @property
    def attributes(self):
        """Facts of the running device, or of its description if the plugin has no ``PJRT_Device_GetAttributes``."""
        cdef PJRT_Device_GetAttributes_Args args
        start(&args, PJRT_Device_GetAttributes_Args_STRUCT_SIZE)
        args.device = <PJRT_Device *>self.native
        try:
            self.call(SLOT_PJRT_Device_GetAttributes, &args)
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
        a.device = <PJRT_Device *>self.native
        self.call(SLOT_PJRT_Device_MemoryStats, &a)
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
        args.device = <PJRT_Device *>self.native
        self.call(SLOT_PJRT_Device_ClearMemoryStats, &args)

    def poison_execution(self, launch_id, error):
        cdef PJRT_Device_PoisonExecution_Args args
        cdef NamedValues payload = payload_values(expect(error, PjrtError, "an error as pjrt.PjrtError"))
        cdef bytes message = error.message.encode()
        start(&args, PJRT_Device_PoisonExecution_Args_STRUCT_SIZE)
        args.device = <PJRT_Device *>self.native
        args.launch_id = <int>whole(launch_id, "a launch id as a whole number", 32)
        args.error_code = <PJRT_Error_Code><int>error.code
        args.error_message = message
        args.error_message_size = len(message)
        args.payload = payload.data
        args.num_payload = payload.size
        self.call(SLOT_PJRT_Device_PoisonExecution, &args)
        return bool(args.poisoned)

    def create_async_tracking_event(self, description):
        cdef PJRT_Device_CreateAsyncTrackingEvent_Args args
        cdef bytes told = encoded(description, "a description as a str")
        cdef Pin pin = Pin.of(self.scope)
        start(&args, PJRT_Device_CreateAsyncTrackingEvent_Args_STRUCT_SIZE)
        args.device = <PJRT_Device *>self.native
        args.description = told
        args.description_size = len(told)
        self.call(SLOT_PJRT_Device_CreateAsyncTrackingEvent, &args)
        event = PluginAsyncTrackingEvent()
        if args.event != NULL:  # a plugin that tracks nothing, such as XLA's for CPUs, gives none
            (<Handle>event).open(self.scope, args.event, SLOT_PJRT_AsyncTrackingEvent_Destroy)  # AsyncTrackingEvent.close
        return event

    def stream_for_external_ready_events(self):
        cdef PJRT_Get_Stream_For_External_Ready_Events_Args args
        start(&args, PJRT_Get_Stream_For_External_Ready_Events_Args_STRUCT_SIZE)
        args.device = <PJRT_Device *>self.native
        self.call(SLOT_PJRT_Get_Stream_For_External_Ready_Events, &args)
        return args.stream


@documented
class PluginDevice(DeviceCore, Device):
    """A device of a plugin's client (``PJRT_Device``)."""

    is_addressable = Constant("PJRT_Device_IsAddressable")
    local_hardware_id = Getter("PJRT_Device_LocalHardwareId")
    memory_spaces = Constant("PJRT_Device_AddressableMemories")
    default_memory_space = Constant("PJRT_Device_DefaultMemory")


cdef class TrackingEventCore(ClosableHandle):
    """A ``PJRT_AsyncTrackingEvent``."""

    def close(self):
        self.free()


@documented
class PluginAsyncTrackingEvent(TrackingEventCore, AsyncTrackingEvent):
    """A mark that asynchronous work is under way (``PJRT_AsyncTrackingEvent``)."""

    __slots__ = ()


cdef class MemorySpaceCore(Borrowed):
    """A ``PJRT_Memory``."""

    @property
    def client(self):
        return self.scope

    def __str__(self):
        return self._text


@documented
class PluginMemorySpace(MemorySpaceCore, MemorySpace):
    """A memory space of a plugin's client (``PJRT_Memory``)."""

    id = Constant("PJRT_Memory_Id")
    kind = Constant("PJRT_Memory_Kind")
    kind_id = Getter("PJRT_Memory_Kind_Id")
    devices = Constant("PJRT_Memory_AddressableByDevices")
    debug_string = Getter("PJRT_Memory_DebugString")


cdef object new_description(Scope scope, PJRT_DeviceDescription *native):
    """Return the description behind a pointer of the plugin."""
    if native == NULL:
        raise InternalError("the plugin gave no description of a device; report it to its vendor")
    description = PluginDeviceDescription()
    (<DescriptionCore>description).scope = scope
    (<DescriptionCore>description).native = native
    read_constants(description, "id", "process_index", "kind")
    (<DescriptionCore>description)._text = _DESCRIPTION_TEXT.ask(description)
    return description


cdef object new_device(ClientScope scope, PJRT_Device *native):
    """Return a new object for the device behind a pointer of the plugin; ``ClientScope.device_at`` keeps one."""
    if native == NULL:
        raise InternalError("the plugin gave no device where one was expected; report it to its vendor")
    device = PluginDevice()
    (<DeviceCore>device).scope = scope
    (<DeviceCore>device).native = native
    (<DeviceCore>device)._read()
    return device


cdef object new_memory_space(ClientScope scope, PJRT_Memory *native):
    """Return a new object for the memory behind a pointer of the plugin; ``ClientScope.memory_at`` keeps one."""
    if native == NULL:
        raise InternalError("the plugin gave no memory where one was expected; report it to its vendor")
    memory = PluginMemorySpace()
    (<MemorySpaceCore>memory).scope = scope
    (<MemorySpaceCore>memory).native = native
    read_constants(memory, "id", "kind")
    (<MemorySpaceCore>memory)._text = _MEMORY_TEXT.ask(memory)
    return memory


cdef PJRT_Device *native_device(ClientScope scope, device) except? NULL:
    """Return the pointer for a device; null for ``None``."""
    if device is None:
        return NULL
    if not isinstance(device, DeviceCore) or (<DeviceCore>device).scope is not scope:
        raise InvalidArgumentError(f"{device!r} is no device of this client; use one of client.devices")
    return <PJRT_Device *>(<DeviceCore>device).native


cdef PJRT_Device *addressable_device(ClientScope scope, device) except? NULL:
    """Return the pointer for a device that is to hold or compute something; null for ``None``."""
    cdef PJRT_Device *native = native_device(scope, device)
    if native != NULL and not device.is_addressable:
        raise InvalidArgumentError(
            f"{device} belongs to process {device.process_index}; use one of client.addressable_devices"
        )
    return native


cdef PJRT_Memory *native_memory(ClientScope scope, memory_space) except? NULL:
    """Return the pointer for a memory space; null for ``None``."""
    if memory_space is None:
        return NULL
    if not isinstance(memory_space, MemorySpaceCore) or (<MemorySpaceCore>memory_space).scope is not scope:
        raise InvalidArgumentError(
            f"{memory_space!r} is no memory space of this client; use one of client.memory_spaces"
        )
    return <PJRT_Memory *>(<MemorySpaceCore>memory_space).native


cdef NamedValues payload_values(error):
    """Return the payloads of an error that goes to the plugin."""
    return NamedValues(error.payloads, "the payloads of an error")


# The Layouts extension: how arrays lie on devices when the plugin chooses.


cdef object _read_layout(Native native, PJRT_Layouts_MemoryLayout *layout):
    """Return a layout, parsed from XLA's spelling."""
    cdef PJRT_Layouts_MemoryLayout_Serialize_Args args
    start(&args, PJRT_Layouts_MemoryLayout_Serialize_Args_STRUCT_SIZE)
    args.layout = layout
    native.call(SLOT_PJRT_Layouts_MemoryLayout_Serialize, &args)
    spelling = take_blob(
        args.serialized_bytes,
        args.serialized_bytes_size,
        "a layout",
        args.serialized_layout,
        <deleter_t>args.serialized_layout_deleter,
    )
    return TiledLayout.parse(spelling.decode(errors="replace"))


cdef object _take_layout(Native native, PJRT_Layouts_MemoryLayout *layout):
    """Return a layout that the plugin made for the caller, and free it."""
    cdef PJRT_Layouts_MemoryLayout_Destroy_Args args
    try:
        return _read_layout(native, layout)
    finally:
        start(&args, PJRT_Layouts_MemoryLayout_Destroy_Args_STRUCT_SIZE)
        args.layout = layout
        native.call(SLOT_PJRT_Layouts_MemoryLayout_Destroy, &args)


cdef object buffer_layout(Handle buffer):
    """Return the layout of a buffer."""
    cdef PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args args
    start(&args, PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args_STRUCT_SIZE)
    args.buffer = <PJRT_Buffer *>buffer.use()
    buffer.call(SLOT_PJRT_Layouts_PJRT_Buffer_MemoryLayout, &args)
    return _take_layout(buffer.scope, args.layout)


cdef object client_layout(Native client, element_type, shape):
    """Return the layout that a client's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args args
    cdef Block dims = shape_block(shape, expect(element_type, ElementType, "an element type as pjrt.ElementType"))
    start(&args, PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.use()
    args.type = <PJRT_Buffer_Type><int>element_type
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    client.call(SLOT_PJRT_Layouts_PJRT_Client_GetDefaultLayout, &args)
    return _take_layout(client, args.layout)


cdef object topology_layout(Native topology, element_type, shape):
    """Return the layout that a topology's devices give to an array."""
    cdef PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args args
    cdef Block dims = shape_block(shape, expect(element_type, ElementType, "an element type as pjrt.ElementType"))
    start(&args, PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args_STRUCT_SIZE)
    args.topology_description = <PJRT_TopologyDescription *>topology.use()
    args.type = <PJRT_Buffer_Type><int>element_type
    args.dims = <int64_t *>dims.data
    args.num_dims = len(shape)
    topology.call(SLOT_PJRT_Layouts_PJRT_Topology_GetDefaultLayout, &args)
    return _take_layout(topology, args.layout)


cdef tuple output_layouts(Handle executable):
    """Return the layouts of an executable's results; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args args
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Layouts_PJRT_Executable_GetOutputLayouts, &args)
    number = count(args.num_outputs, args.layouts, "the layouts of the results")
    return tuple([_read_layout(executable.scope, args.layouts[index]) for index in range(number)])


cdef tuple parameter_layouts(Handle executable):
    """Return the layouts that an executable expects of its parameters; they stay the plugin's."""
    cdef PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args args
    cdef size_t index
    start(&args, PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Layouts_PJRT_Executable_GetParameterLayouts, &args)
    number = count(args.num_parameters, args.layouts, "the layouts of the parameters")
    return tuple([_read_layout(executable.scope, args.layouts[index]) for index in range(number)])
