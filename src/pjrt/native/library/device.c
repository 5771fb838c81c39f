/* Devices and their memories. */
#include "runtime.h"

static PJRT_Error *elsewhere(const PJRT_Device *device) {
  return error_make(INVALID, "device %d belongs to process %d, and is not addressable here", device->description->id,
                    device->description->process_index);
}

/* ---- memories ---------------------------------------------------------------------------------------------------------*/
PJRT_Error *space_choose(PJRT_Memory *memory, PJRT_Device *device, memory_space **out) {
  if (memory == NULL && device == NULL)
    return error_make(INVALID, "expected a memory or a device, found neither");
  if (memory == NULL && !device->is_addressable) return elsewhere(device);
  *out = memory ? (memory_space *)memory : &device->spaces[0];
  return NULL;
}

PJRT_Error *native_Memory_Id(PJRT_Memory_Id_Args *args) {
  args->id = ((memory_space *)args->memory)->id;
  return NULL;
}

PJRT_Error *native_Memory_Kind(PJRT_Memory_Kind_Args *args) {
  args->kind = ((memory_space *)args->memory)->kind;
  args->kind_size = strlen(args->kind);
  return NULL;
}

PJRT_Error *native_Memory_Kind_Id(PJRT_Memory_Kind_Id_Args *args) {
  args->kind_id = shown_kind(((memory_space *)args->memory)->kind_number);
  return NULL;
}

PJRT_Error *native_Memory_DebugString(PJRT_Memory_DebugString_Args *args) {
  args->debug_string = ((memory_space *)args->memory)->debug_string;
  args->debug_string_size = strlen(args->debug_string);
  return NULL;
}

PJRT_Error *native_Memory_ToString(PJRT_Memory_ToString_Args *args) {
  args->to_string = ((memory_space *)args->memory)->to_string;
  args->to_string_size = strlen(args->to_string);
  return NULL;
}

PJRT_Error *native_Memory_AddressableByDevices(PJRT_Memory_AddressableByDevices_Args *args) {
  PJRT_Device *device = ((memory_space *)args->memory)->device;
  args->devices = &device->client->device_handles[device->number];
  args->num_devices = 1;
  return NULL;
}

/* ---- devices ----------------------------------------------------------------------------------------------------------*/
PJRT_Error *native_Device_GetDescription(PJRT_Device_GetDescription_Args *args) {
  args->device_description = args->device->description;
  return NULL;
}

PJRT_Error *native_Device_IsAddressable(PJRT_Device_IsAddressable_Args *args) {
  args->is_addressable = args->device->is_addressable;
  return NULL;
}

PJRT_Error *native_Device_LocalHardwareId(PJRT_Device_LocalHardwareId_Args *args) {
  args->local_hardware_id = args->device->local_hardware_id;
  return NULL;
}

PJRT_Error *native_Device_AddressableMemories(PJRT_Device_AddressableMemories_Args *args) {
  args->memories = args->device->space_handles;
  args->num_memories = args->device->num_spaces;
  return NULL;
}

PJRT_Error *native_Device_DefaultMemory(PJRT_Device_DefaultMemory_Args *args) {
  if (!args->device->is_addressable) return elsewhere(args->device);
  args->memory = args->device->space_handles[0];
  return NULL;
}

PJRT_Error *native_Device_MemoryStats(PJRT_Device_MemoryStats_Args *args) {
  const size_t head = offsetof(PJRT_Device_MemoryStats_Args, bytes_in_use);
  memset((char *)args + head, 0, args->struct_size - head);
  if (!args->device->is_addressable) return elsewhere(args->device);
  memory_space *space = &args->device->spaces[0];
  pthread_mutex_lock(&space->mutex);
  args->bytes_in_use = space->in_use;
  args->peak_bytes_in_use = space->peak;
  args->num_allocs = space->allocations;
  args->largest_alloc_size = space->largest;
  args->bytes_limit = space->limit;
  pthread_mutex_unlock(&space->mutex);
  args->peak_bytes_in_use_is_set = args->num_allocs_is_set = args->largest_alloc_size_is_set = true;
  args->bytes_limit_is_set = space->limit != 0;
  PJRT_Client *client = args->device->client;
  if (!DRIVER_HAS(client->table, stats)) return NULL;
  pjrt_driver_stats stats = {.struct_size = sizeof stats, .bytes_in_use = -1, .largest_free = -1};
  client->table->stats(client->driver, args->device->number, 0, &stats);
  if (stats.bytes_in_use >= 0 && HAS(args, PJRT_Device_MemoryStats_Args, pool_bytes_is_set)) {
    args->pool_bytes = stats.bytes_in_use;
    args->pool_bytes_is_set = true;
  }
  if (stats.largest_free >= 0 && HAS(args, PJRT_Device_MemoryStats_Args, largest_free_block_bytes_is_set)) {
    args->largest_free_block_bytes = stats.largest_free;
    args->largest_free_block_bytes_is_set = true;
  }
  return NULL;
}

PJRT_Error *native_Device_ClearMemoryStats(PJRT_Device_ClearMemoryStats_Args *args) {
  for (size_t kind = 0; kind < args->device->num_spaces; ++kind) {
    memory_space *space = &args->device->spaces[kind];
    pthread_mutex_lock(&space->mutex);
    space->peak = space->in_use;
    space->allocations = space->largest = 0;
    pthread_mutex_unlock(&space->mutex);
  }
  return NULL;
}

struct PJRT_Device_Attributes {
  named_values list;
};

static void free_attributes(PJRT_Device_Attributes *attributes) {
  named_values_free(&attributes->list);
  free(attributes);
}

PJRT_Error *native_Device_GetAttributes(PJRT_Device_GetAttributes_Args *args) {
  PJRT_Device_Attributes *attributes = new_zeroed(1, sizeof *attributes);
  for (size_t i = 0; i < args->device->description->attributes.count; ++i) {
    const PJRT_NamedValue *each = &args->device->description->attributes.values[i];
    named_value_add(&attributes->list, each->name, each->name_size, each);
  }
  args->attributes = attributes->list.values;
  args->num_attributes = attributes->list.count;
  args->device_attributes = attributes;
  args->attributes_deleter = free_attributes;
  return NULL;
}

struct PJRT_AsyncTrackingEvent {
  char *description;
};

PJRT_Error *native_Device_CreateAsyncTrackingEvent(PJRT_Device_CreateAsyncTrackingEvent_Args *args) {
  args->event = new_zeroed(1, sizeof *args->event);
  args->event->description = copy_of(args->description, args->description_size);
  return NULL;
}

PJRT_Error *native_AsyncTrackingEvent_Destroy(PJRT_AsyncTrackingEvent_Destroy_Args *args) {
  if (args->event == NULL) return NULL;
  free(args->event->description);
  free(args->event);
  return NULL;
}
