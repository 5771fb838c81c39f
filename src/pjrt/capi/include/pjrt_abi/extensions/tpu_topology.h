/* TpuTopology: what a TPU topology is made of. A slice is chips that are joined by links of their own (ICI) in two or three
 * dimensions; a process drives the chips of one host; a logical device is what programs run on, one or more of a chip's
 * cores. The structs have no extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_
#define PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_

#include "../base.h"

/* The topology of a part, which belongs to the caller: chips for each host, and hosts, in each dimension. */
typedef struct PJRT_TpuTopology_Subslice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *chips_per_host_bounds;
  size_t chips_per_host_bounds_num_dims;
  const int32_t *host_bounds;
  size_t host_bounds_num_dims;
  PJRT_TopologyDescription *subslice_topology;  /* out */
} PJRT_TpuTopology_Subslice_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_Subslice_Args, subslice_topology);

typedef struct PJRT_TpuTopology_IsSubsliceTopology_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool is_subslice_topology;  /* out */
} PJRT_TpuTopology_IsSubsliceTopology_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_IsSubsliceTopology_Args, is_subslice_topology);

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
PJRT_ABI_SIZE(PJRT_TpuTopology_SubsliceDeviceIdFromFullDeviceId_Args, subslice_device_id);

/* Another number of hosts, each with as many chips. The topology belongs to the caller. */
typedef struct PJRT_TpuTopology_ReplaceHostBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *host_bounds;
  size_t host_bounds_dim_num;
  PJRT_TopologyDescription *new_topology;  /* out */
} PJRT_TpuTopology_ReplaceHostBounds_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ReplaceHostBounds_Args, new_topology);

typedef struct PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool is_enhanced_barrier_enabled;  /* out */
} PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_IsEnhancedBarrierEnabled_Args, is_enhanced_barrier_enabled);

/* Whether some chips cannot reach each other directly over the links between chips. */
typedef struct PJRT_TpuTopology_HasLimitedIciConnectivity_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  bool has_limited_ici_connectivity;  /* out */
} PJRT_TpuTopology_HasLimitedIciConnectivity_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_HasLimitedIciConnectivity_Args, has_limited_ici_connectivity);

typedef struct PJRT_TpuTopology_IsReachableOverLimitedIci_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t source_chip_id;
  int32_t dest_chip_id;
  bool is_reachable_over_limited_ici;  /* out */
} PJRT_TpuTopology_IsReachableOverLimitedIci_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_IsReachableOverLimitedIci_Args, is_reachable_over_limited_ici);

/* Nine counts follow, whose structs are all laid out alike. Cores are those of the default type, TensorCores. */
typedef struct PJRT_TpuTopology_ProcessCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_count;  /* out */
} PJRT_TpuTopology_ProcessCount_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcessCount_Args, process_count);

typedef struct PJRT_TpuTopology_ChipsPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chips_per_process;  /* out */
} PJRT_TpuTopology_ChipsPerProcess_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipsPerProcess_Args, chips_per_process);

typedef struct PJRT_TpuTopology_CoreCountPerChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type_per_chip;  /* out */
} PJRT_TpuTopology_CoreCountPerChip_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_CoreCountPerChip_Args, core_count_of_default_type_per_chip);

typedef struct PJRT_TpuTopology_ChipCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chip_count;  /* out */
} PJRT_TpuTopology_ChipCount_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipCount_Args, chip_count);

typedef struct PJRT_TpuTopology_CoreCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type;  /* out */
} PJRT_TpuTopology_CoreCount_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_CoreCount_Args, core_count_of_default_type);

typedef struct PJRT_TpuTopology_LogiDeviceCountPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type_per_process;  /* out */
} PJRT_TpuTopology_LogiDeviceCountPerProcess_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_LogiDeviceCountPerProcess_Args, logical_device_count_of_default_type_per_process);

typedef struct PJRT_TpuTopology_LogiDeviceCount_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type;  /* out */
} PJRT_TpuTopology_LogiDeviceCount_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_LogiDeviceCount_Args, logical_device_count_of_default_type);

typedef struct PJRT_TpuTopology_LogiDeviceCountPerChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t logical_device_count_of_default_type_per_chip;  /* out */
} PJRT_TpuTopology_LogiDeviceCountPerChip_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_LogiDeviceCountPerChip_Args, logical_device_count_of_default_type_per_chip);

typedef struct PJRT_TpuTopology_CoreCountPerProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t core_count_of_default_type_per_process;  /* out */
} PJRT_TpuTopology_CoreCountPerProcess_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_CoreCountPerProcess_Args, core_count_of_default_type_per_process);

/* The caller gives the room; that there are more is an error. */
typedef struct PJRT_TpuTopology_ProcessIds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t max_process_ids;
  int32_t *process_ids;
  size_t num_process_ids;  /* out */
} PJRT_TpuTopology_ProcessIds_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcessIds_Args, num_process_ids);

typedef struct PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_id;
  int32_t max_logical_device_ids;
  int32_t *logical_device_of_default_type_ids;
  size_t num_logical_device_ids;  /* out */
} PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_LogiDeviceIdsOnProcess_Args, num_logical_device_ids);

typedef struct PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t chip_id;
  int32_t process_id;  /* out */
  int32_t index_on_process;  /* out */
} PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcIdAndIdxOnProcForChip_Args, index_on_process);

typedef struct PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t device_id;
  int32_t process_id;  /* out */
  int32_t index_on_process;  /* out */
} PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcIdAndIdxOnProcForLogiDevice_Args, index_on_process);

/* The caller gives the room; that there are more dimensions is an error. */
typedef struct PJRT_TpuTopology_ProcessCoordFromId_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t process_id;
  size_t coords_max_dims;
  int32_t *coords;
  size_t coords_num_dims;  /* out */
} PJRT_TpuTopology_ProcessCoordFromId_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcessCoordFromId_Args, coords_num_dims);

typedef struct PJRT_TpuTopology_ChipIdFromCoord_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *coords;
  size_t coords_num_dims;
  int32_t chip_id;  /* out */
} PJRT_TpuTopology_ChipIdFromCoord_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipIdFromCoord_Args, chip_id);

typedef struct PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  const int32_t *chip_coords;
  size_t chip_coords_num_dims;
  int32_t logical_device_index_on_chip;
  int32_t logical_device_of_default_type_id;  /* out */
} PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_LogiDeviceIdFromChipCoordAndIdx_Args, logical_device_of_default_type_id);

typedef struct PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  int32_t device_id;
  size_t chip_coords_max_dims;
  int32_t *chip_coords;
  size_t chip_coords_num_dims;  /* out */
  int32_t device_index_on_chip;  /* out */
} PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipCoordAndIdxForLogiDevice_Args, device_index_on_chip);

/* Three extents follow, in each dimension; the caller gives the room. Their structs are laid out alike. */
typedef struct PJRT_TpuTopology_ChipsPerProcessBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t chip_per_process_bounds_max_dims;
  int32_t *chip_per_process_bounds;
  size_t chip_per_process_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ChipsPerProcessBounds_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipsPerProcessBounds_Args, chip_per_process_bounds_num_dims);

typedef struct PJRT_TpuTopology_ChipBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t chip_bounds_max_dims;
  int32_t *chip_bounds;
  size_t chip_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ChipBounds_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ChipBounds_Args, chip_bounds_num_dims);

typedef struct PJRT_TpuTopology_ProcessBounds_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  size_t process_bounds_max_dims;
  int32_t *process_bounds;
  size_t process_bounds_num_dims;  /* out */
} PJRT_TpuTopology_ProcessBounds_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_ProcessBounds_Args, process_bounds_num_dims);

/* The caller gives the room and how much it is; the plugin writes the text and how long it is. */
typedef struct PJRT_TpuTopology_GetRoutingStrategy_Args {
  size_t struct_size;
  const PJRT_TopologyDescription *topology;
  char *routing_strategy;
  size_t routing_strategy_len;
} PJRT_TpuTopology_GetRoutingStrategy_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_GetRoutingStrategy_Args, routing_strategy_len);

/* The extents of a slice, whether its links close to rings, and whether they are twisted; dim_size dimensions count. It
 * has no struct_size. */
typedef struct PJRT_TpuTopology_SliceConfig {
  size_t dim_size;
  int32_t dimensions[4];
  bool wrap[4];
  bool twist;
} PJRT_TpuTopology_SliceConfig;
PJRT_ABI_SIZE(PJRT_TpuTopology_SliceConfig, twist);

typedef struct PJRT_TpuTopology_GetSliceConfig_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  const char *slice_name;
  size_t slice_name_len;
  PJRT_TpuTopology_SliceConfig *slice_config;
} PJRT_TpuTopology_GetSliceConfig_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_GetSliceConfig_Args, slice_config);

/* The caller gives the room. */
typedef struct PJRT_TpuTopology_GetSliceConfigs_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  PJRT_TpuTopology_SliceConfig *slice_configs;
  size_t max_slice_configs;
  size_t num_slice_configs;  /* out */
} PJRT_TpuTopology_GetSliceConfigs_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_GetSliceConfigs_Args, num_slice_configs);

typedef struct PJRT_TpuTopology_GetDefaultPlatformConfig_Args {
  size_t struct_size;
  const char *platform_type_name;
  size_t platform_type_name_len;
  int64_t num_chips_per_tray;  /* out */
  int64_t num_trays;  /* out */
} PJRT_TpuTopology_GetDefaultPlatformConfig_Args;
PJRT_ABI_SIZE(PJRT_TpuTopology_GetDefaultPlatformConfig_Args, num_trays);

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
PJRT_ABI_SIZE(PJRT_TpuTopology_Extension, get_default_platform_config);

#endif  /* PJRT_ABI_EXTENSIONS_TPU_TOPOLOGY_H_ */
