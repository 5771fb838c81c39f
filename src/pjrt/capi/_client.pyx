"""Clients: the devices of a plugin, programs, buffers and the host's memory; their topologies and key-value stores."""

import os
import weakref

cimport cython
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from pjrt.capi._api cimport (
    Api, Block, NamedValues, NativeLayout, count, deleter_t, encoded, fitting_layout, gate_enter, gate_leave, shape_block,
    start, take_blob, whole
)
from pjrt.capi._buffer cimport alias, from_host, of_error, uninitialized, view_of_device
from pjrt.capi._device cimport client_layout, new_description, new_device, new_memory_space, topology_layout
from pjrt.capi._executable cimport ExecutableCore, new_context, new_executable, new_loaded_executable
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport (
    ClientScope, Constant, Getter, Handle, HostMemory, Native, Pin, Scope, free_scope, pjrt_lanes_busy,
    pjrt_lanes_close, pjrt_pointer_take
)

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.capability import Feature
from pjrt.api.checks import expect_all, expect_bytes, expect_sequence
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import (
    FailedPreconditionError, InternalError, InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError,
    from_author
)
from pjrt.api.key_value_store import KeyValueStore, ProcessInfo
from pjrt.api.program import from_caller
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.topology import TopologyDescription
from pjrt.capi._api import close_at_exit
from pjrt.capi._program import doubted, prepared
from pjrt.capi.reports import device_capabilities, explained_out_of_memory, plugin_capabilities
from pjrt.capi._scope import documented, read_constants

cdef enum:
    MOST_PLACES = 1 << 24


@cython.no_gc_clear
cdef class ClientCore(ClientScope):
    """A ``PJRT_Client``."""

    cdef readonly object attributes
    cdef object _store
    cdef object _topology
    cdef dict _mapped
    cdef long _process

    def __cinit__(self):
        self._process = os.getpid()

    @property
    def library(self):
        return self.api.path

    @property
    def topology(self):
        cdef PJRT_Client_TopologyDescription_Args args
        with cython.critical_section(self):
            reference = self._topology
        topology = None if reference is None else reference()
        if topology is None:
            start(&args, PJRT_Client_TopologyDescription_Args_STRUCT_SIZE)
            args.client = <PJRT_Client *>self.native
            self.call(SLOT_PJRT_Client_TopologyDescription, &args)
            topology = client_topology(self, args.topology, self.attributes)
            reference = weakref.ref(topology)  # not kept: it keeps the client
            with cython.critical_section(self):
                self._topology = reference
        return topology

    def lookup_device(self, device_id):
        cdef PJRT_Client_LookupDevice_Args args
        start(&args, PJRT_Client_LookupDevice_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.id = <int>whole(device_id, "the id of a device as a whole number", 32)
        _expect_among(args.id, [device.id for device in self.devices], "the id")
        try:
            self.call(SLOT_PJRT_Client_LookupDevice, &args)
        except InvalidArgumentError as error:  # the code that XLA's plugins choose
            raise NotFoundError(error.message) from error
        return self.device_at(args.device)

    def lookup_addressable_device(self, local_hardware_id):
        cdef PJRT_Client_LookupAddressableDevice_Args args
        start(&args, PJRT_Client_LookupAddressableDevice_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.local_hardware_id = <int>whole(local_hardware_id, "the number of local hardware as a whole number", 32)
        try:
            numbers = [device.local_hardware_id for device in self.addressable_devices]
        except PjrtError:
            numbers = [args.local_hardware_id]  # they are not known, so the plugin judges
        _expect_among(args.local_hardware_id, numbers, "the local number")
        try:
            self.call(SLOT_PJRT_Client_LookupAddressableDevice, &args)
        except InvalidArgumentError as error:
            raise NotFoundError(error.message) from error
        return self.device_at(args.addressable_device)

    def default_device_assignment(self, num_replicas, num_partitions):
        cdef PJRT_Client_DefaultDeviceAssignment_Args args
        whole(num_replicas, "a number of replicas", 32)
        whole(num_partitions, "a number of partitions", 32)
        if num_replicas < 1 or num_partitions < 1:
            raise InvalidArgumentError(
                f"a device assignment has at least 1 replica and 1 partition, found {num_replicas} and {num_partitions}"
            )
        if num_replicas * num_partitions > MOST_PLACES:
            raise InvalidArgumentError(
                f"expected a device assignment of at most {MOST_PLACES} places, found {num_replicas} replicas × "
                f"{num_partitions} partitions"
            )
        cdef Block ids = Block.of(num_replicas * num_partitions * sizeof(int))
        start(&args, PJRT_Client_DefaultDeviceAssignment_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.num_replicas = num_replicas
        args.num_partitions = num_partitions
        args.default_assignment_size = num_replicas * num_partitions
        args.default_assignment = <int *>ids.data
        self.call(SLOT_PJRT_Client_DefaultDeviceAssignment, &args)
        rows = [_row(<int *>ids.data, replica, num_partitions) for replica in range(num_replicas)]
        return DeviceAssignment(tuple(rows))

    def default_layout(self, element_type, shape):
        return client_layout(self, element_type, shape)

    def runtime_abi_version(self):
        from pjrt.capi._extensions import runtime_version

        return runtime_version(self)

    # Programs.

    def compile(self, program, options=None, *, shapes=None):
        cdef PJRT_Client_Compile_Args args
        cdef Pin pin = Pin.of(self)
        cdef PJRT_Program native
        cdef bytes code, format_name, serialized
        from pjrt.stablehlo import with_partitioning

        ready, doubt = prepared(program, self.attributes, shapes, plugin_capabilities(self.api, self.attributes))
        code, format_name = ready.code, encoded(str(ready.format), "a program's format")
        chosen = with_partitioning(ready, options)
        _check_assignment(chosen, self)
        serialized = chosen.to_proto()
        start(&native, PJRT_Program_STRUCT_SIZE)
        native.code = code
        native.code_size = len(code)
        native.format = format_name
        native.format_size = len(format_name)
        start(&args, PJRT_Client_Compile_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.program = &native
        args.compile_options = serialized
        args.compile_options_size = len(serialized)
        try:
            with from_caller(framework=False):
                self.call(SLOT_PJRT_Client_Compile, &args)
        except PjrtError as error:
            raise doubted(error, ready, doubt)
        # The parameters of a program that is cut into parts are known only where the plugin reports them.
        return new_loaded_executable(self, args.executable, ready if chosen.partitioning.num_partitions == 1 else None)

    def load(self, executable, options=None):
        cdef PJRT_Client_Load_Args args
        cdef Pin pin = Pin.of(self)
        cdef bytes serialized = b"" if options is None else CompileOptions.of(options).to_proto()
        if not isinstance(executable, ExecutableCore) or (<ExecutableCore>executable).scope.api is not self.api:
            raise InvalidArgumentError(
                f"a client loads executables of its own plugin, found {executable!r}; use deserialize for bytes"
            )
        start(&args, PJRT_Client_Load_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.executable = <PJRT_Executable *>(<ExecutableCore>executable).use()
        _check_assignment(CompileOptions.of(options), self)
        if options is not None:
            args.compile_options = serialized
            args.compile_options_size = len(serialized)
        (<ExecutableCore>executable).hold()  # it may be another client's, which another thread closes
        try:
            self.call(SLOT_PJRT_Client_Load, &args)
        finally:
            (<ExecutableCore>executable).let_go()
        return new_loaded_executable(self, args.loaded_executable, None)

    def deserialize(self, serialized, options=None):
        cdef PJRT_Executable_DeserializeAndLoad_Args args
        cdef Pin pin = Pin.of(self)
        cdef bytes data = expect_bytes(serialized, "a serialized executable as bytes")
        cdef bytes overridden = b"" if options is None else CompileOptions.of(options).to_proto()
        start(&args, PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.serialized_executable = data
        args.serialized_executable_size = len(data)
        if options is not None:
            args.overridden_serialized_compile_options = overridden
            args.overridden_serialized_compile_options_size = len(overridden)
        self.call(SLOT_PJRT_Executable_DeserializeAndLoad, &args)
        return new_loaded_executable(self, args.loaded_executable, None)

    def create_execute_context(self):
        return new_context(self)

    # Buffers.

    def buffer_from_host(
        self, array, *, device=None, memory_space=None, layout=None,
        semantics=HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, on_done_with_host_buffer=None
    ):
        return from_host(self, array, device, memory_space, layout, semantics, on_done_with_host_buffer)

    def buffer_from_dlpack(self, source, *, device=None):
        from pjrt.capi._transfers import from_source

        return from_source(self, source, device)

    def create_uninitialized_buffer(self, spec, *, memory_space=None):
        return uninitialized(self, spec, memory_space)

    def create_error_buffer(self, error, spec, *, memory_space=None):
        return of_error(self, error, spec, memory_space)

    def create_alias_buffer(self, spec, *, memory_space=None):
        return alias(self, spec, memory_space)

    def create_view_of_device_buffer(
        self, pointer, spec, *, device=None, memory_space=None, on_delete=None, stream=None
    ):
        return view_of_device(self, pointer, spec, device, memory_space, on_delete, stream)

    def create_buffers_for_async_host_to_device(self, specs, *, memory_space=None):
        from pjrt.capi._transfers import transfer_manager

        return transfer_manager(self, expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), memory_space)

    # Memory of the host.

    def dma_map(self, memory):
        cdef PJRT_Client_DmaMap_Args args
        cdef HostMemory held = HostMemory.of(memory, False, "the memory to map")
        start(&args, PJRT_Client_DmaMap_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.data = held.at(0, held.view.len)
        args.size = held.view.len
        if not args.size or <size_t>args.data in self._mapped:
            raise InvalidArgumentError(
                f"expected memory that is not mapped yet, found {args.size} bytes at {<size_t>args.data:#x}"
            )
        self.call(SLOT_PJRT_Client_DmaMap, &args)
        self._mapped[<size_t>args.data] = held  # neither freed nor moved while it is mapped

    def dma_unmap(self, memory):
        cdef PJRT_Client_DmaUnmap_Args args
        cdef HostMemory held = HostMemory.of(memory, False, "the memory to unmap")
        start(&args, PJRT_Client_DmaUnmap_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.data = held.at(0, held.view.len)
        if <size_t>args.data not in self._mapped:
            raise FailedPreconditionError(
                f"the memory at {<size_t>args.data:#x} is not mapped; unmap the object that was given to dma_map, once"
            )
        self.call(SLOT_PJRT_Client_DmaUnmap, &args)
        self._mapped.pop(<size_t>args.data, None)

    # Other processes.

    def update_global_process_info(self, processes):
        cdef PJRT_Client_UpdateGlobalProcessInfo_Args args
        cdef list of_processes = expect_all(processes, ProcessInfo, "a pjrt.ProcessInfo")
        cdef size_t number = len(of_processes), index
        cdef Block infos = Block.of(number * sizeof(PJRT_ProcessInfo))
        cdef PJRT_ProcessInfo *info = <PJRT_ProcessInfo *>infos.data
        cdef bytes message
        keep = []
        for index in range(number):
            process = of_processes[index]
            message = b"" if process.error is None else process.error.message.encode()
            keep.append(message)
            start(&info[index], PJRT_ProcessInfo_STRUCT_SIZE)
            info[index].task_id = process.task_id
            info[index].incarnation_id = process.incarnation_id
            info[index].state = <PJRT_ProcessState><int>process.state
            info[index].error_code = 0 if process.error is None else int(process.error.code)
            info[index].error_message = message
            info[index].error_message_size = len(message)
        start(&args, PJRT_Client_UpdateGlobalProcessInfo_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.process_infos = info
        args.num_process_infos = number
        self.call(SLOT_PJRT_Client_UpdateGlobalProcessInfo, &args)

    def make_cross_host_receive_buffers(self, specs, device):
        from pjrt.capi._transfers import make_receive_buffers

        return make_receive_buffers(self, expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), device)

    def cross_host_send_buffers(self, buffers, destination_device_ids, transfer_keys):
        from pjrt.capi._transfers import send_buffers

        return send_buffers(
            self,
            expect_sequence(buffers, "a sequence of buffers"),
            expect_sequence(destination_device_ids, "a sequence of device ids"),
            expect_sequence(transfer_keys, "a sequence of keys"),
        )

    def cross_host_receive_buffers(self, specs, device, source_device_ids, transfer_keys):
        from pjrt.capi._transfers import receive_buffers

        return receive_buffers(
            self,
            expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"),
            device,
            expect_sequence(source_device_ids, "a sequence of device ids"),
            expect_sequence(transfer_keys, "a sequence of keys"),
        )

    # Functions of the host inside programs.

    def register_ffi_handler(self, name, handler, *, traits=0):
        from pjrt.capi._extensions import register_handler

        register_handler(self, self.platform, name, handler, traits)

    def register_ffi_type(self, name):
        from pjrt.capi._extensions import register_type

        return register_type(self, name)

    # Its end.

    @property
    def is_closed(self):
        return self.is_shut()

    def close(self):
        if not pjrt_lanes_close(&self.lanes):
            return
        if self._process != os.getpid() and pjrt_lanes_busy(&self.lanes):
            return  # the threads that are in these calls are not in a fork: the system frees all with it
        try:
            self.close_handles()
        finally:
            self._destroy()
            self._notify_closed()

    def _destroy(self):
        cdef void *native = pjrt_pointer_take(&self.native)
        if native != NULL:
            self.api.drop(SLOT_PJRT_Client_Destroy, native)  # Client.close
            self._mapped.clear()

    def _close_at_exit(self):
        """Close the client while Python still works, unless a call of another thread is under way in it."""
        if not pjrt_lanes_busy(&self.lanes):
            self.close()

    def __dealloc__(self):
        cdef void *native = pjrt_pointer_take(&self.native)
        if native != NULL:
            self.api.drop(SLOT_PJRT_Client_Destroy, native)  # Client: when it is dropped

    cdef object device_at(self, PJRT_Device *native):
        device = self.devices_by_address.get(<size_t>native)
        if device is None:  # two threads may make one: the first of them counts
            device = self.devices_by_address.setdefault(<size_t>native, new_device(self, native))
        return device

    cdef object memory_at(self, PJRT_Memory *native):
        memory = self.memories_by_address.get(<size_t>native)
        if memory is None:
            memory = self.memories_by_address.setdefault(<size_t>native, new_memory_space(self, native))
        return memory

    cdef object explain(self, error):
        # From the __dict__: where reading the devices failed, reading them again would fail again, and be explained.
        return explained_out_of_memory(error, self.__dict__.get("addressable_devices", ()), self.options)


cdef int _check_assignment(options, client) except -1:
    """Refuse a device assignment of devices that the client does not have.

    Raises:
        InvalidArgumentError: an id is none of the client's.
    """
    if options.device_assignment is None:
        return 0
    known = {device.id for device in client.devices}
    strangers = [number for row in options.device_assignment.device_ids for number in row if number not in known]
    if strangers:
        raise InvalidArgumentError(
            f"the device assignment names {strangers}, which are no devices of this client; its devices are "
            f"{sorted(known)}"
        )
    return 0


cdef int _expect_among(int number, list numbers, str what) except -1:
    """Refuse a number that no device has: plugins may look into a table with it.

    Raises:
        NotFoundError: it is none of the numbers.
    """
    if number not in numbers:
        raise NotFoundError(f"no device has {what} {number}; they are {sorted(numbers)}")
    return 0


cdef tuple _row(int *ids, int replica, int num_partitions):
    """Return the device ids of one replica."""
    cdef int index
    return tuple([ids[replica * num_partitions + index] for index in range(num_partitions)])


@documented
class PluginClient(ClientCore, Client):
    """The devices of a plugin (``PJRT_Client``)."""

    platform_name = Constant("PJRT_Client_PlatformName")
    platform_version = Constant("PJRT_Client_PlatformVersion")
    process_index = Getter("PJRT_Client_ProcessIndex")
    devices = Constant("PJRT_Client_Devices")
    addressable_devices = Constant("PJRT_Client_AddressableDevices")
    memory_spaces = Constant("PJRT_Client_AddressableMemories")

    @property
    def capabilities(self):
        try:
            topology = self.topology
        except UnimplementedError:
            topology = None
        kinds = tuple(dict.fromkeys(space.kind for space in self.memory_spaces))
        return device_capabilities((<ClientCore>self).api, self.attributes, topology, kinds)

    def supports(self, program, options=None, *, effort=None):
        from pjrt.api.capability import try_compiling
        from pjrt.stablehlo import supports

        def compile():
            try_compiling(self, program, options)

        return supports(program, options, self.capabilities, effort=effort, compile=compile)


cdef object create_client(Api api, read_attributes, store, options):
    """``Plugin.client``: create a client, with the plugin's attributes as they are once it exists."""
    cdef PJRT_Client_Create_Args args
    cdef NamedValues values = NamedValues(options, "the options of a client")
    client = PluginClient()
    cdef ClientCore core = <ClientCore>client
    core.api = api
    core.options = dict(options)
    core._store = store
    start(&args, PJRT_Client_Create_Args_STRUCT_SIZE)
    args.create_options = values.data
    args.num_options = values.size
    offer_store(&args, store)
    api.call(SLOT_PJRT_Client_Create, &args)
    core.native = args.client
    core._mapped = {}
    core.attributes = read_attributes()
    read_constants(client, "platform_name", "platform_version", "devices", "addressable_devices")
    core.platform = client.platform_name
    close_at_exit.add(client)
    return client


# Topologies: descriptions of devices that need not be on this machine, and compiling for them.

cdef Getter _FINGERPRINT = Getter("PJRT_TopologyDescription_Fingerprint")  # TopologyDescription.fingerprint
cdef Getter _SERIALIZED = Getter("PJRT_TopologyDescription_Serialize")  # TopologyDescription.serialize


cdef class TopologyCore(Native):
    """A ``PJRT_TopologyDescription``: one of its own, or a client's, which the client frees."""

    cdef void *use(self) except? NULL:
        return self.handle.use()

    cdef int call(self, size_t slot, void *args) except -1:
        return self.handle.call(slot, args)

    cdef Scope home(self):
        return self.scope

    @property
    def library(self):
        return self.scope.api.path

    @property
    def device_descriptions(self):
        cdef PJRT_TopologyDescription_GetDeviceDescriptions_Args args
        cdef size_t index
        if self._descriptions is None:
            start(&args, PJRT_TopologyDescription_GetDeviceDescriptions_Args_STRUCT_SIZE)
            args.topology = <PJRT_TopologyDescription *>self.use()
            self.call(SLOT_PJRT_TopologyDescription_GetDeviceDescriptions, &args)
            number = count(args.num_descriptions, args.descriptions, "the devices of a topology")
            descriptions = tuple(
                [new_description(self.scope, args.descriptions[index]) for index in range(number)]
            )
            with cython.critical_section(self):
                if self._descriptions is None:
                    self._descriptions = descriptions
        return self._descriptions

    def compile(self, program, options=None, *, client=None, shapes=None):
        cdef PJRT_Compile_Args args
        cdef PJRT_Program native
        cdef bytes code, format_name, serialized_options
        from pjrt.stablehlo import with_partitioning

        able = plugin_capabilities(self.scope.api, self.attributes_of_plugin)
        ready, doubt = prepared(program, self.attributes_of_plugin, shapes, able)
        code, format_name = ready.code, encoded(str(ready.format), "a program's format")
        serialized_options = with_partitioning(ready, options).to_proto()
        start(&native, PJRT_Program_STRUCT_SIZE)
        native.code = code
        native.code_size = len(code)
        native.format = format_name
        native.format_size = len(format_name)
        start(&args, PJRT_Compile_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.program = &native
        args.compile_options = serialized_options
        args.compile_options_size = len(serialized_options)
        if client is not None:
            if not isinstance(client, ClientScope) or (<ClientScope>client).api is not self.scope.api:
                raise InvalidArgumentError(
                    f"compiling can be tuned on a client of the same plugin only, found {client!r}"
                )
            args.client = <PJRT_Client *>(<ClientScope>client).native
            (<ClientScope>client).enter()
        try:
            with from_caller(framework=False):
                self.call(SLOT_PJRT_Compile, &args)
        except PjrtError as error:
            raise doubted(error, ready, doubt)
        finally:
            if client is not None:
                (<ClientScope>client).leave()
        return new_executable(free_scope(self.scope), self.platform_name, args.executable)

    def serialize(self):
        return _SERIALIZED.ask(self)

    def deserialize(self, serialized):
        return deserialize_topology(self.scope, serialized, self.attributes_of_plugin)

    def fingerprint(self):
        return _FINGERPRINT.ask(self)

    def phase_compiler(self):
        from pjrt.capi._extensions import phase_compiler

        return phase_compiler(self)

    @property
    def tpu(self):
        from pjrt.capi._extensions import tpu_topology

        return tpu_topology(self)

    def multi_slice(self, num_slices):
        from pjrt.capi._extensions import multi_slice

        return multi_slice(self, num_slices)

    def default_layout(self, element_type, shape):
        return topology_layout(self, element_type, shape)

    def make_canonical_shape(self, element_type, shape, layout=None, *, memory_space_kind_id):
        cdef PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args args
        cdef Block dims = shape_block(shape, element_type)
        cdef NativeLayout native = fitting_layout(layout, len(shape))
        start(&args, PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.memory_space_kind_id = <int>whole(memory_space_kind_id, "the number of a kind of memory", 32)
        args.dims = <int64_t *>dims.data
        args.num_dims = len(shape)
        args.element_type = <PJRT_Buffer_Type><int>ElementType.of(element_type)
        args.layout = native.pointer
        self.call(SLOT_PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace, &args)
        return take_blob(
            args.serialized_shape,
            args.serialized_shape_size,
            "a serialized shape",
            <void *>args.serialized_shape,
            <deleter_t>args.serialized_shape_deleter,
        )

    def __repr__(self):
        if self.handle.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return TopologyDescription.__repr__(self)


@documented
class PluginTopology(TopologyCore, TopologyDescription):
    """A topology of a plugin (``PJRT_TopologyDescription``)."""

    platform_name = Constant("PJRT_TopologyDescription_PlatformName")
    platform_version = Getter("PJRT_TopologyDescription_PlatformVersion")
    attributes = Constant("PJRT_TopologyDescription_Attributes")
    memory_space_kind_ids = Getter("PJRT_TopologyDescription_GetMemorySpaceKindIds")

    @property
    def capabilities(self):
        cdef TopologyCore core = <TopologyCore>self
        return device_capabilities(core.scope.api, core.attributes_of_plugin, self, None)

    def supports(self, program, options=None, *, effort=None):
        from pjrt.api.capability import try_compiling
        from pjrt.stablehlo import supports

        def compile():
            try_compiling(self, program, options)

        capabilities = self.capabilities
        can_compile = capabilities.has(Feature.AOT_TOPOLOGIES)
        return supports(program, options, capabilities, effort=effort, compile=compile if can_compile else None)


cdef class _DescribedBy(Scope):
    """The scope of the descriptions of a topology without a client: it keeps the topology for them."""

    cdef Handle topology


cdef object _new_topology(Scope scope, Handle handle, attributes):
    cdef TopologyCore topology = <TopologyCore>PluginTopology()
    topology.scope = scope
    topology.handle = handle
    topology.attributes_of_plugin = attributes
    read_constants(topology, "platform_name")
    return topology


cdef Handle _topology_handle(Scope scope, PJRT_TopologyDescription *native, size_t destroy_slot):
    if native == NULL:
        raise InternalError("the plugin gave no topology where one was expected; report it to its vendor")
    cdef Handle handle = Handle.__new__(Handle)
    handle.open(scope, native, destroy_slot)
    return handle


cdef object client_topology(Scope scope, PJRT_TopologyDescription *native, attributes):
    """Return the topology of a client, which the client frees."""
    return _new_topology(scope, _topology_handle(scope, native, 0), attributes)


cdef object own_topology(Scope scope, PJRT_TopologyDescription *native, attributes):
    """Return a topology that the plugin made for the caller, and take it over."""
    cdef _DescribedBy described = _DescribedBy.__new__(_DescribedBy)
    described.api = scope.api
    described.topology = _topology_handle(
        free_scope(scope), native, SLOT_PJRT_TopologyDescription_Destroy  # TopologyDescription: when it is dropped
    )
    return _new_topology(described, described.topology, attributes)


cdef object create_topology(Scope scope, name, options, attributes):
    """``Plugin.topology``."""
    cdef PJRT_TopologyDescription_Create_Args args
    cdef NamedValues values = NamedValues(options, "the options of a topology")
    cdef bytes name_of_topology = encoded(name, "the name of a topology as a str")
    start(&args, PJRT_TopologyDescription_Create_Args_STRUCT_SIZE)
    args.topology_name = name_of_topology
    args.topology_name_size = len(name_of_topology)
    args.create_options = values.data
    args.num_options = values.size
    scope.call(SLOT_PJRT_TopologyDescription_Create, &args)
    return own_topology(scope, args.topology, attributes)


cdef object deserialize_topology(Scope scope, serialized, attributes):
    """``Plugin.deserialize_topology``."""
    cdef PJRT_TopologyDescription_Deserialize_Args args
    cdef bytes data = expect_bytes(serialized, "a serialized topology as bytes")
    start(&args, PJRT_TopologyDescription_Deserialize_Args_STRUCT_SIZE)
    args.serialized_topology = data
    args.serialized_topology_size = len(data)
    scope.call(SLOT_PJRT_TopologyDescription_Deserialize, &args)
    return own_topology(scope, args.topology, attributes)


# The key-value store for a client: calls of the plugin into a Python ``KeyValueStore``.
#
# The plugin calls from any thread, without the GIL. A value is copied into memory that the plugin gives back; an
# exception becomes an error of the plugin's own kind, with its code and message. Once the gate is shut, every call is
# answered with CANCELLED.


cdef int offer_store(PJRT_Client_Create_Args *args, store) except -1:
    """Fill in the callbacks, none for ``None``. The store must be kept as long as the client lives."""
    if store is None:
        return 0
    if not isinstance(store, KeyValueStore):
        raise InvalidArgumentError(f"key_value_store must be a pjrt.KeyValueStore, found {type(store).__name__}")
    args.kv_get_callback = _get
    args.kv_get_user_arg = <void *>store
    args.kv_try_get_callback = _try_get
    args.kv_try_get_user_arg = <void *>store
    args.kv_put_callback = _put
    args.kv_put_user_arg = <void *>store
    return 0


cdef PJRT_Error *_ending(PJRT_CallbackError *make_error) noexcept nogil:
    return make_error[0](PJRT_Error_Code_CANCELLED, b"the host is ending", 18)


cdef PJRT_Error *_get(PJRT_KeyValueGetCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_get(args)
    gate_leave()
    return error


cdef PJRT_Error *_try_get(PJRT_KeyValueTryGetCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_try_get(args)
    gate_leave()
    return error


cdef PJRT_Error *_put(PJRT_KeyValuePutCallback_Args *args) noexcept nogil:
    cdef PJRT_Error *error
    if not gate_enter():
        return _ending(args.callback_error)
    error = _python_put(args)
    gate_leave()
    return error


cdef PJRT_Error *_python_get(PJRT_KeyValueGetCallback_Args *args) noexcept with gil:
    try:
        value = (<object>args.user_arg).get(_key(args.key, args.key_size), args.timeout_in_ms / 1000)
        args.value = _copied(value, &args.value_size)
        args.value_deleter_callback = _free_value
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef PJRT_Error *_python_try_get(PJRT_KeyValueTryGetCallback_Args *args) noexcept with gil:
    try:
        value = (<object>args.user_arg).try_get(_key(args.key, args.key_size))
        args.value = _copied(value, &args.value_size)
        args.value_deleter_callback = _free_value
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef PJRT_Error *_python_put(PJRT_KeyValuePutCallback_Args *args) noexcept with gil:
    try:
        (<object>args.user_arg).put(_key(args.key, args.key_size), <bytes>args.value[:args.value_size])
    except BaseException as error:
        return _error(args.callback_error, error)
    return NULL


cdef str _key(const char *key, size_t size):
    """Return a key as text; bytes that are not UTF-8 stay distinct."""
    return (<bytes>key[:size]).decode("utf-8", "surrogateescape")


cdef char *_copied(value, size_t *size) except NULL:
    cdef bytes data = bytes(value)
    cdef char *copy = <char *>malloc(len(data) or 1)
    if copy == NULL:
        raise MemoryError(f"no {len(data)} bytes of memory for a value of the key-value store")
    memcpy(copy, <char *>data, len(data))
    size[0] = len(data)
    return copy


cdef void _free_value(char *value) noexcept nogil:
    free(value)


cdef PJRT_Error *_error(PJRT_CallbackError *make_error, raised):
    """Return an exception as an error of the plugin's own kind."""
    error = from_author(raised)
    cdef bytes message = error.message.encode()
    return make_error[0](<PJRT_Error_Code><int>error.code, message, len(message))
