/* Memory that is full: the bytes of buffers in the default memory of each device, and calls that would need more. */
#include <stdlib.h>

#include "inject.h"

#define F(name) PJRT_FUNCTION_##name

typedef struct inject_space {
  PJRT_Memory *memory;
  uint64_t used; /* bytes */
  struct inject_space *next;
} inject_space;

typedef struct need {
  inject_space *space;
  uint64_t bytes;
} need;

enum { MAX_NEEDS = 64 };

bool inject_concerns_memory(int function) {
  switch (function) {
    case F(Client_BufferFromHostBuffer):
    case F(Client_CreateUninitializedBuffer):
    case F(Client_CreateBuffersForAsyncHostToDevice):
    case F(AsyncHostToDeviceTransferManager_RetrieveBuffer):
    case F(Buffer_CopyToDevice):
    case F(Buffer_CopyToMemory):
    case F(Buffer_Delete):
    case F(Buffer_DonateWithControlDependency):
    case F(LoadedExecutable_Execute): return true;
    default: return false;
  }
}

uint64_t inject_bytes_of(PJRT_Buffer_Type type, const int64_t *dims, size_t num_dims) {
  uint64_t number = 1, bits;
  for (size_t i = 0; i < num_dims; i++) number *= dims[i] > 0 ? (uint64_t)dims[i] : 0;
  switch (type) {
    case PJRT_Buffer_Type_INVALID:
    case PJRT_Buffer_Type_TOKEN: bits = 0; break;
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16: bits = 16; break;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_F32: bits = 32; break;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64: bits = 64; break;
    case PJRT_Buffer_Type_C128: bits = 128; break;
    case PJRT_Buffer_Type_S4:
    case PJRT_Buffer_Type_U4:
    case PJRT_Buffer_Type_F4E2M1FN: bits = 4; break;
    case PJRT_Buffer_Type_S2:
    case PJRT_Buffer_Type_U2: bits = 2; break;
    case PJRT_Buffer_Type_S1:
    case PJRT_Buffer_Type_U1: bits = 1; break;
    default: bits = 8; break;
  }
  return (number * bits + 7) / 8;
}

/* ---- memories -----------------------------------------------------------------------------------------------------*/
static PJRT_Memory *default_memory(inject *inject, PJRT_Device *device) {
  PJRT_Device_DefaultMemory_Args args = {PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, NULL, device, NULL};
  return inject_succeeds(inject, F(Device_DefaultMemory), &args) ? args.memory : NULL;
}

static bool is_default(inject *inject, PJRT_Memory *memory) {
  PJRT_Memory_AddressableByDevices_Args args = {PJRT_Memory_AddressableByDevices_Args_STRUCT_SIZE, NULL, memory, NULL,
                                                0};
  if (!inject_succeeds(inject, F(Memory_AddressableByDevices), &args)) return false;
  for (size_t i = 0; i < args.num_devices; i++)
    if (default_memory(inject, args.devices[i]) == memory) return true;
  return false;
}

/* The space of a memory; null if it is not the default memory of a device. Spaces live as long as the process. */
static inject_space *space_of(inject *inject, PJRT_Memory *memory) {
  if (memory == NULL) return NULL;
  for (int tries = 0; tries < 2; tries++) {
    inject_space *made = NULL;
    if (tries == 1) {
      if (!is_default(inject, memory)) return NULL;
      made = calloc(1, sizeof *made);
    }
    pjrt_mutex_lock(&inject->mutex);
    inject_space *space = inject->spaces;
    while (space != NULL && space->memory != memory) space = space->next;
    if (space == NULL && made != NULL) {
      made->memory = memory;
      made->next = inject->spaces;
      inject->spaces = space = made;
      made = NULL;
    }
    pjrt_mutex_unlock(&inject->mutex);
    free(made);
    if (space != NULL) return space;
  }
  return NULL;
}

static inject_space *space_at(inject *inject, PJRT_Memory *memory, PJRT_Device *device) {
  if (memory == NULL && device != NULL) memory = default_memory(inject, device);
  return space_of(inject, memory);
}

static uint64_t size_of(inject *inject, PJRT_Buffer *buffer) {
  PJRT_Buffer_OnDeviceSizeInBytes_Args args = {PJRT_Buffer_OnDeviceSizeInBytes_Args_STRUCT_SIZE, NULL, buffer, 0};
  return inject_succeeds(inject, F(Buffer_OnDeviceSizeInBytes), &args) ? args.on_device_size_in_bytes : 0;
}

/* ---- before a call ------------------------------------------------------------------------------------------------*/
static size_t needs_of_execution(inject *inject, const PJRT_LoadedExecutable_Execute_Args *args, need *needs) {
  const inject_program program = inject_program_of(inject, args->executable);
  const size_t number = args->execute_device != NULL ? 1 : program.num_devices;
  size_t i = 0;
  for (; i < number && i < MAX_NEEDS; i++) {
    PJRT_Device *device = args->execute_device != NULL ? args->execute_device : program.devices[i];
    needs[i] = (need){space_at(inject, NULL, device), program.bytes};
  }
  return i;
}

static size_t needs_of(inject *inject, const pjrt_frame *frame, const void *args, need *needs) {
  switch (frame->index) {
    case F(Client_BufferFromHostBuffer):
      *needs = (need){space_at(inject, INJECT_ARG(Client_BufferFromHostBuffer, memory),
                               INJECT_ARG(Client_BufferFromHostBuffer, device)),
                      inject_bytes_of(INJECT_ARG(Client_BufferFromHostBuffer, type),
                                      INJECT_ARG(Client_BufferFromHostBuffer, dims),
                                      INJECT_ARG(Client_BufferFromHostBuffer, num_dims))};
      return 1;
    case F(Client_CreateUninitializedBuffer):
      *needs = (need){space_at(inject, INJECT_ARG(Client_CreateUninitializedBuffer, memory),
                               INJECT_ARG(Client_CreateUninitializedBuffer, device)),
                      inject_bytes_of(INJECT_ARG(Client_CreateUninitializedBuffer, shape_element_type),
                                      INJECT_ARG(Client_CreateUninitializedBuffer, shape_dims),
                                      INJECT_ARG(Client_CreateUninitializedBuffer, shape_num_dims))};
      return 1;
    case F(Client_CreateBuffersForAsyncHostToDevice):
      *needs = (need){space_at(inject, INJECT_ARG(Client_CreateBuffersForAsyncHostToDevice, memory), NULL), 0};
      for (size_t i = 0; i < INJECT_ARG(Client_CreateBuffersForAsyncHostToDevice, num_shape_specs); i++) {
        const PJRT_ShapeSpec *spec = &INJECT_ARG(Client_CreateBuffersForAsyncHostToDevice, shape_specs)[i];
        needs->bytes += inject_bytes_of(spec->element_type, spec->dims, spec->num_dims);
      }
      return 1;
    case F(Buffer_CopyToDevice):
      *needs = (need){space_at(inject, NULL, INJECT_ARG(Buffer_CopyToDevice, dst_device)),
                      size_of(inject, INJECT_ARG(Buffer_CopyToDevice, buffer))};
      return 1;
    case F(Buffer_CopyToMemory):
      *needs = (need){space_at(inject, INJECT_ARG(Buffer_CopyToMemory, dst_memory), NULL),
                      size_of(inject, INJECT_ARG(Buffer_CopyToMemory, buffer))};
      return 1;
    case F(LoadedExecutable_Execute): return needs_of_execution(inject, args, needs);
    default: return 0;
  }
}

PJRT_Error *inject_check_memory(inject *inject, const inject_plan *plan, const pjrt_frame *frame, const void *args, int64_t client) {
  need needs[MAX_NEEDS];
  const size_t num_needs = needs_of(inject, frame, args, needs);
  for (int i = 0; i < plan->num_rules && num_needs > 0; i++) {
    inject_rule *rule = &plan->rules[i];
    if (!rule->limits_memory || !inject_concerns(rule, client)) continue;
    atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed);
    for (size_t k = 0; k < num_needs; k++) {
      if (needs[k].space == NULL || needs[k].bytes == 0) continue;
      pjrt_mutex_lock(&inject->mutex);
      const uint64_t used = needs[k].space->used;
      pjrt_mutex_unlock(&inject->mutex);
      if (needs[k].bytes <= rule->limit && used <= rule->limit - needs[k].bytes) continue;
      atomic_fetch_add_explicit(&rule->hits, 1, memory_order_relaxed);
      if (rule->message[0]) return pjrt_make_error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "%s", rule->message);
      return pjrt_make_error(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                             "out of memory: %s needs %llu bytes, and %llu of %llu are in use (injected by rule %d, %s)",
                             frame->function->name, (unsigned long long)needs[k].bytes, (unsigned long long)used,
                             (unsigned long long)rule->limit, rule->number, rule->text);
    }
  }
  return NULL;
}

/* ---- after a call -------------------------------------------------------------------------------------------------*/
void inject_give_back(inject_object *object) {
  if (object->space != NULL) object->space->used -= object->bytes;
  object->space = NULL;
}

static void give_back(inject *inject, PJRT_Buffer *buffer) {
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, buffer);
  if (object != NULL) inject_give_back(object);
  pjrt_mutex_unlock(&inject->mutex);
}

static void give_back_if_deleted(inject *inject, PJRT_Buffer *buffer) {
  PJRT_Buffer_IsDeleted_Args args = {PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE, NULL, buffer, false};
  if (buffer != NULL && inject_succeeds(inject, F(Buffer_IsDeleted), &args) && args.is_deleted) give_back(inject, buffer);
}

static void count_buffer(inject *inject, PJRT_Buffer *buffer) {
  PJRT_Buffer_Memory_Args args = {PJRT_Buffer_Memory_Args_STRUCT_SIZE, NULL, buffer, NULL};
  if (buffer == NULL || !inject_succeeds(inject, F(Buffer_Memory), &args)) return;
  inject_space *space = space_of(inject, args.memory);
  const uint64_t bytes = space != NULL ? size_of(inject, buffer) : 0;
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, buffer);
  if (object != NULL && object->space == NULL && space != NULL) {
    object->space = space;
    object->bytes = bytes;
    space->used += bytes;
  }
  pjrt_mutex_unlock(&inject->mutex);
}

static void count_execution(inject *inject, const PJRT_LoadedExecutable_Execute_Args *args) {
  const size_t num_outputs = inject_program_of(inject, args->executable).num_outputs;
  for (size_t device = 0; device < args->num_devices; device++) {
    for (size_t i = 0; i < args->num_args; i++) give_back_if_deleted(inject, args->argument_lists[device][i]);
    for (size_t i = 0; args->output_lists != NULL && i < num_outputs; i++)
      count_buffer(inject, args->output_lists[device][i]);
  }
}

void inject_count_memory(inject *inject, const pjrt_frame *frame, const void *args) {
  switch (frame->index) {
    case F(Client_BufferFromHostBuffer): count_buffer(inject, INJECT_ARG(Client_BufferFromHostBuffer, buffer)); break;
    case F(Client_CreateUninitializedBuffer):
      count_buffer(inject, INJECT_ARG(Client_CreateUninitializedBuffer, buffer));
      break;
    case F(AsyncHostToDeviceTransferManager_RetrieveBuffer):
      count_buffer(inject, INJECT_ARG(AsyncHostToDeviceTransferManager_RetrieveBuffer, buffer_out));
      break;
    case F(Buffer_CopyToDevice): count_buffer(inject, INJECT_ARG(Buffer_CopyToDevice, dst_buffer)); break;
    case F(Buffer_CopyToMemory): count_buffer(inject, INJECT_ARG(Buffer_CopyToMemory, dst_buffer)); break;
    case F(Buffer_Delete): give_back(inject, INJECT_ARG(Buffer_Delete, buffer)); break;
    case F(Buffer_DonateWithControlDependency):
      give_back_if_deleted(inject, INJECT_ARG(Buffer_DonateWithControlDependency, buffer));
      count_buffer(inject, INJECT_ARG(Buffer_DonateWithControlDependency, out_buffer));
      break;
    case F(LoadedExecutable_Execute): count_execution(inject, args); break;
    default: break;
  }
}
