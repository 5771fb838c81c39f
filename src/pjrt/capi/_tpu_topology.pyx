"""The TpuTopology extension: chips, cores, processes and slices of TPU topologies."""

from libc.stdint cimport int32_t

from pjrt.capi._api cimport start
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Native, free_scope
from pjrt.capi._topology cimport TopologyCore, own_topology
from pjrt.capi._values cimport Block, whole

from pjrt.api.checks import expect_int, expect_sequence
from pjrt.api.errors import InternalError, InvalidArgumentError
from pjrt.api.topology import TpuTopology
from pjrt.capi._documented import documented
from pjrt.capi._getter import Getter

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
