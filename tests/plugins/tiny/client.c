/* Clients. */
#include "tiny.h"

typedef struct tiny_dma_region {
  void *data;
  size_t size;
  struct tiny_dma_region *next;
} tiny_dma_region;

/* ---- user data of memories ----------------------------------------------------------------------------------------*/
static pthread_mutex_t user_data_mutex = PTHREAD_MUTEX_INITIALIZER;

static void *get_user_data(PJRT_Memory *memory, const void *key) {
  void *data = NULL;
  pthread_mutex_lock(&user_data_mutex);
  for (tiny_user_data *each = ((tiny_memory *)memory)->user_data; each; each = each->next) {
    if (each->key == key) data = each->data;
  }
  pthread_mutex_unlock(&user_data_mutex);
  return data;
}

static void set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*dtor)(void *)) {
  tiny_memory *inside = (tiny_memory *)memory;
  pthread_mutex_lock(&user_data_mutex);
  tiny_user_data *each = inside->user_data;
  while (each && each->key != key) each = each->next;
  tiny_user_data old = {0};
  if (each) {
    old = *each;
  } else {
    each = tiny_calloc(1, sizeof *each);
    each->next = inside->user_data;
    inside->user_data = each;
  }
  each->key = key;
  each->data = data;
  each->dtor = dtor;
  pthread_mutex_unlock(&user_data_mutex);
  if (old.dtor) old.dtor(old.data);
}

static const PJRT_Memory_FunctionTable memory_table = {
    .struct_size = PJRT_Memory_FunctionTable_STRUCT_SIZE,
    .instance_struct_size = sizeof(PJRT_Memory),
    .get_user_data = get_user_data,
    .set_user_data = set_user_data,
};

/* ---- making and freeing -------------------------------------------------------------------------------------------*/
static void make_memory(PJRT_Device *device, int kind) {
  tiny_memory *memory = &device->memories[kind];
  memory->base.vtable =
      fault_legacy_errors() ? (const PJRT_Memory_FunctionTable *)(uintptr_t)0x5 : &memory_table;
  memory->device = device;
  memory->id = device->description->id * TINY_NUM_MEMORY_KINDS + kind;
  memory->kind_id = kind;
  memory->kind = tiny_memory_kinds[kind];
  memory->to_string = tiny_printf("TinyMemory(id=%d, kind=%s)", memory->id, memory->kind);
  memory->debug_string = tiny_printf("TinyMemory(id=%d, kind=%s, device=%d)", memory->id, memory->kind,
                                     device->description->id);
  device->memory_handles[kind] = &memory->base;
}

static void make_device(PJRT_Client *client, size_t index, int64_t bytes_limit) {
  PJRT_Device *device = &client->devices[index];
  device->client = client;
  device->description = &client->topology->descriptions[index];
  client->device_handles[index] = device;
  pthread_mutex_init(&device->mutex, NULL);
  device->local_id = -1;
  if (device->description->process_index != client->process_index) return;
  device->bytes_limit = bytes_limit;
  device->local_id = (int)client->num_local;
  client->local_handles[client->num_local++] = device;
  for (int kind = 0; kind < TINY_NUM_MEMORY_KINDS; ++kind) {
    make_memory(device, kind);
    client->memory_handles[device->local_id * TINY_NUM_MEMORY_KINDS + kind] = device->memory_handles[kind];
  }
  device->queue = queue_start();
}

static void free_device(PJRT_Device *device) {
  for (int kind = 0; kind < TINY_NUM_MEMORY_KINDS; ++kind) {
    tiny_memory *memory = &device->memories[kind];
    free(memory->to_string);
    free(memory->debug_string);
    while (memory->user_data) {
      tiny_user_data *each = memory->user_data;
      memory->user_data = each->next;
      if (each->dtor) each->dtor(each->data);
      free(each);
    }
  }
  pthread_mutex_destroy(&device->mutex);
}

PJRT_Client *client_ref(PJRT_Client *client) {
  atomic_fetch_add(&client->refs, 1);
  return client;
}

void client_unref(PJRT_Client *client) {
  if (atomic_fetch_sub(&client->refs, 1) != 1) return;
  for (size_t i = 0; i < client->num_devices; ++i) free_device(&client->devices[i]);
  while (client->dma_regions) {
    tiny_dma_region *next = client->dma_regions->next;
    free(client->dma_regions);
    client->dma_regions = next;
  }
  topology_free(client->topology);
  attributes_free(&client->create_options);
  attributes_free(&client->kv_report);
  free(client->devices);
  free(client->device_handles);
  free(client->local_handles);
  free(client->memory_handles);
  free(client->process_infos);
  free(client->platform_name);
  pthread_mutex_destroy(&client->mutex);
  free(client);
}

PJRT_Device *client_device(PJRT_Client *client, int64_t id) {
  return id >= 0 && (size_t)id < client->num_devices ? &client->devices[id] : NULL;
}

/* What the caller may set. */
typedef struct create_settings {
  int64_t num_devices, num_processes, process_index, bytes_limit, fail_code;
  bool kv_exercise, all_types;
  const PJRT_NamedValue *platform_name;
} create_settings;

static tiny_status *read_settings(const PJRT_Client_Create_Args *args, create_settings *out) {
  *out = (create_settings){.num_devices = 1, .num_processes = 1};
  const PJRT_NamedValue *options = args->create_options;
  size_t count = args->num_options;
  tiny_status *status = option_int64(options, count, "num_devices", &out->num_devices);
  if (!status) status = option_int64(options, count, "num_processes", &out->num_processes);
  if (!status) status = option_int64(options, count, "process_index", &out->process_index);
  if (!status) status = option_int64(options, count, "bytes_limit", &out->bytes_limit);
  if (!status) status = option_int64(options, count, "fail_code", &out->fail_code);
  if (!status) status = option_bool(options, count, "kv_exercise", &out->kv_exercise);
  if (!status) status = option_bool(options, count, "all_attribute_types", &out->all_types);
  if (status) return status;
  out->platform_name = option_find(options, count, "platform_name");
  if (out->platform_name && out->platform_name->type != PJRT_NamedValue_kString)
    return status_make(INVALID, "Option platform_name must be a string");
  if (out->fail_code)
    return status_make((PJRT_Error_Code)out->fail_code, "The client was asked to fail with code %lld",
                       (long long)out->fail_code);
  if (out->num_devices < 1 || out->num_processes < 1 || out->num_devices > TINY_MAX_DEVICES ||
      out->num_processes > TINY_MAX_DEVICES || out->num_devices * out->num_processes > TINY_MAX_DEVICES)
    return status_make(INVALID, "The tiny plugin has 1 to %d devices, got num_devices=%lld, num_processes=%lld",
                       TINY_MAX_DEVICES, (long long)out->num_devices, (long long)out->num_processes);
  if (out->process_index < 0 || out->process_index >= out->num_processes)
    return status_make(INVALID, "process_index=%lld is not below num_processes=%lld", (long long)out->process_index,
                       (long long)out->num_processes);
  return NULL;
}

PJRT_Error *tiny_Client_Create(PJRT_Client_Create_Args *args) {
  create_settings settings;
  tiny_attributes report = {0};
  tiny_status *status = read_settings(args, &settings);
  if (status == NULL && settings.kv_exercise) status = kv_exercise(args, &report);
  if (status) {
    attributes_free(&report);
    return error_from(status);
  }
  size_t count = (size_t)(settings.num_devices * settings.num_processes);
  PJRT_Client *client = tiny_calloc(1, sizeof *client);
  atomic_init(&client->refs, 1);
  pthread_mutex_init(&client->mutex, NULL);
  client->topology = topology_make(1, (int64_t)count, settings.num_processes, settings.all_types);
  client->platform_name =
      settings.platform_name ? tiny_memdup(settings.platform_name->string_value, settings.platform_name->value_size)
                             : tiny_memdup(TINY_PLATFORM_NAME, strlen(TINY_PLATFORM_NAME));
  client->process_index = settings.process_index;
  client->num_devices = count;
  client->devices = tiny_calloc(count, sizeof *client->devices);
  client->device_handles = tiny_calloc(count, sizeof *client->device_handles);
  client->local_handles = tiny_calloc(count, sizeof *client->local_handles);
  client->memory_handles = tiny_calloc(count * TINY_NUM_MEMORY_KINDS, sizeof *client->memory_handles);
  client->kv_report = report;
  for (size_t i = 0; i < args->num_options; ++i) {
    char *name = tiny_memdup(args->create_options[i].name, args->create_options[i].name_size);
    attributes_add(&client->create_options, name, &args->create_options[i]);
    free(name);
  }
  for (size_t i = 0; i < count; ++i) make_device(client, i, settings.bytes_limit);
  live_add(LIVE_CLIENT, 1);
  args->client = client;
  return NULL;
}

/* ---- promises that only the caller can keep -------------------------------------------------------------------------*/
tiny_open *open_promise(PJRT_Client *client, tiny_promise *promise) {
  tiny_open *open = tiny_calloc(1, sizeof *open);
  open->client = client_ref(client);
  open->promise = promise_ref(promise);
  pthread_mutex_lock(&client->mutex);
  open->next = client->open;
  client->open = open;
  pthread_mutex_unlock(&client->mutex);
  return open;
}

tiny_promise *close_promise(tiny_open *open) {
  PJRT_Client *client = open->client;
  pthread_mutex_lock(&client->mutex);
  tiny_open **each = &client->open;
  while (*each && *each != open) each = &(*each)->next;
  if (*each) *each = open->next;
  pthread_mutex_unlock(&client->mutex);
  tiny_promise *promise = open->promise;
  free(open);
  client_unref(client);
  return promise;
}

static void break_promises(PJRT_Client *client) {
  pthread_mutex_lock(&client->mutex);
  while (client->open) {
    tiny_open *open = client->open;
    client->open = open->next;
    violation("the client was destroyed while the caller still owed it the end of a buffer");
    tiny_promise *promise = promise_ref(open->promise);
    pthread_mutex_unlock(&client->mutex);
    promise_set(promise, status_make(PJRT_Error_Code_CANCELLED, "The client was destroyed"));
    promise_unref(promise);
    pthread_mutex_lock(&client->mutex);
  }
  pthread_mutex_unlock(&client->mutex);
}

PJRT_Error *tiny_Client_Destroy(PJRT_Client_Destroy_Args *args) {
  PJRT_Client *client = args->client;
  if (client == NULL) return NULL;
  for (size_t i = 0; i < client->num_local; ++i) {
    if (queue_is_current(client->local_handles[i]->queue))
      return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "A client cannot be destroyed by one of its own callbacks");
  }
  break_promises(client);
  transfers_forget(client);
  for (size_t i = 0; i < client->num_local; ++i) queue_drain(client->local_handles[i]->queue);
  for (size_t i = 0; i < client->num_local; ++i) {
    queue_stop(client->local_handles[i]->queue);
    client->local_handles[i]->queue = NULL;
  }
  client->destroyed = true;
  int left = atomic_load(&client->refs) - 1;
  if (left) violation("the client was destroyed before %d things made from it", left);
  live_add(LIVE_CLIENT, -1);
  client_unref(client);
  return NULL;
}

/* ---- what a client answers ----------------------------------------------------------------------------------------*/
PJRT_Error *tiny_Client_PlatformName(PJRT_Client_PlatformName_Args *args) {
  args->platform_name = args->client->platform_name;
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

PJRT_Error *tiny_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args *args) {
  args->process_index = (int)args->client->process_index;
  return NULL;
}

PJRT_Error *tiny_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = TINY_PLATFORM_VERSION;
  args->platform_version_size = strlen(TINY_PLATFORM_VERSION);
  return NULL;
}

PJRT_Error *tiny_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args *args) {
  args->topology = args->client->topology;
  return NULL;
}

PJRT_Error *tiny_Client_Devices(PJRT_Client_Devices_Args *args) {
  args->devices = args->client->device_handles;
  args->num_devices = args->client->num_devices;
  return NULL;
}

PJRT_Error *tiny_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args *args) {
  args->addressable_devices = args->client->local_handles;
  args->num_addressable_devices = args->client->num_local;
  return NULL;
}

PJRT_Error *tiny_Client_LookupDevice(PJRT_Client_LookupDevice_Args *args) {
  args->device = client_device(args->client, args->id);
  if (args->device == NULL)
    return error_make(INVALID, "There is no device with id %d: the ids go from 0 to %zu", args->id,
                      args->client->num_devices - 1);
  return NULL;
}

PJRT_Error *tiny_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args *args) {
  if (args->local_hardware_id < 0 || (size_t)args->local_hardware_id >= args->client->num_local)
    return error_make(INVALID, "There is no local device %d: the local ids go from 0 to %zu", args->local_hardware_id,
                      args->client->num_local - 1);
  args->addressable_device = args->client->local_handles[args->local_hardware_id];
  return NULL;
}

PJRT_Error *tiny_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args *args) {
  args->addressable_memories = args->client->memory_handles;
  args->num_addressable_memories = args->client->num_local * TINY_NUM_MEMORY_KINDS;
  return NULL;
}

PJRT_Error *tiny_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  tiny_bytes text = {0};
  bytes_add(&text, "", 0);
  const char *cursor = (const char *)args->process_infos;
  for (size_t i = 0; i < args->num_process_infos; ++i) {
    const PJRT_ProcessInfo *info = (const PJRT_ProcessInfo *)cursor;
    bytes_print(&text, "%s%d:%llu:%d:%d:%.*s", i ? ";" : "", info->task_id, (unsigned long long)info->incarnation_id,
                (int)info->state, info->error_code, (int)info->error_message_size,
                info->error_message ? info->error_message : "");
    cursor += sizeof(PJRT_ProcessInfo);
  }
  pthread_mutex_lock(&args->client->mutex);
  free(args->client->process_infos);
  args->client->process_infos = text.data;
  pthread_mutex_unlock(&args->client->mutex);
  return NULL;
}

PJRT_Error *tiny_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args *args) {
  int64_t wanted = (int64_t)args->num_replicas * args->num_partitions;
  if (args->num_replicas < 1 || args->num_partitions < 1)
    return error_make(INVALID, "%d replicas and %d partitions need no devices", args->num_replicas,
                      args->num_partitions);
  if (args->default_assignment_size < (size_t)wanted)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "The assignment needs room for %lld devices, got %zu",
                      (long long)wanted, args->default_assignment_size);
  for (int64_t i = 0; i < wanted; ++i) args->default_assignment[i] = (int)i;
  return NULL;
}

/* ---- host memory for direct transfers -----------------------------------------------------------------------------*/
PJRT_Error *tiny_Client_DmaMap(PJRT_Client_DmaMap_Args *args) {
  if (args->data == NULL || args->size == 0) return error_make(INVALID, "DmaMap needs memory of at least one byte");
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&args->client->mutex);
  for (tiny_dma_region *each = args->client->dma_regions; each && !error; each = each->next) {
    if ((char *)args->data < (char *)each->data + each->size && (char *)each->data < (char *)args->data + args->size)
      error = error_make(PJRT_Error_Code_ALREADY_EXISTS, "The memory overlaps with memory that is mapped");
  }
  if (error == NULL) {
    tiny_dma_region *region = tiny_calloc(1, sizeof *region);
    *region = (tiny_dma_region){args->data, args->size, args->client->dma_regions};
    args->client->dma_regions = region;
  }
  pthread_mutex_unlock(&args->client->mutex);
  return error;
}

PJRT_Error *tiny_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args *args) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&args->client->mutex);
  tiny_dma_region **each = &args->client->dma_regions;
  while (*each && (*each)->data != args->data) each = &(*each)->next;
  tiny_dma_region *found = *each;
  if (found) *each = found->next;
  else error = error_make(PJRT_Error_Code_NOT_FOUND, "No memory is mapped at this address");
  pthread_mutex_unlock(&args->client->mutex);
  free(found);
  return error;
}
