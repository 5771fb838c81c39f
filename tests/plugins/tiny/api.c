/* GetPjrtApi: the table, each function behind its faults, and the shapes of table that old, new and broken plugins
 * have. */
#include "faults.h"
#include "tiny.h"

/* ---- every function behind its faults -----------------------------------------------------------------------------*/
/* Destroying happens in spite of a fault, or else the test would leak because of it. */
static bool destroys(const char *name) {
  size_t size = strlen(name);
  return size > 8 && strcmp(name + size - 8, "_Destroy") == 0;
}

#define GUARD(name)                                                                                                   \
  static PJRT_Error *guard_##name(PJRT_##name##_Args *args) {                                                         \
    TINY_SIZED(PJRT_##name##_Args, args);                                                                             \
    PJRT_Error *fault = fault_before(F_##name, args->struct_size, PJRT_##name##_Args_STRUCT_SIZE);                    \
    if (fault == NULL) return tiny_##name(args);                                                                      \
    PJRT_Error *ignored = destroys(#name) ? tiny_##name(args) : NULL;                                                 \
    status_unref(status_take(ignored));                                                                               \
    return fault;                                                                                                     \
  }
TINY_ERROR_FUNCTIONS(GUARD)

static void guard_Error_Destroy(PJRT_Error_Destroy_Args *args) {
  fault_count(F_Error_Destroy);
  if (args->struct_size >= PJRT_Error_Destroy_Args_FIRST_STRUCT_SIZE) tiny_Error_Destroy(args);
}

static void guard_Error_Message(PJRT_Error_Message_Args *args) {
  fault_count(F_Error_Message);
  if (args->struct_size >= PJRT_Error_Message_Args_FIRST_STRUCT_SIZE) tiny_Error_Message(args);
}

/* Room for functions of a newer version behind ours. */
enum { EXTRA_FUNCTIONS = 32 };
static struct {
  PJRT_Api api;
  void *extra[EXTRA_FUNCTIONS];
} table;

/* ---- settings -----------------------------------------------------------------------------------------------------*/
static struct {
  bool null_table, garbage_tail, no_extensions;
  int major, minor;
  size_t num_functions, struct_size;
  int init_code;
  bool null_slot[F_COUNT];
  uint32_t dropped_extensions, short_extensions;
} settings = {.minor = PJRT_API_MINOR, .num_functions = F_COUNT};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool set_null(const char *name) {
  for (int i = 0; i < F_COUNT; ++i) {
    if (strcmp(function_name((tiny_function)i), name) != 0) continue;
    settings.null_slot[i] = true;
    return true;
  }
  return false;
}

static bool apply(const char *key, const char *value) {
  long long number = value ? strtoll(value, NULL, 10) : 1;
  if (strcmp(key, "major") == 0) settings.major = (int)number;
  else if (strcmp(key, "minor") == 0) settings.minor = (int)number;
  else if (strcmp(key, "functions") == 0) settings.num_functions = (size_t)number;
  else if (strcmp(key, "struct_size") == 0) settings.struct_size = (size_t)number;
  else if (strcmp(key, "init_code") == 0) settings.init_code = (int)number;
  else if (strcmp(key, "null_table") == 0) settings.null_table = number != 0;
  else if (strcmp(key, "garbage_tail") == 0) settings.garbage_tail = number != 0;
  else if (strcmp(key, "no_extensions") == 0) settings.no_extensions = number != 0;
  else if (strcmp(key, "drop_extension") == 0) settings.dropped_extensions |= 1u << number;
  else if (strcmp(key, "short_extension") == 0) settings.short_extensions |= 1u << number;
  else if (strcmp(key, "legacy_errors") == 0) fault_set_legacy_errors(number != 0);
  else if (strcmp(key, "strict") == 0) tiny_plugin_set_strict(number != 0);
  else if (strcmp(key, "null") == 0) return value && set_null(value);
  else return false;
  return settings.num_functions <= F_COUNT + EXTRA_FUNCTIONS;
}

int tiny_plugin_configure(const char *text) {
  char *copy = tiny_memdup(text, strlen(text)), *rest = copy, *word;
  bool good = true;
  while ((word = strsep(&rest, ";"))) {
    if (*word == 0) continue;
    char *equals = strchr(word, '=');
    if (equals) *equals++ = 0;
    good &= apply(word, equals);
  }
  free(copy);
  return good ? 0 : -1;
}

static bool wanted(PJRT_Extension_Type type) { return !(settings.dropped_extensions >> type & 1); }

static PJRT_Error *newer_function(void *args) {
  (void)args;
  violation("a function behind the caller's own table was called");
  return error_make(PJRT_Error_Code_INTERNAL, "A function behind the caller's own table was called");
}

static void fill_table(void) {
  const char *from_environment = getenv("TINY_PLUGIN_CONFIGURE");
  if (from_environment && tiny_plugin_configure(from_environment) != 0)
    fprintf(stderr, "tiny plugin: TINY_PLUGIN_CONFIGURE has an unknown word: %s\n", from_environment);
  PJRT_Api *api = &table.api;
  api->extension_start = settings.no_extensions ? NULL : extensions_chain(wanted);
  for (PJRT_Extension_Base *link = api->extension_start; link; link = link->next) {
    if (settings.short_extensions >> link->type & 1) link->struct_size = sizeof *link;
  }
  api->pjrt_api_version = (PJRT_Api_Version){.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                                             .major_version = settings.major, .minor_version = settings.minor};
  api->PJRT_Error_Destroy = guard_Error_Destroy;
  api->PJRT_Error_Message = guard_Error_Message;
#define FILL(name) api->PJRT_##name = guard_##name;
  TINY_ERROR_FUNCTIONS(FILL)
  void **slots = (void **)(void *)&api->PJRT_Error_Destroy;
  for (size_t i = 0; i < EXTRA_FUNCTIONS; ++i) table.extra[i] = (void *)newer_function;
  for (size_t i = 0; i < F_COUNT; ++i) {
    if (settings.null_slot[i]) slots[i] = NULL;
  }
  /* Behind the end that the table claims lies what must not be read: garbage if asked for, else nothing. */
  for (size_t i = settings.num_functions; i < F_COUNT + EXTRA_FUNCTIONS; ++i)
    slots[i] = settings.garbage_tail ? (void *)(uintptr_t)0xdead0bad0000u : NULL;
  api->struct_size = offsetof(PJRT_Api, PJRT_Error_Destroy) + settings.num_functions * sizeof(void *);
  if (settings.struct_size) api->struct_size = settings.struct_size;
}

TINY_EXPORT const PJRT_Api *GetPjrtApi(void) {
  pthread_once(&once, fill_table);
  return settings.null_table ? NULL : &table.api;
}

/* ---- the plugin as a whole ----------------------------------------------------------------------------------------*/
PJRT_Error *tiny_Plugin_Initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  if (settings.init_code)
    return error_make((PJRT_Error_Code)settings.init_code, "The tiny plugin was asked not to initialize");
  return NULL;
}

PJRT_Error *tiny_Plugin_Attributes(PJRT_Plugin_Attributes_Args *args) {
  static const int64_t current[] = {1, 17, 0}, minimum[] = {0, 9, 0};
#define HEAD(text) .struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = text, .name_size = sizeof text - 1
  static const PJRT_NamedValue attributes[] = {
      {HEAD("xla_version"), .type = PJRT_NamedValue_kInt64, .int64_value = 2, .value_size = 1},
      {HEAD("stablehlo_current_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = current,
       .value_size = 3},
      {HEAD("stablehlo_minimum_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = minimum,
       .value_size = 3},
      {HEAD("tiny_greeting"), .type = PJRT_NamedValue_kString, .string_value = "hello", .value_size = 5},
  };
  args->attributes = attributes;
  args->num_attributes = sizeof attributes / sizeof attributes[0];
  return NULL;
}
