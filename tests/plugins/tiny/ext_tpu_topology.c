/* The TpuTopology extension: the grid of a topology as chips with one core, which is one device, each. A process has
 * whole rows. */
#include "tiny.h"

#define TOPOLOGY_NUMBER(name, field, value)                                                  \
  static PJRT_Error *name(PJRT_TpuTopology_##name##_Args *args) {                            \
    TINY_GUARD(TpuTopology_##name, args);                                                    \
    const PJRT_TopologyDescription *topology = args->topology;                               \
    (void)topology;                                                                          \
    args->field = (value);                                                                   \
    return NULL;                                                                             \
  }

#define CHIPS ((int32_t)topology->num_descriptions)
#define PROCESSES ((int32_t)topology->num_processes)

TOPOLOGY_NUMBER(IsSubsliceTopology, is_subslice_topology, topology->is_part)
TOPOLOGY_NUMBER(IsEnhancedBarrierEnabled, is_enhanced_barrier_enabled, true)
TOPOLOGY_NUMBER(HasLimitedIciConnectivity, has_limited_ici_connectivity, topology->columns > 1)
TOPOLOGY_NUMBER(ProcessCount, process_count, PROCESSES)
TOPOLOGY_NUMBER(ChipsPerProcess, chips_per_process, CHIPS / PROCESSES)
TOPOLOGY_NUMBER(CoreCountPerChip, core_count_of_default_type_per_chip, 1)
TOPOLOGY_NUMBER(ChipCount, chip_count, CHIPS)
TOPOLOGY_NUMBER(CoreCount, core_count_of_default_type, CHIPS)
TOPOLOGY_NUMBER(LogiDeviceCountPerProcess, logical_device_count_of_default_type_per_process, CHIPS / PROCESSES)
TOPOLOGY_NUMBER(LogiDeviceCount, logical_device_count_of_default_type, CHIPS)
TOPOLOGY_NUMBER(LogiDeviceCountPerChip, logical_device_count_of_default_type_per_chip, 1)
TOPOLOGY_NUMBER(CoreCountPerProcess, core_count_of_default_type_per_process, CHIPS / PROCESSES)

static PJRT_Error *check_id(int32_t id, int64_t count, const char *what) {
  if (id < 0 || id >= count) return error_make(INVALID, "There is no %s %d, but %lld", what, id, (long long)count);
  return NULL;
}

static PJRT_Error *extents(int64_t x, int64_t y, size_t room, int32_t *out, size_t *count) {
  if (room < 3) return error_make(INVALID, "Three dimensions do not fit into room for %zu", room);
  out[0] = (int32_t)x;
  out[1] = (int32_t)y;
  out[2] = 1;
  *count = 3;
  return NULL;
}

static PJRT_Error *ChipBounds(PJRT_TpuTopology_ChipBounds_Args *args) {
  TINY_GUARD(TpuTopology_ChipBounds, args);
  return extents(args->topology->rows, args->topology->columns, args->chip_bounds_max_dims, args->chip_bounds,
                 &args->chip_bounds_num_dims);
}

static PJRT_Error *ProcessBounds(PJRT_TpuTopology_ProcessBounds_Args *args) {
  TINY_GUARD(TpuTopology_ProcessBounds, args);
  return extents(args->topology->num_processes, 1, args->process_bounds_max_dims, args->process_bounds,
                 &args->process_bounds_num_dims);
}

static PJRT_Error *ChipsPerProcessBounds(PJRT_TpuTopology_ChipsPerProcessBounds_Args *args) {
  TINY_GUARD(TpuTopology_ChipsPerProcessBounds, args);
  const PJRT_TopologyDescription *topology = args->topology;
  return extents(topology->rows / topology->num_processes, topology->columns, args->chip_per_process_bounds_max_dims,
                 args->chip_per_process_bounds, &args->chip_per_process_bounds_num_dims);
}

static PJRT_Error *ProcessIds(PJRT_TpuTopology_ProcessIds_Args *args) {
  TINY_GUARD(TpuTopology_ProcessIds, args);
  int64_t count = args->topology->num_processes;
  if (args->max_process_ids < count) return error_make(INVALID, "There are %lld processes", (long long)count);
  for (int32_t i = 0; i < count; ++i) args->process_ids[i] = i;
  args->num_process_ids = (size_t)count;
  return NULL;
}

static PJRT_Error *LogiDeviceIdsOnProcess(PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args *args) {
  TINY_GUARD(TpuTopology_LogiDeviceIdsOnProcess, args);
  const PJRT_TopologyDescription *topology = args->topology;
  int32_t count = CHIPS / PROCESSES;
  PJRT_Error *error = check_id(args->process_id, PROCESSES, "process");
  if (error) return error;
  if (args->max_logical_device_ids < count) return error_make(INVALID, "The process has %d devices", count);
  for (int32_t i = 0; i < count; ++i) args->logical_device_of_default_type_ids[i] = args->process_id * count + i;
  args->num_logical_device_ids = (size_t)count;
  return NULL;
}

#define PROCESS_OF(name, id, what)                                              \
  static PJRT_Error *name(PJRT_TpuTopology_##name##_Args *args) {               \
    TINY_GUARD(TpuTopology_##name, args);                                       \
    const PJRT_TopologyDescription *topology = args->topology;                  \
    PJRT_Error *error = check_id(args->id, CHIPS, what);                        \
    if (error) return error;                                                    \
    args->process_id = args->id / (CHIPS / PROCESSES);                          \
    args->index_on_process = args->id % (CHIPS / PROCESSES);                    \
    return NULL;                                                                \
  }
PROCESS_OF(ProcIdAndIdxOnProcForChip, chip_id, "chip")
PROCESS_OF(ProcIdAndIdxOnProcForLogiDevice, device_id, "device")

static PJRT_Error *ProcessCoordFromId(PJRT_TpuTopology_ProcessCoordFromId_Args *args) {
  TINY_GUARD(TpuTopology_ProcessCoordFromId, args);
  PJRT_Error *error = check_id(args->process_id, args->topology->num_processes, "process");
  if (error) return error;
  error = extents(args->process_id, 0, args->coords_max_dims, args->coords, &args->coords_num_dims);
  if (error == NULL) args->coords[2] = 0;
  return error;
}

static PJRT_Error *at(const PJRT_TopologyDescription *topology, const int32_t *coords, size_t dims, int32_t *id) {
  if (dims < 2 || coords[0] < 0 || coords[0] >= topology->rows || coords[1] < 0 || coords[1] >= topology->columns)
    return error_make(INVALID, "No chip lies there");
  *id = (int32_t)(coords[0] * topology->columns + coords[1]);
  return NULL;
}

static PJRT_Error *ChipIdFromCoord(PJRT_TpuTopology_ChipIdFromCoord_Args *args) {
  TINY_GUARD(TpuTopology_ChipIdFromCoord, args);
  return at(args->topology, args->coords, args->coords_num_dims, &args->chip_id);
}

static PJRT_Error *LogiDeviceIdFromChipCoordAndIdx(PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args *args) {
  TINY_GUARD(TpuTopology_LogiDeviceIdFromChipCoordAndIdx, args);
  PJRT_Error *error = check_id(args->logical_device_index_on_chip, 1, "device on the chip");
  if (error) return error;
  return at(args->topology, args->chip_coords, args->chip_coords_num_dims, &args->logical_device_of_default_type_id);
}

static PJRT_Error *ChipCoordAndIdxForLogiDevice(PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args *args) {
  TINY_GUARD(TpuTopology_ChipCoordAndIdxForLogiDevice, args);
  const PJRT_TopologyDescription *topology = args->topology;
  PJRT_Error *error = check_id(args->device_id, CHIPS, "device");
  if (error) return error;
  error = extents(args->device_id / topology->columns, args->device_id % topology->columns, args->chip_coords_max_dims,
                  args->chip_coords, &args->chip_coords_num_dims);
  if (error == NULL) args->chip_coords[2] = 0;
  args->device_index_on_chip = 0;
  return error;
}

static PJRT_Error *IsReachableOverLimitedIci(PJRT_TpuTopology_IsReachableOverLimitedIci_Args *args) {
  TINY_GUARD(TpuTopology_IsReachableOverLimitedIci, args);
  int64_t columns = args->topology->columns;
  args->is_reachable_over_limited_ici = args->source_chip_id / columns == args->dest_chip_id / columns;
  return NULL;
}

static PJRT_Error *GetRoutingStrategy(PJRT_TpuTopology_GetRoutingStrategy_Args *args) {
  TINY_GUARD(TpuTopology_GetRoutingStrategy, args);
  if (args->routing_strategy_len < sizeof "grid") return error_make(INVALID, "The name needs more room");
  memcpy(args->routing_strategy, "grid", sizeof "grid");
  return NULL;
}

static bool positive(const int32_t *numbers, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (numbers[i] < 1) return false;
  }
  return count >= 2;
}

static PJRT_Error *Subslice(PJRT_TpuTopology_Subslice_Args *args) {
  TINY_GUARD(TpuTopology_Subslice, args);
  const int32_t *chips = args->chips_per_host_bounds, *hosts = args->host_bounds;
  if (!positive(chips, args->chips_per_host_bounds_num_dims) || !positive(hosts, args->host_bounds_num_dims))
    return error_make(INVALID, "A part has at least one chip in two dimensions");
  int64_t rows = (int64_t)chips[0] * hosts[0], columns = (int64_t)chips[1] * hosts[1];
  if (rows > args->topology->rows || columns > args->topology->columns)
    return error_make(INVALID, "The part is larger than the whole");
  args->subslice_topology = topology_make(rows, columns, (int64_t)hosts[0] * hosts[1], args->topology->all_types);
  args->subslice_topology->is_part = true;
  return NULL;
}

static PJRT_Error *SubsliceDeviceIdFromFullDeviceId(PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args *args) {
  TINY_GUARD(TpuTopology_SubsliceDeviceIdFromFullDeviceId, args);
  const PJRT_TopologyDescription *topology = args->client_topology;
  PJRT_Error *error = check_id(args->full_device_id, CHIPS, "device");
  if (error) return error;
  if (args->subslice_origin_dim_num < 2) return error_make(INVALID, "The origin has two dimensions");
  int32_t coords[] = {(int32_t)(args->full_device_id / topology->columns) - args->subslice_origin[0],
                      (int32_t)(args->full_device_id % topology->columns) - args->subslice_origin[1]};
  return at(args->subslice_topology, coords, 2, &args->subslice_device_id);
}

static PJRT_Error *ReplaceHostBounds(PJRT_TpuTopology_ReplaceHostBounds_Args *args) {
  TINY_GUARD(TpuTopology_ReplaceHostBounds, args);
  const PJRT_TopologyDescription *topology = args->topology;
  if (!positive(args->host_bounds, args->host_bounds_dim_num))
    return error_make(INVALID, "A topology has at least one host in two dimensions");
  int64_t rows = topology->rows / topology->num_processes * args->host_bounds[0];
  int64_t columns = topology->columns * args->host_bounds[1];
  if (rows * columns > TINY_MAX_DEVICES) return error_make(INVALID, "These are too many chips");
  args->new_topology =
      topology_make(rows, columns, (int64_t)args->host_bounds[0] * args->host_bounds[1], topology->all_types);
  return NULL;
}

PJRT_TpuTopology_Extension tpu_topology_extension = {
    TINY_EXTENSION(PJRT_TpuTopology_Extension, TpuTopology),
    .subslice = Subslice,
    .is_subslice_topology = IsSubsliceTopology,
    .subslice_device_id_from_full_device_id = SubsliceDeviceIdFromFullDeviceId,
    .replace_host_bounds = ReplaceHostBounds,
    .is_enhanced_barrier_enabled = IsEnhancedBarrierEnabled,
    .has_limited_ici_connectivity = HasLimitedIciConnectivity,
    .is_reachable_over_limited_ici = IsReachableOverLimitedIci,
    .process_count = ProcessCount,
    .chips_per_process = ChipsPerProcess,
    .core_count_per_chip = CoreCountPerChip,
    .chip_count = ChipCount,
    .core_count = CoreCount,
    .logical_device_count_per_process = LogiDeviceCountPerProcess,
    .logical_device_count = LogiDeviceCount,
    .logical_device_count_per_chip = LogiDeviceCountPerChip,
    .core_count_per_process = CoreCountPerProcess,
    .process_ids = ProcessIds,
    .logical_device_ids_on_process = LogiDeviceIdsOnProcess,
    .proc_id_and_idx_on_proc_for_chip = ProcIdAndIdxOnProcForChip,
    .proc_id_and_idx_on_proc_for_logi_device = ProcIdAndIdxOnProcForLogiDevice,
    .process_coord_from_id = ProcessCoordFromId,
    .chip_id_from_coord = ChipIdFromCoord,
    .logical_device_id_from_chip_coord_and_idx = LogiDeviceIdFromChipCoordAndIdx,
    .chip_coord_and_idx_for_logi_device = ChipCoordAndIdxForLogiDevice,
    .chips_per_process_bounds = ChipsPerProcessBounds,
    .chip_bounds = ChipBounds,
    .process_bounds = ProcessBounds,
    .get_routing_strategy = GetRoutingStrategy,
};
