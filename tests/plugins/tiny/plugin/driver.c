/* The driver of the tiny plugin: devices in the memory of the host, with a thread each that does their work in its order.
 *
 * It stands where the runtime has its driver "here", devices in Python: so its programs are compiled in this process,
 * and get what a framework gives to an execution. Nothing ends before its thread has done it: all work can be held. */
#include <sys/socket.h>
#include <unistd.h>

#include "here.h"
#include "tiny.h"

/* A loaded program. Devices that load the same code run it together: they meet by the number of their execution, or, where
 * they are launched one by one, by how often each was. */
typedef struct join {
  int64_t run;
  size_t joined;
  tiny_meeting *meeting;
  struct join *next;
} join;

typedef struct loaded_program {
  const void *code; /* where it lay: the devices of one executable load from one place */
  size_t refs;
  tiny_program *program;
  join *joins;
  int64_t runs[TINY_MAX_DEVICES];
  struct loaded_program *next;
} loaded_program;

typedef struct job {
  pjrt_fence fence; /* 0 for a task that nobody waits for */
  void (*task)(void *arg);
  void *arg;
  char *to; /* of a copy between arrays; those with the host have strides */
  const char *from;
  size_t size;
  shape shape;
  int64_t to_strides[MAX_RANK], from_strides[MAX_RANK];
  bool is_strided;
  loaded_program *program;
  uint64_t *memory; /* inputs, then outputs */
  size_t num_inputs, num_after;
  size_t *after_devices;
  pjrt_fence *after;
  int replica, partition;
  tiny_meeting *meeting;
  uint64_t token;
  PJRT_Error *told; /* why the program is not run */
  struct job *next;
} job;

typedef struct tiny_device {
  pthread_t thread;
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t changed;
  job *first, **last, *running;
  pjrt_fence done;
  fences fences;
  bool is_stopped;
  size_t number;
  pjrt_driver *driver;
  questions *questions;
  int socket;
  int64_t coords[2];
  int64_t one;
  char text[40], debug_text[128];
  pjrt_driver_attribute attributes[5];
} tiny_device;

struct pjrt_driver {
  tiny_grid grid;
  int64_t process_index, bytes_limit, limits[TINY_NUM_MEMORY_KINDS], grid_numbers[2];
  char *platform_name, *process_infos;
  const pjrt_driver_store *store;
  pjrt_driver_attribute attributes[4];
  named_values options, report;
  pthread_mutex_t mutex; /* guards the programs and what it was told */
  loaded_program *programs;
  atomic_bool is_draining;
  size_t num_devices;
  tiny_device *devices;
  pjrt_driver *next; /* all of the process, for hold */
};

static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER;
static pjrt_driver *all_drivers;
static atomic_bool held;
atomic_llong executions_started;

/* ---- the thread of a device -------------------------------------------------------------------------------------------*/
static void wake(pjrt_driver *driver) {
  for (size_t i = 0; i < driver->num_devices; ++i) {
    pthread_mutex_lock(&driver->devices[i].mutex);
    pthread_cond_broadcast(&driver->devices[i].changed);
    pthread_mutex_unlock(&driver->devices[i].mutex);
  }
}

void drivers_hold(bool hold) {
  atomic_store(&held, hold);
  pthread_mutex_lock(&all_mutex);
  for (pjrt_driver *each = all_drivers; each; each = each->next) wake(each);
  pthread_mutex_unlock(&all_mutex);
}

void driver_drain(pjrt_driver *driver) {
  atomic_store(&driver->is_draining, true);
  wake(driver);
}

static void wait_for_fence(tiny_device *device, pjrt_fence fence) {
  pthread_mutex_lock(&device->mutex);
  while (device->done < fence) pthread_cond_wait(&device->changed, &device->mutex);
  pthread_mutex_unlock(&device->mutex);
}

static bool write_all(int socket, const void *data, size_t size) {
  for (const char *at = data; size;) {
    ssize_t written = send(socket, at, size, MSG_NOSIGNAL);
    if (written <= 0) return false;
    at += written, size -= (size_t)written;
  }
  return true;
}

static bool read_all(int socket, void *data, size_t size) {
  for (char *at = data; size;) {
    ssize_t got = recv(socket, at, size, 0);
    if (got <= 0) return false;
    at += got, size -= (size_t)got;
  }
  return true;
}

/* As a process in Python asks: see process.c of the runtime. */
static PJRT_Error *ask_framework(void *arg, const bytes *transfer, bytes *out) {
  tiny_device *device = arg;
  bytes question = {0};
  if (device->questions == NULL) device->questions = questions_begin(NULL, &device->socket);
  proto_varint(&question, 5, 1);
  proto_bytes(&question, 7, transfer->data, transfer->size);
  uint64_t size = question.size;
  bool is_there = device->questions && write_all(device->socket, &size, sizeof size) &&
                  write_all(device->socket, question.data, question.size) && read_all(device->socket, &size, sizeof size);
  free(question.data);
  char *text = is_there ? new_zeroed(1, size + 1) : NULL;
  if (!is_there || !read_all(device->socket, text, size)) {
    free(text);
    return error_make(PJRT_Error_Code_INTERNAL, "Nobody answers for the framework");
  }
  const char *cursor = text;
  proto_field field, message = {0};
  int code = 0;
  while (proto_next(&cursor, text + size, &field)) {
    if (field.number == 1 && field.wire == 0) code = (int)field.value;
    if (field.number == 2 && field.wire == 2) message = field;
    if (field.number == 3 && field.wire == 2) bytes_add(out, field.data, field.size);
  }
  PJRT_Error *error = error_from_parts((PJRT_Error_Code)code, message.data, message.size);
  free(text);
  return error;
}

static PJRT_Error *run_program(tiny_device *device, job *each) {
  tiny_program *program = each->program->program;
  tiny_run run = {.program = program, .data = new_zeroed(program->num_values, sizeof(char *)),
                  .outputs = (char *const *)(each->memory + each->num_inputs), .replica = each->replica,
                  .partition = each->partition, .meeting = each->meeting, .token = each->token, .ask = ask_framework,
                  .ask_arg = device};
  for (size_t i = 0; i < each->num_inputs; ++i) run.data[i] = (char *)(uintptr_t)each->memory[i];
  atomic_fetch_add(&executions_started, 1);
  PJRT_Error *error = program_run(&run);
  free(run.data);
  return error;
}

static PJRT_Error *run_job(tiny_device *device, job *each) {
  for (size_t i = 0; i < each->num_after; ++i)
    wait_for_fence(&device->driver->devices[each->after_devices[i]], each->after[i]);
  if (each->task) {
    each->task(each->arg);
  } else if (each->program) {
    PJRT_Error *error = each->told ? pjrt_error_share(each->told) : run_program(device, each);
    if (error) meeting_fail(each->meeting, error);
    return error;
  } else if (each->is_strided) {
    copy_strided(each->to, each->to_strides, each->from, each->from_strides, each->shape.dims, each->shape.rank,
                 element_bits(each->shape.type) / 8);
  } else if (each->size) {
    memcpy(each->to, each->from, each->size);
  }
  return NULL;
}

static void free_job(job *each) {
  free(each->memory);
  free(each->after_devices);
  free(each->after);
  meeting_unref(each->meeting);
  pjrt_error_release(each->told);
  free(each);
}

/* As `payload_at` of the runtime reads them. */
static void add_payload(const char *key, size_t key_size, const char *value, size_t value_size, void *arg) {
  bytes *out = arg;
  uint32_t sizes[2] = {(uint32_t)key_size, (uint32_t)value_size};
  bytes_add(out, sizes, sizeof sizes);
  bytes_add(out, key, key_size);
  bytes_add(out, "", 1);
  bytes_add(out, value, value_size);
  while (out->size % 8) bytes_add(out, "", 1);
}

static void end_job(tiny_device *device, pjrt_fence fence, PJRT_Error *owned) {
  const char *message = "";
  size_t size = 0;
  bytes payloads = {0};
  if (owned) pjrt_error_read(owned, &message, &size);
  if (owned) pjrt_error_visit(owned, add_payload, &payloads);
  pthread_mutex_lock(&device->mutex);
  device->running = NULL;
  pending *ended = NULL;
  if (fence) {
    device->done = fence;
    ended = fences_end(&device->fences, fence, owned ? (int)pjrt_error_code(owned) : 0, message, size, payloads.data,
                       payloads.size);
  }
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
  if (ended) pending_tell(ended);
  free(payloads.data);
  pjrt_error_release(owned);
}

static bool has_work(const tiny_device *device) {
  return device->first && (!atomic_load(&held) || atomic_load(&device->driver->is_draining));
}

static void *work_off(void *arg) {
  tiny_device *device = arg;
  pthread_mutex_lock(&device->mutex);
  for (;;) {
    while (!has_work(device) && !(device->is_stopped && !device->first))
      pthread_cond_wait(&device->changed, &device->mutex);
    job *each = device->running = device->first;
    if (each == NULL) break;
    device->first = each->next;
    if (device->first == NULL) device->last = &device->first;
    pthread_mutex_unlock(&device->mutex);
    PJRT_Error *error = run_job(device, each);
    pjrt_fence fence = each->fence;
    free_job(each);
    end_job(device, fence, error);
    pthread_mutex_lock(&device->mutex);
  }
  pthread_mutex_unlock(&device->mutex);
  return NULL;
}

static int enqueue(tiny_device *device, const job *what, pjrt_fence *fence) {
  job *each = new_zeroed(1, sizeof *each);
  *each = *what;
  pthread_mutex_lock(&device->mutex);
  if (fence) *fence = each->fence = fences_begin(&device->fences, sizeof(pending))->fence;
  *device->last = each;
  device->last = &each->next;
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
  return 0;
}

void driver_push(PJRT_Device *device, void (*task)(void *arg), void *arg) {
  enqueue(&device->client->driver->devices[device->number], &(job){.task = task, .arg = arg}, NULL);
}

static int on_done(pjrt_driver *driver, size_t number, pjrt_fence fence, pjrt_driver_done function, void *arg,
                   char *message) {
  tiny_device *device = &driver->devices[number];
  pending *ended;
  pthread_mutex_lock(&device->mutex);
  int code = fences_follow(&device->fences, fence, function, arg, &ended, message);
  pthread_mutex_unlock(&device->mutex);
  if (ended) pending_tell(ended);
  return code;
}

/* Only what waits for other devices is given up. */
static int cancel(pjrt_driver *driver, size_t number, pjrt_fence fence, char *message) {
  (void)message;
  tiny_device *device = &driver->devices[number];
  tiny_meeting *meeting = NULL;
  pthread_mutex_lock(&device->mutex);
  if (device->running && device->running->fence == fence) meeting = meeting_ref(device->running->meeting);
  for (job *each = device->first; each && !meeting; each = each->next)
    if (each->fence == fence) meeting = meeting_ref(each->meeting);
  pthread_mutex_unlock(&device->mutex);
  PJRT_Error *error = error_make(PJRT_Error_Code_CANCELLED, "The execution was cancelled");
  meeting_fail(meeting, error);
  meeting_unref(meeting);
  pjrt_error_release(error);
  return 0;
}

/* ---- the grid: a topology is named "N" or "NxM", with "/P" behind it for P processes --------------------------------------*/
bool grid_read(const char *name, size_t size, tiny_grid *out) {
  char *text = copy_of(name, size);
  long long a = 0, b = 0, processes = 1;
  int end = 0;
  *out = (tiny_grid){.rows = 1, .processes = 1, .all_types = true};
  bool is_one = sscanf(text, "%lldx%lld%n", &a, &b, &end) == 2;
  if (is_one) out->rows = a, out->columns = b;
  else if ((is_one = sscanf(text, "%lld%n", &a, &end) == 1)) out->columns = a;
  int more = 0;
  if (is_one && sscanf(text + end, "/%lld%n", &processes, &more) == 1) out->processes = processes, end += more;
  is_one = is_one && text[end] == 0;
  free(text);
  return is_one;
}

PJRT_Error *grid_check(const tiny_grid *grid) {
  if (grid->rows < 1 || grid->columns < 1 || grid->rows > TINY_MAX_DEVICES || grid->columns > TINY_MAX_DEVICES ||
      grid->rows * grid->columns > TINY_MAX_DEVICES)
    return error_make(INVALID, "A tiny topology has 1 to %d devices, got %lld x %lld", TINY_MAX_DEVICES,
                      (long long)grid->rows, (long long)grid->columns);
  if (grid->processes < 1 || grid->rows * grid->columns % grid->processes)
    return error_make(INVALID, "%lld devices cannot be shared by %lld processes", (long long)(grid->rows * grid->columns),
                      (long long)grid->processes);
  return NULL;
}

static void lay_out(pjrt_driver *driver) {
  const tiny_grid *grid = &driver->grid;
  driver->grid_numbers[0] = grid->rows, driver->grid_numbers[1] = grid->columns;
  driver->attributes[0] = (pjrt_driver_attribute){.name = "grid", .type = PJRT_DRIVER_INTEGERS,
                                                  .integers = driver->grid_numbers, .num_integers = 2};
  driver->attributes[1] = (pjrt_driver_attribute){.name = "num_processes", .type = PJRT_DRIVER_INTEGER,
                                                  .integers = &grid->processes, .num_integers = 1};
  driver->num_devices = (size_t)(grid->rows * grid->columns);
  driver->devices = new_zeroed(driver->num_devices, sizeof *driver->devices);
  driver->limits[0] = driver->bytes_limit;
  for (size_t i = 0; i < driver->num_devices; ++i) {
    tiny_device *each = &driver->devices[i];
    each->number = i;
    each->driver = driver;
    each->last = &each->first;
    each->coords[0] = (int64_t)i / grid->columns, each->coords[1] = (int64_t)i % grid->columns;
    each->one = 1;
    long long process = (long long)i * grid->processes / (long long)driver->num_devices;
    snprintf(each->text, sizeof each->text, "TinyDevice(id=%zu)", i);
    snprintf(each->debug_text, sizeof each->debug_text, "TinyDevice(id=%zu, process_index=%lld, coords=(%lld,%lld))", i,
             process, (long long)each->coords[0], (long long)each->coords[1]);
    const pjrt_driver_attribute attributes[5] = {
        {.name = "vendor", .type = PJRT_DRIVER_TEXT, .text = "tiny works"},
        {.name = "core_count", .type = PJRT_DRIVER_INTEGER, .integers = &each->one, .num_integers = 1},
        {.name = "coords", .type = PJRT_DRIVER_INTEGERS, .integers = each->coords, .num_integers = 2},
        {.name = "virtual", .type = PJRT_DRIVER_BOOLEAN, .integers = &each->one, .num_integers = 1},
        {.name = "clock_ghz", .type = PJRT_DRIVER_REAL, .real = 1.5f}};
    memcpy(each->attributes, attributes, sizeof attributes);
  }
}

static void describe(pjrt_driver *driver, size_t number, pjrt_driver_device *out) {
  tiny_device *each = &driver->devices[number];
  int64_t process = (int64_t)number * driver->grid.processes / (int64_t)driver->num_devices;
  int64_t of_process = (int64_t)driver->num_devices / driver->grid.processes;
  out->kind = "Tiny host device";
  out->num_memory_kinds = TINY_NUM_MEMORY_KINDS;
  out->memory_kinds = tiny_memory_kinds;
  out->memory_limits = driver->limits;
  out->id = (int)number;
  out->process_index = (int)process;
  out->is_addressable = process == driver->process_index;
  out->local_hardware_id = out->is_addressable ? (int)((int64_t)number - process * of_process) : -1;
  out->text = each->text;
  out->debug_text = each->debug_text;
  out->num_attributes = driver->grid.all_types ? 5 : 3;
  out->attributes = each->attributes;
}

static void describe_client(pjrt_driver *driver, pjrt_driver_client *out) {
  out->platform_version = TINY_PLATFORM_VERSION;
  out->platform_name = driver->platform_name;
  out->process_index = (int)driver->process_index;
  out->num_attributes = 2;
  out->attributes = driver->attributes;
}

PJRT_TopologyDescription *grid_make(int64_t rows, int64_t columns, int64_t processes, bool all_types, bool is_part) {
  pjrt_driver driver = {.grid = {rows, columns, processes, all_types, is_part}};
  bytes message = {0};
  pjrt_driver_client about = {.struct_size = sizeof about};
  static const int64_t yes = 1;
  lay_out(&driver);
  describe_client(&driver, &about);
  if (is_part)
    driver.attributes[about.num_attributes++] = (pjrt_driver_attribute){
        .name = "is_part", .type = PJRT_DRIVER_BOOLEAN, .integers = &yes, .num_integers = 1};
  char *name = printed("%lldx%lld/%lld", (long long)rows, (long long)columns, (long long)processes);
  facts_write_client(&message, TINY_PLATFORM_NAME, name, &about);
  for (size_t i = 0; i < driver.num_devices; ++i) {
    pjrt_driver_device each = {.struct_size = sizeof each};
    describe(&driver, i, &each);
    facts_write_device(&message, &each);
  }
  PJRT_TopologyDescription *topology = topology_make(&message);
  free(driver.devices);
  free(message.data);
  free(name);
  return topology;
}

tiny_grid grid_of(const PJRT_TopologyDescription *topology) {
  tiny_grid grid = {.all_types = topology->descriptions[0].attributes.count == 5};
  for (size_t i = 0; i < topology->attributes.count; ++i) {
    const PJRT_NamedValue *each = &topology->attributes.values[i];
    if (named_value_is(each, "grid")) grid.rows = each->int64_array_value[0], grid.columns = each->int64_array_value[1];
    if (named_value_is(each, "num_processes")) grid.processes = each->int64_value;
    if (named_value_is(each, "is_part")) grid.is_part = each->bool_value;
  }
  return grid;
}

/* ---- life ---------------------------------------------------------------------------------------------------------------*/
static void report(pjrt_driver *driver, const char *name, int code, const char *message, const char *value, size_t size) {
  char *text = code ? printed("%d: %s", code, message) : copy_of(value, size);
  named_value_add(&driver->report, name, strlen(name), &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kString, .string_value = text, .value_size = code ? strlen(text) : size});
  free(text);
}

/* Uses the key-value store once in every way; the devices tell what came back. */
static void exercise_store(pjrt_driver *driver) {
  static const char key[] = "tiny/greeting", value[] = "hello\0world", missing[] = "tiny/nowhere";
  static const struct { const char *name, *key; int64_t milliseconds; } gets[] = {
      {"kv_get", key, 10000}, {"kv_get_missing", missing, 20}, {"kv_try_get", key, 0}, {"kv_try_get_missing", missing, 0}};
  const pjrt_driver_store *store = driver->store;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  int code = store->put(store->arg, key, sizeof key - 1, value, sizeof value - 1, message);
  report(driver, "kv_put", code, message, "OK", 2);
  for (size_t i = 0; i < sizeof gets / sizeof *gets; ++i) {
    char *found = NULL;
    size_t size = 0;
    code = store->get(store->arg, gets[i].key, strlen(gets[i].key), gets[i].milliseconds, &found, &size, message);
    report(driver, gets[i].name, code, message, found, size);
    free(found);
  }
}

static PJRT_Error *read_options(pjrt_driver *driver, const pjrt_driver_option *options, size_t count) {
  int64_t num_devices = 1, num_processes = 1, fail_code = 0;
  bool has_grid = false, exercises = false;
  for (size_t i = 0; i < count; ++i) {
    const pjrt_driver_option *each = &options[i];
    int64_t *number = strcmp(each->name, "num_devices") == 0     ? &num_devices
                      : strcmp(each->name, "num_processes") == 0 ? &num_processes
                      : strcmp(each->name, "process_index") == 0 ? &driver->process_index
                      : strcmp(each->name, "bytes_limit") == 0   ? &driver->bytes_limit
                      : strcmp(each->name, "fail_code") == 0     ? &fail_code
                                                                 : NULL;
    bool is_text = strcmp(each->name, "platform_name") == 0 || strcmp(each->name, "topology") == 0;
    if (is_text != (each->text != NULL) || (number && each->is_boolean))
      return error_make(INVALID, "Option %s must be a %s", each->name,
                        is_text ? "string" : number ? "whole number" : "boolean");
    if (number) *number = each->number;
    if (strcmp(each->name, "platform_name") == 0) driver->platform_name = copy_of(each->text, strlen(each->text));
    if (strcmp(each->name, "topology") == 0) {
      has_grid = grid_read(each->text, strlen(each->text), &driver->grid);
      if (!has_grid) return error_make(INVALID, "A tiny topology is named \"N\" or \"NxM\", got \"%s\"", each->text);
    }
    if (strcmp(each->name, "kv_exercise") == 0) exercises = each->number != 0;
    if (strcmp(each->name, "all_attribute_types") == 0) driver->grid.all_types = each->number != 0;
  }
  if (fail_code)
    return error_make((PJRT_Error_Code)fail_code, "The client was asked to fail with code %lld", (long long)fail_code);
  if (has_grid) return grid_check(&driver->grid);
  if (num_devices < 1 || num_processes < 1 || num_devices > TINY_MAX_DEVICES || num_processes > TINY_MAX_DEVICES ||
      num_devices * num_processes > TINY_MAX_DEVICES)
    return error_make(INVALID, "The tiny plugin has 1 to %d devices, got num_devices=%lld, num_processes=%lld",
                      TINY_MAX_DEVICES, (long long)num_devices, (long long)num_processes);
  if (driver->process_index < 0 || driver->process_index >= num_processes)
    return error_make(INVALID, "process_index=%lld is not below num_processes=%lld", (long long)driver->process_index,
                      (long long)num_processes);
  driver->grid.rows = 1, driver->grid.columns = num_devices * num_processes, driver->grid.processes = num_processes;
  if (exercises && driver->store == NULL)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "kv_exercise needs a key-value store, and there is none");
  if (exercises) exercise_store(driver);
  return NULL;
}

static void free_driver(pjrt_driver *driver) {
  free(driver->platform_name);
  free(driver->process_infos);
  free(driver->devices);
  named_values_free(&driver->options);
  named_values_free(&driver->report);
  pthread_mutex_destroy(&driver->mutex);
  free(driver);
}

static int open_in_job(const pjrt_driver_option *options, size_t num_options, const pjrt_driver_store *store,
                       pjrt_driver **out, size_t *num_devices, char *message) {
  pjrt_driver *driver = new_zeroed(1, sizeof *driver);
  driver->store = store;
  pthread_mutex_init(&driver->mutex, NULL);
  PJRT_Error *error = read_options(driver, options, num_options);
  if (error) {
    free_driver(driver);
    return error_give(error, message);
  }
  lay_out(driver);
  for (size_t i = 0; i < driver->num_devices; ++i) {
    pthread_mutex_init(&driver->devices[i].mutex, NULL);
    pthread_cond_init(&driver->devices[i].changed, NULL);
    if (pthread_create(&driver->devices[i].thread, NULL, work_off, &driver->devices[i]) != 0) abort();
  }
  pthread_mutex_lock(&all_mutex);
  driver->next = all_drivers;
  all_drivers = driver;
  pthread_mutex_unlock(&all_mutex);
  *out = driver;
  *num_devices = driver->num_devices;
  return 0;
}

static int open_tiny(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                     char *message) {
  return open_in_job(options, num_options, NULL, out, num_devices, message);
}

static void close_tiny(pjrt_driver *driver) {
  driver_drain(driver);
  for (size_t i = 0; i < driver->num_devices; ++i) {
    tiny_device *each = &driver->devices[i];
    pthread_mutex_lock(&each->mutex);
    each->is_stopped = true;
    pthread_cond_broadcast(&each->changed);
    pthread_mutex_unlock(&each->mutex);
    pthread_join(each->thread, NULL);
    if (each->questions) close(each->socket);
    questions_end(each->questions);
    fences_free(&each->fences);
    pthread_cond_destroy(&each->changed);
    pthread_mutex_destroy(&each->mutex);
  }
  pthread_mutex_lock(&all_mutex);
  pjrt_driver **place = &all_drivers;
  while (*place != driver) place = &(*place)->next;
  *place = driver->next;
  pthread_mutex_unlock(&all_mutex);
  free_driver(driver);
}

void driver_keep_options(pjrt_driver *driver, const PJRT_NamedValue *options, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    char *name = printed("option:%.*s", (int)options[i].name_size, options[i].name);
    named_value_add(&driver->options, name, strlen(name), &options[i]);
    free(name);
  }
}

void driver_keep_process_infos(pjrt_driver *driver, const char *text) {
  pthread_mutex_lock(&driver->mutex);
  free(driver->process_infos);
  driver->process_infos = copy_of(text, strlen(text));
  pthread_mutex_unlock(&driver->mutex);
}

static void add_all(named_values *out, const named_values *from) {
  for (size_t i = 0; i < from->count; ++i)
    named_value_add(out, from->values[i].name, from->values[i].name_size, &from->values[i]);
}

void driver_tell(pjrt_driver *driver, named_values *out) {
  add_all(out, &driver->options);
  add_all(out, &driver->report);
  pthread_mutex_lock(&driver->mutex);
  if (driver->process_infos)
    named_value_add(out, "process_infos", strlen("process_infos"), &(PJRT_NamedValue){
        .type = PJRT_NamedValue_kString, .string_value = driver->process_infos,
        .value_size = strlen(driver->process_infos)});
  pthread_mutex_unlock(&driver->mutex);
}

/* ---- memory: an array lies there dense, in any order of its dimensions ------------------------------------------------------*/
static int allocate(pjrt_driver *driver, size_t device, size_t kind, size_t size, uint64_t *memory, char *message) {
  (void)driver, (void)device, (void)kind;
  void *data;
  if (posix_memalign(&data, ALIGNMENT, size ? size : 1) != 0) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "The host has no %zu bytes left", size);
    return PJRT_Error_Code_RESOURCE_EXHAUSTED;
  }
  live_add(LIVE_STORAGE, 1);
  *memory = (uintptr_t)data;
  return 0;
}

static void free_memory(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)driver, (void)device;
  live_add(LIVE_STORAGE, -1);
  free((void *)(uintptr_t)memory);
}

static int import(pjrt_driver *driver, size_t device, size_t kind, void *host, size_t size, uint64_t *memory,
                  char *message) {
  (void)driver, (void)device, (void)kind, (void)size, (void)message;
  live_add(LIVE_STORAGE, 1);
  *memory = (uintptr_t)host;
  return 0;
}

static void give_back(pjrt_driver *driver, uint64_t memory, void (*returned)(void *arg), void *arg) {
  (void)driver, (void)memory;
  live_add(LIVE_STORAGE, -1);
  returned(arg);
}

static int view(pjrt_driver *driver, uint64_t memory, void **out, char *message) {
  (void)driver, (void)message;
  *out = (void *)(uintptr_t)memory;
  return 0;
}

static bool is_on_host(pjrt_driver *driver, size_t device, size_t kind) {
  (void)driver, (void)device, (void)kind;
  return true;
}

static void hold_lock(pjrt_driver *driver, bool holds) {
  if (holds) pthread_mutex_lock(&driver->mutex);
  else pthread_mutex_unlock(&driver->mutex);
}

static int lay(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *of, pjrt_driver_layout *out,
               char *message) {
  (void)driver, (void)device, (void)kind, (void)of, (void)out, (void)message;
  return 0; /* as the runtime wrote it: dense, without tiles */
}

/* The strides of the memory, and those of the host's array. */
static void set_strides(job *each, const pjrt_driver_shape *given, int64_t *of_memory, int64_t *of_host) {
  if (given == NULL || given->rank == 0 || each->size == 0) return;
  each->shape.type = (PJRT_Buffer_Type)given->type;
  each->shape.rank = given->rank;
  for (size_t i = 0; i < given->rank; ++i) {
    each->shape.dims[i] = given->dims[i];
    each->shape.minor_to_major[i] = given->minor_to_major ? given->minor_to_major[i] : (int64_t)(given->rank - 1 - i);
  }
  each->is_strided = !shape_is_in_rows(&each->shape);
  shape_strides(&each->shape, of_memory);
  row_major_strides(&each->shape, of_host);
}

static int copy_in(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *given, size_t offset,
                   const void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)message;
  job each = {.to = (char *)(uintptr_t)memory + offset, .from = host, .size = size};
  set_strides(&each, given, each.to_strides, each.from_strides);
  return enqueue(&driver->devices[device], &each, fence);
}

static int copy_out(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *given, size_t offset,
                    void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)message;
  job each = {.to = host, .from = (const char *)(uintptr_t)memory + offset, .size = size};
  set_strides(&each, given, each.from_strides, each.to_strides);
  return enqueue(&driver->devices[device], &each, fence);
}

static int copy(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory, size_t size,
                pjrt_fence *fence, char *message) {
  (void)to_device, (void)message;
  return enqueue(&driver->devices[device],
                 &(job){.to = (char *)(uintptr_t)to_memory, .from = (const char *)(uintptr_t)memory, .size = size}, fence);
}

/* ---- programs ---------------------------------------------------------------------------------------------------------------*/
static PJRT_Error *ask(pjrt_driver *driver, bytes *request, answer *out) {
  (void)driver;
  bytes data = {0};
  *out = (answer){0};
  PJRT_Error *error = program_compile(request, &data);
  if (error) return error;
  out->text = data.data;
  out->data = data.data;
  out->data_size = out->size = data.size;
  return NULL;
}

static int load(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable, char *message) {
  (void)device;
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&driver->mutex);
  loaded_program *each = driver->programs;
  while (each && each->code != code) each = each->next;
  if (each == NULL) {
    tiny_program *program;
    error = program_parse(code, size, &program);
    if (!error) {
      each = new_zeroed(1, sizeof *each);
      *each = (loaded_program){.code = code, .program = program, .next = driver->programs};
      driver->programs = each;
    }
  }
  if (each) ++each->refs;
  pthread_mutex_unlock(&driver->mutex);
  *executable = (uintptr_t)each;
  return error_give(error, message);
}

static void unload(pjrt_driver *driver, size_t device, uint64_t executable) {
  (void)device;
  loaded_program *each = (loaded_program *)(uintptr_t)executable;
  pthread_mutex_lock(&driver->mutex);
  bool is_last = --each->refs == 0;
  loaded_program **place = &driver->programs;
  while (is_last && *place != each) place = &(*place)->next;
  if (is_last) *place = each->next;
  pthread_mutex_unlock(&driver->mutex);
  if (!is_last) return;
  while (each->joins) {
    join *next = each->joins->next;
    meeting_unref(each->joins->meeting);
    free(each->joins);
    each->joins = next;
  }
  program_free(each->program);
  free(each);
}

static tiny_meeting *join_meeting(pjrt_driver *driver, loaded_program *program, const pjrt_driver_launch *launch) {
  const size_t participants = launch->num_participants ? launch->num_participants : 1;
  pthread_mutex_lock(&driver->mutex);
  int64_t run = launch->execution ? -(int64_t)launch->execution : program->runs[launch->device]++;
  join **place = &program->joins;
  while (*place && (*place)->run != run) place = &(*place)->next;
  if (*place == NULL) {
    *place = new_zeroed(1, sizeof **place);
    (*place)->run = run;
    (*place)->meeting = meeting_make(participants);
  }
  join *each = *place;
  tiny_meeting *meeting = meeting_ref(each->meeting);
  if (++each->joined >= participants) {
    *place = each->next;
    meeting_unref(each->meeting);
    free(each);
  }
  pthread_mutex_unlock(&driver->mutex);
  return meeting;
}

/* What the execution was given: the number of its functions, and the error of an argument. */
static void read_execute_options(const execute_options *options, job *out) {
  if (options == NULL) return;
  const bytes *message = execute_options_message(options);
  const char *cursor = message->data;
  proto_field field;
  int code = 0;
  while (proto_next(&cursor, message->data + message->size, &field)) {
    if (field.number == 1 && field.wire == 0) out->token = field.value;
    if (field.number == 13 && field.wire == 0) code = (int)field.value;
    if (field.number == 14 && field.wire == 2)
      out->told = error_from_parts((PJRT_Error_Code)code, field.data, field.size);
  }
}

static int launch_tiny(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  (void)message;
  job each = {.program = (loaded_program *)(uintptr_t)launch->executable, .num_inputs = launch->num_inputs,
              .num_after = launch->num_after, .replica = launch->replica, .partition = launch->partition};
  size_t inputs = launch->num_inputs * sizeof *each.memory, outputs = launch->num_outputs * sizeof *each.memory;
  each.memory = new_zeroed(1, inputs + outputs);
  if (inputs) memcpy(each.memory, launch->inputs, inputs);
  if (outputs) memcpy(each.memory + launch->num_inputs, launch->outputs, outputs);
  if (launch->num_after) {
    each.after_devices = copy_of(launch->after_devices, launch->num_after * sizeof *launch->after_devices);
    each.after = copy_of(launch->after, launch->num_after * sizeof *launch->after);
  }
  read_execute_options(((const worker_launch *)(const void *)launch)->options, &each);
  each.meeting = join_meeting(driver, each.program, launch);
  return enqueue(&driver->devices[launch->device], &each, fence);
}

/* ---- what the runtime asks for -------------------------------------------------------------------------------------------------*/
const python_functions here_functions = {
    .ask = ask, .hold = hold_lock, .is_on_host = is_on_host, .view = view, .give_back = give_back,
};

const pjrt_driver_table here_driver = {
    .struct_size = sizeof(pjrt_driver_table), .platform_name = TINY_PLATFORM_NAME,
    .platform_version = TINY_PLATFORM_VERSION, .open = open_tiny, .open_in_job = open_in_job,
    .describe_client = describe_client, .close = close_tiny, .describe = describe, .allocate = allocate,
    .free = free_memory, .copy_in = copy_in, .copy_out = copy_out, .copy = copy, .import = import, .layout = lay,
    .load = load, .unload = unload, .launch = launch_tiny, .on_done = on_done, .cancel = cancel,
    .payload = pending_payload,
};

PJRT_Error *driver_find(const pjrt_driver_table **out) {
  *out = &here_driver;
  return NULL;
}

const char *setting(const char *key) {
  (void)key;
  return NULL;
}

bool here_has_profiler(void) { return false; }
bool driver_is_in_c(void) { return false; } /* it has a profiler of its own */
PJRT_Error *here_profile(bytes *request, answer *out) {
  (void)request, (void)out;
  return error_make(PJRT_Error_Code_UNIMPLEMENTED, "The tiny plugin has a profiler of its own");
}
