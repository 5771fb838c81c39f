/* Topologies: the devices of a driver, described without memory or work. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

static const char MARK[] = "pjrt native topology";
enum { MARK_FIELD = 15 };

static void describe(PJRT_DeviceDescription *out, const pjrt_driver_device *device, const char *platform) {
  out->id = device->id;
  out->process_index = device->process_index;
  out->kind = device->kind;
  out->to_string = device->text ? printed("%s", device->text) : printed("%s(id=%d)", platform, device->id);
  out->debug_string = device->debug_text ? printed("%s", device->debug_text)
                                         : printed("%s(id=%d, kind=%s)", platform, device->id, device->kind);
  facts_attributes(&out->attributes, device->attributes, device->num_attributes);
  out->num_memories = device->num_memory_kinds;
  out->memories = new_zeroed(device->num_memory_kinds, sizeof *out->memories);
  out->memory_handles = new_zeroed(device->num_memory_kinds, sizeof *out->memory_handles);
  for (size_t i = 0; i < device->num_memory_kinds; ++i) {
    out->memories[i] = (PJRT_MemoryDescription){device->memory_kinds[i], shown_kind(i)};
    out->memory_handles[i] = &out->memories[i];
  }
}

/* XLA takes the number 0 for no kind. */
int shown_kind(size_t kind) { return (int)kind + 1; }

PJRT_TopologyDescription *topology_make(const bytes *message) {
  PJRT_TopologyDescription *each = new_zeroed(1, sizeof *each);
  if (!facts_read(&each->facts, message->data, message->size)) {
    facts_free(&each->facts);
    free(each);
    return NULL;
  }
  bytes_add(&each->message, message->data, message->size);
  each->descriptions = new_zeroed(each->facts.num_devices, sizeof *each->descriptions);
  each->handles = new_zeroed(each->facts.num_devices, sizeof *each->handles);
  for (size_t i = 0; i < each->facts.num_devices; ++i) {
    describe(&each->descriptions[i], &each->facts.devices[i], each->facts.platform);
    each->handles[i] = &each->descriptions[i];
  }
  facts_attributes(&each->attributes, each->facts.client.attributes, each->facts.client.num_attributes);
  return each;
}

void topology_free(PJRT_TopologyDescription *each) {
  if (each == NULL) return;
  for (size_t i = 0; i < each->facts.num_devices; ++i) {
    free(each->descriptions[i].to_string);
    free(each->descriptions[i].debug_string);
    free(each->descriptions[i].memories);
    free(each->descriptions[i].memory_handles);
    named_values_free(&each->descriptions[i].attributes);
  }
  free(each->descriptions);
  free(each->handles);
  free(each->message.data);
  named_values_free(&each->attributes);
  facts_free(&each->facts);
  free(each);
}

uint64_t fingerprint_of(uint64_t start, const void *data, size_t size) {
  uint64_t hash = start ? start : UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
  return hash;
}

/* The client that compiles for a topology: a name of devices that need not be here is an option of the driver. */
static PJRT_Error *open_topology(const char *name, size_t name_size, const PJRT_NamedValue *options, size_t num_options,
                                 PJRT_Client **out) {
  PJRT_NamedValue *all = new_zeroed(num_options + 1, sizeof *all);
  size_t count = 0;
  for (size_t i = 0; i < num_options; ++i)
    if (name_size == 0 || !named_value_is(&options[i], "topology")) all[count++] = options[i];
  if (name_size)
    all[count++] = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "topology", .name_size = 8,
                                     .type = PJRT_NamedValue_kString, .string_value = name, .value_size = name_size};
  PJRT_Client_Create_Args create = {.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE, .create_options = all,
                                    .num_options = count};
  PJRT_Error *error = native_Client_Create(&create);
  free(all);
  *out = create.client;
  return error;
}

PJRT_Error *topology_compiler(const PJRT_TopologyDescription *topology, PJRT_Client **out) {
  const char *name = topology->facts.topology;
  PJRT_Client *known = topology->compiler ? topology->compiler : (PJRT_Client *)topology->owner;
  *out = known ? client_ref(known) : NULL;
  return *out ? NULL : open_topology(name, name ? strlen(name) : 0, NULL, 0, out);
}

/* The devices that a client with these options would have, or those of a name. */
PJRT_Error *native_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args *args) {
  PJRT_Client *client;
  PJRT_Error *error = open_topology(args->topology_name, args->topology_name_size, args->create_options,
                                    args->num_options, &client);
  if (error) return error;
  args->topology = client->topology;
  args->topology->owner = NULL;
  client->topology = NULL;
  args->topology->compiler = client;
  return NULL;
}

PJRT_Error *native_TopologyDescription_Destroy(PJRT_TopologyDescription_Destroy_Args *args) {
  if (args->topology == NULL) return NULL;
  if (args->topology->compiler) client_unref(args->topology->compiler);
  topology_free(args->topology);
  return NULL;
}

PJRT_Error *native_TopologyDescription_PlatformName(PJRT_TopologyDescription_PlatformName_Args *args) {
  args->platform_name = args->topology->facts.platform;
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

PJRT_Error *native_TopologyDescription_PlatformVersion(PJRT_TopologyDescription_PlatformVersion_Args *args) {
  args->platform_version = args->topology->facts.client.platform_version;
  args->platform_version_size = strlen(args->platform_version);
  return NULL;
}

PJRT_Error *native_TopologyDescription_GetDeviceDescriptions(
    PJRT_TopologyDescription_GetDeviceDescriptions_Args *args) {
  args->descriptions = args->topology->handles;
  args->num_descriptions = args->topology->facts.num_devices;
  return NULL;
}

static void free_serialized(PJRT_SerializedTopology *serialized) { free(serialized); }

PJRT_Error *native_TopologyDescription_Serialize(PJRT_TopologyDescription_Serialize_Args *args) {
  bytes out = {0};
  proto_bytes(&out, MARK_FIELD, MARK, sizeof MARK - 1);
  bytes_add(&out, args->topology->message.data, args->topology->message.size);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_topology = (PJRT_SerializedTopology *)out.data;
  args->serialized_topology_deleter = free_serialized;
  return NULL;
}

PJRT_Error *native_TopologyDescription_Deserialize(PJRT_TopologyDescription_Deserialize_Args *args) {
  const char *cursor = args->serialized_topology, *end = cursor + args->serialized_topology_size;
  proto_field mark = {0};
  bool is_one = proto_next(&cursor, end, &mark) && mark.number == MARK_FIELD && mark.size == sizeof MARK - 1 &&
                memcmp(mark.data, MARK, mark.size) == 0;
  bytes message = {.data = (char *)cursor, .size = (size_t)(end - cursor)};
  args->topology = is_one ? topology_make(&message) : NULL;
  if (args->topology) return NULL;
  return error_make(INVALID, "these %zu bytes are no serialized topology of this plugin, or are damaged",
                    args->serialized_topology_size);
}

PJRT_Error *native_TopologyDescription_Attributes(PJRT_TopologyDescription_Attributes_Args *args) {
  args->attributes = args->topology->attributes.values;
  args->num_attributes = args->topology->attributes.count;
  return NULL;
}

PJRT_Error *native_TopologyDescription_Fingerprint(PJRT_TopologyDescription_Fingerprint_Args *args) {
  args->fingerprint = fingerprint_of(0, args->topology->message.data, args->topology->message.size);
  return NULL;
}

static int kind_numbers[MAX_KINDS];

static void number_kinds(void) {
  for (size_t i = 0; i < MAX_KINDS; ++i) kind_numbers[i] = shown_kind(i);
}

/* All devices have the same kinds of memory, but for those that have none. */
PJRT_Error *native_TopologyDescription_GetMemorySpaceKindIds(PJRT_TopologyDescription_GetMemorySpaceKindIds_Args *args) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, number_kinds);
  size_t count = 0;
  for (size_t i = 0; i < args->topology->facts.num_devices; ++i)
    if (args->topology->descriptions[i].num_memories > count) count = args->topology->descriptions[i].num_memories;
  args->memory_space_kind_ids = kind_numbers;
  args->num_memory_space_kind_ids = count;
  return NULL;
}

PJRT_Error *native_TopologyDescription_MakeCanonicalShapeForMemorySpace(
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args *args) {
  return error_make(PJRT_Error_Code_UNIMPLEMENTED,
                    "the device '%s' does not offer TopologyDescription.make_canonical_shape", args->topology->facts.platform);
}

/* ---- device descriptions ----------------------------------------------------------------------------------------------*/
PJRT_Error *native_DeviceDescription_Id(PJRT_DeviceDescription_Id_Args *args) {
  args->id = args->device_description->id;
  return NULL;
}

PJRT_Error *native_DeviceDescription_ProcessIndex(PJRT_DeviceDescription_ProcessIndex_Args *args) {
  args->process_index = args->device_description->process_index;
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

/* ---- the extension: the memories of a device that need not be here ------------------------------------------------------------*/
static PJRT_Error *memory_descriptions(PJRT_DeviceDescription_MemoryDescriptions_Args *args) {
  SIZED(PJRT_DeviceDescription_MemoryDescriptions_Args, args);
  args->memory_descriptions = args->device_description->memory_handles;
  args->num_memory_descriptions = args->device_description->num_memories;
  args->default_memory_index = args->num_memory_descriptions ? 0 : SIZE_MAX;
  return NULL;
}

static PJRT_Error *memory_kind(PJRT_MemoryDescription_Kind_Args *args) {
  SIZED(PJRT_MemoryDescription_Kind_Args, args);
  args->kind = args->memory_description->kind;
  args->kind_size = strlen(args->kind);
  args->kind_id = args->memory_description->kind_id;
  return NULL;
}

PJRT_MemoryDescriptions_Extension memory_descriptions_extension = {
    .base = {.struct_size = PJRT_MemoryDescriptions_Extension_STRUCT_SIZE,
             .type = PJRT_Extension_Type_MemoryDescriptions, .next = &layouts_extension.base},
    .PJRT_DeviceDescription_MemoryDescriptions = memory_descriptions,
    .PJRT_MemoryDescription_Kind = memory_kind,
};
