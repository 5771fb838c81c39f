/* The driver "here": devices that are objects of this process, under its interpreter's lock.
 *
 * The caller's thread calls Python, which starts the work; what does not end at once ends by a fence. An array that the
 * host wrote lies in memory of ours, and becomes the client's when a program needs it: the client looks at the bytes where
 * they are. An array that the client computed is its own, until the host asks for its bytes. */
#include <unistd.h>

#include "here.h"
#include "runtime.h"

struct here_lent {
  int refs; /* arrays that are made of the bytes */
  char *bytes;
  here_block *block; /* which is still there; null where its memory is another, or free */
  bool is_elsewhere;
  void (*returned)(void *arg); /* null until the memory is freed here */
  void *arg;
};

/* What was begun. A copy writes to memory of the host until it ends by itself. */
typedef struct begun {
  pending pending;
  bool is_copy;
} begun;

struct pjrt_driver {
  atomic_int refs; /* until it is closed, and Python's */
  void *client;
  facts facts;
  bool has_contexts;
  pid_t owner;
  const pjrt_driver_store *store; /* null where the framework has none */
  questions *questions;           /* null until Python asks for it */
  _Atomic char *is_on_host; /* by device and kind of memory: 0 unknown, 1 no, 2 yes */
  pthread_mutex_t mutex;    /* guards what follows, and the bytes of blocks */
  fences fences;
  known_layouts layouts;
};

static here_client python;

static here_block *block_of(uint64_t memory) { return (here_block *)(uintptr_t)memory; }

/* After a fork, and when the interpreter ends, no Python runs for us. */
static int refuse_call(const pjrt_driver *driver, char *message) {
  if (driver->owner == getpid() && !interpreter_is_ending()) return 0;
  bool is_forked = driver->owner != getpid();
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%s", is_forked ? "the device belongs to the process that was forked"
                                                              : "the interpreter of the device ends");
  return is_forked ? PJRT_Error_Code_FAILED_PRECONDITION : PJRT_Error_Code_UNAVAILABLE;
}

/* ---- fences ---------------------------------------------------------------------------------------------------------------*/
static pjrt_fence begin(pjrt_driver *driver, bool is_copy) {
  pthread_mutex_lock(&driver->mutex);
  begun *each = (begun *)fences_begin(&driver->fences, sizeof *each);
  each->is_copy = is_copy;
  pjrt_fence fence = each->pending.fence;
  pthread_mutex_unlock(&driver->mutex);
  return fence;
}

/* What was cancelled may end once more. */
static void end(pjrt_driver *driver, pjrt_fence fence, int code, const char *message, size_t size, const char *payloads,
                size_t payloads_size) {
  pthread_mutex_lock(&driver->mutex);
  pending *ended = fences_end(&driver->fences, fence, code, message, size, payloads, payloads_size);
  pthread_mutex_unlock(&driver->mutex);
  if (ended) pending_tell(ended);
}

static bool is_open(pjrt_driver *driver, pjrt_fence fence) {
  pthread_mutex_lock(&driver->mutex);
  const pending *each = fences_find(&driver->fences, fence);
  bool is_open = each && !each->is_ended;
  pthread_mutex_unlock(&driver->mutex);
  return is_open;
}

static int on_done(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                   char *message) {
  (void)device;
  pending *ended;
  pthread_mutex_lock(&driver->mutex);
  int code = fences_follow(&driver->fences, fence, function, arg, &ended, message);
  pthread_mutex_unlock(&driver->mutex);
  if (ended) pending_tell(ended);
  return code;
}

/* What a device has begun goes on, and nobody hears of that. */
static int cancel(pjrt_driver *driver, size_t device, pjrt_fence fence, char *message) {
  static const char text[] = "the execution was cancelled";
  (void)device, (void)message;
  pthread_mutex_lock(&driver->mutex);
  const begun *each = (const begun *)fences_find(&driver->fences, fence);
  bool is_copy = each && each->is_copy;
  pthread_mutex_unlock(&driver->mutex);
  if (is_copy) return 0;
  end(driver, fence, PJRT_Error_Code_CANCELLED, text, sizeof text - 1, NULL, 0);
  return 0;
}

static int wait_for(pjrt_driver *driver, pjrt_fence fence, char *message) {
  waiting each = WAITING(message);
  int code = on_done(driver, 0, fence, waiting_wake, &each, message);
  return code ? code : waiting_sleep(&each);
}

/* ---- life -----------------------------------------------------------------------------------------------------------------*/
static void ref(pjrt_driver *driver) { atomic_fetch_add(&driver->refs, 1); }

static void unref(pjrt_driver *driver) {
  if (atomic_fetch_sub(&driver->refs, 1) != 1) return;
  facts_free(&driver->facts);
  free((void *)driver->is_on_host);
  pthread_mutex_destroy(&driver->mutex);
  free(driver);
}

static void close_here(pjrt_driver *driver) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  if (driver->client && !refuse_call(driver, message)) python.close(driver->client);
  questions_end(driver->questions);
  pthread_mutex_lock(&driver->mutex); /* what was given up may end at this moment */
  fences_free(&driver->fences);
  known_layouts_free(&driver->layouts);
  pthread_mutex_unlock(&driver->mutex);
  unref(driver);
}

static PJRT_Error *meet_devices(pjrt_driver *driver, const pjrt_driver_option *options, size_t num_options) {
  bytes request = {0};
  answer devices = {0};
  if (interpreter_was_forked())
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "the device belongs to the process that was forked");
  request_open(&request, options, num_options, driver->store != NULL);
  ffi_add_names(&request, 8, 0);
  python.open(python.plugin, driver, &driver->client, request.data, request.size, &devices.text, &devices.size);
  free(request.data);
  PJRT_Error *error = answer_read(&devices);
  driver->has_contexts = devices.number != 0;
  if (!error && !facts_read(&driver->facts, devices.data, devices.data_size))
    error = error_make(PJRT_Error_Code_INTERNAL, "the client gave devices that cannot be read");
  answer_free(&devices);
  return error;
}

static int open_in_job(const pjrt_driver_option *options, size_t num_options, const pjrt_driver_store *store,
                       pjrt_driver **out, size_t *num_devices, char *message) {
  pjrt_driver *driver = new_zeroed(1, sizeof *driver);
  driver->owner = getpid();
  atomic_init(&driver->refs, 1);
  driver->store = store;
  pthread_mutex_init(&driver->mutex, NULL);
  PJRT_Error *error = meet_devices(driver, options, num_options);
  if (error) {
    close_here(driver);
    return error_give(error, message);
  }
  *out = driver;
  *num_devices = driver->facts.num_devices;
  driver->is_on_host = new_zeroed(*num_devices * MAX_KINDS, 1);
  return 0;
}

static int open_here(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                     char *message) {
  return open_in_job(options, num_options, NULL, out, num_devices, message);
}

static void describe_here(pjrt_driver *driver, size_t device, pjrt_driver_device *out) {
  *out = driver->facts.devices[device];
}

static void describe_client(pjrt_driver *driver, pjrt_driver_client *out) {
  *out = driver->facts.client;
  if (setting("platform")) out->platform_name = NULL;
}

static bool has_contexts(pjrt_driver *driver) { return driver->has_contexts; }

static PJRT_Error *ask_here(pjrt_driver *driver, bytes *request, answer *out) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  *out = (answer){0};
  int code = refuse_call(driver, message);
  if (code) return error_from_parts((PJRT_Error_Code)code, message, strlen(message));
  ffi_add_names(request, 8, 0);
  python.ask(driver->client, request->data, request->size, &out->text, &out->size);
  PJRT_Error *error = answer_read(out);
  if (error) answer_free(out);
  return error;
}

static bool has_layouts(pjrt_driver *driver) { return driver->facts.has_layouts; }

static int layout_here(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *shape,
                       pjrt_driver_layout *layout, char *message) {
  return ask_for_layout(&driver->layouts, &driver->mutex, ask_here, driver, device, kind, shape, layout, message);
}

bool here_has_profiler(void) { return python.profile != NULL; }

PJRT_Error *here_profile(bytes *request, answer *out) {
  *out = (answer){0};
  python.profile(python.plugin, request->data, request->size, &out->text, &out->size);
  PJRT_Error *error = answer_read(out);
  if (error) answer_free(out);
  return error;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------*/
static char *take_bytes(size_t size, char *message) {
  char *bytes = aligned_alloc(ALIGNMENT, (size + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
  if (bytes == NULL) snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "this process gets no %zu bytes", size);
  return bytes;
}

static here_block *block_make(size_t device, size_t kind, size_t size) {
  here_block *each = new_zeroed(1, sizeof *each);
  each->device = device;
  each->kind = kind;
  each->size = size;
  return each;
}

static bool is_on_host(pjrt_driver *driver, size_t device, size_t kind) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  size_t number = device * MAX_KINDS + kind;
  char known = atomic_load(&driver->is_on_host[number]);
  if (known == 0 && !refuse_call(driver, message)) {
    known = python.is_on_host(driver->client, device, kind) ? 2 : 1;
    atomic_store(&driver->is_on_host[number], known);
  }
  return known == 2;
}

/* Bytes are taken when somebody writes them. What nobody could give is refused at once. */
static bool is_possible(pjrt_driver *driver, size_t device, size_t kind, size_t size, char *message) {
  static const size_t large = (size_t)1 << 30, largest = (size_t)1 << 47;
  if (size >= largest) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "no process has room for %zu bytes", size);
    return false;
  }
  if (size < large || !is_on_host(driver, device, kind)) return true;
  char *volatile tried = take_bytes(size, message); /* volatile: compilers leave out memory that nobody uses */
  free(tried);
  return tried != NULL;
}

static int allocate_here(pjrt_driver *driver, size_t device, size_t kind, size_t size, uint64_t *memory, char *message) {
  if (!is_possible(driver, device, kind, size, message)) return PJRT_Error_Code_RESOURCE_EXHAUSTED;
  *memory = (uintptr_t)block_make(device, kind, size);
  return 0;
}

/* The bytes of the block will be others: the client keeps those that it looks at. With the mutex. */
static void leave_bytes(here_block *each) {
  if (each->lent) each->lent->block = NULL;
  else if (!each->is_elsewhere) free(each->bytes);
  each->bytes = NULL;
  each->lent = NULL;
  each->is_viewed = each->is_elsewhere = false;
}

static void drop_array(pjrt_driver *driver, here_block *each) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  if (each->array && !refuse_call(driver, message)) python.drop(each->array, each->maker);
  each->array = each->maker = NULL;
}

static void free_here(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)device;
  here_block *each = block_of(memory);
  pthread_mutex_lock(&driver->mutex);
  leave_bytes(each);
  pthread_mutex_unlock(&driver->mutex);
  drop_array(driver, each);
  free(each);
}

static int import_here(pjrt_driver *driver, size_t device, size_t kind, void *host, size_t size, uint64_t *memory,
                       char *message) {
  if (!is_on_host(driver, device, kind)) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the device cannot look at memory that it did not allocate");
    return PJRT_Error_Code_UNIMPLEMENTED;
  }
  here_block *each = block_make(device, kind, size);
  each->bytes = host;
  each->is_elsewhere = true;
  *memory = (uintptr_t)each;
  return 0;
}

/* Two programs may want the array at the same moment: both look at the same bytes. */
static here_bytes lend(pjrt_driver *driver, here_block *each) {
  pthread_mutex_lock(&driver->mutex);
  if (each->bytes && each->lent == NULL) {
    each->lent = new_zeroed(1, sizeof *each->lent);
    *each->lent = (here_lent){.bytes = each->bytes, .block = each, .is_elsewhere = each->is_elsewhere};
  }
  if (each->lent) ++each->lent->refs;
  here_bytes given = {.data = each->bytes, .lent = each->lent};
  pthread_mutex_unlock(&driver->mutex);
  return given;
}

/* The client has an array of its own: the bytes go, unless somebody looks at them. With the mutex. */
static void drop_bytes(here_block *each) {
  if (each->array == NULL || each->lent || each->is_elsewhere || each->is_viewed || each->readers) return;
  free(each->bytes);
  each->bytes = NULL;
}

static void has_array(pjrt_driver *driver, here_block *each) {
  pthread_mutex_lock(&driver->mutex);
  drop_bytes(each);
  pthread_mutex_unlock(&driver->mutex);
}

static void released(pjrt_driver *driver, here_lent *lent) {
  pthread_mutex_lock(&driver->mutex);
  bool is_last = --lent->refs == 0;
  here_block *each = lent->block;
  if (is_last && each) {
    each->lent = NULL;
    drop_bytes(each);
  } else if (is_last && !lent->is_elsewhere) {
    free(lent->bytes);
  }
  pthread_mutex_unlock(&driver->mutex);
  if (!is_last) return;
  if (lent->returned) {
    queue_call(true);
    lent->returned(lent->arg);
    queue_call(false);
  }
  free(lent);
}

/* Frees memory that was imported, and calls the function when the client looks at it no longer. */
static void give_back(pjrt_driver *driver, uint64_t memory, void (*returned)(void *arg), void *arg) {
  here_block *each = block_of(memory);
  pthread_mutex_lock(&driver->mutex);
  here_lent *place = each->is_elsewhere ? each->lent : NULL;
  if (place) place->returned = returned, place->arg = arg;
  pthread_mutex_unlock(&driver->mutex);
  free_here(driver, each->device, memory);
  if (place == NULL) returned(arg);
}

/* The bytes, which stay until `end_reading`; null where there are none. */
static const char *begin_reading(pjrt_driver *driver, here_block *each) {
  pthread_mutex_lock(&driver->mutex);
  const char *bytes = each->bytes;
  each->readers += bytes != NULL;
  pthread_mutex_unlock(&driver->mutex);
  return bytes;
}

static void end_reading(pjrt_driver *driver, here_block *each) {
  pthread_mutex_lock(&driver->mutex);
  --each->readers;
  pthread_mutex_unlock(&driver->mutex);
}

static int copy_out_here(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                         void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)device, (void)shape;
  here_block *each = block_of(memory);
  *fence = 0;
  const char *bytes = begin_reading(driver, each);
  if (bytes) {
    memcpy(host, bytes + offset, size);
    end_reading(driver, each);
    return 0;
  }
  if (each->array == NULL) { /* nobody ever wrote there */
    memset(host, 0, size);
    return 0;
  }
  int code = refuse_call(driver, message);
  return code ? code : python.copy_out(driver->client, each, offset, host, size, fence, message);
}

/* Bytes of ours, with what the array has: before some of them are written. */
static int bring(pjrt_driver *driver, here_block *each, char *to, char *message) {
  pjrt_fence fence;
  int code = copy_out_here(driver, each->device, (uintptr_t)each, NULL, 0, to, each->size, &fence, message);
  return code || fence == 0 ? code : wait_for(driver, fence, message);
}

static int copy_in_here(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                        const void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)device, (void)shape;
  here_block *each = block_of(memory);
  *fence = 0;
  bool is_new = each->bytes == NULL || (each->array && !each->is_viewed);
  if (!is_new) {
    memcpy(each->bytes + offset, host, size);
    if (!each->is_elsewhere) drop_array(driver, each); /* others look at the bytes: the client's are old */
    return 0;
  }
  char *place = take_bytes(each->size, message);
  if (place == NULL) return PJRT_Error_Code_RESOURCE_EXHAUSTED;
  int code = size == each->size ? 0 : bring(driver, each, place, message);
  if (code) {
    free(place);
    return code;
  }
  memcpy(place + offset, host, size);
  drop_array(driver, each);
  pthread_mutex_lock(&driver->mutex);
  leave_bytes(each);
  each->bytes = place;
  pthread_mutex_unlock(&driver->mutex);
  return 0;
}

static int copy_here(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory, size_t size,
                     pjrt_fence *fence, char *message) {
  (void)device;
  here_block *from = block_of(memory), *to = block_of(to_memory);
  *fence = 0;
  const char *bytes = begin_reading(driver, from);
  if (bytes) {
    int code = copy_in_here(driver, to_device, to_memory, NULL, 0, bytes, size, fence, message);
    end_reading(driver, from);
    return code;
  }
  if (from->array == NULL) return 0;
  int code = refuse_call(driver, message);
  return code ? code : python.copy(driver->client, from, to, fence, message);
}

/* The bytes that are there, or else the given ones: others see them from now on. */
static char *show(pjrt_driver *driver, here_block *each, char *bytes, bool is_elsewhere) {
  pthread_mutex_lock(&driver->mutex);
  if (each->bytes == NULL && bytes) {
    each->bytes = bytes;
    each->is_elsewhere = is_elsewhere;
  }
  if (each->bytes) each->is_viewed = true;
  char *shown = each->bytes;
  pthread_mutex_unlock(&driver->mutex);
  return shown;
}

static int view(pjrt_driver *driver, uint64_t memory, void **out, char *message) {
  here_block *each = block_of(memory);
  *out = show(driver, each, NULL, false);
  if (*out) return 0;
  if (each->array == NULL) { /* nobody ever wrote there */
    char *zeros = take_bytes(each->size, message);
    if (zeros == NULL) return PJRT_Error_Code_RESOURCE_EXHAUSTED;
    memset(zeros, 0, each->size);
    *out = show(driver, each, zeros, false);
    return 0;
  }
  uint64_t address = 0;
  int code = refuse_call(driver, message);
  if (!code) code = python.address(driver->client, each, &address, message);
  if (!code) *out = show(driver, each, (char *)(uintptr_t)address, true);
  return code;
}

/* ---- programs ---------------------------------------------------------------------------------------------------------------*/
static int load_here(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable, char *message) {
  return ask_to_load(ask_here, driver, device, code, size, executable, message);
}

static void unload_here(pjrt_driver *driver, size_t device, uint64_t executable) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  (void)device;
  if (!refuse_call(driver, message)) python.unload(driver->client, executable);
}

static int launch_here(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  const execute_options *options = ((const worker_launch *)(const void *)launch)->options;
  const bytes *given = options ? execute_options_message(options) : NULL;
  here_launch what = {.launch = launch, .options = given ? given->data : NULL, .options_size = given ? given->size : 0};
  int code = refuse_call(driver, message);
  if (code) return code;
  code = python.launch(driver->client, &what, fence, message);
  for (size_t i = 0; i < launch->num_outputs && !code; ++i) {
    here_block *each = block_of(launch->outputs[i]); /* perhaps that of an argument, which has a new array now */
    if (each->bytes == NULL) continue;
    pthread_mutex_lock(&driver->mutex);
    leave_bytes(each);
    pthread_mutex_unlock(&driver->mutex);
  }
  return code;
}

static int open_questions(pjrt_driver *driver) {
  int socket = -1;
  if (driver->questions == NULL) driver->questions = questions_begin(driver->store, &socket);
  return socket;
}

static const here_runtime runtime = {
    .begin = begin, .end = end, .is_open = is_open, .lend = lend, .released = released, .has_array = has_array,
    .ref = ref, .unref = unref, .questions = open_questions,
};

static void hold(pjrt_driver *driver, bool holds) {
  if (holds) pthread_mutex_lock(&driver->mutex);
  else pthread_mutex_unlock(&driver->mutex);
}

const python_functions here_functions = {
    .ask = ask_here, .hold = hold, .has_layouts = has_layouts, .layout = layout_here,
    .is_on_host = is_on_host, .view = view, .give_back = give_back, .has_contexts = has_contexts,
    .alignment = ALIGNMENT, .copies_at_once = true,
};

const pjrt_driver_table here_driver = {
    .struct_size = sizeof(pjrt_driver_table),
    .platform_name = "here", .platform_version = "pjrt here 1",
    .open = open_here, .open_in_job = open_in_job, .describe_client = describe_client, .close = close_here,
    .describe = describe_here, .allocate = allocate_here, .free = free_here, .copy_in = copy_in_here,
    .copy_out = copy_out_here, .load = load_here, .unload = unload_here, .launch = launch_here, .cancel = cancel,
    .on_done = on_done, .copy = copy_here, .import = import_here, .payload = pending_payload,
};

/* Called by Python, once, before anybody has the table. */
__attribute__((visibility("default"))) const here_runtime *pjrt_native_here(const here_client *client) {
  python = *client;
  return &runtime;
}
