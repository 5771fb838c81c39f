/* The TpuTopology extension: the grid of a topology as chips with one core, which is one device, each. A process has
 * whole rows. */
#include "tiny.h"

#define TOPOLOGY_NUMBER(name, field, value)                                                  \
  static PJRT_Error *name(PJRT_TpuTopology_##name##_Args *args) {                            \
    TINY_GUARD(TpuTopology_##name, args);                                                    \
    const tiny_grid grid = grid_of(args->topology);                                          \
    (void)grid;                                                                              \
    args->field = (value);                                                                   \
    return NULL;                                                                             \
  }

#define CHIPS ((int32_t)(grid.rows * grid.columns))
#define PROCESSES ((int32_t)grid.processes)

TOPOLOGY_NUMBER(IsSubsliceTopology, is_subslice_topology, grid.is_part)
TOPOLOGY_NUMBER(IsEnhancedBarrierEnabled, is_enhanced_barrier_enabled, true)
TOPOLOGY_NUMBER(HasLimitedIciConnectivity, has_limited_ici_connectivity, grid.columns > 1)
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
  if (id < 0 || id >= count) return shown_make(INVALID, "There is no %s %d, but %lld", what, id, (long long)count);
  return NULL;
}

static PJRT_Error *extents(int64_t x, int64_t y, size_t room, int32_t *out, size_t *count) {
  if (room < 3) return shown_make(INVALID, "Three dimensions do not fit into room for %zu", room);
  out[0] = (int32_t)x;
  out[1] = (int32_t)y;
  out[2] = 1;
  *count = 3;
  return NULL;
}

static PJRT_Error *ChipBounds(PJRT_TpuTopology_ChipBounds_Args *args) {
  TINY_GUARD(TpuTopology_ChipBounds, args);
  return extents(grid_of(args->topology).rows, grid_of(args->topology).columns, args->chip_bounds_max_dims, args->chip_bounds,
                 &args->chip_bounds_num_dims);
}

static PJRT_Error *ProcessBounds(PJRT_TpuTopology_ProcessBounds_Args *args) {
  TINY_GUARD(TpuTopology_ProcessBounds, args);
  return extents(grid_of(args->topology).processes, 1, args->process_bounds_max_dims, args->process_bounds,
                 &args->process_bounds_num_dims);
}

static PJRT_Error *ChipsPerProcessBounds(PJRT_TpuTopology_ChipsPerProcessBounds_Args *args) {
  TINY_GUARD(TpuTopology_ChipsPerProcessBounds, args);
  const tiny_grid grid = grid_of(args->topology);
  return extents(grid.rows / grid.processes, grid.columns, args->chip_per_process_bounds_max_dims,
                 args->chip_per_process_bounds, &args->chip_per_process_bounds_num_dims);
}

static PJRT_Error *ProcessIds(PJRT_TpuTopology_ProcessIds_Args *args) {
  TINY_GUARD(TpuTopology_ProcessIds, args);
  int64_t count = grid_of(args->topology).processes;
  if (args->max_process_ids < count) return shown_make(INVALID, "There are %lld processes", (long long)count);
  for (int32_t i = 0; i < count; ++i) args->process_ids[i] = i;
  args->num_process_ids = (size_t)count;
  return NULL;
}

static PJRT_Error *LogiDeviceIdsOnProcess(PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args *args) {
  TINY_GUARD(TpuTopology_LogiDeviceIdsOnProcess, args);
  const tiny_grid grid = grid_of(args->topology);
  int32_t count = CHIPS / PROCESSES;
  PJRT_Error *error = check_id(args->process_id, PROCESSES, "process");
  if (error) return error;
  if (args->max_logical_device_ids < count) return shown_make(INVALID, "The process has %d devices", count);
  for (int32_t i = 0; i < count; ++i) args->logical_device_of_default_type_ids[i] = args->process_id * count + i;
  args->num_logical_device_ids = (size_t)count;
  return NULL;
}

#define PROCESS_OF(name, id, what)                                              \
  static PJRT_Error *name(PJRT_TpuTopology_##name##_Args *args) {               \
    TINY_GUARD(TpuTopology_##name, args);                                       \
    const tiny_grid grid = grid_of(args->topology);                  \
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
  PJRT_Error *error = check_id(args->process_id, grid_of(args->topology).processes, "process");
  if (error) return error;
  error = extents(args->process_id, 0, args->coords_max_dims, args->coords, &args->coords_num_dims);
  if (error == NULL) args->coords[2] = 0;
  return error;
}

static PJRT_Error *at(const PJRT_TopologyDescription *topology, const int32_t *coords, size_t dims, int32_t *id) {
  const tiny_grid grid = grid_of(topology);
  if (dims < 2 || coords[0] < 0 || coords[0] >= grid.rows || coords[1] < 0 || coords[1] >= grid.columns)
    return shown_make(INVALID, "No chip lies there");
  *id = (int32_t)(coords[0] * grid.columns + coords[1]);
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
  const tiny_grid grid = grid_of(args->topology);
  PJRT_Error *error = check_id(args->device_id, CHIPS, "device");
  if (error) return error;
  error = extents(args->device_id / grid.columns, args->device_id % grid.columns, args->chip_coords_max_dims,
                  args->chip_coords, &args->chip_coords_num_dims);
  if (error == NULL) args->chip_coords[2] = 0;
  args->device_index_on_chip = 0;
  return error;
}

static PJRT_Error *IsReachableOverLimitedIci(PJRT_TpuTopology_IsReachableOverLimitedIci_Args *args) {
  TINY_GUARD(TpuTopology_IsReachableOverLimitedIci, args);
  int64_t columns = grid_of(args->topology).columns;
  args->is_reachable_over_limited_ici = args->source_chip_id / columns == args->dest_chip_id / columns;
  return NULL;
}

static PJRT_Error *GetRoutingStrategy(PJRT_TpuTopology_GetRoutingStrategy_Args *args) {
  TINY_GUARD(TpuTopology_GetRoutingStrategy, args);
  if (args->routing_strategy_len < sizeof "grid") return shown_make(INVALID, "The name needs more room");
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
    return shown_make(INVALID, "A part has at least one chip in two dimensions");
  int64_t rows = (int64_t)chips[0] * hosts[0], columns = (int64_t)chips[1] * hosts[1];
  if (rows > grid_of(args->topology).rows || columns > grid_of(args->topology).columns)
    return shown_make(INVALID, "The part is larger than the whole");
  args->subslice_topology =
      grid_make(rows, columns, (int64_t)hosts[0] * hosts[1], grid_of(args->topology).all_types, true);
  live_add(LIVE_TOPOLOGY, 1);
  return NULL;
}

static PJRT_Error *SubsliceDeviceIdFromFullDeviceId(PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args *args) {
  TINY_GUARD(TpuTopology_SubsliceDeviceIdFromFullDeviceId, args);
  const tiny_grid grid = grid_of(args->client_topology);
  PJRT_Error *error = check_id(args->full_device_id, CHIPS, "device");
  if (error) return error;
  if (args->subslice_origin_dim_num < 2) return shown_make(INVALID, "The origin has two dimensions");
  int32_t coords[] = {(int32_t)(args->full_device_id / grid.columns) - args->subslice_origin[0],
                      (int32_t)(args->full_device_id % grid.columns) - args->subslice_origin[1]};
  return at(args->subslice_topology, coords, 2, &args->subslice_device_id);
}

static PJRT_Error *ReplaceHostBounds(PJRT_TpuTopology_ReplaceHostBounds_Args *args) {
  TINY_GUARD(TpuTopology_ReplaceHostBounds, args);
  const tiny_grid grid = grid_of(args->topology);
  if (!positive(args->host_bounds, args->host_bounds_dim_num))
    return shown_make(INVALID, "A topology has at least one host in two dimensions");
  int64_t rows = grid.rows / grid.processes * args->host_bounds[0];
  int64_t columns = grid.columns * args->host_bounds[1];
  if (rows * columns > TINY_MAX_DEVICES) return shown_make(INVALID, "These are too many chips");
  args->new_topology =
      grid_make(rows, columns, (int64_t)args->host_bounds[0] * args->host_bounds[1], grid.all_types, false);
  live_add(LIVE_TOPOLOGY, 1);
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
/* ---- TpuExecutable -----------------------------------------------------------------------------------------------------
 * The TpuExecutable extension: what a serialized tiny executable says of itself, and a compiler with one setting. */
static void forget(void *data) {
  free(data);
  live_add(LIVE_SERIALIZED, -1);
}
static void forget_target(PJRT_TpuExecutable_TargetArguments *each) { forget(each); }
static void forget_module(PJRT_TpuExecutable_HloModuleWithConfig *each) { forget(each); }
static void forget_stats(PJRT_TpuExecutable_CompiledMemoryStats *each) { forget(each); }
static void forget_costs(PJRT_TpuExecutable_CostAnalysisResult *each) { forget(each); }
static void forget_environments(PJRT_TpuExecutable_CompilationEnvironments *each) { forget(each); }
static void forget_value(PJRT_TpuExecutable_FieldValue *each) { forget(each); }

static char *keep(const char *text) {
  live_add(LIVE_SERIALIZED, 1);
  return copy_of(text, strlen(text));
}

static PJRT_Error *check(const char *data, size_t size) {
  static const char mark[] = "PJRT-NATIVE-1";
  if (memmem(data, size < 32 ? size : 32, mark, sizeof mark - 1) == NULL && (size < 4 || memcmp(data, "TINY", 4) != 0))
    return shown_make(INVALID, "These %zu bytes are no tiny executable", size);
  return NULL;
}

static PJRT_Error *target_arguments(PJRT_TpuExecutable_GetTargetArguments_Args *args) {
  TINY_GUARD(TpuExecutable_GetTargetArguments, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->target_arguments = keep("tiny target");
  args->target_arguments_size = strlen(args->target_arguments);
  args->target_arguments_ptr = (PJRT_TpuExecutable_TargetArguments *)args->target_arguments;
  args->target_arguments_deleter = forget_target;
  return NULL;
}

static PJRT_Error *hlo_module(PJRT_TpuExecutable_GetHloModuleWithConfig_Args *args) {
  TINY_GUARD(TpuExecutable_GetHloModuleWithConfig, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->hlo_module_with_config = keep("tiny module");
  args->hlo_module_with_config_size = strlen(args->hlo_module_with_config);
  args->hlo_module_with_config_ptr = (PJRT_TpuExecutable_HloModuleWithConfig *)args->hlo_module_with_config;
  args->hlo_module_with_config_deleter = forget_module;
  return NULL;
}

static PJRT_Error *memory_stats(PJRT_TpuExecutable_GetCompiledMemoryStats_Args *args) {
  TINY_GUARD(TpuExecutable_GetCompiledMemoryStats, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->compiled_memory_stats = keep("tiny stats");
  args->compiled_memory_stats_size = strlen(args->compiled_memory_stats);
  args->compiled_memory_stats_ptr = (PJRT_TpuExecutable_CompiledMemoryStats *)args->compiled_memory_stats;
  args->compiled_memory_stats_deleter = forget_stats;
  return NULL;
}

static PJRT_Error *cost_analysis(PJRT_TpuExecutable_RunHloCostAnalysis_Args *args) {
  TINY_GUARD(TpuExecutable_RunHloCostAnalysis, args);
  size_t size = 0;
  for (size_t i = 0; i < args->num_hlo_modules; ++i) size += args->hlo_module_size[i];
  PJRT_NamedValue *results = new_zeroed(1, sizeof *results);
  *results = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "flops", .name_size = 5,
                               .type = PJRT_NamedValue_kFloat, .float_value = (float)(size + args->target_arguments_size),
                               .value_size = 1};
  live_add(LIVE_SERIALIZED, 1);
  args->analysis_results = results;
  args->num_analysis_results = 1;
  args->analysis_results_ptr = (PJRT_TpuExecutable_CostAnalysisResult *)results;
  args->analysis_results_deleter = forget_costs;
  return NULL;
}

static PJRT_Error *set_environment(PJRT_TpuExecutable_SetTpuCompilationEnv_Args *args) {
  TINY_GUARD(TpuExecutable_SetTpuCompilationEnv, args);
  args->result_compilation_environments = keep(args->serialized_compilation_environments_size ? "given" : "default");
  args->result_compilation_environments_size = strlen(args->result_compilation_environments);
  args->result_compilation_environments_ptr =
      (PJRT_TpuExecutable_CompilationEnvironments *)args->result_compilation_environments;
  args->result_compilation_environments_deleter = forget_environments;
  return NULL;
}

static PJRT_Error *field_as_string(PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args *args) {
  TINY_GUARD(TpuExecutable_GetTpuCompilationEnvFieldAsString, args);
  if (args->field_name_size != 4 || memcmp(args->field_name, "warp", 4) != 0)
    return shown_make(PJRT_Error_Code_NOT_FOUND, "There is no setting %.*s", (int)args->field_name_size,
                      args->field_name);
  args->field_value = keep(args->serialized_compilation_environments_size ? "9" : "1");
  args->field_value_size = 1;
  args->field_value_ptr = (PJRT_TpuExecutable_FieldValue *)args->field_value;
  args->field_value_deleter = forget_value;
  return NULL;
}

PJRT_TpuExecutable_Extension tpu_executable_extension = {
    TINY_EXTENSION(PJRT_TpuExecutable_Extension, TpuExecutable),
    .get_target_arguments = target_arguments,
    .get_hlo_module_with_config = hlo_module,
    .get_compiled_memory_stats = memory_stats,
    .run_hlo_cost_analysis = cost_analysis,
    .set_tpu_compilation_env = set_environment,
    .get_tpu_compilation_env_field_as_string = field_as_string,
};
/* ---- MultiSlice and Megascale --------------------------------------------------------------------------------------------
 * The MultiSlice extension, and what of Megascale makes its configurations and numbers the devices of all slices. */
#define DEVICES_OF_A_SLICE 1000

struct PJRT_MultiSlice_Config {
  int32_t num_slices, num_devices;
};

static PJRT_Error *create_aot_config(PJRT_Megascale_CreateAoTConfig_Args *args) {
  TINY_GUARD(Megascale_CreateAoTConfig, args);
  if (args->num_slices < 1) return shown_make(INVALID, "%d slices are too few", args->num_slices);
  args->multi_slice_config = new_zeroed(1, sizeof *args->multi_slice_config);
  *args->multi_slice_config =
      (PJRT_MultiSlice_Config){args->num_slices, (int32_t)args->topology->facts.num_devices};
  live_add(LIVE_MULTI_SLICE, 1);
  return NULL;
}

static PJRT_Error *to_megascale(PJRT_Megascale_DeviceId_To_MegascaleId_Args *args) {
  TINY_GUARD(Megascale_DeviceId_To_MegascaleId, args);
  args->megascale_id = (int64_t)args->slice_id * DEVICES_OF_A_SLICE + args->per_slice_device_id;
  return NULL;
}

static PJRT_Error *from_megascale(PJRT_Megascale_MegascaleId_To_DeviceId_Args *args) {
  TINY_GUARD(Megascale_MegascaleId_To_DeviceId, args);
  args->slice_id = (int32_t)(args->megascale_id / DEVICES_OF_A_SLICE);
  args->per_slice_device_id = (int32_t)(args->megascale_id % DEVICES_OF_A_SLICE);
  return NULL;
}

PJRT_Megascale_Extension megascale_extension = {
    TINY_EXTENSION(PJRT_Megascale_Extension, Megascale),
    .create_aot_config = create_aot_config,
    .device_id_to_megascale_id = to_megascale,
    .megascale_id_to_device_id = from_megascale,
};

/* A failing *_Destroy frees its object first. */
static PJRT_Error *config_destroy(PJRT_MultiSlice_Config_Destroy_Args *args) {
  SIZED(PJRT_MultiSlice_Config_Destroy_Args, args);
  if (args->config) live_add(LIVE_MULTI_SLICE, -1);
  free(args->config);
  TINY_GUARD(MultiSlice_Config_Destroy, args);
  return NULL;
}

static PJRT_Error *num_slices(PJRT_MultiSlice_Config_NumSlices_Args *args) {
  TINY_GUARD(MultiSlice_Config_NumSlices, args);
  args->num_slices = args->config->num_slices;
  return NULL;
}

static PJRT_Error *slice_id(PJRT_MultiSlice_Config_SliceId_Args *args) {
  TINY_GUARD(MultiSlice_Config_SliceId, args);
  args->slice_id = 0;
  return NULL;
}

static void free_map(PJRT_MultiSlice_NumDevicesPerSlice *map) {
  free(map);
  live_add(LIVE_SERIALIZED, -1);
}

/* The last slice comes first: a map has no order. */
static PJRT_Error *devices_per_slice(PJRT_MultiSlice_Config_NumDevicesPerSlice_Args *args) {
  TINY_GUARD(MultiSlice_Config_NumDevicesPerSlice, args);
  size_t count = (size_t)args->config->num_slices;
  int32_t *map = new_zeroed(2 * count, sizeof *map);
  for (size_t i = 0; i < count; ++i) {
    map[i] = (int32_t)(count - 1 - i);
    map[count + i] = args->config->num_devices;
  }
  args->num_devices_per_slice_map = count;
  args->slice_ids = map;
  args->num_devices = map + count;
  args->devices_per_slice_map = (PJRT_MultiSlice_NumDevicesPerSlice *)map;
  args->devices_per_slice_map_deleter = free_map;
  live_add(LIVE_SERIALIZED, 1);
  return NULL;
}

static void free_config(PJRT_MultiSlice_SerializedConfig *config) {
  free(config);
  live_add(LIVE_SERIALIZED, -1);
}

static PJRT_Error *config_serialize(PJRT_MultiSlice_Config_Serialize_Args *args) {
  TINY_GUARD(MultiSlice_Config_Serialize, args);
  bytes out = {0};
  bytes_print(&out, "tiny slices %d of %d", args->config->num_slices, args->config->num_devices);
  args->serialized = out.data;
  args->size = out.size;
  args->serialized_config = (PJRT_MultiSlice_SerializedConfig *)out.data;
  args->serialized_config_deleter = free_config;
  live_add(LIVE_SERIALIZED, 1);
  return NULL;
}

PJRT_MultiSlice_Extension multi_slice_extension = {
    TINY_EXTENSION(PJRT_MultiSlice_Extension, MultiSlice),
    .config_destroy = config_destroy,
    .config_num_slices = num_slices,
    .config_slice_id = slice_id,
    .config_num_devices_per_slice = devices_per_slice,
    .config_serialize = config_serialize,
};
