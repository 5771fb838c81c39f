"""Extensions that some plugins have: ABI versions, compiling in phases, TPUs and their slices, profiles, FFI, Triton.

Loaded when the first of them is asked for. The extensions that are a part of a noun stand with it, such as Layouts.
"""

cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t
from libc.stdlib cimport free

from pjrt.capi._api cimport (
    Block, blob, count, deleter_t, encoded, function_t, read_named_values, start, take_blob, text, whole
)
from pjrt.capi._client cimport TopologyCore, own_topology
from pjrt.capi._executable cimport ExecutableCore
from pjrt.abi.generated.declarations cimport *
from pjrt.capi._scope cimport ClientScope, Getter, Handle, Native, Scope, free_scope

from pjrt.api.checks import expect_all, expect_bytes, expect_int, expect_sequence
from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.api.executable import ExecutableAbiVersion, RuntimeAbiVersion, TpuExecutable
from pjrt.api.plugin import Profiler
from pjrt.api.program import Program
from pjrt.api.topology import MultiSliceConfig, PartialProgram, PhaseCompiler, TpuTopology, check_phases
from pjrt.capi._program import address_of, doubted, prepared
from pjrt.capi._scope import documented

# The AbiVersion extension: whether a serialized executable fits a runtime.

cdef Getter _RUNTIME_PROTO = Getter("PJRT_RuntimeAbiVersion_ToProto")
cdef Getter _EXECUTABLE_PROTO = Getter("PJRT_ExecutableAbiVersion_ToProto")


@cython.no_gc_clear
cdef class RuntimeVersionCore(Handle):
    """A ``PJRT_RuntimeAbiVersion``."""

    def to_proto(self):
        return _RUNTIME_PROTO.ask(self)

    def check_compatible_with(self, other):
        # What is kept as its proto, or is another plugin's, becomes this plugin's first, which compares.
        if isinstance(other, RuntimeAbiVersion):
            own = isinstance(other, RuntimeVersionCore) and (<RuntimeVersionCore>other).scope.api is self.scope.api
            self._check_runtime(other if own else runtime_version_from_proto(self.scope, other.to_proto()))
        elif isinstance(other, ExecutableAbiVersion):
            own = isinstance(other, ExecutableVersionCore) and (<ExecutableVersionCore>other).scope.api is self.scope.api
            self._check_executable(other if own else executable_version_from_proto(self.scope, other.to_proto()))
        else:
            raise InvalidArgumentError(f"a runtime is compared with ABI versions of its own plugin, found {other!r}")

    cdef int _check_runtime(self, RuntimeVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.other_abi_version = <PJRT_RuntimeAbiVersion *>other.use()
        return self.call(SLOT_PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime, &args)

    cdef int _check_executable(self, ExecutableVersionCore other) except -1:
        cdef PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args args
        start(&args, PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>self.use()
        args.executable_abi_version = <PJRT_ExecutableAbiVersion *>other.use()
        return self.call(SLOT_PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable, &args)

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_RuntimeAbiVersion_Destroy_Args args
        start(&args, PJRT_RuntimeAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_RuntimeAbiVersion *>native
        return self.scope.api.call(SLOT_PJRT_RuntimeAbiVersion_Destroy, &args)


@documented
class PluginRuntimeAbiVersion(RuntimeVersionCore, RuntimeAbiVersion):
    """The ABI version of a plugin's runtime (``PJRT_RuntimeAbiVersion``)."""

    __slots__ = ()

    platform_id = Getter("PJRT_RuntimeAbiVersion_PlatformId")


@cython.no_gc_clear
cdef class ExecutableVersionCore(Handle):
    """A ``PJRT_ExecutableAbiVersion``."""

    def to_proto(self):
        return _EXECUTABLE_PROTO.ask(self)

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_ExecutableAbiVersion_Destroy_Args args
        start(&args, PJRT_ExecutableAbiVersion_Destroy_Args_STRUCT_SIZE)
        args.abi_version = <PJRT_ExecutableAbiVersion *>native
        return self.scope.api.call(SLOT_PJRT_ExecutableAbiVersion_Destroy, &args)


@documented
class PluginExecutableAbiVersion(ExecutableVersionCore, ExecutableAbiVersion):
    """The ABI version that an executable of a plugin needs (``PJRT_ExecutableAbiVersion``)."""

    __slots__ = ()

    platform_id = Getter("PJRT_ExecutableAbiVersion_PlatformId")


cdef object _version(kind, Scope scope, void *native):
    """Return a version that the plugin made; versions outlive the client that they come from."""
    if native == NULL:
        raise InternalError("the plugin gave no ABI version where one was expected; report it to its vendor")
    version = kind()
    (<Handle>version).open(free_scope(scope), native, 0)
    return version


def runtime_version(ClientScope client):
    """``Client.runtime_abi_version``."""
    cdef PJRT_Client_RuntimeAbiVersion_Args args
    start(&args, PJRT_Client_RuntimeAbiVersion_Args_STRUCT_SIZE)
    args.client = <PJRT_Client *>client.native
    client.call(SLOT_PJRT_Client_RuntimeAbiVersion, &args)
    return _version(PluginRuntimeAbiVersion, client, args.abi_version)


def executable_version(ExecutableCore executable):
    """``Executable.abi_version``."""
    cdef PJRT_Executable_GetAbiVersion_Args args
    start(&args, PJRT_Executable_GetAbiVersion_Args_STRUCT_SIZE)
    args.executable = <PJRT_Executable *>executable.use()
    executable.call(SLOT_PJRT_Executable_GetAbiVersion, &args)
    return _version(PluginExecutableAbiVersion, executable.scope, args.abi_version)


def runtime_version_from_proto(Scope scope, serialized):
    """Return the version of a runtime that ``RuntimeAbiVersion.to_proto`` returned as bytes."""
    cdef PJRT_RuntimeAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    start(&args, PJRT_RuntimeAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call(SLOT_PJRT_RuntimeAbiVersion_FromProto, &args)
    return _version(PluginRuntimeAbiVersion, scope, args.abi_version)


def executable_version_from_proto(Scope scope, serialized):
    """Return the version of an executable that ``ExecutableAbiVersion.to_proto`` returned as bytes."""
    cdef PJRT_ExecutableAbiVersion_FromProto_Args args
    cdef bytes data = bytes(serialized)
    start(&args, PJRT_ExecutableAbiVersion_FromProto_Args_STRUCT_SIZE)
    args.serialized_proto = data
    args.serialized_proto_size = len(data)
    scope.call(SLOT_PJRT_ExecutableAbiVersion_FromProto, &args)
    return _version(PluginExecutableAbiVersion, scope, args.abi_version)


# The PhaseCompile extension: compiling phase by phase, for the devices of a topology.


@cython.no_gc_clear
cdef class PhaseCompilerCore(Handle):
    """A ``PJRT_PhaseCompiler`` with the topology that it compiles for."""

    cdef TopologyCore topology
    cdef tuple _phase_names

    @property
    def phase_names(self):
        cdef PJRT_PhaseCompile_Get_PhaseNames_Args args
        cdef size_t index
        if self._phase_names is None:
            start(&args, PJRT_PhaseCompile_Get_PhaseNames_Args_STRUCT_SIZE)
            args.phase_compiler = <PJRT_PhaseCompiler *>self.use()
            self.call(SLOT_PJRT_PhaseCompile_Get_PhaseNames, &args)
            try:
                count(args.num_phase_names, args.phase_names_sizes, "the names of the phases")
                number = count(args.num_phase_names, args.phase_names, "the names of the phases")
                names = tuple(
                    [
                        text(args.phase_names[index], args.phase_names_sizes[index], "the name of a phase")
                        for index in range(number)
                    ]
                )
            finally:
                self._free(args.phase_names, args.phase_names_sizes, args.num_phase_names)
            with cython.critical_section(self):
                if self._phase_names is None:
                    self._phase_names = names
        return self._phase_names

    def run(self, programs, phases, options=None):
        whole = isinstance(programs, (Program, str, bytes, bytearray, memoryview))
        ready = doubt = None
        chosen = CompileOptions.of(options)
        if whole:
            from pjrt.stablehlo import with_partitioning

            ready, doubt = prepared(programs, self.topology.attributes_of_plugin, None, self.topology.capabilities)
            names = check_phases((), phases)
            chosen = with_partitioning(ready, options)
            parts = [PartialProgram(ready.code, str(ready.format), consumer_phases=names[:1])]
        else:
            parts = expect_all(programs, PartialProgram, "a part of a program as pjrt.PartialProgram")
            names = check_phases(parts, phases)
        try:
            return self._run(
                [part.to_proto() for part in parts],
                [encoded(name, "the name of a phase as a str") for name in names],
                chosen.to_proto(),
            )
        except PjrtError as error:
            raise doubted(error, ready, doubt)

    cdef tuple _run(self, list programs, list phases, bytes options):
        cdef PJRT_PhaseCompile_Run_Phase_Args args
        cdef _Strings inputs = _Strings.of(programs)
        cdef _Strings names = _Strings.of(phases)
        cdef size_t index
        start(&args, PJRT_PhaseCompile_Run_Phase_Args_STRUCT_SIZE)
        args.phase_compiler = <PJRT_PhaseCompiler *>self.use()
        args.input_programs = <const char **>inputs.data.data
        args.input_programs_sizes = <size_t *>inputs.sizes.data
        args.num_input_programs = len(programs)
        args.phases_to_run = <const char **>names.data.data
        args.phases_to_run_sizes = <size_t *>names.sizes.data
        args.num_phases_to_run = len(phases)
        args.compile_options = options
        args.compile_options_size = len(options)
        args.topology = <PJRT_TopologyDescription *>self.topology.use()
        self.topology.handle.hold()
        try:
            self.call(SLOT_PJRT_PhaseCompile_Run_Phase, &args)
        finally:
            self.topology.handle.let_go()
        try:
            count(args.num_output_programs, args.output_programs_sizes, "the parts of a program")
            number = count(args.num_output_programs, args.output_programs, "the parts of a program")
            return tuple(
                [_part(blob(args.output_programs[index], args.output_programs_sizes[index], "a part of a program"))
                 for index in range(number)]
            )
        finally:
            self._free(args.output_programs, args.output_programs_sizes, args.num_output_programs)

    cdef int _free(self, const char **buffers, const size_t *sizes, size_t number) except -1:
        cdef PJRT_PhaseCompile_C_Buffers_Destroy_Args args
        cdef function_t free = self.scope.api.find_in_extension(SLOT_PJRT_PhaseCompile_C_Buffers_Destroy)
        if free == NULL or (buffers == NULL and sizes == NULL):
            return 0
        start(&args, PJRT_PhaseCompile_C_Buffers_Destroy_Args_STRUCT_SIZE)
        args.char_buffers = buffers
        args.char_buffer_sizes = sizes
        args.num_char_buffers = number
        with nogil:
            (<deleter_t>free)(&args)
        return 0

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_PhaseCompile_Destroy_Compiler_Args args
        cdef function_t free = self.scope.api.find_in_extension(SLOT_PJRT_PhaseCompile_Destroy_Compiler)
        if free == NULL:
            return 0
        start(&args, PJRT_PhaseCompile_Destroy_Compiler_Args_STRUCT_SIZE)
        args.phase_compiler = <PJRT_PhaseCompiler *>native
        with nogil:
            (<deleter_t>free)(&args)
        return 0


@documented
class PluginPhaseCompiler(PhaseCompilerCore, PhaseCompiler):
    """A compiler of a plugin that stops after each phase (``PJRT_PhaseCompiler``)."""

    __slots__ = ()


cdef class _Strings:
    """Byte strings for a call: the array of pointers and the array of sizes."""

    cdef Block data
    cdef Block sizes
    cdef list keep

    @staticmethod
    cdef _Strings of(list strings):
        cdef _Strings arrays = _Strings.__new__(_Strings)
        cdef bytes string
        cdef size_t index = 0
        arrays.keep = strings
        arrays.data = Block.of(len(strings) * sizeof(char *))
        arrays.sizes = Block.of(len(strings) * sizeof(size_t))
        for string in strings:
            (<const char **>arrays.data.data)[index] = string
            (<size_t *>arrays.sizes.data)[index] = len(string)
            index += 1
        return arrays


def _part(serialized):
    try:
        return PartialProgram.from_proto(serialized)
    except InvalidArgumentError as error:
        raise InternalError(f"the plugin gave a part of a program that cannot be read: {error.message}") from error


def phase_compiler(TopologyCore topology):
    """``TopologyDescription.phase_compiler``."""
    cdef PJRT_PhaseCompile_Get_Compiler_Args args
    # The whole extension is needed: an older one makes buffers, and has no function to free them.
    topology.scope.api.extension(PJRT_Extension_Type_PhaseCompile, PJRT_PhaseCompile_Extension_STRUCT_SIZE)
    start(&args, PJRT_PhaseCompile_Get_Compiler_Args_STRUCT_SIZE)
    topology.call(SLOT_PJRT_PhaseCompile_Get_Compiler, &args)
    if args.phase_compiler == NULL:
        raise InternalError("the plugin gave no phase compiler where one was expected; report it to its vendor")
    compiler = PluginPhaseCompiler()
    (<PhaseCompilerCore>compiler).topology = topology
    (<PhaseCompilerCore>compiler).open(free_scope(topology.scope), <void *>args.phase_compiler, 0)
    return compiler


# The MultiSlice extension, and those functions of Megascale that make its configurations.

cdef Getter _SERIALIZED = Getter("PJRT_MultiSlice_Config_Serialize")


@cython.no_gc_clear
cdef class MultiSliceCore(Handle):
    """A ``PJRT_MultiSlice_Config``."""

    @property
    def num_devices_per_slice(self):
        cdef PJRT_MultiSlice_Config_NumDevicesPerSlice_Args args
        cdef size_t index
        start(&args, PJRT_MultiSlice_Config_NumDevicesPerSlice_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>self.use()
        self.call(SLOT_PJRT_MultiSlice_Config_NumDevicesPerSlice, &args)
        try:
            count(args.num_devices_per_slice_map, args.num_devices, "the devices of the slices")
            number = count(args.num_devices_per_slice_map, args.slice_ids, "the slices")
            return dict(sorted([(args.slice_ids[index], args.num_devices[index]) for index in range(number)]))
        finally:
            if args.devices_per_slice_map_deleter != NULL:
                with nogil:
                    args.devices_per_slice_map_deleter(args.devices_per_slice_map)

    def serialize(self):
        return _SERIALIZED.ask(self)

    def global_device_id(self, slice_id, device_id):
        cdef PJRT_Megascale_DeviceId_To_MegascaleId_Args args
        start(&args, PJRT_Megascale_DeviceId_To_MegascaleId_Args_STRUCT_SIZE)
        args.slice_id = <int32_t>whole(slice_id, "the number of a slice", 32)
        args.per_slice_device_id = <int32_t>whole(device_id, "the number of a device", 32)
        self.call(SLOT_PJRT_Megascale_DeviceId_To_MegascaleId, &args)
        return args.megascale_id

    def slice_and_device(self, global_device_id):
        cdef PJRT_Megascale_MegascaleId_To_DeviceId_Args args
        start(&args, PJRT_Megascale_MegascaleId_To_DeviceId_Args_STRUCT_SIZE)
        args.megascale_id = whole(global_device_id, "the number of a device")
        self.call(SLOT_PJRT_Megascale_MegascaleId_To_DeviceId, &args)
        return args.slice_id, args.per_slice_device_id

    cdef int destroy(self, void *native) except -1:
        cdef PJRT_MultiSlice_Config_Destroy_Args args
        start(&args, PJRT_MultiSlice_Config_Destroy_Args_STRUCT_SIZE)
        args.config = <PJRT_MultiSlice_Config *>native
        return self.scope.api.call(SLOT_PJRT_MultiSlice_Config_Destroy, &args)


@documented
class PluginMultiSliceConfig(MultiSliceCore, MultiSliceConfig):
    """A plugin's configuration of several slices (``PJRT_MultiSlice_Config``)."""

    __slots__ = ()

    num_slices = Getter("PJRT_MultiSlice_Config_NumSlices")
    slice_id = Getter("PJRT_MultiSlice_Config_SliceId")


def multi_slice(TopologyCore topology, num_slices):
    """``TopologyDescription.multi_slice``."""
    cdef PJRT_Megascale_CreateAoTConfig_Args args
    topology.scope.api.find(SLOT_PJRT_MultiSlice_Config_Destroy)  # nothing is made that could not be freed
    start(&args, PJRT_Megascale_CreateAoTConfig_Args_STRUCT_SIZE)
    args.topology = <PJRT_TopologyDescription *>topology.use()
    args.num_slices = <int32_t>whole(num_slices, "the number of slices", 32)
    topology.call(SLOT_PJRT_Megascale_CreateAoTConfig, &args)
    if args.multi_slice_config == NULL:
        raise InternalError("the plugin gave no configuration of slices; report it to its vendor")
    config = PluginMultiSliceConfig()
    (<MultiSliceCore>config).open(free_scope(topology.scope), args.multi_slice_config, 0)
    return config


# The TpuTopology extension: chips, cores, processes and slices of TPU topologies.

cdef enum:
    _MOST_DIMENSIONS = 8
    _LONGEST_NAME = 256


cdef class _Int32s:
    """Whole numbers for a call."""

    cdef Block block
    cdef int32_t *data
    cdef size_t size

    def __init__(self, numbers, str what):
        listed = expect_sequence(numbers, f"a sequence of {what}")
        self.size = len(listed)
        self.block = Block.of(self.size * sizeof(int32_t))
        self.data = <int32_t *>self.block.data
        for index, number in enumerate(listed):
            self.data[<size_t>index] = _int32(number, what)


cdef class TpuTopologyCore(Native):
    """The TPU's side of a topology."""

    cdef TopologyCore topology

    cdef void *use(self) except? NULL:
        return self.topology.use()

    cdef int call(self, size_t slot, void *args) except -1:
        return self.topology.call(slot, args)

    # libtpu ends the process where a chip or device is asked for that is not there, or bounds have another dimension.

    cdef int32_t _chip(self, chip_id) except? -1:
        return _within(chip_id, self.chip_count, "the number of a chip")

    cdef int32_t _device(self, device_id) except? -1:
        return _within(device_id, self.device_count, "the number of a device")

    cdef _Int32s _bounds(self, numbers, str what):
        cdef _Int32s bounds = _Int32s(numbers, what)
        if bounds.size != <size_t>len(self.chip_bounds):
            raise InvalidArgumentError(f"expected {what} in {len(self.chip_bounds)} dimensions, found {tuple(numbers)}")
        return bounds

    # Places. The structs of the three extents are alike.

    cdef tuple _extents(self, size_t slot):
        cdef PJRT_TpuTopology_ChipBounds_Args args
        cdef int32_t[_MOST_DIMENSIONS] extents
        start(&args, PJRT_TpuTopology_ChipBounds_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.chip_bounds_max_dims = _MOST_DIMENSIONS
        args.chip_bounds = extents
        self.call(slot, &args)
        return _filled(extents, args.chip_bounds_num_dims, _MOST_DIMENSIONS, "the extents of a topology")

    @property
    def chip_bounds(self):
        return self._extents(SLOT_PJRT_TpuTopology_ChipBounds)

    @property
    def process_bounds(self):
        return self._extents(SLOT_PJRT_TpuTopology_ProcessBounds)

    @property
    def chips_per_process_bounds(self):
        return self._extents(SLOT_PJRT_TpuTopology_ChipsPerProcessBounds)

    @property
    def process_ids(self):
        cdef PJRT_TpuTopology_ProcessIds_Args args
        cdef size_t room = max(self.process_count, 0)
        cdef Block ids = Block.of(room * sizeof(int32_t))
        start(&args, PJRT_TpuTopology_ProcessIds_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.max_process_ids = room
        args.process_ids = <int32_t *>ids.data
        self.call(SLOT_PJRT_TpuTopology_ProcessIds, &args)
        return _filled(args.process_ids, args.num_process_ids, room, "the processes of a topology")

    def process_coords(self, process_id):
        cdef PJRT_TpuTopology_ProcessCoordFromId_Args args
        cdef int32_t[_MOST_DIMENSIONS] coords
        start(&args, PJRT_TpuTopology_ProcessCoordFromId_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.process_id = _int32(process_id, "the number of a process")
        args.coords_max_dims = _MOST_DIMENSIONS
        args.coords = coords
        self.call(SLOT_PJRT_TpuTopology_ProcessCoordFromId, &args)
        return _filled(coords, args.coords_num_dims, _MOST_DIMENSIONS, "the coordinates of a process")

    def devices_of_process(self, process_id):
        cdef PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args args
        cdef size_t room = max(self.devices_per_process, 0)
        cdef Block ids = Block.of(room * sizeof(int32_t))
        start(&args, PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.process_id = _int32(process_id, "the number of a process")
        args.max_logical_device_ids = room
        args.logical_device_of_default_type_ids = <int32_t *>ids.data
        self.call(SLOT_PJRT_TpuTopology_LogiDeviceIdsOnProcess, &args)
        return _filled(<int32_t *>ids.data, args.num_logical_device_ids, room, "the devices of a process")

    def chip_at(self, coords):
        cdef PJRT_TpuTopology_ChipIdFromCoord_Args args
        cdef _Int32s place = _Int32s(coords, "coordinates")
        start(&args, PJRT_TpuTopology_ChipIdFromCoord_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.coords = place.data
        args.coords_num_dims = place.size
        self.call(SLOT_PJRT_TpuTopology_ChipIdFromCoord, &args)
        return args.chip_id

    def process_of_chip(self, chip_id):
        cdef PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args args
        start(&args, PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.chip_id = self._chip(chip_id)
        self.call(SLOT_PJRT_TpuTopology_ProcIdAndIdxOnProcForChip, &args)
        return args.process_id, args.index_on_process

    def device_at(self, chip_coords, index_on_chip=0):
        cdef PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args args
        cdef _Int32s place = _Int32s(chip_coords, "coordinates")
        start(&args, PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.chip_coords = place.data
        args.chip_coords_num_dims = place.size
        args.logical_device_index_on_chip = _within(index_on_chip, self.devices_per_chip, "a place on a chip")
        self.call(SLOT_PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx, &args)
        return args.logical_device_of_default_type_id

    def place_of_device(self, device_id):
        cdef PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args args
        cdef int32_t[_MOST_DIMENSIONS] coords
        start(&args, PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.device_id = self._device(device_id)
        args.chip_coords_max_dims = _MOST_DIMENSIONS
        args.chip_coords = coords
        self.call(SLOT_PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice, &args)
        place = _filled(coords, args.chip_coords_num_dims, _MOST_DIMENSIONS, "the coordinates of a chip")
        return place, args.device_index_on_chip

    def process_of_device(self, device_id):
        cdef PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args args
        start(&args, PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.device_id = self._device(device_id)
        self.call(SLOT_PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice, &args)
        return args.process_id, args.index_on_process

    # Links.

    @property
    def routing_strategy(self):
        cdef PJRT_TpuTopology_GetRoutingStrategy_Args args
        cdef char[_LONGEST_NAME] name
        name[0] = 0
        start(&args, PJRT_TpuTopology_GetRoutingStrategy_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.routing_strategy = name
        args.routing_strategy_len = _LONGEST_NAME
        self.call(SLOT_PJRT_TpuTopology_GetRoutingStrategy, &args)
        return name[:_LONGEST_NAME].split(b"\0", 1)[0].decode(errors="replace")

    def is_reachable_over_limited_ici(self, source_chip_id, destination_chip_id):
        cdef PJRT_TpuTopology_IsReachableOverLimitedIci_Args args
        start(&args, PJRT_TpuTopology_IsReachableOverLimitedIci_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.source_chip_id = self._chip(source_chip_id)
        args.dest_chip_id = self._chip(destination_chip_id)
        self.call(SLOT_PJRT_TpuTopology_IsReachableOverLimitedIci, &args)
        return bool(args.is_reachable_over_limited_ici)

    # Parts.

    def subslice(self, chips_per_host_bounds, host_bounds):
        cdef PJRT_TpuTopology_Subslice_Args args
        cdef _Int32s chips = self._bounds(chips_per_host_bounds, "numbers of chips")
        cdef _Int32s hosts = self._bounds(host_bounds, "numbers of hosts")
        start(&args, PJRT_TpuTopology_Subslice_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.chips_per_host_bounds = chips.data
        args.chips_per_host_bounds_num_dims = chips.size
        args.host_bounds = hosts.data
        args.host_bounds_num_dims = hosts.size
        self.call(SLOT_PJRT_TpuTopology_Subslice, &args)
        return own_topology(free_scope(self.topology.scope), args.subslice_topology, self.topology.attributes_of_plugin)

    def device_in_subslice(self, subslice, origin, device_id):
        cdef PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args args
        cdef _Int32s place = _Int32s(origin, "coordinates")
        cdef TopologyCore part
        if not isinstance(subslice, TopologyCore) or (<TopologyCore>subslice).scope.api is not self.topology.scope.api:
            raise InvalidArgumentError(f"expected a part of this topology, of the same plugin, found {subslice!r}")
        part = <TopologyCore>subslice
        self._check_inside(part.tpu.chip_bounds, origin, device_id)
        start(&args, PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args_STRUCT_SIZE)
        args.client_topology = <PJRT_TopologyDescription *>self.use()
        args.subslice_topology = <PJRT_TopologyDescription *>part.use()
        args.subslice_origin = place.data
        args.subslice_origin_dim_num = place.size
        args.full_device_id = self._device(device_id)
        part.handle.hold()
        try:
            self.call(SLOT_PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId, &args)
        finally:
            part.handle.let_go()
        return args.subslice_device_id

    def _check_inside(self, bounds, origin, device_id):
        """Refuse a device outside of a part: libtpu would end the process."""
        chip, _ = self.place_of_device(device_id)
        if len(origin) != len(bounds) or not all(
            0 <= place - first < size for place, first, size in zip(chip, origin, bounds)
        ):
            raise InvalidArgumentError(
                f"expected a device of the part of {bounds} chips from {tuple(origin)} on, found device {device_id} on "
                f"the chip at {chip}"
            )

    def with_host_bounds(self, host_bounds):
        cdef PJRT_TpuTopology_ReplaceHostBounds_Args args
        cdef _Int32s hosts = self._bounds(host_bounds, "numbers of hosts")
        start(&args, PJRT_TpuTopology_ReplaceHostBounds_Args_STRUCT_SIZE)
        args.topology = <PJRT_TopologyDescription *>self.use()
        args.host_bounds = hosts.data
        args.host_bounds_dim_num = hosts.size
        self.call(SLOT_PJRT_TpuTopology_ReplaceHostBounds, &args)
        return own_topology(free_scope(self.topology.scope), args.new_topology, self.topology.attributes_of_plugin)


@documented
class PluginTpuTopology(TpuTopologyCore, TpuTopology):
    """The chips, cores and processes of a plugin's TPU topology."""

    __slots__ = ()

    chip_count = Getter("PJRT_TpuTopology_ChipCount")
    core_count = Getter("PJRT_TpuTopology_CoreCount")
    device_count = Getter("PJRT_TpuTopology_LogiDeviceCount")
    process_count = Getter("PJRT_TpuTopology_ProcessCount")
    chips_per_process = Getter("PJRT_TpuTopology_ChipsPerProcess")
    cores_per_chip = Getter("PJRT_TpuTopology_CoreCountPerChip")
    cores_per_process = Getter("PJRT_TpuTopology_CoreCountPerProcess")
    devices_per_chip = Getter("PJRT_TpuTopology_LogiDeviceCountPerChip")
    devices_per_process = Getter("PJRT_TpuTopology_LogiDeviceCountPerProcess")
    is_subslice = Getter("PJRT_TpuTopology_IsSubsliceTopology")
    is_enhanced_barrier_enabled = Getter("PJRT_TpuTopology_IsEnhancedBarrierEnabled")
    has_limited_ici_connectivity = Getter("PJRT_TpuTopology_HasLimitedIciConnectivity")


cdef int32_t _int32(value, str what) except? -1:
    return <int32_t>whole(value, what, 32)


cdef int32_t _within(value, number, str what) except? -1:
    if not 0 <= expect_int(value, what) < number:
        raise InvalidArgumentError(f"expected {what} from 0 to {number - 1}, found {value}")
    return <int32_t>value


cdef tuple _filled(const int32_t *numbers, size_t number, size_t room, str what):
    """Return the numbers that the plugin wrote into an array of ``room`` numbers."""
    cdef size_t index
    if number > room:
        raise InternalError(f"the plugin gave {what} as {number} numbers in room for {room}; report it to its vendor")
    return tuple([numbers[index] for index in range(number)])


def tpu_topology(TopologyCore topology):
    """``TopologyDescription.tpu``."""
    topology.scope.api.extension(PJRT_Extension_Type_TpuTopology, sizeof(PJRT_Extension_Base))
    described = PluginTpuTopology()
    (<TpuTopologyCore>described).topology = topology
    return described


# The TpuExecutable extension: the contents of serialized TPU executables, and the settings of the TPU compiler.


cdef class TpuExecutableCore:
    """The bytes of a TPU executable, which the plugin parses anew for each call."""

    cdef Scope scope
    cdef bytes serialized

    def target_arguments(self):
        cdef PJRT_TpuExecutable_GetTargetArguments_Args args
        start(&args, PJRT_TpuExecutable_GetTargetArguments_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetTargetArguments, &args)
        return take_blob(
            args.target_arguments,
            args.target_arguments_size,
            "the target of a TPU executable",
            args.target_arguments_ptr,
            <deleter_t>args.target_arguments_deleter,
        )

    def hlo_module(self):
        cdef PJRT_TpuExecutable_GetHloModuleWithConfig_Args args
        start(&args, PJRT_TpuExecutable_GetHloModuleWithConfig_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetHloModuleWithConfig, &args)
        module = take_blob(
            args.hlo_module_with_config,
            args.hlo_module_with_config_size,
            "the module of an executable",
            args.hlo_module_with_config_ptr,
            <deleter_t>args.hlo_module_with_config_deleter,
        )
        return Program(module, "hlo_with_config")

    def memory_stats(self):
        cdef PJRT_TpuExecutable_GetCompiledMemoryStats_Args args
        start(&args, PJRT_TpuExecutable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetCompiledMemoryStats, &args)
        return take_blob(
            args.compiled_memory_stats,
            args.compiled_memory_stats_size,
            "the memory of an executable",
            args.compiled_memory_stats_ptr,
            <deleter_t>args.compiled_memory_stats_deleter,
        )

    def cost_analysis(self):
        cdef PJRT_TpuExecutable_RunHloCostAnalysis_Args args
        cdef bytes target = self.target_arguments()
        cdef bytes module = self.hlo_module().code
        cdef const char *module_data = module
        cdef size_t module_size = len(module)
        start(&args, PJRT_TpuExecutable_RunHloCostAnalysis_Args_STRUCT_SIZE)
        args.target_arguments = target
        args.target_arguments_size = len(target)
        args.hlo_module = &module_data
        args.hlo_module_size = &module_size
        args.num_hlo_modules = 1
        self.scope.call(SLOT_PJRT_TpuExecutable_RunHloCostAnalysis, &args)
        try:
            return read_named_values(args.analysis_results, args.num_analysis_results, "the cost analysis")
        finally:
            if args.analysis_results_deleter != NULL:
                with nogil:
                    args.analysis_results_deleter(args.analysis_results_ptr)


@documented
class PluginTpuExecutable(TpuExecutableCore, TpuExecutable):
    """A serialized TPU executable, read by its plugin."""

    __slots__ = ()


def tpu_executable(Scope scope, serialized):
    """``Plugin.tpu_executable``, ``Executable.tpu``."""
    scope.api.extension(PJRT_Extension_Type_TpuExecutable, sizeof(PJRT_Extension_Base))
    executable = PluginTpuExecutable()
    (<TpuExecutableCore>executable).scope = free_scope(scope)
    (<TpuExecutableCore>executable).serialized = expect_bytes(serialized, "a serialized executable as bytes")
    return executable


def compilation_environments(Scope scope, serialized):
    """``Plugin.tpu_compilation_environments``."""
    cdef PJRT_TpuExecutable_SetTpuCompilationEnv_Args args
    cdef bytes data = expect_bytes(serialized, "serialized compilation environments as bytes")
    start(&args, PJRT_TpuExecutable_SetTpuCompilationEnv_Args_STRUCT_SIZE)
    args.serialized_compilation_environments = data
    args.serialized_compilation_environments_size = len(data)
    scope.call(SLOT_PJRT_TpuExecutable_SetTpuCompilationEnv, &args)
    return take_blob(
        args.result_compilation_environments,
        args.result_compilation_environments_size,
        "the compilation environments",
        args.result_compilation_environments_ptr,
        <deleter_t>args.result_compilation_environments_deleter,
    )


def compiler_setting(Scope scope, name, serialized):
    """``Plugin.tpu_compiler_setting``."""
    cdef PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args args
    cdef bytes data = expect_bytes(serialized, "serialized compilation environments as bytes")
    cdef bytes field = encoded(name, "the name of a setting as a str")
    start(&args, PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args_STRUCT_SIZE)
    args.serialized_compilation_environments = data
    args.serialized_compilation_environments_size = len(data)
    args.field_name = field
    args.field_name_size = len(field)
    scope.call(SLOT_PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString, &args)
    return take_blob(
        args.field_value,
        args.field_value_size,
        "a setting of the compiler",
        args.field_value_ptr,
        <deleter_t>args.field_value_deleter,
    ).decode(errors="replace")


# The Profiler extension: traces of a plugin's work. It has a table of functions and errors of its own.

cdef size_t _LARGEST_TRACE = <size_t>1 << 36

ctypedef PLUGIN_Profiler_Error *(*profiler_function_t)(void *args) noexcept nogil


@cython.no_gc_clear
cdef class ProfilerCore:
    """A ``PLUGIN_Profiler``."""

    cdef Scope scope
    cdef const PLUGIN_Profiler_Api *table
    cdef PLUGIN_Profiler *native

    cdef int call(self, void *function, void *args, str name) except -1:
        """Call a function of this table; an error is converted and freed, as by ``Api.call``."""
        cdef PLUGIN_Profiler_Error *error
        if function == NULL:
            raise UnimplementedError(f"{self.scope.api.path}: the plugin leaves {name} out of its profiler")
        with nogil:
            error = (<profiler_function_t>function)(args)
        if error != NULL:
            raise self._take_error(error)
        return 0

    cdef object _take_error(self, PLUGIN_Profiler_Error *error):
        cdef PLUGIN_Profiler_Error_Message_Args message
        cdef PLUGIN_Profiler_Error_GetCode_Args code
        cdef PLUGIN_Profiler_Error_Destroy_Args destroy
        start(&message, PLUGIN_Profiler_Error_Message_Args_STRUCT_SIZE)
        message.error = error
        start(&code, PLUGIN_Profiler_Error_GetCode_Args_STRUCT_SIZE)
        code.error = error
        code.code = PJRT_Error_Code_UNKNOWN
        start(&destroy, PLUGIN_Profiler_Error_Destroy_Args_STRUCT_SIZE)
        destroy.error = error
        if self.table.error_message != NULL:
            self.table.error_message(&message)
        if self.table.error_get_code != NULL:
            self.table.error_get_code(&code)
        try:
            return PjrtError.of(code.code, text(message.message, message.message_size, "the message of an error"))
        finally:
            if self.table.error_destroy != NULL:
                self.table.error_destroy(&destroy)

    cdef PLUGIN_Profiler *use(self) except NULL:
        if self.native == NULL:
            raise FailedPreconditionError("this profiling session has no profiler: it was not created")
        return self.native

    def _create(self, options):
        cdef PLUGIN_Profiler_Create_Args args
        cdef bytes serialized = bytes(options)
        start(&args, PLUGIN_Profiler_Create_Args_STRUCT_SIZE)
        args.options = serialized
        args.options_size = len(serialized)
        self.call(<void *>self.table.create, &args, "PLUGIN_Profiler_Create")
        self.native = args.profiler

    def start(self):
        cdef PLUGIN_Profiler_Start_Args args
        start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
        args.profiler = self.use()
        self.call(<void *>self.table.start, &args, "PLUGIN_Profiler_Start")

    def stop(self):
        cdef PLUGIN_Profiler_Stop_Args args
        start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
        args.profiler = self.use()
        self.call(<void *>self.table.stop, &args, "PLUGIN_Profiler_Stop")

    def collect(self):
        cdef PLUGIN_Profiler_CollectData_Args args
        cdef Block trace
        start(&args, PLUGIN_Profiler_CollectData_Args_STRUCT_SIZE)
        args.profiler = self.use()
        # Asked twice: without a buffer the plugin gives the size, then it fills the buffer.
        self.call(<void *>self.table.collect_data, &args, "PLUGIN_Profiler_CollectData")
        if args.buffer_size_in_bytes > _LARGEST_TRACE:
            raise InternalError(f"the plugin gave a trace of {args.buffer_size_in_bytes} bytes, which cannot be right")
        trace = Block.of(args.buffer_size_in_bytes)
        args.buffer = <uint8_t *>trace.data
        self.call(<void *>self.table.collect_data, &args, "PLUGIN_Profiler_CollectData")
        return PyBytes_FromStringAndSize(<char *>trace.data, args.buffer_size_in_bytes)

    def __dealloc__(self):
        cdef PLUGIN_Profiler_Destroy_Args args
        if self.native != NULL:
            start(&args, PLUGIN_Profiler_Destroy_Args_STRUCT_SIZE)
            args.profiler = self.native
            self.native = NULL
            self.call(<void *>self.table.destroy, &args, "PLUGIN_Profiler_Destroy")


@documented
class PluginProfiler(ProfilerCore, Profiler):
    """A profiling session of a plugin (``PLUGIN_Profiler``)."""


def new_profiler(Scope scope, options):
    """``Plugin.profiler``."""
    cdef PJRT_Profiler_Extension *extension = <PJRT_Profiler_Extension *>scope.api.extension(
        PJRT_Extension_Type_Profiler, sizeof(PJRT_Extension_Base) + sizeof(void *)
    )
    if extension.profiler_api == NULL or extension.profiler_api.struct_size < PLUGIN_Profiler_Api_STRUCT_SIZE:
        raise UnimplementedError(
            f"{scope.api.path}: the plugin's Profiler extension has no table of functions, or an older one"
        )
    profiler = PluginProfiler()
    (<ProfilerCore>profiler).scope = scope
    (<ProfilerCore>profiler).table = extension.profiler_api
    profiler._create(options)
    return profiler


# The FFI extension: functions of the host inside programs.

# The name of a platform in the registry of custom calls, where it is not the client's own.
_PLATFORMS = {"cuda": "CUDA", "rocm": "ROCM", "cpu": "Host"}


def register_handler(Scope scope, platform_name, name, handler, traits):
    """``Client.register_ffi_handler`` and ``Plugin.register_ffi_handler``."""
    cdef PJRT_FFI_Register_Handler_Args args
    cdef bytes target = encoded(name, "the name of a custom call's target as a str")
    cdef bytes platform = encoded(_PLATFORMS.get(platform_name, platform_name), "the name of a platform as a str")
    address = address_of(handler, traits, platform_name)
    start(&args, PJRT_FFI_Register_Handler_Args_STRUCT_SIZE)
    args.target_name = target
    args.target_name_size = len(target)
    args.handler = <void *><size_t>address
    args.platform_name = platform
    args.platform_name_size = len(platform)
    args.traits = <PJRT_FFI_Handler_TraitsBits><int>whole(traits, "the traits of an FFI handler", 32)
    scope.call(SLOT_PJRT_FFI_Register_Handler, &args)


def register_type(ClientScope client, name):
    """``Client.register_ffi_type``."""
    cdef PJRT_FFI_Type_Register_Args args
    cdef PJRT_FFI_Type_Info info
    cdef bytes type_name = encoded(name, "the name of an FFI type as a str")
    info.deleter = NULL
    info.serialize = NULL
    info.deserialize = NULL
    start(&args, PJRT_FFI_Type_Register_Args_STRUCT_SIZE)
    args.type_name = type_name
    args.type_name_size = len(type_name)
    args.type_info = &info
    client.call(SLOT_PJRT_FFI_Type_Register, &args)
    return args.type_id


# The Triton extension: compiling a kernel given as Triton IR.


def compile_triton(Scope scope, module, arch_name, num_warps, num_ctas, num_stages):
    """``Plugin.compile_triton``: return the assembly, the bytes of shared memory, and the path of the binary."""
    cdef PJRT_Triton_Compile_Args args
    cdef bytes code = module.encode() if isinstance(module, str) else bytes(module)
    cdef bytes arch = encoded(arch_name, "the name of an architecture as a str")
    start(&args, PJRT_Triton_Compile_Args_STRUCT_SIZE)
    args.module = code
    args.module_size = len(code)
    args.arch_name = arch
    args.arch_name_size = len(arch)
    args.num_warps = num_warps
    args.num_ctas = num_ctas
    args.num_stages = num_stages
    scope.call(SLOT_PJRT_Triton_Compile, &args)
    try:
        assembly = blob(args.out_asm, args.out_asm_size, "the assembly of a kernel")
        return assembly, args.out_smem_bytes, text(args.out_path, args.out_path_size, "the path of a kernel")
    finally:
        free(<void *>args.out_asm)
        free(<void *>args.out_path)
