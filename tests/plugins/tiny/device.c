/* Devices and memory spaces. */
#include "tiny.h"

tiny_status *device_reserve(tiny_memory *memory, size_t size) {
  if (memory->kind_id != 0) return NULL; /* host memory is not limited */
  PJRT_Device *device = memory->device;
  tiny_status *status = NULL;
  pthread_mutex_lock(&device->mutex);
  if (device->bytes_limit && device->bytes_in_use + (int64_t)size > device->bytes_limit) {
    status = status_make(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                         "Out of memory on %s: %zu bytes wanted, %lld of %lld in use", device->description->to_string,
                         size, (long long)device->bytes_in_use, (long long)device->bytes_limit);
  } else {
    device->bytes_in_use += (int64_t)size;
    device->num_allocs += 1;
    if (device->bytes_in_use > device->peak_bytes) device->peak_bytes = device->bytes_in_use;
    if ((int64_t)size > device->largest_alloc) device->largest_alloc = (int64_t)size;
  }
  pthread_mutex_unlock(&device->mutex);
  return status;
}

void device_release(tiny_memory *memory, size_t size) {
  if (memory->kind_id != 0) return;
  pthread_mutex_lock(&memory->device->mutex);
  memory->device->bytes_in_use -= (int64_t)size;
  pthread_mutex_unlock(&memory->device->mutex);
}

tiny_status *memory_choose(PJRT_Memory *memory, PJRT_Device *device, tiny_memory **out) {
  if (memory == NULL && device == NULL) return status_make(INVALID, "Neither a memory nor a device is given");
  if (memory == NULL && device->local_id < 0)
    return status_make(INVALID, "%s is not addressable by this process", device->description->to_string);
  *out = memory ? (tiny_memory *)memory : &device->memories[0];
  return NULL;
}

PJRT_Error *tiny_Device_GetDescription(PJRT_Device_GetDescription_Args *args) {
  args->device_description = args->device->description;
  return NULL;
}

PJRT_Error *tiny_Device_IsAddressable(PJRT_Device_IsAddressable_Args *args) {
  args->is_addressable = args->device->local_id >= 0;
  return NULL;
}

PJRT_Error *tiny_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args *args) {
  args->local_hardware_id = args->device->local_id;
  return NULL;
}

static PJRT_Error *not_addressable(const PJRT_Device *device) {
  return error_make(INVALID, "%s is not addressable by this process", device->description->to_string);
}

PJRT_Error *tiny_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args *args) {
  args->memories = args->device->memory_handles;
  args->num_memories = args->device->local_id < 0 ? 0 : TINY_NUM_MEMORY_KINDS;
  return NULL;
}

PJRT_Error *tiny_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args *args) {
  if (args->device->local_id < 0) return not_addressable(args->device);
  args->memory = args->device->memory_handles[0];
  return NULL;
}

PJRT_Error *tiny_Device_MemoryStats(PJRT_Device_MemoryStats_Args *args) {
  PJRT_Device *device = args->device;
  if (device->local_id < 0) return not_addressable(device);
  memset((char *)args + offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use), 0,
         args->struct_size - offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use));
  pthread_mutex_lock(&device->mutex);
  args->bytes_in_use = device->bytes_in_use;
  args->peak_bytes_in_use = device->peak_bytes;
  args->peak_bytes_in_use_is_set = true;
  args->num_allocs = device->num_allocs;
  args->num_allocs_is_set = true;
  args->largest_alloc_size = device->largest_alloc;
  args->largest_alloc_size_is_set = true;
  args->bytes_limit = device->bytes_limit;
  args->bytes_limit_is_set = device->bytes_limit != 0;
  if (device->bytes_limit) {
    args->largest_free_block_bytes = device->bytes_limit - device->bytes_in_use;
    args->largest_free_block_bytes_is_set = true;
  }
  if (TINY_HAS(args, PJRT_Device_MemoryStats_Args, peak_allocated_bytes_is_set)) {
    args->peak_allocated_bytes = device->peak_bytes;
    args->peak_allocated_bytes_is_set = true;
  }
  pthread_mutex_unlock(&device->mutex);
  return NULL;
}

PJRT_Error *tiny_Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args *args) {
  pthread_mutex_lock(&args->device->mutex);
  args->device->peak_bytes = args->device->bytes_in_use;
  args->device->num_allocs = 0;
  args->device->largest_alloc = 0;
  pthread_mutex_unlock(&args->device->mutex);
  return NULL;
}

PJRT_Error *tiny_Device_PoisonExecution(PJRT_Device_PoisonExecution_Args *args) {
  PJRT_Device *device = args->device;
  args->poisoned = false;
  pthread_mutex_lock(&device->mutex);
  tiny_launch *earliest = NULL; /* the list begins with the latest */
  for (tiny_launch *each = device->launches; each; each = each->next) {
    if (each->launch_id == args->launch_id && !each->poison) earliest = each;
  }
  if (earliest) {
    earliest->poison = status_from_bytes(args->error_code, args->error_message, args->error_message_size);
    if (TINY_HAS(args, PJRT_Device_PoisonExecution_Args, num_payload))
      status_add_named_payloads(earliest->poison, args->payload, args->num_payload);
    args->poisoned = earliest->poison != NULL;
  }
  pthread_mutex_unlock(&device->mutex);
  return NULL;
}

/* ---- what a device tells about itself and its client, at the time of the call ---------------------------------------*/
struct PJRT_Device_Attributes {
  tiny_attributes list;
};

static void free_attributes(PJRT_Device_Attributes *attributes) {
  attributes_free(&attributes->list);
  free(attributes);
  live_add(LIVE_ATTRIBUTES, -1);
}

PJRT_Error *tiny_Device_GetAttributes(PJRT_Device_GetAttributes_Args *args) {
  PJRT_Client *client = args->device->client;
  PJRT_Device_Attributes *attributes = tiny_calloc(1, sizeof *attributes);
  tiny_attributes *list = &attributes->list;
  attributes_int64(list, "local_id", args->device->local_id);
  for (size_t i = 0; i < client->create_options.count; ++i) {
    char *name = tiny_printf("option:%s", client->create_options.values[i].name);
    attributes_add(list, name, &client->create_options.values[i]);
    free(name);
  }
  for (size_t i = 0; i < client->kv_report.count; ++i)
    attributes_add(list, client->kv_report.values[i].name, &client->kv_report.values[i]);
  pthread_mutex_lock(&client->mutex);
  if (client->process_infos) attributes_string(list, "process_infos", client->process_infos);
  pthread_mutex_unlock(&client->mutex);
  live_add(LIVE_ATTRIBUTES, 1);
  args->attributes = list->values;
  args->num_attributes = list->count;
  args->device_attributes = attributes;
  args->attributes_deleter = free_attributes;
  return NULL;
}

struct PJRT_AsyncTrackingEvent {
  char *description;
};

PJRT_Error *tiny_Device_CreateAsyncTrackingEvent(PJRT_Device_CreateAsyncTrackingEvent_Args *args) {
  args->event = tiny_calloc(1, sizeof *args->event);
  args->event->description = tiny_memdup(args->description, args->description_size);
  live_add(LIVE_TRACKING_EVENT, 1);
  return NULL;
}

PJRT_Error *tiny_AsyncTrackingEvent_Destroy(PJRT_AsyncTrackingEvent_Destroy_Args *args) {
  if (args->event == NULL) return NULL;
  free(args->event->description);
  free(args->event);
  live_add(LIVE_TRACKING_EVENT, -1);
  return NULL;
}

/* ---- memory spaces ------------------------------------------------------------------------------------------------*/
PJRT_Error *tiny_Memory_Id(PJRT_Memory_Id_Args *args) {
  args->id = ((tiny_memory *)args->memory)->id;
  return NULL;
}

PJRT_Error *tiny_Memory_Kind(PJRT_Memory_Kind_Args *args) {
  args->kind = ((tiny_memory *)args->memory)->kind;
  args->kind_size = strlen(args->kind);
  return NULL;
}

PJRT_Error *tiny_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args *args) {
  args->kind_id = TINY_PUBLIC_KIND(((tiny_memory *)args->memory)->kind_id);
  return NULL;
}

PJRT_Error *tiny_Memory_DebugString(PJRT_Memory_DebugString_Args *args) {
  args->debug_string = ((tiny_memory *)args->memory)->debug_string;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

PJRT_Error *tiny_Memory_ToString(PJRT_Memory_ToString_Args *args) {
  args->to_string = ((tiny_memory *)args->memory)->to_string;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}

PJRT_Error *tiny_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args *args) {
  PJRT_Device *device = ((tiny_memory *)args->memory)->device;
  args->devices = &device->client->local_handles[device->local_id];
  args->num_devices = 1;
  return NULL;
}
