/* What tests switch and count. The functions exported here are reached with ctypes from the very file that was loaded:
 * every copy of the library has faults and counts of its own. */
#include "faults.h"

#include "tiny.h"

/* ---- counts -------------------------------------------------------------------------------------------------------*/
static const char *const live_names[LIVE_COUNT] = {
    "client", "topology", "buffer", "event", "executable", "loaded_executable", "error", "manager", "context", "stream",
    "tracking_event", "alias", "serialized", "attributes", "layout", "raw_buffer", "abi_version", "profiler", "metadata",
    "storage", "phase_compiler", "phase_buffers", "multi_slice"};
static atomic_llong live[LIVE_COUNT], made[LIVE_COUNT];

void live_add(tiny_live kind, int delta) {
  atomic_fetch_add(&live[kind], delta);
  if (delta > 0) atomic_fetch_add(&made[kind], delta);
}

static int find_live(const char *kind) {
  for (int i = 0; i < LIVE_COUNT; ++i) {
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

const char *tiny_plugin_live_kind(int index) { return index >= 0 && index < LIVE_COUNT ? live_names[index] : NULL; }

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
#define NAME(name) "PJRT_" #name,
    TINY_FUNCTIONS(NAME) TINY_EXTENSION_FUNCTIONS(NAME)};
static fault returned[F_ALL], by_event[F_ALL];
static atomic_llong calls[F_ALL];
static atomic_bool any_fault, strict, counting;
static char payload_key[64], payload_value[256];
static bool legacy_errors;

const char *function_name(tiny_function function) { return names[function]; }

static int find_function(const char *name) {
  if (strncmp(name, "PJRT_", 5) == 0) name += 5;
  for (int i = 0; i < F_ALL; ++i) {
    if (strcmp(names[i] + 5, name) == 0) return i;
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
  queues_hold(false);
}

static tiny_status *take_fault(fault *each) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&mutex);
  if (each->code && each->skip > 0) {
    --each->skip;
  } else if (each->code && each->count != 0) {
    if (each->count > 0) --each->count;
    status = status_from_bytes((PJRT_Error_Code)each->code, each->message, strlen(each->message));
    if (payload_key[0])
      status_add_payload(status, payload_key, strlen(payload_key), payload_value, strlen(payload_value));
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

void fault_count(tiny_function function) {
  if (atomic_load_explicit(&counting, memory_order_relaxed)) atomic_fetch_add(&calls[function], 1);
}

PJRT_Error *size_error(const char *type, size_t struct_size, size_t first_size) {
  if (struct_size >= first_size) return NULL;
  return error_make(INVALID, "Expected at least %zu bytes of %s, found struct_size %zu", first_size, type, struct_size);
}

PJRT_Error *fault_before(tiny_function function, size_t struct_size, size_t expected_size) {
  fault_count(function);
  if (atomic_load_explicit(&strict, memory_order_relaxed) && struct_size != expected_size) {
    violation("%s was given a struct of %zu bytes instead of %zu", names[function], struct_size, expected_size);
    return error_make(INVALID, "%s was given a struct of %zu bytes, expected %zu", names[function], struct_size,
                      expected_size);
  }
  if (!atomic_load_explicit(&any_fault, memory_order_relaxed)) return NULL;
  return error_from(take_fault(&returned[function]));
}

tiny_status *fault_event(tiny_function function) {
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

void tiny_plugin_hold(bool on) { queues_hold(on); }

bool fault_legacy_errors(void) { return legacy_errors; }
void fault_set_legacy_errors(bool on) { legacy_errors = on; }
