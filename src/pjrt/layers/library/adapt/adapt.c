/* The layer adapt: fills what a plugin of another version lacks, so that a framework gets results or errors instead of
 * null pointers, garbage and refusals. */
#include "adapt.h"

#include <stdio.h>
#include <stdlib.h>

#include "errors.h"

enum { OWN_FUNCTIONS = 114 /* the minor version since which handles of errors and memories are structs */ };

static const char *const keys[] = {"version", "log", NULL};

void adapt_destroy_error(adapt *adapt, PJRT_Error *error) {
  PJRT_Error_Destroy_Args args = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  void *nothing;
  if (pjrt_is_layer_error(error)) pjrt_call_layer_error(PJRT_FUNCTION_Error_Destroy, &args);
  else if (error != NULL) pjrt_call_below(adapt->stack, PJRT_FUNCTION_Error_Destroy, &args, &nothing);
}

static void note(adapt *adapt, int function, const char *what) {
  if (adapt->log && !atomic_exchange(&adapt->logged[function], true))
    fprintf(stderr, "pjrt: adapt: %s: %s %s\n", adapt->stack->name, pjrt_functions[function].name, what);
}

void *adapt_missing(adapt *adapt, int function, void *args) {
  const adapt_substitute substitute = adapt_substitutes[function];
  if (substitute != NULL) {
    note(adapt, function, "is missing, and made of others");
    return substitute(adapt, function, args);
  }
  note(adapt, function, "is missing, and returns an error");
  pjrt_clear_outputs(pjrt_functions[function].args, args);
  return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED, "the plugin %s, of version 0.%d of the C API, lacks %s",
                         adapt->stack->name, adapt->stack->plugin->pjrt_api_version.minor_version,
                         pjrt_functions[function].name);
}

/* The result of a function that the plugin has; a stub that only says so counts as none. */
static void *unless_stub(adapt *adapt, int function, void *args, void *result) {
  if (result == NULL || adapt_substitutes[function] == NULL || pjrt_takes_error(function)) return result;
  if (pjrt_error_code(adapt->stack, result) != PJRT_Error_Code_UNIMPLEMENTED) return result;
  adapt_destroy_error(adapt, result);
  note(adapt, function, "is not implemented, and made of others");
  return adapt_substitutes[function](adapt, function, args);
}

void *adapt_ask(adapt *adapt, int function, void *args) {
  void *result = NULL;
  if (!pjrt_call_below(adapt->stack, function, args, &result)) return adapt_missing(adapt, function, args);
  return unless_stub(adapt, function, args, result);
}

void *pjrt_call_missing(pjrt_stack *stack, int function, void *args) {
  for (int i = 0; i < stack->num_layers; i++)
    if (stack->layers[i].layer == &pjrt_layer_adapt) return adapt_missing(stack->layers[i].state, function, args);
  return NULL; /* never: only this layer fills slots that the plugin leaves empty */
}

static void *destroy_client(adapt *adapt, pjrt_frame *frame, void *untyped) {
  PJRT_Client_Destroy_Args *args = untyped;
  PJRT_Client_Devices_Args of = {PJRT_Client_Devices_Args_STRUCT_SIZE, NULL, args->client};
  PJRT_Device **devices = NULL;
  size_t number = 0;
  void *error = args->client != NULL ? adapt_ask(adapt, PJRT_FUNCTION_Client_Devices, &of) : NULL;
  if (error == NULL && of.num_devices > 0 && (devices = malloc(of.num_devices * sizeof *devices)) != NULL) {
    number = of.num_devices;
    memcpy(devices, of.devices, number * sizeof *devices);
  }
  adapt_destroy_error(adapt, error);
  void *result = adapt->stack->plugin_functions[frame->index] != NULL
                     ? unless_stub(adapt, frame->index, args, pjrt_next(frame, args))
                     : adapt_missing(adapt, frame->index, args);
  if (result == NULL && args->client != NULL) adapt_forget_client(args->client, devices, number);
  free(devices);
  return result;
}

/* The plugin must not see a context that it did not make. */
static void *execute(adapt *adapt, pjrt_frame *frame, PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_ExecuteOptions *options = args->options;
  if (options == NULL || options->struct_size < offsetof(PJRT_ExecuteOptions, context) + sizeof options->context)
    return adapt_call_resized(adapt, frame, args);
  PJRT_ExecuteContext *context = options->context;
  options->context = NULL;
  void *result = adapt_call_resized(adapt, frame, args);
  options->context = context;
  return result;
}

static void *call(void *state, pjrt_frame *frame, void *args) {
  adapt *adapt = state;
  const int index = frame->index;
  if (args == NULL || pjrt_has_layer_error(index, args)) return pjrt_next(frame, args);
  if ((index == PJRT_FUNCTION_ExecuteContext_Destroy || index == PJRT_FUNCTION_FFI_UserData_Add) &&
      atomic_load(&adapt->own_contexts))
    return adapt_substitutes[index](adapt, index, args);
  if (adapt->memory_field[index] >= 0) {
    const pjrt_field *field = adapt_field(frame, adapt->memory_field);
    if (pjrt_has_field(frame->function->args, field, args)) {
      PJRT_Memory *memory = pjrt_pointer_in(field, args);
      if (adapt_is_own_memory(memory)) return adapt_call_with_own_memory(adapt, frame, args, memory);
    }
  }
  if (index == PJRT_FUNCTION_Client_Destroy) return destroy_client(adapt, frame, args);
  if (adapt->stack->plugin_functions[index] == NULL) return adapt_missing(adapt, index, args);
  if (index == PJRT_FUNCTION_LoadedExecutable_Execute && atomic_load(&adapt->own_contexts))
    return execute(adapt, frame, args);
  void *result = adapt->grew[index] ? adapt_call_resized(adapt, frame, args) : pjrt_next(frame, args);
  return unless_stub(adapt, index, args, result);
}

/* ---- the layer ----------------------------------------------------------------------------------------------------*/
static bool has_later(const pjrt_struct *type) {
  for (int i = 0; i < type->num_fields; i++)
    if (type->fields[i].marks & PJRT_MARK_LATER) return true;
  return false;
}

static void describe_functions(adapt *adapt) {
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const pjrt_struct *type = pjrt_functions[i].args;
    adapt->memory_field[i] = adapt->device_field[i] = adapt->nested_field[i] = -1;
    adapt->grew[i] = type->sized && has_later(type);
    for (int k = 0; k < type->num_fields; k++) {
      const pjrt_field *field = &type->fields[k];
      if (field->direction != PJRT_IN) continue;
      if (field->kind == PJRT_KIND_HANDLE && field->type == PJRT_HANDLE_Memory) adapt->memory_field[i] = (int8_t)k;
      if (field->kind == PJRT_KIND_HANDLE && field->type == PJRT_HANDLE_Device) adapt->device_field[i] = (int8_t)k;
      if (field->kind != PJRT_KIND_STRUCT || !pjrt_structs[field->type].sized) continue;
      if (!has_later(&pjrt_structs[field->type])) continue;
      adapt->nested_field[i] = (int8_t)k;
      adapt->grew[i] = true;
    }
  }
}

/* The version that the table states instead of the plugin's, so that a framework uses all that it knows. */
static bool read_version(const char *options, PJRT_Api *table, char *problem, size_t problem_size) {
  char text[32];
  int minor = -1, end = 0;
  if (!pjrt_option(options, "version", text, sizeof text)) return true;
  if (sscanf(text, "0.%d%n", &minor, &end) != 1 || text[end] != 0 || minor < 0) {
    snprintf(problem, problem_size, "adapt: expected version=0.N, such as version=0.%d; found version=%s", PJRT_API_MINOR,
             text);
    return false;
  }
  if (minor >= OWN_FUNCTIONS && table->pjrt_api_version.minor_version < OWN_FUNCTIONS) {
    snprintf(problem, problem_size, "adapt: expected version=0.%d at most for a plugin of version 0.%d, found version=%s: "
             "since 0.%d errors and memories carry functions of their own, and the plugin's do not", OWN_FUNCTIONS - 1,
             table->pjrt_api_version.minor_version, text, OWN_FUNCTIONS);
    return false;
  }
  table->pjrt_api_version.minor_version = minor;
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const size_t last = pjrt_functions[i].offset + sizeof(pjrt_slot);
    if (pjrt_functions[i].extension < 0 && pjrt_functions[i].minor <= minor && table->struct_size < last)
      table->struct_size = last;
  }
  return true;
}

static void *open_layer(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  char text[64];
  if (pjrt_unknown_option(options, keys, text, sizeof text)) {
    snprintf(problem, problem_size, "adapt: expected the options version and log, found '%s'", text);
    return NULL;
  }
  if (stack->plugin->pjrt_api_version.major_version != PJRT_API_MAJOR) {
    snprintf(problem, problem_size, "adapt: expected a plugin of version %d of the C API, found version %d.%d: its structs "
             "are others", PJRT_API_MAJOR, stack->plugin->pjrt_api_version.major_version,
             stack->plugin->pjrt_api_version.minor_version);
    return NULL;
  }
  if (!read_version(options, stack->table, problem, problem_size)) return NULL;
  adapt *adapt = calloc(1, sizeof *adapt);
  if (adapt == NULL) {
    snprintf(problem, problem_size, "adapt: no memory is left");
    return NULL;
  }
  adapt->stack = stack;
  adapt->log = pjrt_option(options, "log", text, sizeof text) && strcmp(text, "0") != 0;
  describe_functions(adapt);
  /* Before 0.45 the structs of extensions had no size, and began with their number: nobody can read them now. */
  if (stack->plugin->pjrt_api_version.minor_version < 45) stack->table->extension_start = NULL, stack->num_extensions = 0;
  pjrt_fill_slots(stack);
  return adapt;
}

const pjrt_layer pjrt_layer_adapt = {.name = "adapt", .open = open_layer, .call = call};
