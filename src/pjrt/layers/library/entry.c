/* What others find in this library: the functions for Python, and GetPjrtApi for a copy of it with settings, which stands
 * before another plugin's library. */
#include "entry.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "callback_records.h"

enum { SETTINGS_SIZE = 16384, PROBLEM_SIZE = 1024 };

/* "key=value" lines behind the mark, by which `write_layer_library` finds the place in the file. */
static volatile char settings[SETTINGS_SIZE] = "PJRT-LAYER-SETTINGS\n";

static bool setting(const char *key, char *value, size_t size) {
  const size_t length = strlen(key);
  for (const char *line = (const char *)settings; line != NULL && *line;) {
    const char *end = strchr(line, '\n');
    if (strncmp(line, key, length) == 0 && line[length] == '=') {
      const size_t have = (end != NULL ? (size_t)(end - line) : strlen(line)) - length - 1;
      if (have >= size) return false;
      memcpy(value, line + length + 1, have);
      value[have] = 0;
      return true;
    }
    line = end != NULL ? end + 1 : NULL;
  }
  return false;
}

void pjrt_complain(const char *name, const char *problem) {
  fprintf(stderr, "pjrt: the plugin %s gets no layers, and so no table: %s\n", name, problem);
}

/* A table may be wrapped by another copy of this library, such as a written one. */
static bool has_layers_of_environment(const PJRT_Api *table) {
  Dl_info info;
  const pjrt_stack *stack = pjrt_stack_of(table);
  if (stack != NULL) return stack->from_environment;
  void *address;
  if (table->struct_size < offsetof(PJRT_Api, PJRT_Error_Message)) return false;
  memcpy(&address, &table->PJRT_Error_Destroy, sizeof address);
  if (dladdr(address, &info) == 0) return false;
  void *library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_LAZY);
  if (library == NULL) return false;
  void *symbol = dlsym(library, "pjrt_layer_is_from_environment");
  int (*is_from_environment)(const PJRT_Api *);
  memcpy(&is_from_environment, &symbol, sizeof symbol);
  const bool answer = symbol != NULL && is_from_environment != pjrt_layer_is_from_environment &&
                      is_from_environment(table);
  dlclose(library);
  return answer;
}

PJRT_EXPORTED int pjrt_layer_is_from_environment(const PJRT_Api *table) {
  const pjrt_stack *stack = pjrt_stack_of(table);
  return stack != NULL && stack->from_environment;
}

PJRT_EXPORTED const PJRT_Api *pjrt_layer_wrap(const PJRT_Api *table, const char *name, const char *layers,
                                              const char *options, char *problem, size_t problem_size) {
  return pjrt_wrap(table, name, layers, options, problem, problem_size);
}

PJRT_EXPORTED const PJRT_Api *pjrt_layer_wrap_by_environment(const PJRT_Api *table, const char *name, char *problem,
                                                             size_t problem_size) {
  const char *layers = getenv("PJRT_LAYERS");
  if (layers == NULL || !*layers || has_layers_of_environment(table)) return table;
  const PJRT_Api *wrapped = pjrt_wrap(table, name, layers, "", problem, problem_size);
  if (wrapped != NULL && pjrt_stack_of(wrapped) != NULL) pjrt_stack_of(wrapped)->from_environment = true;
  return wrapped;
}

PJRT_EXPORTED const char *pjrt_layer_name(size_t index) {
  return index < pjrt_num_layers ? pjrt_layers[index]->name : NULL;
}

PJRT_EXPORTED const char *pjrt_layer_at(const PJRT_Api *table, int position) {
  const pjrt_stack *stack = pjrt_stack_of(table);
  return stack != NULL && position >= 0 && position < stack->num_layers ? stack->layers[position].layer->name : NULL;
}

PJRT_EXPORTED int pjrt_layer_enable(const PJRT_Api *table, int position, int on) {
  pjrt_stack *stack = pjrt_stack_of(table);
  if (stack == NULL || position < 0 || position >= stack->num_layers) return 0;
  const uint32_t bit = 1u << position;
  const uint32_t before = on ? atomic_fetch_or(&stack->enabled, bit) : atomic_fetch_and(&stack->enabled, ~bit);
  return (before & bit) != 0;
}

PJRT_EXPORTED const PJRT_Api *pjrt_layer_plugin(const PJRT_Api *table) {
  const pjrt_stack *stack = pjrt_stack_of(table);
  return stack != NULL ? stack->plugin : NULL;
}

PJRT_EXPORTED void pjrt_layer_flush(void) {
  for (int i = 0; i < pjrt_num_stacks(); i++) {
    pjrt_stack *stack = pjrt_stack_at(i);
    for (int k = 0; k < stack->num_layers; k++)
      if (stack->layers[k].layer->flush != NULL) stack->layers[k].layer->flush(stack->layers[k].state);
  }
}

PJRT_EXPORTED size_t pjrt_layer_num_callbacks(void) { return pjrt_num_records(); }

static const PJRT_Api *layered_target(void) {
  char target[4096], layers[1024], options[8192], problem[PROBLEM_SIZE] = "";
  if (!setting("target", target, sizeof target)) {
    pjrt_complain("of this library", "it has no settings; write a library with pjrt layer");
    return NULL;
  }
  const bool own_layers = setting("layers", layers, sizeof layers); /* else those of PJRT_LAYERS */
  if (!setting("options", options, sizeof options)) options[0] = 0;
  for (char *c = options; *c; c++) /* the lines of the layers, in one line */
    if (*c == '\t') *c = '\n';
  const PJRT_Api *plugin = pjrt_load_target(target, problem, sizeof problem), *table = NULL;
  if (plugin != NULL)
    table = own_layers ? pjrt_wrap(plugin, target, layers, options, problem, sizeof problem)
                       : pjrt_layer_wrap_by_environment(plugin, target, problem, sizeof problem);
  if (table == NULL) pjrt_complain(target, problem);
  return table;
}

/* The one symbol that loaders look for: of a written library. No lock is held: the plugin may be in Python, and another
 * thread that waits here may hold the GIL. Threads that come at once find the same plugin, and make the same table. */
PJRT_EXPORTED const PJRT_Api *GetPjrtApi(void) {
  static const PJRT_Api *_Atomic known;
  const PJRT_Api *table = atomic_load(&known);
  if (table == NULL) atomic_store(&known, table = layered_target());
  return table;
}
