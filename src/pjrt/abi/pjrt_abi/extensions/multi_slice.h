/* MultiSlice: how the devices of several TPU slices belong together. The Megascale extension makes the configuration. */
#ifndef PJRT_ABI_EXTENSIONS_MULTI_SLICE_H_
#define PJRT_ABI_EXTENSIONS_MULTI_SLICE_H_

#include "../base.h"

typedef struct PJRT_MultiSlice_NumDevicesPerSlice PJRT_MultiSlice_NumDevicesPerSlice;
typedef struct PJRT_MultiSlice_SerializedConfig PJRT_MultiSlice_SerializedConfig;

typedef struct PJRT_MultiSlice_Config_Destroy_Args {
  size_t struct_size;
  PJRT_MultiSlice_Config *config;
} PJRT_MultiSlice_Config_Destroy_Args;

typedef struct PJRT_MultiSlice_Config_NumSlices_Args {
  size_t struct_size;
  PJRT_MultiSlice_Config *config;
  int32_t num_slices;  /* out */
} PJRT_MultiSlice_Config_NumSlices_Args;

typedef struct PJRT_MultiSlice_Config_SliceId_Args {
  size_t struct_size;
  PJRT_MultiSlice_Config *config;
  int32_t slice_id;  /* out */
} PJRT_MultiSlice_Config_SliceId_Args;

/* Two arrays side by side: slices, and how many devices each has. They live until the deleter is called. */
typedef struct PJRT_MultiSlice_Config_NumDevicesPerSlice_Args {
  size_t struct_size;
  PJRT_MultiSlice_Config *config;
  size_t num_devices_per_slice_map;  /* out */
  const int32_t *slice_ids;  /* out, count num_devices_per_slice_map */
  const int32_t *num_devices;  /* out, count num_devices_per_slice_map */
  PJRT_MultiSlice_NumDevicesPerSlice *devices_per_slice_map;  /* out */
  void (*devices_per_slice_map_deleter)(PJRT_MultiSlice_NumDevicesPerSlice *map);  /* out */
} PJRT_MultiSlice_Config_NumDevicesPerSlice_Args;

/* The bytes live until the deleter is called: what compile options take as serialized_multi_slice_config. */
typedef struct PJRT_MultiSlice_Config_Serialize_Args {
  size_t struct_size;
  PJRT_MultiSlice_Config *config;
  const char *serialized;  /* out, count size */
  size_t size;  /* out */
  PJRT_MultiSlice_SerializedConfig *serialized_config;  /* out */
  void (*serialized_config_deleter)(PJRT_MultiSlice_SerializedConfig *config);  /* out */
} PJRT_MultiSlice_Config_Serialize_Args;

typedef struct PJRT_MultiSlice_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*config_destroy)(PJRT_MultiSlice_Config_Destroy_Args *args);
  PJRT_Error *(*config_num_slices)(PJRT_MultiSlice_Config_NumSlices_Args *args);
  PJRT_Error *(*config_slice_id)(PJRT_MultiSlice_Config_SliceId_Args *args);
  PJRT_Error *(*config_num_devices_per_slice)(PJRT_MultiSlice_Config_NumDevicesPerSlice_Args *args);
  PJRT_Error *(*config_serialize)(PJRT_MultiSlice_Config_Serialize_Args *args);
} PJRT_MultiSlice_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_MULTI_SLICE_H_ */
