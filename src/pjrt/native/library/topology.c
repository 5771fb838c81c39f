/* Topologies: the devices of a driver, described without memory or work. */
#include "runtime.h"

static const char MARK[] = "pjrt native topology";

static void describe(PJRT_DeviceDescription *out, size_t number, const char *platform_name, const char *kind) {
  out->id = (int)number;
  out->kind = copy_of(kind, strlen(kind));
  out->to_string = printed("%s(id=%zu)", platform_name, number);
  out->debug_string = printed("%s(id=%zu, kind=%s)", platform_name, number, kind);
}

PJRT_TopologyDescription *topology_make(const char *platform_name, const char *platform_version, size_t num_devices,
                                        const char *const *kinds) {
  PJRT_TopologyDescription *each = new_zeroed(1, sizeof *each);
  each->platform_name = copy_of(platform_name, strlen(platform_name));
  each->platform_version = copy_of(platform_version, strlen(platform_version));
  each->num_devices = num_devices;
  each->descriptions = new_zeroed(num_devices, sizeof *each->descriptions);
  each->handles = new_zeroed(num_devices, sizeof *each->handles);
  for (size_t i = 0; i < num_devices; ++i) {
    describe(&each->descriptions[i], i, platform_name, kinds[i]);
    each->handles[i] = &each->descriptions[i];
  }
  return each;
}

void topology_free(PJRT_TopologyDescription *each) {
  if (each == NULL) return;
  for (size_t i = 0; i < each->num_devices; ++i) {
    free(each->descriptions[i].kind);
    free(each->descriptions[i].to_string);
    free(each->descriptions[i].debug_string);
    named_values_free(&each->descriptions[i].attributes);
  }
  free(each->platform_name);
  free(each->platform_version);
  free(each->descriptions);
  free(each->handles);
  named_values_free(&each->attributes);
  free(each);
}

uint64_t fingerprint_of(uint64_t start, const void *data, size_t size) {
  uint64_t hash = start ? start : UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* The devices that a client with these options would have; the driver is opened for a moment. */
PJRT_Error *native_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args *args) {
  if (args->topology_name_size)
    return error_make(INVALID, "expected a topology without a name, which has the devices of a client; found %.*s",
                      (int)args->topology_name_size, args->topology_name);
  PJRT_Client_Create_Args create = {.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE,
                                    .create_options = args->create_options, .num_options = args->num_options};
  PJRT_Error *error = native_Client_Create(&create);
  if (error) return error;
  args->topology = create.client->topology;
  create.client->topology = NULL;
  client_unref(create.client);
  return NULL;
}

PJRT_Error *native_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  topology_free(args->topology);
  return NULL;
}

PJRT_Error *native_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args *args) {
  args->platform_name = args->topology->platform_name;
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

PJRT_Error *native_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args *args) {
  args->platform_version = args->topology->platform_version;
  args->platform_version_size = strlen(args->platform_version);
  return NULL;
}

PJRT_Error *native_TopologyDescription_GetDeviceDescriptions(
    PJRT_TopologyDescription_GetDeviceDescriptions_Args *args) {
  args->descriptions = args->topology->handles;
  args->num_descriptions = args->topology->num_devices;
  return NULL;
}

static void serialize(const PJRT_TopologyDescription *topology, bytes *out) {
  proto_bytes(out, 1, MARK, sizeof MARK - 1);
  proto_bytes(out, 2, topology->platform_name, strlen(topology->platform_name));
  proto_bytes(out, 3, topology->platform_version, strlen(topology->platform_version));
  for (size_t i = 0; i < topology->num_devices; ++i)
    proto_bytes(out, 4, topology->descriptions[i].kind, strlen(topology->descriptions[i].kind));
}

static void free_serialized(PJRT_SerializedTopology *serialized) { free(serialized); }

PJRT_Error *native_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args *args) {
  bytes out = {0};
  serialize(args->topology, &out);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_topology = (PJRT_SerializedTopology *)out.data;
  args->serialized_topology_deleter = free_serialized;
  return NULL;
}

PJRT_Error *native_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args *args) {
  const char *cursor = args->serialized_topology, *end = cursor + args->serialized_topology_size;
  char *name = NULL, *version = NULL, *kinds[MAX_DEVICES];
  size_t num_kinds = 0;
  bool is_one = false;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.wire != 2) continue;
    if (field.number == 1) is_one = field.size == sizeof MARK - 1 && memcmp(field.data, MARK, field.size) == 0;
    if (field.number == 2 && name == NULL) name = copy_of(field.data, field.size);
    if (field.number == 3 && version == NULL) version = copy_of(field.data, field.size);
    if (field.number == 4 && num_kinds < MAX_DEVICES) kinds[num_kinds++] = copy_of(field.data, field.size);
  }
  PJRT_Error *error = NULL;
  if (!is_one || cursor != end || name == NULL || version == NULL || num_kinds == 0)
    error = error_make(INVALID, "these %zu bytes are no serialized topology of this plugin, or are damaged",
                       args->serialized_topology_size);
  else
    args->topology = topology_make(name, version, num_kinds, (const char *const *)kinds);
  for (size_t i = 0; i < num_kinds; ++i) free(kinds[i]);
  free(name);
  free(version);
  return error;
}

PJRT_Error *native_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args *args) {
  args->attributes = args->topology->attributes.values;
  args->num_attributes = args->topology->attributes.count;
  return NULL;
}

PJRT_Error *native_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args *args) {
  bytes out = {0};
  serialize(args->topology, &out);
  args->fingerprint = fingerprint_of(0, out.data, out.size);
  free(out.data);
  return NULL;
}

/* ---- device descriptions ----------------------------------------------------------------------------------------------*/
PJRT_Error *native_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = args->device_description->id;
  return NULL;
}

PJRT_Error *native_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args *args) {
  args->process_index = 0;
  return NULL;
}

PJRT_Error *native_DeviceDescription_Attributes(PJRT_DeviceDescription_Attributes_Args *args) {
  args->attributes = args->device_description->attributes.values;
  args->num_attributes = args->device_description->attributes.count;
  return NULL;
}

PJRT_Error *native_DeviceDescription_Kind(PJRT_DeviceDescription_Kind_Args *args) {
  args->device_kind = args->device_description->kind;
  args->device_kind_size = strlen(args->device_kind);
  return NULL;
}

PJRT_Error *native_DeviceDescription_DebugString(PJRT_DeviceDescription_DebugString_Args *args) {
  args->debug_string = args->device_description->debug_string;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

PJRT_Error *native_DeviceDescription_ToString(PJRT_DeviceDescription_ToString_Args *args) {
  args->to_string = args->device_description->to_string;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}
