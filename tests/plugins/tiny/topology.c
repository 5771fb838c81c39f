/* Topologies: a grid of devices with a number of processes, named "N" or "NxM". */
#include "tiny.h"

const char *const tiny_memory_kinds[TINY_NUM_MEMORY_KINDS] = {"device", "pinned_host", "unpinned_host"};
static const int kind_ids[TINY_NUM_MEMORY_KINDS] = {TINY_PUBLIC_KIND(0), TINY_PUBLIC_KIND(1), TINY_PUBLIC_KIND(2)};

static void describe(const PJRT_TopologyDescription *topology, PJRT_DeviceDescription *each, size_t id) {
  int64_t per_process = (int64_t)topology->num_descriptions / topology->num_processes;
  each->id = (int)id;
  each->process_index = (int)((int64_t)id / per_process);
  each->coords[0] = (int64_t)id / topology->columns;
  each->coords[1] = (int64_t)id % topology->columns;
  each->to_string = tiny_printf("TinyDevice(id=%zu)", id);
  each->debug_string = tiny_printf("TinyDevice(id=%zu, process_index=%d, coords=(%lld,%lld))", id, each->process_index,
                                   (long long)each->coords[0], (long long)each->coords[1]);
  attributes_string(&each->attributes, "vendor", "tiny works");
  attributes_int64(&each->attributes, "core_count", 1);
  attributes_int64_list(&each->attributes, "coords", each->coords, 2);
  if (!topology->all_types) return;
  attributes_bool(&each->attributes, "virtual", true);
  attributes_float(&each->attributes, "clock_ghz", 1.5f);
}

PJRT_TopologyDescription *topology_make(int64_t rows, int64_t columns, int64_t num_processes,
                                        bool all_types) {
  PJRT_TopologyDescription *topology = tiny_calloc(1, sizeof *topology);
  topology->rows = rows;
  topology->columns = columns;
  topology->num_processes = num_processes;
  topology->all_types = all_types;
  topology->num_descriptions = (size_t)(rows * columns);
  topology->descriptions = tiny_calloc(topology->num_descriptions, sizeof *topology->descriptions);
  topology->description_handles = tiny_calloc(topology->num_descriptions, sizeof *topology->description_handles);
  for (size_t i = 0; i < topology->num_descriptions; ++i) {
    describe(topology, &topology->descriptions[i], i);
    topology->description_handles[i] = &topology->descriptions[i];
  }
  attributes_int64_list(&topology->attributes, "grid", (int64_t[]){rows, columns}, 2);
  attributes_int64(&topology->attributes, "num_processes", num_processes);
  live_add(LIVE_TOPOLOGY, 1);
  return topology;
}

void topology_free(PJRT_TopologyDescription *topology) {
  if (topology == NULL) return;
  for (size_t i = 0; i < topology->num_descriptions; ++i) {
    free(topology->descriptions[i].to_string);
    free(topology->descriptions[i].debug_string);
    attributes_free(&topology->descriptions[i].attributes);
  }
  free(topology->descriptions);
  free(topology->description_handles);
  attributes_free(&topology->attributes);
  free(topology);
  live_add(LIVE_TOPOLOGY, -1);
}

void topology_serialize(const PJRT_TopologyDescription *topology, tiny_bytes *out) {
  bytes_print(out, "tiny topology %lld %lld %lld\n", (long long)topology->rows, (long long)topology->columns,
              (long long)topology->num_processes);
}

static tiny_status *check_grid(int64_t rows, int64_t columns, int64_t processes) {
  if (rows < 1 || columns < 1 || rows > TINY_MAX_DEVICES || columns > TINY_MAX_DEVICES ||
      rows * columns > TINY_MAX_DEVICES)
    return status_make(INVALID, "A tiny topology has 1 to %d devices, got %lld x %lld", TINY_MAX_DEVICES,
                       (long long)rows, (long long)columns);
  if (processes < 1 || rows * columns % processes)
    return status_make(INVALID, "%lld devices cannot be shared by %lld processes", (long long)(rows * columns),
                       (long long)processes);
  return NULL;
}

static bool parse_name(const char *name, size_t size, int64_t *rows, int64_t *columns) {
  char text[32], junk;
  if (size == 0 || size >= sizeof text) return false;
  memcpy(text, name, size);
  text[size] = 0;
  long long a, b;
  if (sscanf(text, "%lldx%lld%c", &a, &b, &junk) == 2) {
    *rows = a;
    *columns = b;
    return true;
  }
  *rows = 1;
  if (sscanf(text, "%lld%c", &a, &junk) != 1) return false;
  *columns = a;
  return true;
}

PJRT_Error *tiny_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args *args) {
  int64_t rows, columns, processes = 1;
  if (!parse_name(args->topology_name, args->topology_name_size, &rows, &columns))
    return error_make(INVALID, "A tiny topology is named \"N\" or \"NxM\", got \"%.*s\"", (int)args->topology_name_size,
                      args->topology_name ? args->topology_name : "");
  tiny_status *status = option_int64(args->create_options, args->num_options, "num_processes", &processes);
  if (status == NULL) status = check_grid(rows, columns, processes);
  if (status) return error_from(status);
  args->topology = topology_make(rows, columns, processes, true);
  for (size_t i = 0; i < args->num_options; ++i) {
    char *name = tiny_printf("option:%.*s", (int)args->create_options[i].name_size, args->create_options[i].name);
    attributes_add(&args->topology->attributes, name, &args->create_options[i]);
    free(name);
  }
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  topology_free(args->topology);
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args *args) {
  args->platform_name = TINY_PLATFORM_NAME;
  args->platform_name_size = strlen(TINY_PLATFORM_NAME);
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args *args) {
  args->platform_version = TINY_PLATFORM_VERSION;
  args->platform_version_size = strlen(TINY_PLATFORM_VERSION);
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_GetDeviceDescriptions(PJRT_TopologyDescription_GetDeviceDescriptions_Args *args) {
  args->descriptions = args->topology->description_handles;
  args->num_descriptions = args->topology->num_descriptions;
  return NULL;
}

static void free_serialized(PJRT_SerializedTopology *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

PJRT_Error *tiny_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args *args) {
  tiny_bytes out = {0};
  topology_serialize(args->topology, &out);
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_topology = (PJRT_SerializedTopology *)out.data;
  args->serialized_topology_deleter = free_serialized;
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args *args) {
  char *text = tiny_memdup(args->serialized_topology, args->serialized_topology_size);
  long long rows = 0, columns = 0, processes = 0;
  int read = sscanf(text, "tiny topology %lld %lld %lld", &rows, &columns, &processes);
  free(text);
  if (read != 3) return error_make(INVALID, "These %zu bytes are no serialized tiny topology",
                                   args->serialized_topology_size);
  tiny_status *status = check_grid(rows, columns, processes);
  if (status) return error_from(status);
  args->topology = topology_make(rows, columns, processes, true);
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args *args) {
  args->attributes = args->topology->attributes.values;
  args->num_attributes = args->topology->attributes.count;
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args *args) {
  const PJRT_TopologyDescription *topology = args->topology;
  args->fingerprint = (uint64_t)topology->rows << 40 | (uint64_t)topology->columns << 20 |
                      (uint64_t)topology->num_processes | UINT64_C(1) << 63;
  return NULL;
}

static void free_shape(const char *shape) {
  free((char *)shape);
  live_add(LIVE_SERIALIZED, -1);
}

/* A ShapeProto: 2 element type, 3 dimensions, 5 layout {1 minor to major}, 6 whether each dimension is dynamic. */
PJRT_Error *tiny_TopologyDescription_MakeCanonicalShapeForMemorySpace(
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args *args) {
  int kind = args->memory_space_kind_id - TINY_PUBLIC_KIND(0);
  if (kind < 0 || kind >= TINY_NUM_MEMORY_KINDS)
    return error_make(INVALID, "Unknown kind of memory space: %d", args->memory_space_kind_id);
  tiny_shape shape;
  tiny_status *status = shape_init(&shape, args->element_type, args->dims, args->num_dims, args->layout);
  if (status) return error_from(status);
  tiny_bytes out = {0}, layout = {0};
  proto_varint(&out, 2, (uint64_t)element_xla_type(shape.type));
  for (size_t i = 0; i < shape.rank; ++i) {
    proto_varint(&out, 3, (uint64_t)shape.dims[i]);
    proto_varint(&layout, 1, (uint64_t)shape.minor_to_major[i]);
  }
  if (kind) proto_varint(&layout, 8, (uint64_t)kind);
  proto_bytes(&out, 5, layout.data, layout.size);
  for (size_t i = 0; i < shape.rank; ++i) proto_varint(&out, 6, 0);
  free(layout.data);
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_shape = out.data;
  args->serialized_shape_size = out.size;
  args->serialized_shape_deleter = free_shape;
  return NULL;
}

PJRT_Error *tiny_TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args *args) {
  args->memory_space_kind_ids = kind_ids;
  args->num_memory_space_kind_ids = TINY_NUM_MEMORY_KINDS;
  return NULL;
}

/* ---- device descriptions ------------------------------------------------------------------------------------------*/
PJRT_Error *tiny_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = args->device_description->id;
  return NULL;
}

PJRT_Error *tiny_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args *args) {
  args->process_index = args->device_description->process_index;
  return NULL;
}

PJRT_Error *tiny_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args *args) {
  args->attributes = args->device_description->attributes.values;
  args->num_attributes = args->device_description->attributes.count;
  return NULL;
}

PJRT_Error *tiny_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = "Tiny host device";
  args->device_kind_size = strlen(args->device_kind);
  return NULL;
}

PJRT_Error *tiny_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args *args) {
  args->debug_string = args->device_description->debug_string;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

PJRT_Error *tiny_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args *args) {
  args->to_string = args->device_description->to_string;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}
