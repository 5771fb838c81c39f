/* The handles that the inject layer remembers: their clients, and the rules that decide when they are ready. */
#include <stdlib.h>
#include <string.h>

#include "inject.h"

static size_t bucket_of(const void *handle) {
  uint64_t number = (uintptr_t)handle;
  number = (number >> 4) * 0x9e3779b97f4a7c15u;
  return number >> 52; /* as many bits as there are buckets */
}

_Static_assert(INJECT_BUCKETS == 1 << 12, "bucket_of keeps twelve bits");

inject_object *inject_find(inject *inject, const void *handle) {
  inject_object *object = inject->buckets[bucket_of(handle)];
  while (object != NULL && object->handle != handle) object = object->next;
  return object;
}

static void free_object(inject_object *object) {
  inject_give_back(object);
  object->gone = true;
  if (object->waiting > 0) return; /* the last one who waits frees it */
  free(object->program);
  free(object);
}

static void forget(inject *inject, const void *handle) {
  for (inject_object **link = &inject->buckets[bucket_of(handle)]; *link != NULL; link = &(*link)->next) {
    inject_object *object = *link;
    if (object->handle != handle) continue;
    *link = object->next;
    free_object(object);
    return;
  }
}

static bool has_readiness(int kind) {
  return kind == PJRT_HANDLE_Event || kind == PJRT_HANDLE_Buffer || kind == PJRT_HANDLE_RawBuffer ||
         kind == PJRT_HANDLE_AsyncHostToDeviceTransferManager;
}

bool inject_makes_ready(int function) {
  const pjrt_struct *type = pjrt_functions[function].args;
  for (int i = 0; i < type->num_fields; i++) {
    if ((type->fields[i].marks & PJRT_MARK_CREATES) && has_readiness(type->fields[i].type)) return true;
  }
  return false;
}

/* ---- arguments ----------------------------------------------------------------------------------------------------*/
void *inject_client_of(inject *inject, const pjrt_frame *frame, const void *args, int64_t *number) {
  const int field = frame->function->handle;
  *number = -1;
  if (frame->index == PJRT_FUNCTION_Client_Create) *number = inject->num_clients; /* which it is going to have */
  if (field < 0) return NULL;
  void *handle = pjrt_pointer_in(&frame->function->args->fields[field], args), *client = NULL;
  pjrt_mutex_lock(&inject->mutex);
  const inject_object *object = handle != NULL ? inject_find(inject, handle) : NULL;
  if (object != NULL) client = object->client;
  const inject_object *owner = client != NULL ? inject_find(inject, client) : NULL;
  if (owner != NULL) *number = owner->number;
  pjrt_mutex_unlock(&inject->mutex);
  return client;
}

static const inject_rule *rule_of(inject *inject, const void *handle) {
  const inject_object *object = handle != NULL ? inject_find(inject, handle) : NULL;
  return object != NULL && object->kind != PJRT_HANDLE_Event ? object->rule : NULL;
}

const inject_rule *inject_inherited(inject *inject, const pjrt_frame *frame, const void *args) {
  const inject_rule *rule = NULL;
  if (!inject_makes_ready(frame->index)) return NULL;
  pjrt_mutex_lock(&inject->mutex);
  if (frame->index == PJRT_FUNCTION_LoadedExecutable_Execute) {
    for (size_t device = 0; device < INJECT_ARG(LoadedExecutable_Execute, num_devices); device++)
      for (size_t i = 0; rule == NULL && i < INJECT_ARG(LoadedExecutable_Execute, num_args); i++)
        rule = rule_of(inject, INJECT_ARG(LoadedExecutable_Execute, argument_lists)[device][i]);
  } else if (frame->function->handle >= 0) {
    const pjrt_field *field = &frame->function->args->fields[frame->function->handle];
    rule = rule_of(inject, pjrt_pointer_in(field, args));
  }
  pjrt_mutex_unlock(&inject->mutex);
  return rule;
}

/* ---- results ------------------------------------------------------------------------------------------------------*/
typedef struct note {
  inject *inject;
  const pjrt_field *field;
  void *client;
  const inject_rule *rule;
} note;

static void note_handle(const note *note, void *handle) {
  inject *inject = note->inject;
  const int16_t kind = note->field->type;
  const bool is_new = (note->field->marks & PJRT_MARK_CREATES) != 0;
  if (handle == NULL) return;
  if (is_new) forget(inject, handle); /* of an object that was here before, whose end nobody saw */
  inject_object *object = inject_find(inject, handle);
  if (object == NULL) {
    object = calloc(1, sizeof *object);
    if (object == NULL) return;
    object->handle = handle;
    object->kind = kind;
    object->number = -1;
    object->next = inject->buckets[bucket_of(handle)];
    inject->buckets[bucket_of(handle)] = object;
  }
  object->client = kind == PJRT_HANDLE_Client ? handle : note->client;
  if (kind == PJRT_HANDLE_Client && is_new) object->number = inject->num_clients++;
  if (is_new && has_readiness(kind)) object->rule = note->rule;
}

static void note_outputs(const note *note, const void *args, size_t num_outputs) {
  PJRT_Buffer **const *lists = INJECT_ARG(LoadedExecutable_Execute, output_lists);
  for (size_t device = 0; lists != NULL && device < INJECT_ARG(LoadedExecutable_Execute, num_devices); device++)
    for (size_t i = 0; i < num_outputs; i++) note_handle(note, lists[device][i]);
}

static size_t count_of(const pjrt_struct *type, const pjrt_field *field, const void *args) {
  if (field->count < 0) return 0;
  const pjrt_field *count = &type->fields[field->count];
  if (count->direction == PJRT_OUT && !pjrt_has_field(type, count, args)) return 0;
  return (size_t)pjrt_integer_at(pjrt_field_at(count, args), count->size, true);
}

void inject_note_results(inject *inject, const pjrt_frame *frame, void *args, void *client, const inject_rule *rule) {
  const pjrt_struct *type = frame->function->args;
  size_t num_outputs = 0;
  if (frame->index == PJRT_FUNCTION_LoadedExecutable_Execute)
    num_outputs = inject_program_of(inject, INJECT_ARG(LoadedExecutable_Execute, executable)).num_outputs;
  pjrt_mutex_lock(&inject->mutex);
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    const bool returned = field->direction == PJRT_OUT || (field->marks & PJRT_MARK_FILLS);
    if (!returned || !pjrt_has_field(type, field, args)) continue;
    const note note = {inject, field, client, rule};
    if (field->kind == PJRT_KIND_HANDLE) {
      note_handle(&note, pjrt_pointer_in(field, args));
    } else if (field->kind == PJRT_KIND_ARRAY && field->element == PJRT_KIND_HANDLE) {
      void *const *handles = *(void *const *const *)pjrt_field_at(field, args);
      for (size_t i = 0; handles != NULL && i < count_of(type, field, args); i++) note_handle(&note, handles[i]);
    } else if (field->kind == PJRT_KIND_LISTS && frame->index == PJRT_FUNCTION_LoadedExecutable_Execute) {
      note_outputs(&note, args, num_outputs);
    }
  }
  unsigned char *memory;
  const size_t size = inject_host_memory(frame->index, args, &memory);
  if (rule != NULL && rule->fate == INJECT_FLIPPED && size > 0) {
    for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
      if (field->kind != PJRT_KIND_HANDLE || field->type != PJRT_HANDLE_Event || field->direction != PJRT_OUT) continue;
      inject_object *event = inject_find(inject, pjrt_pointer_in(field, args));
      if (event == NULL) continue;
      event->flipped = memory + rule->bit / 8 % size;
      event->mask = (unsigned char)(1u << rule->bit % 8);
    }
  }
  pjrt_mutex_unlock(&inject->mutex);
}

void inject_forget_destroyed(inject *inject, const pjrt_frame *frame, const void *args) {
  const pjrt_struct *type = frame->function->args;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->kind != PJRT_KIND_HANDLE || !(field->marks & (PJRT_MARK_DESTROYS | PJRT_MARK_CONSUMES))) continue;
    if (field->type == PJRT_HANDLE_Client || !pjrt_has_field(type, field, args)) continue;
    const void *handle = pjrt_pointer_in(field, args);
    if (handle == NULL) continue;
    if (field->type == PJRT_HANDLE_Event) inject_end_event(inject, handle);
    pjrt_mutex_lock(&inject->mutex);
    forget(inject, handle);
    pjrt_mutex_unlock(&inject->mutex);
  }
}

void inject_forget_client(inject *inject, const void *client) {
  pjrt_mutex_lock(&inject->mutex);
  for (int i = 0; i < INJECT_BUCKETS; i++) {
    for (inject_object **link = &inject->buckets[i]; *link != NULL;) {
      inject_object *object = *link;
      if (object->client != client || object->ended) { /* what has ended stays so until it is destroyed */
        link = &object->next;
        continue;
      }
      *link = object->next;
      free_object(object);
    }
  }
  pjrt_mutex_unlock(&inject->mutex);
}

/* ---- programs -----------------------------------------------------------------------------------------------------*/
static uint64_t bytes_of_outputs(inject *inject, PJRT_Executable *executable) {
  PJRT_Executable_OutputElementTypes_Args types = {PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE, NULL,
                                                   executable, NULL, 0};
  PJRT_Executable_OutputDimensions_Args shapes = {PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE, NULL, executable,
                                                  0, NULL, NULL};
  uint64_t bytes = 0;
  if (!inject_succeeds(inject, PJRT_FUNCTION_Executable_OutputElementTypes, &types) ||
      !inject_succeeds(inject, PJRT_FUNCTION_Executable_OutputDimensions, &shapes))
    return 0;
  const int64_t *dims = shapes.dims;
  for (size_t i = 0; i < types.num_output_types && i < shapes.num_outputs; i++) {
    bytes += inject_bytes_of(types.output_types[i], dims, shapes.dim_sizes[i]);
    dims += shapes.dim_sizes[i];
  }
  return bytes;
}

static inject_program read_program(inject *inject, PJRT_LoadedExecutable *loaded) {
  inject_program program = {0, 0, 0, NULL};
  PJRT_LoadedExecutable_GetExecutable_Args get = {PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE, NULL, loaded,
                                                  NULL};
  PJRT_LoadedExecutable_AddressableDevices_Args devices = {
      PJRT_LoadedExecutable_AddressableDevices_Args_STRUCT_SIZE, NULL, loaded, NULL, 0};
  if (!inject_succeeds(inject, PJRT_FUNCTION_LoadedExecutable_GetExecutable, &get)) return program;
  PJRT_Executable_NumOutputs_Args outputs = {PJRT_Executable_NumOutputs_Args_STRUCT_SIZE, NULL, get.executable, 0};
  if (inject_succeeds(inject, PJRT_FUNCTION_Executable_NumOutputs, &outputs)) program.num_outputs = outputs.num_outputs;
  if (atomic_load(&inject->plan)->limits_memory) {
    PJRT_Executable_GetCompiledMemoryStats_Args stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE;
    stats.executable = get.executable;
    program.bytes = bytes_of_outputs(inject, get.executable);
    if (inject_succeeds(inject, PJRT_FUNCTION_Executable_GetCompiledMemoryStats, &stats)) {
      const uint64_t reused = stats.alias_size_in_bytes > 0 ? (uint64_t)stats.alias_size_in_bytes : 0;
      program.bytes -= reused < program.bytes ? reused : program.bytes;
      if (stats.temp_size_in_bytes > 0) program.bytes += (uint64_t)stats.temp_size_in_bytes;
    }
    if (inject_succeeds(inject, PJRT_FUNCTION_LoadedExecutable_AddressableDevices, &devices)) {
      program.num_devices = devices.num_addressable_devices;
      program.devices = devices.addressable_devices;
    }
  }
  PJRT_Executable_Destroy_Args destroy = {PJRT_Executable_Destroy_Args_STRUCT_SIZE, NULL, get.executable};
  inject_succeeds(inject, PJRT_FUNCTION_Executable_Destroy, &destroy);
  return program;
}

inject_program inject_program_of(inject *inject, PJRT_LoadedExecutable *executable) {
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, executable);
  inject_program program = {0, 0, 0, NULL};
  const bool has_program = object != NULL && object->program != NULL;
  if (has_program) program = *object->program;
  pjrt_mutex_unlock(&inject->mutex);
  if (has_program) return program;
  program = read_program(inject, executable);
  inject_program *copy = malloc(sizeof *copy);
  pjrt_mutex_lock(&inject->mutex);
  object = inject_find(inject, executable);
  if (copy != NULL && object != NULL && object->program == NULL) {
    *copy = program;
    object->program = copy;
    copy = NULL;
  }
  pjrt_mutex_unlock(&inject->mutex);
  free(copy);
  return program;
}
