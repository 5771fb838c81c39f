/* The stacks of layers, and the wrapped tables that enter them.
 *
 * A function of a table gets nothing but its arguments, so each slot of each wrapped table needs a function of its own: a
 * trampoline that knows its stack and its number. There are so many of them that a process can wrap 128 tables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "callbacks.h"
#include "errors.h"
#include "layer.h"
#include "pjrt_support/inspection.h"
#include "pjrt_support/system.h"
#include "trampolines.h"

enum { MAX_TABLE_SIZE = 1 << 16, MAX_EXTENSIONS = 256, SPEC_SIZE = 8192 };

static pjrt_stack stacks[PJRT_MAX_STACKS];
static char specs[PJRT_MAX_STACKS][SPEC_SIZE]; /* layers and options of each stack, to find one again */
static bool moves_callbacks[PJRT_NUM_FUNCTIONS];
static _Atomic int num_stacks;
static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;

__attribute__((noinline, noclone)) static void *run(pjrt_stack *stack, int function, void *args) {
  pjrt_frame frame = {stack, &pjrt_functions[function], (uint16_t)function, -1, false, NULL};
  return pjrt_next(&frame, args);
}

static inline void *enter(pjrt_stack *stack, unsigned function, void *args) {
  if (atomic_load_explicit(&stack->enabled, memory_order_relaxed) != 0) return run(stack, function, args);
  if (pjrt_takes_error(function) && pjrt_has_layer_error(function, args)) return pjrt_call_layer_error(function, args);
  const pjrt_slot slot = stack->plugin_functions[function];
  return slot != NULL ? slot(args) : pjrt_call_missing(stack, function, args);
}

void *pjrt_call_plugin(pjrt_frame *frame, void *args) {
  const int function = frame->index;
  const pjrt_slot slot = frame->stack->plugin_functions[function];
  if (pjrt_has_layer_error(function, args)) return pjrt_call_layer_error(function, args);
  if (slot == NULL) return pjrt_call_missing(frame->stack, function, args);
  return moves_callbacks[function] ? pjrt_call_with_callbacks(frame, slot, args) : slot(args);
}

enum { SLOTS = 512 }; /* for each stack: a power of two, so that a number is taken apart in no time */
_Static_assert((int)PJRT_NUM_FUNCTIONS <= SLOTS, "there are more functions than trampolines of a stack");

__attribute__((used, visibility("hidden"))) void *pjrt_enter(void *args, unsigned number) {
  return enter(&stacks[number / SLOTS], number % SLOTS, args);
}

PJRT_DEFINE_TRAMPOLINES(pjrt_slots, PJRT_MAX_STACKS * SLOTS, pjrt_enter)

/* Tables. */

static bool of_profiler(const pjrt_function *function) {
  return function->result == PJRT_RESULT_PROFILER_ERROR || strncmp(function->name, "PLUGIN_", 7) == 0;
}

static void put_trampoline(const pjrt_stack *stack, int function, char *table) {
  const void *trampoline = PJRT_TRAMPOLINE(pjrt_slots, stack->index * SLOTS + function);
  memcpy(table + pjrt_functions[function].offset, &trampoline, sizeof trampoline);
}

/* Replaces the functions of one table or extension that it has, up to its size. */
static void wrap_slots(pjrt_stack *stack, int extension, bool profiler, char *table, size_t size) {
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const pjrt_function *function = &pjrt_functions[i];
    if (function->extension != extension || of_profiler(function) != profiler) continue;
    if (function->offset + sizeof(pjrt_slot) > size || stack->plugin_functions[i] != NULL) continue;
    pjrt_slot *slot = (pjrt_slot *)(table + function->offset);
    if (*slot == NULL) continue;
    stack->plugin_functions[i] = *slot;
    put_trampoline(stack, i, table);
  }
}

static bool is_extension_known(int type) {
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++)
    if (pjrt_functions[i].extension == type) return true;
  return false;
}

/* The size of an extension that has all functions that this package knows of it. */
static size_t known_size(int extension) {
  size_t size = 0;
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const size_t end = pjrt_functions[i].offset + sizeof(pjrt_slot);
    if (pjrt_functions[i].extension == extension && !of_profiler(&pjrt_functions[i]) && end > size) size = end;
  }
  return size;
}

static void fill_slots(pjrt_stack *stack, int extension, char *table, size_t size) {
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const pjrt_function *function = &pjrt_functions[i];
    if (function->extension != extension || of_profiler(function) || stack->plugin_functions[i] != NULL) continue;
    if (function->result != PJRT_RESULT_ERROR && function->result != PJRT_RESULT_NOTHING) continue;
    if (function->offset + sizeof(pjrt_slot) > size || pjrt_pointer_at(table + function->offset) == NULL)
      put_trampoline(stack, i, table);
  }
}

void pjrt_fill_slots(pjrt_stack *stack) {
  fill_slots(stack, -1, (char *)stack->table, stack->plugin->struct_size);
  PJRT_Extension_Base *one = stack->table->extension_start;
  for (int i = 0; i < stack->num_extensions; i++, one = one->next) {
    const size_t known = known_size(one->type);
    fill_slots(stack, one->type, (char *)one, one->struct_size);
    if (one->struct_size < known) one->struct_size = known;
  }
}

static void wrap_profiler(pjrt_stack *stack, PJRT_Profiler_Extension *extension) {
  PLUGIN_Profiler_Api *api = extension->profiler_api;
  if (extension->base.struct_size < offsetof(PJRT_Profiler_Extension, profiler_api) + sizeof api || api == NULL) return;
  if (api->struct_size < offsetof(PLUGIN_Profiler_Api, error_destroy) || api->struct_size > MAX_TABLE_SIZE) return;
  PLUGIN_Profiler_Api *copy = malloc(api->struct_size);
  if (copy == NULL) return;
  memcpy(copy, api, api->struct_size);
  wrap_slots(stack, PJRT_Extension_Type_Profiler, true, (char *)copy, copy->struct_size);
  extension->profiler_api = copy;
}

/* Copies the chain up to the last extension with functions that are wrapped; what follows stays the plugin's own. */
static PJRT_Extension_Base *wrap_extensions(pjrt_stack *stack, PJRT_Extension_Base *chain) {
  int number = 0, wrapped = 0;
  for (PJRT_Extension_Base *one = chain; one != NULL && number < MAX_EXTENSIONS; one = one->next) {
    if (one->struct_size < sizeof *one || one->struct_size > MAX_TABLE_SIZE) break; /* nobody can copy it */
    number++;
    if (is_extension_known(one->type)) wrapped = number;
  }
  PJRT_Extension_Base *first = chain, **link = &first;
  for (int i = 0; i < wrapped; i++) {
    PJRT_Extension_Base *one = *link;
    const size_t known = known_size(one->type); /* room for functions that it lacks */
    PJRT_Extension_Base *copy = calloc(1, one->struct_size > known ? one->struct_size : known);
    if (copy == NULL) break;
    memcpy(copy, one, one->struct_size);
    *link = copy;
    wrap_slots(stack, copy->type, false, (char *)copy, copy->struct_size);
    if (copy->type == PJRT_Extension_Type_Profiler) wrap_profiler(stack, (PJRT_Profiler_Extension *)copy);
    link = &copy->next;
    stack->num_extensions++;
  }
  return first;
}

/* Layers. */

static const pjrt_layer *find_layer(const char *name, size_t length) {
  for (size_t i = 0; i < pjrt_num_layers; i++)
    if (strlen(pjrt_layers[i]->name) == length && strncmp(pjrt_layers[i]->name, name, length) == 0) return pjrt_layers[i];
  return NULL;
}

static void list_layers(char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (size_t i = 0; i < pjrt_num_layers && used < size; i++)
    used += (size_t)snprintf(text + used, size - used, "%s%s", i ? ", " : "", pjrt_layers[i]->name);
}

/* The options of a layer: from its line in the text, or else from the environment. */
static void options_of(const pjrt_layer *layer, const char *options, char *value, size_t size) {
  const size_t length = strlen(layer->name);
  value[0] = 0;
  for (const char *line = options; line != NULL && *line;) {
    const size_t end = strcspn(line, "\n");
    if (strncmp(line, layer->name, length) == 0 && line[length] == '=') {
      const size_t found = end - length - 1 < size ? end - length - 1 : size - 1;
      memcpy(value, line + length + 1, found);
      value[found] = 0;
      return;
    }
    line += end + (line[end] == '\n');
  }
  char name[64] = "PJRT_";
  for (size_t i = 0; i <= length && i + 6 < sizeof name; i++) {
    const char letter = layer->name[i];
    name[5 + i] = letter >= 'a' && letter <= 'z' ? (char)(letter - 'a' + 'A') : letter;
  }
  const char *set = getenv(name);
  if (set != NULL) snprintf(value, size, "%s", set);
}

static bool open_layers(pjrt_stack *stack, const char *layers, const char *options, char *problem, size_t problem_size) {
  for (const char *name = layers; *name;) {
    const size_t length = strcspn(name, ",");
    const pjrt_layer *layer = find_layer(name, length);
    char text[SPEC_SIZE];
    if (length == 0) {
      name++;
      continue;
    }
    if (layer == NULL) {
      list_layers(text, sizeof text);
      snprintf(problem, problem_size, "there is no layer '%.*s'; the layers are: %s", (int)length, name, text);
      return false;
    }
    if (stack->num_layers == PJRT_MAX_LAYERS) {
      snprintf(problem, problem_size, "expected at most %d layers, found more", PJRT_MAX_LAYERS);
      return false;
    }
    options_of(layer, options, text, sizeof text);
    void *state = layer->open(stack, text, problem, problem_size);
    if (state == NULL) return false;
    stack->layers[stack->num_layers].layer = layer;
    stack->layers[stack->num_layers++].state = state;
    name += length + (name[length] == ',');
  }
  return true;
}

static void close_layers(pjrt_stack *stack) {
  for (int i = 0; i < stack->num_layers; i++) {
    const pjrt_layer *layer = stack->layers[i].layer;
    if (layer->flush != NULL) layer->flush(stack->layers[i].state);
    if (layer->close != NULL) layer->close(stack->layers[i].state);
  }
}

static void at_exit(void) {
  for (int i = 0; i < pjrt_num_stacks(); i++) close_layers(&stacks[i]);
}

static const PJRT_Api *wrap(const PJRT_Api *table, const char *name, const char *layers, const char *options, char *problem,
                            size_t problem_size) {
  const int index = atomic_load(&num_stacks);
  char spec[SPEC_SIZE];
  if (snprintf(spec, sizeof spec, "%s\n%s", layers, options) >= (int)sizeof spec) {
    snprintf(problem, problem_size, "the options of the layers are too long; expected at most %d bytes", SPEC_SIZE);
    return NULL;
  }
  for (int i = 0; i < index; i++)
    if (stacks[i].plugin == table && strcmp(specs[i], spec) == 0) return stacks[i].table;
  const pjrt_memory_range head = {table, offsetof(PJRT_Api, PJRT_Error_GetCode)};
  if (!pjrt_readable(&head, 1)) {
    snprintf(problem, problem_size, "the table of %s is at %p, which cannot be read, so it is no PJRT_Api", name,
             (const void *)table);
    return NULL;
  }
  if (table->struct_size < offsetof(PJRT_Api, PJRT_Error_GetCode) || table->struct_size > MAX_TABLE_SIZE) {
    snprintf(problem, problem_size, "the table of %s has a size of %zu bytes, so it is no PJRT_Api", name,
             table->struct_size);
    return NULL;
  }
  if (index == PJRT_MAX_STACKS) {
    snprintf(problem, problem_size, "%d tables have layers already, which is the most that a process can have", index);
    return NULL;
  }
  pjrt_stack *stack = &stacks[index];
  memset(stack, 0, sizeof *stack);
  stack->index = (uint16_t)index;
  stack->plugin = table;
  snprintf(stack->name, sizeof stack->name, "%s", name);
  PJRT_Api *copy = calloc(1, table->struct_size > sizeof *copy ? table->struct_size : sizeof *copy);
  if (copy == NULL) {
    snprintf(problem, problem_size, "there is no memory for the table");
    return NULL;
  }
  memcpy(copy, table, table->struct_size);
  stack->table = copy;
  wrap_slots(stack, -1, false, (char *)copy, copy->struct_size);
  copy->extension_start = wrap_extensions(stack, copy->extension_start);
  if (!open_layers(stack, layers, options, problem, problem_size)) {
    close_layers(stack);
    free(copy); /* the copies of extensions are few and small, and stay */
    memset(stack, 0, sizeof *stack);
    return NULL;
  }
  if (index == 0) {
    for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) moves_callbacks[i] = pjrt_moves_callbacks(i);
    atexit(at_exit);
  }
  atomic_store(&stack->enabled, (1u << stack->num_layers) - 1);
  memcpy(specs[index], spec, sizeof spec);
  atomic_store(&num_stacks, index + 1);
  return copy;
}

const PJRT_Api *pjrt_wrap(const PJRT_Api *table, const char *name, const char *layers, const char *options, char *problem,
                          size_t problem_size) {
  if (problem_size > 0) problem[0] = 0;
  pjrt_mutex_lock(&mutex);
  const PJRT_Api *wrapped = wrap(table, name, layers, options != NULL ? options : "", problem, problem_size);
  pjrt_mutex_unlock(&mutex);
  return wrapped;
}

int pjrt_num_stacks(void) { return atomic_load(&num_stacks); }
pjrt_stack *pjrt_stack_at(int index) { return &stacks[index]; }

pjrt_stack *pjrt_stack_of(const PJRT_Api *table) {
  for (int i = 0; i < pjrt_num_stacks(); i++)
    if (stacks[i].table == table) return &stacks[i];
  return NULL;
}
