/* Memories of a plugin that has none, which frameworks ask for all the same: one for each device. They lie in places of
 * their own, so that the address alone shows whose a memory is. */
#include <stdio.h>
#include <stdlib.h>

#include "adapt.h"

enum { NUM_MEMORIES = 1024, NUM_KINDS = 1024, NUM_DATA = 4 };

typedef struct own_data {
  const void *key;
  void *data;
  void (*end)(void *);
} own_data;

typedef struct own_memory {
  PJRT_Memory base;
  PJRT_Memory *only; /* the list of the device's memories: this one, or the only one that the plugin tells of */
  PJRT_Device *device;
  int id;
  own_data data[NUM_DATA]; /* what the framework keeps with it */
} own_memory;

typedef struct client_list {
  PJRT_Client *client;
  struct client_list *next;
  PJRT_Memory *memories[];
} client_list;

static own_memory memories[NUM_MEMORIES];
static client_list *lists;
static const char *kinds[NUM_KINDS];
static size_t kind_sizes[NUM_KINDS];
static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;

static void *get_user_data(PJRT_Memory *memory, const void *key) {
  own_memory *own = (own_memory *)memory;
  void *found = NULL;
  pjrt_mutex_lock(&mutex);
  for (int i = 0; i < NUM_DATA; i++)
    if (own->data[i].key == key) found = own->data[i].data;
  pjrt_mutex_unlock(&mutex);
  return found;
}

static void set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*end)(void *)) {
  own_memory *own = (own_memory *)memory;
  own_data before = {NULL, NULL, NULL};
  pjrt_mutex_lock(&mutex);
  own_data *place = NULL;
  for (int i = 0; i < NUM_DATA; i++)
    if (own->data[i].key == key || (place == NULL && own->data[i].key == NULL)) place = &own->data[i];
  if (place != NULL) {
    before = *place;
    *place = (own_data){key, data, end};
  }
  pjrt_mutex_unlock(&mutex);
  if (before.end != NULL) before.end(before.data);
}

static const PJRT_Memory_FunctionTable functions = {PJRT_Memory_FunctionTable_STRUCT_SIZE, NULL, sizeof(own_memory),
                                                    get_user_data, set_user_data};

bool adapt_is_own_memory(const PJRT_Memory *memory) {
  return (uintptr_t)memory >= (uintptr_t)memories && (uintptr_t)memory < (uintptr_t)(memories + NUM_MEMORIES);
}

PJRT_Memory *adapt_memory_of(PJRT_Device *device) {
  own_memory *found = NULL;
  pjrt_mutex_lock(&mutex);
  for (int i = 0; i < NUM_MEMORIES && (found == NULL || found->device == NULL); i++)
    if (memories[i].device == device || (found == NULL && memories[i].device == NULL)) found = &memories[i];
  if (found != NULL && found->device == NULL) {
    found->base.vtable = &functions;
    found->device = device;
    found->id = (int)(found - memories);
  }
  pjrt_mutex_unlock(&mutex);
  return found != NULL ? &found->base : NULL;
}

PJRT_Memory *const *adapt_list_of(PJRT_Device *device, PJRT_Memory *memory) {
  own_memory *own = (own_memory *)adapt_memory_of(device);
  if (own == NULL) return NULL;
  own->only = memory;
  return &own->only;
}

/* Adds the memories of a device that the list does not have yet. */
static void *add_memories(adapt *adapt, client_list **list, size_t *number, PJRT_Device *device) {
  PJRT_Device_AddressableMemories_Args of = {PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, NULL, device, NULL, 0};
  void *error = adapt_ask(adapt, PJRT_FUNCTION_Device_AddressableMemories, &of);
  if (error != NULL) return error;
  client_list *longer = realloc(*list, sizeof **list + (*number + of.num_memories) * sizeof *(*list)->memories);
  if (longer == NULL) return pjrt_make_error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory is left");
  *list = longer;
  for (size_t i = 0; i < of.num_memories; i++) {
    bool listed = false;
    for (size_t k = 0; k < *number && !listed; k++) listed = longer->memories[k] == of.memories[i];
    if (!listed) longer->memories[(*number)++] = of.memories[i];
  }
  return NULL;
}

void *adapt_memories_of_client(adapt *adapt, PJRT_Client_AddressableMemories_Args *args, PJRT_Device *const *devices,
                               size_t num_devices) {
  client_list *list = NULL;
  size_t number = 0;
  void *error = NULL;
  for (size_t i = 0; i < num_devices && error == NULL; i++) error = add_memories(adapt, &list, &number, devices[i]);
  args->addressable_memories = error == NULL && list != NULL ? list->memories : NULL;
  args->num_addressable_memories = error == NULL ? number : 0;
  if (error != NULL || list == NULL) {
    free(list);
    return error;
  }
  list->client = args->client;
  pjrt_mutex_lock(&mutex);
  list->next = lists;
  lists = list;
  pjrt_mutex_unlock(&mutex);
  return NULL;
}

void adapt_forget_client(const PJRT_Client *client, PJRT_Device *const *devices, size_t num_devices) {
  pjrt_mutex_lock(&mutex);
  for (client_list **link = &lists; *link != NULL;) {
    client_list *one = *link;
    if (one->client == client) {
      *link = one->next;
      free(one);
    } else {
      link = &one->next;
    }
  }
  pjrt_mutex_unlock(&mutex);
  for (size_t i = 0; i < num_devices; i++) {
    own_memory ended = {.device = NULL};
    pjrt_mutex_lock(&mutex);
    for (int k = 0; k < NUM_MEMORIES; k++) {
      if (devices[i] == NULL || memories[k].device != devices[i]) continue;
      ended = memories[k];
      memset(&memories[k], 0, sizeof memories[k]);
    }
    pjrt_mutex_unlock(&mutex);
    for (int k = 0; k < NUM_DATA; k++)
      if (ended.data[k].end != NULL) ended.data[k].end(ended.data[k].data);
  }
}

void *adapt_output_kinds(PJRT_Executable_OutputMemoryKinds_Args *args, size_t num_outputs) {
  if (num_outputs > NUM_KINDS)
    return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED, "the plugin lacks PJRT_Executable_OutputMemoryKinds, and adapt "
                           "makes it for at most %d outputs, not %zu", NUM_KINDS, num_outputs);
  pjrt_mutex_lock(&mutex);
  for (size_t i = 0; i < NUM_KINDS && kinds[i] == NULL; i++) {
    kinds[i] = ADAPT_MEMORY_KIND;
    kind_sizes[i] = sizeof ADAPT_MEMORY_KIND - 1;
  }
  pjrt_mutex_unlock(&mutex);
  args->num_outputs = num_outputs;
  args->memory_kinds = kinds;
  args->memory_kind_sizes = kind_sizes;
  return NULL;
}

int adapt_kind_id(const char *kind, size_t size) { /* FNV-1a, in what an int holds */
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < size; i++) hash = (hash ^ (unsigned char)kind[i]) * 16777619u;
  return (int)(hash & 0x7fffffff);
}

/* ---- calls with a memory of the layer's own ----------------------------------------------------------------------------*/
static void *about_memory(int function, void *untyped, own_memory *own) {
  switch (function) {
    case PJRT_FUNCTION_Memory_Id:
      ((PJRT_Memory_Id_Args *)untyped)->id = own->id;
      return NULL;
    case PJRT_FUNCTION_Memory_Kind_Id:
      ((PJRT_Memory_Kind_Id_Args *)untyped)->kind_id = adapt_kind_id(ADAPT_MEMORY_KIND, sizeof ADAPT_MEMORY_KIND - 1);
      return NULL;
    case PJRT_FUNCTION_Memory_Kind: {
      PJRT_Memory_Kind_Args *args = untyped;
      args->kind = ADAPT_MEMORY_KIND;
      args->kind_size = sizeof ADAPT_MEMORY_KIND - 1;
      return NULL;
    }
    case PJRT_FUNCTION_Memory_DebugString: {
      PJRT_Memory_DebugString_Args *args = untyped;
      args->debug_string = ADAPT_MEMORY_KIND;
      args->debug_string_size = sizeof ADAPT_MEMORY_KIND - 1;
      return NULL;
    }
    case PJRT_FUNCTION_Memory_ToString: {
      PJRT_Memory_ToString_Args *args = untyped;
      args->to_string = ADAPT_MEMORY_KIND;
      args->to_string_size = sizeof ADAPT_MEMORY_KIND - 1;
      return NULL;
    }
    case PJRT_FUNCTION_Memory_AddressableByDevices: {
      PJRT_Memory_AddressableByDevices_Args *args = untyped;
      args->devices = &own->device;
      args->num_devices = 1;
      return NULL;
    }
    default:
      return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED,
                             "%s takes a memory, and the plugin has none: adapt made the one that was given",
                             pjrt_functions[function].name);
  }
}

void *adapt_call_with_own_memory(adapt *adapt, pjrt_frame *frame, void *args, PJRT_Memory *memory) {
  own_memory *own = (own_memory *)memory;
  if (frame->index == PJRT_FUNCTION_Buffer_CopyToMemory) {
    PJRT_Buffer_CopyToMemory_Args *copy = args;
    PJRT_Buffer_CopyToDevice_Args to = {PJRT_Buffer_CopyToDevice_Args_STRUCT_SIZE, NULL, copy->buffer, own->device};
    void *error = adapt_ask(adapt, PJRT_FUNCTION_Buffer_CopyToDevice, &to);
    copy->dst_buffer = to.dst_buffer;
    return error;
  }
  const int place = adapt->device_field[frame->index];
  if (place < 0) return about_memory(frame->index, args, own);
  PJRT_Memory **memory_place = (PJRT_Memory **)((char *)args + adapt_field(frame, adapt->memory_field)->offset);
  PJRT_Device **device_place = (PJRT_Device **)((char *)args + adapt_field(frame, adapt->device_field)->offset);
  PJRT_Device *device = *device_place;
  *memory_place = NULL;
  *device_place = own->device;
  void *result = adapt->stack->plugin_functions[frame->index] != NULL ? pjrt_next(frame, args)
                                                                      : adapt_missing(adapt, frame->index, args);
  *memory_place = memory;
  *device_place = device;
  return result;
}
