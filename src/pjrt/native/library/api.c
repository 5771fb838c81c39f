/* GetPjrtApi: the table, each function behind a check of its arguments' size. */
#include "pjrt_support/struct_size.h"
#include <unistd.h>

#include "runtime.h"

/* A caller may hold the lock of the interpreter in which the device computes: it is let go of meanwhile. */
static struct {
  int (*is_held)(void), (*is_ending)(void), (*is_there)(void);
  void *(*release)(void);
  void (*take)(void *);
  pid_t owner;
} interpreter;

/* Called by Python, once, before anybody has the table. */
__attribute__((visibility("default"))) void pjrt_native_interpreter(int (*is_held)(void), int (*is_ending)(void),
                                                                    int (*is_there)(void), void *(*release)(void),
                                                                    void (*take)(void *)) {
  interpreter.owner = getpid();
  interpreter.is_held = is_held;
  interpreter.is_ending = is_ending;
  interpreter.is_there = is_there;
  interpreter.release = release;
  interpreter.take = take;
}

bool interpreter_was_forked(void) { return interpreter.owner != getpid(); }

/* A framework in C++ may end its clients after the interpreter is gone, which is ending no more then. */
bool interpreter_is_ending(void) { return interpreter.is_ending && (interpreter.is_ending() || !interpreter.is_there()); }

void *interpreter_release(void) {
  return interpreter.is_held && interpreter.is_there() && interpreter.is_held() ? interpreter.release() : NULL;
}

void interpreter_take(void *released) {
  if (released) interpreter.take(released);
}

/* Once the interpreter is finalized, Python (before 3.14) ends a thread that asks for its lock on the spot, and unwinds the
 * thread's stack, which would reach the framework's C++ code and end the process. Such a thread is held here, for the short
 * time until the process ends. */
static void hold(void *ignored) {
  (void)ignored;
  for (;;) sleep(3600);
}

/* A handle is what follows the size and the list of extensions. */
#define REFUSE_NULL(name)                                                                                           \
  if (((void *const *)(const void *)args)[2] == NULL)                                                               \
    return error_make(INVALID, "PJRT_" #name ": expected a handle, found a null pointer");
#define TAKE_ANY(name)

#define GUARD(name, CHECK)                                                                                                 \
  static PJRT_Error *guarded_##name(PJRT_##name##_Args *args) {                                                     \
    PJRT_Error *too_short = pjrt_check_size(args, PJRT_##name##_Args_FIRST_STRUCT_SIZE, "PJRT_" #name "_Args");     \
    if (too_short) return too_short;                                                                                \
    CHECK(name)                                                                                                     \
    PJRT_Error *error;                                                                                              \
    pthread_cleanup_push(hold, NULL);                                                                               \
    void *thread = interpreter_release();                                                                           \
    error = native_##name(args);                                                                                    \
    interpreter_take(thread);                                                                                       \
    pthread_cleanup_pop(0);                                                                                         \
    return error;                                                                                                   \
  }
#define GUARD_HANDLE(name) GUARD(name, REFUSE_NULL)
#define GUARD_OTHER(name) GUARD(name, TAKE_ANY)
FUNCTIONS_OF_HANDLES(GUARD_HANDLE)
OTHER_FUNCTIONS(GUARD_OTHER)

static void destroy_error(PJRT_Error_Destroy_Args *args) {
  if (args->struct_size >= PJRT_Error_Destroy_Args_FIRST_STRUCT_SIZE) pjrt_error_release(args->error);
}

static void read_error(PJRT_Error_Message_Args *args) {
  if (args->struct_size < PJRT_Error_Message_Args_FIRST_STRUCT_SIZE) return;
  pjrt_error_read(args->error, &args->message, &args->message_size);
}

/* ---- the plugin as a whole ------------------------------------------------------------------------------------------*/
/* JAX says "Unable to initialize backend" with this error, and goes on with its other devices. */
PJRT_Error *native_Plugin_Initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  const pjrt_driver_table *ignored;
  return driver_find(&ignored);
}

/* The attributes are those that Python wrote into the settings, then those of the client that was made last, then the
 * versions of StableHLO that the compiler reads. Whoever has read them may keep them: none is freed. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const named_values *attributes;

static void add_new(named_values *list, named_values *more) {
  for (size_t i = 0; i < more->count; ++i) {
    const PJRT_NamedValue *each = &more->values[i];
    bool is_known = false;
    for (size_t j = 0; j < list->count && !is_known; ++j)
      is_known = list->values[j].name_size == each->name_size && memcmp(list->values[j].name, each->name, each->name_size) == 0;
    if (!is_known) named_value_add(list, each->name, each->name_size, each);
  }
  named_values_free(more);
}

static void add_versions(named_values *list) {
  long long read[6] = {1, 0, 0, 0, 9, 0};
  const char *versions = setting("stablehlo"); /* as "1.17.0 0.9.0" */
  if (versions) sscanf(versions, "%lld.%lld.%lld %lld.%lld.%lld", &read[0], &read[1], &read[2], &read[3], &read[4], &read[5]);
  int64_t current[3] = {read[0], read[1], read[2]}, minimum[3] = {read[3], read[4], read[5]}, xla_version = 2;
  const pjrt_driver_attribute defaults[] = {
      {.name = "xla_version", .type = PJRT_DRIVER_INTEGER, .integers = &xla_version, .num_integers = 1},
      {.name = "stablehlo_current_version", .type = PJRT_DRIVER_INTEGERS, .integers = current, .num_integers = 3},
      {.name = "stablehlo_minimum_version", .type = PJRT_DRIVER_INTEGERS, .integers = minimum, .num_integers = 3},
  };
  named_values more = {0};
  facts_attributes(&more, defaults, sizeof defaults / sizeof *defaults);
  add_new(list, &more);
}

static void add_settings(named_values *list) {
  const char *digits = setting("attributes"); /* a message of facts, in hexadecimal */
  bytes message = {0};
  for (unsigned byte; digits && sscanf(digits, "%2x", &byte) == 1; digits += 2) bytes_add(&message, &(char){(char)byte}, 1);
  facts given;
  named_values more = {0};
  if (message.size) {
    facts_read(&given, message.data, message.size); /* devices it has none */
    facts_attributes(&more, given.client.plugin_attributes, given.client.num_plugin_attributes);
    facts_free(&given);
  }
  free(message.data);
  add_new(list, &more);
}

static bool is_same(const PJRT_NamedValue *a, const PJRT_NamedValue *b) {
  if (a->name_size != b->name_size || memcmp(a->name, b->name, a->name_size) != 0) return false;
  if (a->type != b->type || a->value_size != b->value_size) return false;
  switch (a->type) {
    case PJRT_NamedValue_kString: return memcmp(a->string_value, b->string_value, a->value_size) == 0;
    case PJRT_NamedValue_kInt64List: return memcmp(a->int64_array_value, b->int64_array_value, 8 * a->value_size) == 0;
    case PJRT_NamedValue_kFloat: return a->float_value == b->float_value;
    case PJRT_NamedValue_kBool: return a->bool_value == b->bool_value;
    default: return a->int64_value == b->int64_value;
  }
}

/* The mutex is held. */
static void set_attributes(const pjrt_driver_attribute *of_client, size_t count) {
  named_values *list = new_zeroed(1, sizeof *list), more = {0};
  add_settings(list);
  facts_attributes(&more, of_client, count);
  add_new(list, &more);
  add_versions(list);
  size_t same = 0;
  while (attributes && same < list->count && same < attributes->count &&
         is_same(&list->values[same], &attributes->values[same]))
    ++same;
  if (attributes == NULL || same < list->count || same < attributes->count) {
    attributes = list;
    return;
  }
  named_values_free(list);
  free(list);
}

void plugin_learn(const pjrt_driver_attribute *of_client, size_t count) {
  pthread_mutex_lock(&mutex);
  if (count || attributes) set_attributes(of_client, count);
  pthread_mutex_unlock(&mutex);
}

PJRT_Error *native_Plugin_Attributes(PJRT_Plugin_Attributes_Args *args) {
  pthread_mutex_lock(&mutex);
  if (attributes == NULL) set_attributes(NULL, 0);
  args->attributes = attributes->values;
  args->num_attributes = attributes->count;
  pthread_mutex_unlock(&mutex);
  return NULL;
}

#define ENTRY(name) .PJRT_##name = guarded_##name,
static PJRT_Api table = {
    .struct_size = sizeof(PJRT_Api),
    .extension_start = &memory_descriptions_extension.base,
    .pjrt_api_version = {.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                         .major_version = PJRT_API_MAJOR, .minor_version = PJRT_API_MINOR},
    .PJRT_Error_Destroy = destroy_error,
    .PJRT_Error_Message = read_error,
    FUNCTIONS(ENTRY)
};

static void extend(PJRT_Extension_Base *extension) {
  extension->next = table.extension_start;
  table.extension_start = extension;
}

/* Nobody else compiles programs that ask functions of this process. Devices in Python have a profiler, or none. */
static void offer_more(void) {
  if (setting("compiler")) extend(&partitioner_extension.base);
  if (setting("profiler") || here_has_profiler() || driver_is_in_c()) extend(&profiler_extension.base);
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, offer_more);
  return &table;
}
