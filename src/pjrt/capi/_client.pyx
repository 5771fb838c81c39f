"""Clients: the devices of a plugin, programs, buffers and the host's memory."""

cimport cython
from libc.stdint cimport int64_t

from pjrt.capi._api cimport Api, start
from pjrt.capi._device cimport new_device, new_memory_space
from pjrt.capi._executable cimport ExecutableCore
from pjrt.capi._execute_options cimport new_context
from pjrt.capi._gen_abi cimport *
from pjrt.capi._key_value cimport offer_store
from pjrt.capi._layouts cimport client_layout
from pjrt.capi._loaded_executable cimport new_loaded_executable
from pjrt.capi._memory cimport HostMemory
from pjrt.capi._new_buffer cimport alias, from_host, of_error, uninitialized, view_of_device
from pjrt.capi._pin cimport Pin
from pjrt.capi._scope cimport ClientScope, pjrt_lanes_busy, pjrt_lanes_close, pjrt_pointer_take
from pjrt.capi._topology cimport client_topology
from pjrt.capi._transfer cimport transfer_manager
from pjrt.capi._values cimport Block, NamedValues, whole

import weakref

from pjrt.api.checks import expect_all, expect_bytes, expect_sequence
from pjrt.api.client import Client
from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.errors import InvalidArgumentError, NotFoundError, PjrtError, UnimplementedError
from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.key_value_store import ProcessInfo
from pjrt.api.shape_spec import ShapeSpec
from pjrt.api.program import from_caller
from pjrt.capi._capabilities import of_devices
from pjrt.capi._documented import documented
from pjrt.capi._gate import close_at_exit
from pjrt.capi._getter import Constant, Getter, read_constants
from pjrt.capi._out_of_memory import explained
from pjrt.capi._program import doubted, prepared


@cython.no_gc_clear
cdef class ClientCore(ClientScope):
    """A ``PJRT_Client``."""

    cdef readonly object attributes
    cdef object _store
    cdef object _topology
    cdef dict _mapped

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
        from pjrt.capi._abi_version import runtime_version

        return runtime_version(self)

    # Programs.

    def compile(self, program, options=None, *, shapes=None):
        cdef PJRT_Client_Compile_Args args
        cdef Pin pin = Pin.of(self)
        cdef PJRT_Program native
        cdef bytes code, format_name, serialized
        from pjrt.stablehlo import with_partitioning

        ready, doubt = prepared(program, self.attributes, shapes)
        code, format_name = ready.code, str(ready.format).encode()
        serialized = with_partitioning(ready, options).to_proto()
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
        return new_loaded_executable(self, args.executable)

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
        if options is not None:
            args.compile_options = serialized
            args.compile_options_size = len(serialized)
        self.call(SLOT_PJRT_Client_Load, &args)
        return new_loaded_executable(self, args.loaded_executable)

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
        return new_loaded_executable(self, args.loaded_executable)

    def create_execute_context(self):
        return new_context(self)

    # Buffers.

    def buffer_from_host(
        self, array, *, device=None, memory_space=None, layout=None,
        semantics=HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL, on_done_with_host_buffer=None
    ):
        return from_host(self, array, device, memory_space, layout, semantics, on_done_with_host_buffer)

    def buffer_from_dlpack(self, source, *, device=None):
        from pjrt.capi._dlpack import from_source

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
        return transfer_manager(self, expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), memory_space)

    # Memory of the host.

    def dma_map(self, memory):
        cdef PJRT_Client_DmaMap_Args args
        cdef HostMemory held = HostMemory.of(memory, False, "the memory to map")
        start(&args, PJRT_Client_DmaMap_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.data = held.at(0, held.view.len)
        args.size = held.view.len
        self.call(SLOT_PJRT_Client_DmaMap, &args)
        self._mapped[<size_t>args.data] = held  # neither freed nor moved while it is mapped

    def dma_unmap(self, memory):
        cdef PJRT_Client_DmaUnmap_Args args
        cdef HostMemory held = HostMemory.of(memory, False, "the memory to unmap")
        start(&args, PJRT_Client_DmaUnmap_Args_STRUCT_SIZE)
        args.client = <PJRT_Client *>self.native
        args.data = held.at(0, held.view.len)
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
        from pjrt.capi._cross_host import make_receive_buffers

        return make_receive_buffers(self, expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"), device)

    def cross_host_send_buffers(self, buffers, destination_device_ids, transfer_keys):
        from pjrt.capi._cross_host import send_buffers

        return send_buffers(
            self,
            expect_sequence(buffers, "a sequence of buffers"),
            expect_sequence(destination_device_ids, "a sequence of device ids"),
            expect_sequence(transfer_keys, "a sequence of keys"),
        )

    def cross_host_receive_buffers(self, specs, device, source_device_ids, transfer_keys):
        from pjrt.capi._cross_host import receive_buffers

        return receive_buffers(
            self,
            expect_all(specs, ShapeSpec, "a pjrt.ShapeSpec"),
            device,
            expect_sequence(source_device_ids, "a sequence of device ids"),
            expect_sequence(transfer_keys, "a sequence of keys"),
        )

    # Functions of the host inside programs.

    def register_ffi_handler(self, name, handler, *, traits=0):
        from pjrt.capi._ffi import register_handler

        register_handler(self, name, handler, traits)

    def register_ffi_type(self, name):
        from pjrt.capi._ffi import register_type

        return register_type(self, name)

    # Its end.

    @property
    def is_closed(self):
        return self.is_shut()

    def close(self):
        if not pjrt_lanes_close(&self.lanes):
            return
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
        return explained(error, self.__dict__.get("addressable_devices", ()), self.options)


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
        return of_devices((<ClientCore>self).api, self.attributes, topology, kinds)

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
