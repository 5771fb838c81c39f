/* TpuTopology: chips, cores, processes and slices. A slice is a group of chips joined by direct links (ICI) in two
 * or three dimensions. A process drives the chips of one host. A logical device runs programs on one or more of a
 * chip's cores. The structs have no extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_
#define PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_

#include "../base.h"

/* The topology of a part: chips for each host, and hosts, in each dimension. It belongs to the caller. */
typedef struct PJRT_TpuTopology_Subslice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *chips_per_host_bounds;
  size_t chips_per_host_bounds_num_dims;
  const int32_t *host_bounds;
  size_t host_bounds_num_dims;
  PJRT_TopologyDescription *subslice_topology;  /* out */
} PJRT_TpuTopology_Subslice_Args;

typedef struct PJRT_TpuTopology_IsSubsliceTopology_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool is_subslice_topology;  /* out */
} PJRT_TpuTopology_IsSubsliceTopology_Args;

/* subslice_origin is where the first chip of the part lies in the whole. */
typedef struct PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *client_topology;
  const PJRT_TopologyDescription *subslice_topology;
  const int32_t *subslice_origin;
  size_t subslice_origin_dim_num;
  int32_t full_device_id;
  int32_t subslice_device_id;  /* out */
} PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args;

/* Another number of hosts, each with as many chips. The topology belongs to the caller. */
typedef struct PJRT_TpuTopology_ReplaceHostBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *host_bounds;
  size_t host_bounds_dim_num;
  PJRT_TopologyDescription *new_topology;  /* out */
} PJRT_TpuTopology_ReplaceHostBounds_Args;

typedef struct PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool is_enhanced_barrier_enabled;  /* out */
} PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args;

/* Whether some chips cannot reach each other directly over the links between chips. */
typedef struct PJRT_TpuTopology_HasLimitedIciConnectivity_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool has_limited_ici_connectivity;  /* out */
} PJRT_TpuTopology_HasLimitedIciConnectivity_Args;

typedef struct PJRT_TpuTopology_IsReachableOverLimitedIci_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t source_chip_id;
  int32_t dest_chip_id;
  bool is_reachable_over_limited_ici;  /* out */
} PJRT_TpuTopology_IsReachableOverLimitedIci_Args;

/* Nine counts follow, whose structs are all laid out alike. Cores are those of the default type, TensorCores. */
typedef struct PJRT_TpuTopology_ProcessCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_count;  /* out */
} PJRT_TpuTopology_ProcessCount_Args;

typedef struct PJRT_TpuTopology_ChipsPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chips_per_process;  /* out */
} PJRT_TpuTopology_ChipsPerProcess_Args;

typedef struct PJRT_TpuTopology_CoreCountPerChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type_per_chip;  /* out */
} PJRT_TpuTopology_CoreCountPerChip_Args;

typedef struct PJRT_TpuTopology_ChipCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chip_count;  /* out */
} PJRT_TpuTopology_ChipCount_Args;

typedef struct PJRT_TpuTopology_CoreCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type;  /* out */
} PJRT_TpuTopology_CoreCount_Args;

typedef struct PJRT_TpuTopology_LogiDeviceCountPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type_per_process;  /* out */
} PJRT_TpuTopology_LogiDeviceCountPerProcess_Args;

typedef struct PJRT_TpuTopology_LogiDeviceCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type;  /* out */
} PJRT_TpuTopology_LogiDeviceCount_Args;

typedef struct PJRT_TpuTopology_LogiDeviceCountPerChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type_per_chip;  /* out */
} PJRT_TpuTopology_LogiDeviceCountPerChip_Args;

typedef struct PJRT_TpuTopology_CoreCountPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type_per_process;  /* out */
} PJRT_TpuTopology_CoreCountPerProcess_Args;

/* The caller provides the array; more ids than it holds are an error. */
typedef struct PJRT_TpuTopology_ProcessIds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t max_process_ids;
  int32_t *process_ids;  /* fills, count max_process_ids */
  size_t num_process_ids;  /* out */
} PJRT_TpuTopology_ProcessIds_Args;

typedef struct PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_id;
  int32_t max_logical_device_ids;
  int32_t *logical_device_of_default_type_ids;  /* fills, count max_logical_device_ids */
  size_t num_logical_device_ids;  /* out */
} PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args;

typedef struct PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chip_id;
  int32_t process_id;  /* out */
  int32_t index_on_process;  /* out */
} PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args;

typedef struct PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t device_id;
  int32_t process_id;  /* out */
  int32_t index_on_process;  /* out */
} PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args;

/* The caller provides the array; more dimensions than it holds are an error. */
typedef struct PJRT_TpuTopology_ProcessCoordFromId_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_id;
  size_t coords_max_dims;
  int32_t *coords;  /* fills, count coords_max_dims */
  size_t coords_num_dims;  /* out */
} PJRT_TpuTopology_ProcessCoordFromId_Args;

typedef struct PJRT_TpuTopology_ChipIdFromCoord_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *coords;
  size_t coords_num_dims;
  int32_t chip_id;  /* out */
} PJRT_TpuTopology_ChipIdFromCoord_Args;

typedef struct PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *chip_coords;
  size_t chip_coords_num_dims;
  int32_t logical_device_index_on_chip;
  int32_t logical_device_of_default_type_id;  /* out */
} PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args;

typedef struct PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t device_id;
  size_t chip_coords_max_dims;
  int32_t *chip_coords;  /* fills, count chip_coords_max_dims */
  size_t chip_coords_num_dims;  /* out */
  int32_t device_index_on_chip;  /* out */
} PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args;

/* Three extents follow, in each dimension; the caller provides the array. Their structs are laid out alike. */
typedef struct PJRT_TpuTopology_ChipsPerProcessBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t chip_per_process_bounds_max_dims;
  int32_t *chip_per_process_bounds;  /* fills, count chip_per_process_bounds_max_dims */
  size_t chip_per_process_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ChipsPerProcessBounds_Args;

typedef struct PJRT_TpuTopology_ChipBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t chip_bounds_max_dims;
  int32_t *chip_bounds;  /* fills, count chip_bounds_max_dims */
  size_t chip_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ChipBounds_Args;

typedef struct PJRT_TpuTopology_ProcessBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t process_bounds_max_dims;
  int32_t *process_bounds;  /* fills, count process_bounds_max_dims */
  size_t process_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ProcessBounds_Args;

/* The caller provides memory and its size; the plugin writes the text and its length. */
typedef struct PJRT_TpuTopology_GetRoutingStrategy_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  char *routing_strategy;  /* fills */
  size_t routing_strategy_len;  /* in out */
} PJRT_TpuTopology_GetRoutingStrategy_Args;

/* The extents of a slice, whether its links close to rings, and whether they are twisted; only dim_size dimensions
 * are used. It has no struct_size. */
typedef struct PJRT_TpuTopology_SliceConfig {
  size_t dim_size;
  int32_t dimensions[4];
  bool wrap[4];
  bool twist;
} PJRT_TpuTopology_SliceConfig;

typedef struct PJRT_TpuTopology_GetSliceConfig_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  const char *slice_name;
  size_t slice_name_len;
  PJRT_TpuTopology_SliceConfig *slice_config;  /* fills */
} PJRT_TpuTopology_GetSliceConfig_Args;

/* The caller provides the array. */
typedef struct PJRT_TpuTopology_GetSliceConfigs_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  PJRT_TpuTopology_SliceConfig *slice_configs;  /* fills, count max_slice_configs */
  size_t max_slice_configs;
  size_t num_slice_configs;  /* out */
} PJRT_TpuTopology_GetSliceConfigs_Args;

typedef struct PJRT_TpuTopology_GetDefaultPlatformConfig_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  int64_t num_chips_per_tray;  /* out */
  int64_t num_trays;  /* out */
} PJRT_TpuTopology_GetDefaultPlatformConfig_Args;

/* A plugin of 0.117 has one more function at the end, whose arguments no public header states:
 * PJRT_TpuTopology_ComputeSubsliceForDevices. */
typedef struct PJRT_TpuTopology_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*subslice)(PJRT_TpuTopology_Subslice_Args *args);
  PJRT_Error *(*is_subslice_topology)(PJRT_TpuTopology_IsSubsliceTopology_Args *args);
  PJRT_Error *(*subslice_device_id_from_full_device_id)(
      PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args *args);
  PJRT_Error *(*replace_host_bounds)(PJRT_TpuTopology_ReplaceHostBounds_Args *args);
  PJRT_Error *(*is_enhanced_barrier_enabled)(PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args *args);
  PJRT_Error *(*has_limited_ici_connectivity)(PJRT_TpuTopology_HasLimitedIciConnectivity_Args *args);
  PJRT_Error *(*is_reachable_over_limited_ici)(PJRT_TpuTopology_IsReachableOverLimitedIci_Args *args);
  PJRT_Error *(*process_count)(PJRT_TpuTopology_ProcessCount_Args *args);
  PJRT_Error *(*chips_per_process)(PJRT_TpuTopology_ChipsPerProcess_Args *args);
  PJRT_Error *(*core_count_per_chip)(PJRT_TpuTopology_CoreCountPerChip_Args *args);
  PJRT_Error *(*chip_count)(PJRT_TpuTopology_ChipCount_Args *args);
  PJRT_Error *(*core_count)(PJRT_TpuTopology_CoreCount_Args *args);
  PJRT_Error *(*logical_device_count_per_process)(PJRT_TpuTopology_LogiDeviceCountPerProcess_Args *args);
  PJRT_Error *(*logical_device_count)(PJRT_TpuTopology_LogiDeviceCount_Args *args);
  PJRT_Error *(*logical_device_count_per_chip)(PJRT_TpuTopology_LogiDeviceCountPerChip_Args *args);
  PJRT_Error *(*core_count_per_process)(PJRT_TpuTopology_CoreCountPerProcess_Args *args);
  PJRT_Error *(*process_ids)(PJRT_TpuTopology_ProcessIds_Args *args);
  PJRT_Error *(*logical_device_ids_on_process)(PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args *args);
  PJRT_Error *(*proc_id_and_idx_on_proc_for_chip)(PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args *args);
  PJRT_Error *(*proc_id_and_idx_on_proc_for_logi_device)(PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args *args);
  PJRT_Error *(*process_coord_from_id)(PJRT_TpuTopology_ProcessCoordFromId_Args *args);
  PJRT_Error *(*chip_id_from_coord)(PJRT_TpuTopology_ChipIdFromCoord_Args *args);
  PJRT_Error *(*logical_device_id_from_chip_coord_and_idx)(PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args *args);
  PJRT_Error *(*chip_coord_and_idx_for_logi_device)(PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args *args);
  PJRT_Error *(*chips_per_process_bounds)(PJRT_TpuTopology_ChipsPerProcessBounds_Args *args);
  PJRT_Error *(*chip_bounds)(PJRT_TpuTopology_ChipBounds_Args *args);
  PJRT_Error *(*process_bounds)(PJRT_TpuTopology_ProcessBounds_Args *args);
  PJRT_Error *(*get_routing_strategy)(PJRT_TpuTopology_GetRoutingStrategy_Args *args);
  PJRT_Error *(*get_slice_config)(PJRT_TpuTopology_GetSliceConfig_Args *args);
  PJRT_Error *(*get_slice_configs)(PJRT_TpuTopology_GetSliceConfigs_Args *args);
  PJRT_Error *(*get_default_platform_config)(PJRT_TpuTopology_GetDefaultPlatformConfig_Args *args);
} PJRT_TpuTopology_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_ */
