/* What tests switch and count. The functions exported here are reached with ctypes from the very file that was loaded:
 * every copy of the library has faults and counts of its own. */
#include "tiny.h"

/* ---- counts -------------------------------------------------------------------------------------------------------*/
static const char *const live_names[LIVE_COUNT] = {
    NULL, "client", "topology", "buffer", "event", "executable", "loaded_executable", "error", "manager", "context",
    "stream", "tracking_event", "alias", "serialized", "layout", "raw_buffer", "abi_version", "profiler", "metadata",
    "storage", "phase_compiler", "phase_buffers", "multi_slice"};
static atomic_llong live[LIVE_COUNT], made[LIVE_COUNT];

void live_add(tiny_live kind, int delta) {
  atomic_fetch_add(&live[kind], delta);
  if (delta > 0) atomic_fetch_add(&made[kind], delta);
}

static int find_live(const char *kind) {
  for (int i = 1; i < LIVE_COUNT; ++i) {
    if (strcmp(live_names[i], kind) == 0) return i;
  }
  return -1;
}

int64_t tiny_plugin_live(const char *kind) {
  int i = find_live(kind);
  return i < 0 ? -1 : atomic_load(&live[i]);
}

int64_t tiny_plugin_made(const char *kind) {
  int i = find_live(kind);
  return i < 0 ? -1 : atomic_load(&made[i]);
}

const char *tiny_plugin_live_kind(int index) { return index >= 0 && index + 1 < LIVE_COUNT ? live_names[index + 1] : NULL; }

/* ---- rules that callers broke -------------------------------------------------------------------------------------*/
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int64_t num_violations;
static char last_violation[512];

void violation(const char *format, ...) {
  va_list list;
  va_start(list, format);
  pthread_mutex_lock(&mutex);
  ++num_violations;
  vsnprintf(last_violation, sizeof last_violation, format, list);
  pthread_mutex_unlock(&mutex);
  va_end(list);
}

int64_t tiny_plugin_violations(void) {
  pthread_mutex_lock(&mutex);
  int64_t count = num_violations;
  pthread_mutex_unlock(&mutex);
  return count;
}

const char *tiny_plugin_last_violation(void) { return last_violation; }

/* ---- faults -------------------------------------------------------------------------------------------------------*/
typedef struct fault {
  int code;
  char message[256];
  int64_t skip, count; /* calls to let pass, then calls to fail; a negative count means all */
} fault;

static const char *const names[F_ALL] = {
#define NAME(name) [F_##name] = "PJRT_" #name,
    TINY_VOID_FUNCTIONS(NAME) FUNCTIONS(NAME) TINY_EXTENSION_FUNCTIONS(NAME)};
static fault returned[F_ALL], by_event[F_ALL];
static atomic_llong calls[F_ALL];
static atomic_bool any_fault, strict, counting;
static char payload_key[64], payload_value[256];
static bool legacy_errors;

const char *function_name(tiny_function function) { return names[function]; }

static int find_function(const char *name) {
  if (strncmp(name, "PJRT_", 5) == 0) name += 5;
  for (int i = 0; i < F_ALL; ++i) {
    if (names[i] && strcmp(names[i] + 5, name) == 0) return i;
  }
  return -1;
}

static int set_fault(fault *table, const char *function, int code, const char *message, int64_t skip, int64_t count) {
  int i = find_function(function);
  if (i < 0) return -1;
  pthread_mutex_lock(&mutex);
  table[i].code = code;
  snprintf(table[i].message, sizeof table[i].message, "%s", message ? message : "");
  table[i].skip = skip;
  table[i].count = count;
  pthread_mutex_unlock(&mutex);
  atomic_store(&any_fault, true);
  return 0;
}

int tiny_plugin_set_fault(const char *function, int code, const char *message, int64_t skip, int64_t count) {
  return set_fault(returned, function, code, message, skip, count);
}

int tiny_plugin_set_event_fault(const char *function, int code, const char *message, int64_t skip, int64_t count) {
  return set_fault(by_event, function, code, message, skip, count);
}

void tiny_plugin_set_fault_payload(const char *key, const char *value) {
  pthread_mutex_lock(&mutex);
  snprintf(payload_key, sizeof payload_key, "%s", key ? key : "");
  snprintf(payload_value, sizeof payload_value, "%s", value ? value : "");
  pthread_mutex_unlock(&mutex);
}

void tiny_plugin_clear_faults(void) {
  pthread_mutex_lock(&mutex);
  memset(returned, 0, sizeof returned);
  memset(by_event, 0, sizeof by_event);
  payload_key[0] = 0;
  pthread_mutex_unlock(&mutex);
  atomic_store(&any_fault, false);
  drivers_hold(false);
}

static PJRT_Error *take_fault(fault *each) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&mutex);
  if (each->code && each->skip > 0) {
    --each->skip;
  } else if (each->code && each->count != 0) {
    if (each->count > 0) --each->count;
    error = pjrt_error_of_text((PJRT_Error_Code)each->code, each->message);
    if (payload_key[0])
      pjrt_error_add_payload(error, payload_key, strlen(payload_key), payload_value, strlen(payload_value));
  }
  pthread_mutex_unlock(&mutex);
  return error;
}

void fault_count(tiny_function function) {
  if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&calls[function], 1);
}

PJRT_Error *fault_before(tiny_function function, size_t struct_size, size_t expected_size) {
  fault_count(function);
  if (atomic_load_explicit(&strict, memory_order_relaxed) && struct_size != expected_size) {
    violation("%s was given a struct of %zu bytes instead of %zu", names[function], struct_size, expected_size);
    return error_make(INVALID, "%s was given a struct of %zu bytes, expected %zu", names[function], struct_size,
                      expected_size);
  }
  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;
  return take_fault(&returned[function]);
}

PJRT_Error *fault_event(tiny_function function) {
  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;
  return take_fault(&by_event[function]);
}

int64_t tiny_plugin_calls(const char *function) {
  int i = find_function(function);
  return i < 0 ? -1 : atomic_load(&calls[i]);
}

void tiny_plugin_count_calls(bool on) {
  for (int i = 0; i < F_ALL; ++i) atomic_store(&calls[i], 0);
  atomic_store(&counting, on);
}

void tiny_plugin_set_strict(bool on) { atomic_store(&strict, on); }

void tiny_plugin_hold(bool on) { drivers_hold(on); }

bool fault_legacy_errors(void) { return legacy_errors; }
void fault_set_legacy_errors(bool on) { legacy_errors = on; }

/* ---- errors and events that callers get -----------------------------------------------------------------------------*/
static void destroy_error(PJRT_Error *error) {
  if (error == NULL) return;
  live_add(LIVE_ERROR, -1);
  pjrt_error_release(error);
}

/* Before 0.114 the first word of an error was nobody's business: whoever follows it then is caught by the crash. */
static const PJRT_Error_FunctionTable *error_table(void) {
  static PJRT_Error_FunctionTable table;
  if (legacy_errors) return (const PJRT_Error_FunctionTable *)(uintptr_t)0x5;
  pthread_mutex_lock(&mutex);
  if (table.destroy == NULL) {
    table = *pjrt_error_table();
    table.destroy = destroy_error;
  }
  pthread_mutex_unlock(&mutex);
  return &table;
}

bool error_is_shown(const PJRT_Error *error) { return error && error->vtable == error_table(); }

PJRT_Error *error_shown(PJRT_Error *error) {
  if (error == NULL) return NULL;
  const PJRT_Error_FunctionTable *table = error_table();
  if (error->vtable != table) error->vtable = table;
  live_add(LIVE_ERROR, 1);
  return error;
}

typedef struct faulty_event {
  completion *shown;
  PJRT_Error *error;
} faulty_event;

static void end_with_fault(PJRT_Error *error, void *arg) {
  faulty_event *each = arg;
  pjrt_error_release(error);
  completion_set(each->shown, each->error);
  completion_unref(each->shown);
  free(each);
}

/* An event that ends with a fault does so when the work is done. */
void event_shown(tiny_function function, PJRT_Event **event) {
  if (*event == NULL) return;
  live_add(LIVE_EVENT, 1);
  PJRT_Error *error = fault_event(function);
  if (error == NULL) return;
  faulty_event *each = new_zeroed(1, sizeof *each);
  *each = (faulty_event){completion_make(), error};
  PJRT_Event *real = *event;
  *event = event_make(each->shown);
  native_Event_OnReady(&(PJRT_Event_OnReady_Args){.event = real, .callback = end_with_fault, .user_arg = each});
  native_Event_Destroy(&(PJRT_Event_Destroy_Args){.event = real});
}

void bytes_print(bytes *out, const char *format, ...) {
  va_list values;
  va_start(values, format);
  char *text = NULL;
  int size = vasprintf(&text, format, values);
  va_end(values);
  if (size > 0) bytes_add(out, text, (size_t)size);
  free(text);
}
