/* The MultiSlice extension, and what of Megascale makes its configurations and numbers the devices of all slices. */
#include "tiny.h"

#define DEVICES_OF_A_SLICE 1000

struct PJRT_MultiSlice_Config {
  int32_t num_slices, num_devices;
};

static PJRT_Error *create_aot_config(PJRT_Megascale_CreateAoTConfig_Args *args) {
  TINY_GUARD(Megascale_CreateAoTConfig, args);
  if (args->num_slices < 1) return error_make(INVALID, "%d slices are too few", args->num_slices);
  args->multi_slice_config = tiny_calloc(1, sizeof *args->multi_slice_config);
  *args->multi_slice_config =
      (PJRT_MultiSlice_Config){args->num_slices, (int32_t)args->topology->num_descriptions};
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
  TINY_SIZED(PJRT_MultiSlice_Config_Destroy_Args, args);
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
  int32_t *map = tiny_calloc(2 * count, sizeof *map);
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
  tiny_bytes out = {0};
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
