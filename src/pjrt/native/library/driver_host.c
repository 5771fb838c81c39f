/* The driver "host": memory of this process, and code that a compiler emitted as a shared library.
 *
 * The code is the content of a shared object with the function
 *
 *     int pjrt_program(void *const *inputs, void *const *outputs, void *scratch, char *message);
 *
 * which returns 0, or a status code and a message. It may have `const int64_t pjrt_program_work`, the number of
 * operations that it computes: a program with few runs on the caller's thread, which costs less than to wake another. */
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

typedef int (*program_function)(void *const *inputs, void *const *outputs, void *scratch, char *message);

/* Operations that take about as long as to wake a thread. */
static const int64_t SMALL_WORK = 50000;

typedef struct program {
  void *library;
  program_function run;
  int64_t work;
} program;

enum { FAILURES_KEPT = 64, BLOCKS_KEPT = 16 };

/* Memory that the system gives is empty pages, which cost more to touch than to copy to. So freed blocks of at least
 * SMALLEST_KEPT bytes are kept for the next array of the same size, up to LARGEST_KEPT bytes in all. */
static const size_t SMALLEST_KEPT = 1 << 16, LARGEST_KEPT = 1 << 28;
typedef struct block {
  void *data;
  size_t size;
} block;

typedef struct job {
  program *program; /* null for a copy of bytes */
  void *to;
  const void *from;
  size_t size;
  void **arguments; /* inputs, then outputs */
  size_t num_inputs, num_after;
  size_t *after_devices; /* other devices' work that must be done before */
  pjrt_fence *after;
  void *scratch;
  struct job *next;
} job;

typedef struct ending {
  pjrt_fence fence;
  pjrt_driver_done function;
  void *arg;
  struct ending *next;
} ending;

/* A device: a thread that runs jobs in their order. */
typedef struct host_device {
  pthread_t thread;
  bool is_started;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  job *first, **last;
  pjrt_fence given, done;
  bool is_stopped;
  ending *endings;
  struct { pjrt_fence fence; int code; char *message; } failures[FAILURES_KEPT]; /* the latest, in a ring */
  size_t num_failures;
  pjrt_driver *driver;
  pthread_mutex_t kept_mutex; /* guards what follows */
  block kept[BLOCKS_KEPT];
  size_t num_kept, kept_size;
} host_device;

struct pjrt_driver {
  size_t num_devices;
  host_device *devices;
  char kind[64];
};

static const char *const KINDS[] = {"device"};

/* ---- the thread -----------------------------------------------------------------------------------------------------*/
static int failure_of(const host_device *device, pjrt_fence fence, char *message) {
  for (size_t i = 0; i < FAILURES_KEPT; ++i) {
    if (device->failures[i].message == NULL || device->failures[i].fence != fence) continue;
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%s", device->failures[i].message);
    return device->failures[i].code;
  }
  return 0;
}

static void note_failure(host_device *device, pjrt_fence fence, int code, const char *message) {
  size_t at = device->num_failures++ % FAILURES_KEPT;
  free(device->failures[at].message);
  device->failures[at].fence = fence;
  device->failures[at].code = code;
  device->failures[at].message = copy_of(message, strnlen(message, PJRT_DRIVER_MESSAGE_SIZE - 1));
}

static void free_job(job *each) {
  free(each->arguments);
  free(each->after_devices);
  free(each->after);
  free(each);
}

static int wait_host(pjrt_driver *driver, size_t number, pjrt_fence fence, int64_t nanoseconds, char *message);

static int run_job(host_device *device, const job *each, char *message) {
  for (size_t i = 0; i < each->num_after; ++i) { /* whether that work failed, the runtime sees itself */
    char ignored[PJRT_DRIVER_MESSAGE_SIZE];
    wait_host(device->driver, each->after_devices[i], each->after[i], -1, ignored);
  }
  if (each->program == NULL) {
    memcpy(each->to, each->from, each->size);
    return 0;
  }
  return each->program->run(each->arguments, each->arguments + each->num_inputs, each->scratch, message);
}

/* Takes the endings of work that is done off the list. */
static ending *take_endings(host_device *device) {
  ending *taken = NULL, **place = &device->endings;
  while (*place) {
    ending *each = *place;
    if (each->fence > device->done) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    each->next = taken;
    taken = each;
  }
  return taken;
}

static void call_endings(host_device *device, ending *endings) {
  while (endings) {
    ending *each = endings;
    endings = each->next;
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    pthread_mutex_lock(&device->mutex);
    int code = failure_of(device, each->fence, message);
    pthread_mutex_unlock(&device->mutex);
    each->function(each->arg, code, message);
    free(each);
  }
}

static void *run_jobs(void *arg) {
  host_device *device = arg;
  pthread_mutex_lock(&device->mutex);
  for (;;) {
    while (device->first == NULL && !device->is_stopped) pthread_cond_wait(&device->changed, &device->mutex);
    job *each = device->first;
    if (each == NULL) break;
    pthread_mutex_unlock(&device->mutex);
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    int code = run_job(device, each, message);
    pthread_mutex_lock(&device->mutex);
    device->first = each->next;
    if (device->first == NULL) device->last = &device->first;
    ++device->done;
    if (code) note_failure(device, device->done, code, message);
    ending *endings = take_endings(device);
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->mutex);
    call_endings(device, endings);
    free_job(each);
    pthread_mutex_lock(&device->mutex);
  }
  pthread_mutex_unlock(&device->mutex);
  return NULL;
}

static bool is_idle(host_device *device) {
  pthread_mutex_lock(&device->mutex);
  bool is_idle = device->first == NULL;
  pthread_mutex_unlock(&device->mutex);
  return is_idle;
}

static int enqueue(host_device *device, job *each, pjrt_fence *fence, char *message) {
  pthread_mutex_lock(&device->mutex);
  if (!device->is_started) device->is_started = pthread_create(&device->thread, NULL, run_jobs, device) == 0;
  if (!device->is_started) {
    pthread_mutex_unlock(&device->mutex);
    free_job(each);
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the system has no thread left for the device");
    return PJRT_Error_Code_RESOURCE_EXHAUSTED;
  }
  *device->last = each;
  device->last = &each->next;
  *fence = ++device->given;
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
  return 0;
}

/* ---- life -----------------------------------------------------------------------------------------------------------*/
static int open_host(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                     char *message) {
  int64_t count = 1;
  for (size_t i = 0; i < num_options; ++i) {
    if (strcmp(options[i].name, "num_devices") == 0 && options[i].text == NULL) {
      count = options[i].number;
      continue;
    }
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "expected the option num_devices, a number, found the option %s",
             options[i].name);
    return PJRT_Error_Code_INVALID_ARGUMENT;
  }
  if (count < 1 || count > MAX_DEVICES) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "expected num_devices from 1 to %d, found %lld", MAX_DEVICES,
             (long long)count);
    return PJRT_Error_Code_INVALID_ARGUMENT;
  }
  pjrt_driver *driver = new_zeroed(1, sizeof *driver);
  driver->num_devices = (size_t)count;
  driver->devices = new_zeroed(driver->num_devices, sizeof *driver->devices);
  const char *platform = setting("platform");
  snprintf(driver->kind, sizeof driver->kind, "%s", platform ? platform : "host");
  for (size_t i = 0; i < driver->num_devices; ++i) {
    host_device *device = &driver->devices[i];
    pthread_mutex_init(&device->mutex, NULL);
    pthread_cond_init(&device->changed, NULL);
    pthread_mutex_init(&device->kept_mutex, NULL);
    device->last = &device->first;
    device->driver = driver;
  }
  *out = driver;
  *num_devices = driver->num_devices;
  return 0;
}

static void close_host(pjrt_driver *driver) {
  for (size_t i = 0; i < driver->num_devices; ++i) {
    host_device *device = &driver->devices[i];
    pthread_mutex_lock(&device->mutex);
    device->is_stopped = true;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->mutex);
    if (device->is_started) pthread_join(device->thread, NULL);
    for (size_t j = 0; j < FAILURES_KEPT; ++j) free(device->failures[j].message);
    for (size_t j = 0; j < device->num_kept; ++j) free(device->kept[j].data);
    pthread_mutex_destroy(&device->kept_mutex);
    pthread_cond_destroy(&device->changed);
    pthread_mutex_destroy(&device->mutex);
  }
  free(driver->devices);
  free(driver);
}

static void describe_host(pjrt_driver *driver, size_t device, pjrt_driver_device *out) {
  (void)device;
  out->kind = driver->kind;
  out->num_memory_kinds = sizeof KINDS / sizeof *KINDS;
  out->memory_kinds = KINDS;
}

/* ---- memory ---------------------------------------------------------------------------------------------------------*/
static void *address(uint64_t memory) { return (void *)(uintptr_t)memory; }

/* The size of a block of ours is before it, where its alignment leaves room. */
static size_t *size_of_block(void *data) { return (size_t *)(void *)((char *)data - sizeof(size_t)); }

static void *take_kept(host_device *device, size_t size) {
  void *data = NULL;
  pthread_mutex_lock(&device->kept_mutex);
  for (size_t i = 0; i < device->num_kept && !data; ++i) {
    if (device->kept[i].size != size) continue;
    data = device->kept[i].data;
    device->kept[i] = device->kept[--device->num_kept];
    device->kept_size -= size;
  }
  pthread_mutex_unlock(&device->kept_mutex);
  return data;
}

static bool keep(host_device *device, void *data, size_t size) {
  pthread_mutex_lock(&device->kept_mutex);
  bool fits = device->num_kept < BLOCKS_KEPT && size <= LARGEST_KEPT - device->kept_size;
  if (fits) {
    device->kept[device->num_kept++] = (block){data, size};
    device->kept_size += size;
  }
  pthread_mutex_unlock(&device->kept_mutex);
  return fits;
}

static int allocate_host(pjrt_driver *driver, size_t device, size_t kind, size_t size, uint64_t *memory, char *message) {
  (void)kind;
  void *start = size >= SMALLEST_KEPT ? take_kept(&driver->devices[device], size) : NULL;
  if (start == NULL && posix_memalign(&start, ALIGNMENT, size + ALIGNMENT) != 0) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the host has no %zu bytes left", size);
    return PJRT_Error_Code_RESOURCE_EXHAUSTED;
  }
  void *data = (char *)start + ALIGNMENT;
  *size_of_block(data) = size;
  *memory = (uintptr_t)data;
  return 0;
}

/* The lowest bit marks memory that is not ours: an imported array is aligned to more than a byte, or is copied. */
static void free_host(pjrt_driver *driver, size_t device, uint64_t memory) {
  if (memory & 1) return;
  void *data = address(memory), *start = (char *)data - ALIGNMENT;
  size_t size = *size_of_block(data);
  if (size < SMALLEST_KEPT || !keep(&driver->devices[device], start, size)) free(start);
}

static int import_host(pjrt_driver *driver, size_t device, size_t kind, void *host, size_t size, uint64_t *memory,
                       char *message) {
  (void)driver, (void)device, (void)kind, (void)size;
  if ((uintptr_t)host % ALIGNMENT) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "expected memory that is aligned to %d bytes, found %p", ALIGNMENT, host);
    return PJRT_Error_Code_INVALID_ARGUMENT;
  }
  *memory = (uintptr_t)host | 1;
  return 0;
}

static void *view_host(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)driver, (void)device;
  return address(memory & ~UINT64_C(1));
}

static uint64_t pointer_host(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)driver, (void)device;
  return memory & ~UINT64_C(1);
}

/* A copy is made here where nothing is queued before it: the work of the queue may write what it reads. */
static int copy_host(host_device *device, void *to, const void *from, size_t size, pjrt_fence *fence, char *message) {
  *fence = 0;
  if (is_idle(device)) {
    memcpy(to, from, size);
    return 0;
  }
  job *copy = new_zeroed(1, sizeof *copy);
  *copy = (job){.to = to, .from = from, .size = size};
  return enqueue(device, copy, fence, message);
}

static int copy_in_host(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *given,
                        size_t offset, const void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)given;
  return copy_host(&driver->devices[device], (char *)view_host(driver, device, memory) + offset, host, size, fence,
                   message);
}

static int copy_out_host(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *given,
                         size_t offset, void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)given;
  return copy_host(&driver->devices[device], host, (const char *)view_host(driver, device, memory) + offset, size, fence,
                   message);
}

/* ---- programs -------------------------------------------------------------------------------------------------------*/
static int failed(char *message, const char *what, const char *why) {
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%s: %s", what, why);
  return PJRT_Error_Code_INTERNAL;
}

/* The dynamic linker knows a library by its path, and file numbers come back. So each path is spelled in another way: a
 * counter in steps that lead nowhere. */
static void spell_path(int file, char *path, size_t size) {
  static atomic_uint counter;
  unsigned number = atomic_fetch_add(&counter, 1);
  size_t at = (size_t)snprintf(path, size, "/proc/self/fd");
  for (int bit = 0; bit < 32; ++bit) at += (size_t)snprintf(path + at, size - at, number >> bit & 1 ? "/." : "//");
  snprintf(path + at, size - at, "/%d", file);
}

static void *open_code(const void *code, size_t size, char *message) {
  int file = memfd_create("pjrt-program", MFD_CLOEXEC);
  if (file < 0) {
    failed(message, "no memory for the program's code", "memfd_create failed");
    return NULL;
  }
  const char *data = code;
  while (size) {
    ssize_t written = write(file, data, size);
    if (written <= 0) {
      close(file);
      failed(message, "no memory for the program's code", "it cannot be written");
      return NULL;
    }
    data += written;
    size -= (size_t)written;
  }
  char path[128];
  spell_path(file, path, sizeof path);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) failed(message, "the program's code is no shared library that can be loaded", dlerror());
  close(file);
  return library;
}

static int load_host(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable,
                     char *message) {
  (void)driver, (void)device;
  void *library = open_code(code, size, message);
  if (library == NULL) return PJRT_Error_Code_INTERNAL;
  void *symbol = dlsym(library, "pjrt_program");
  if (symbol == NULL) {
    dlclose(library);
    return failed(message, "the program's code has no function pjrt_program", "expected one");
  }
  program *each = new_zeroed(1, sizeof *each);
  each->library = library;
  memcpy(&each->run, &symbol, sizeof symbol);
  const int64_t *work = dlsym(library, "pjrt_program_work");
  each->work = work ? *work : INT64_MAX;
  *executable = (uintptr_t)each;
  return 0;
}

static void unload_host(pjrt_driver *driver, size_t device, uint64_t executable) {
  (void)driver, (void)device;
  program *each = address(executable);
  dlclose(each->library);
  free(each);
}

/* A small program runs here where nothing is queued before it. */
static bool runs_here(host_device *device, const program *each, const pjrt_driver_launch *launch) {
  if (launch->must_not_block || launch->num_after || each->work > SMALL_WORK) return false;
  return is_idle(device);
}

static int launch_host(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  host_device *device = &driver->devices[launch->device];
  program *each = address(launch->executable);
  size_t count = launch->num_inputs + launch->num_outputs;
  void *on_stack[64], **arguments = on_stack;
  bool is_here = runs_here(device, each, launch);
  if (!is_here || count > 64) arguments = new_zeroed(count, sizeof *arguments);
  for (size_t i = 0; i < launch->num_inputs; ++i) arguments[i] = address(launch->inputs[i] & ~UINT64_C(1));
  for (size_t i = 0; i < launch->num_outputs; ++i)
    arguments[launch->num_inputs + i] = address(launch->outputs[i] & ~UINT64_C(1));
  *fence = 0;
  if (is_here) {
    int code = each->run(arguments, arguments + launch->num_inputs, address(launch->scratch), message);
    if (arguments != on_stack) free(arguments);
    return code;
  }
  job *work = new_zeroed(1, sizeof *work);
  *work = (job){.program = each, .arguments = arguments, .num_inputs = launch->num_inputs,
                .num_after = launch->num_after, .scratch = address(launch->scratch)};
  if (launch->num_after) {
    work->after_devices = copy_of(launch->after_devices, launch->num_after * sizeof *launch->after_devices);
    work->after = copy_of(launch->after, launch->num_after * sizeof *launch->after);
  }
  return enqueue(device, work, fence, message);
}

/* ---- fences ---------------------------------------------------------------------------------------------------------*/
static int wait_host(pjrt_driver *driver, size_t number, pjrt_fence fence, int64_t nanoseconds, char *message) {
  host_device *device = &driver->devices[number];
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  if (nanoseconds >= 0) {
    until.tv_sec += nanoseconds / 1000000000;
    until.tv_nsec += nanoseconds % 1000000000;
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
  }
  int code = 0;
  pthread_mutex_lock(&device->mutex);
  while (device->done < fence && code == 0) {
    if (nanoseconds < 0) pthread_cond_wait(&device->changed, &device->mutex);
    else if (pthread_cond_timedwait(&device->changed, &device->mutex, &until) != 0) code = 4;
  }
  if (device->done >= fence) code = failure_of(device, fence, message);
  else snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the work is not done");
  pthread_mutex_unlock(&device->mutex);
  return code;
}

static int on_done_host(pjrt_driver *driver, size_t number, pjrt_fence fence, pjrt_driver_done function, void *arg,
                        char *message) {
  (void)message;
  host_device *device = &driver->devices[number];
  char text[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pthread_mutex_lock(&device->mutex);
  if (device->done < fence) {
    ending *each = new_zeroed(1, sizeof *each);
    *each = (ending){.fence = fence, .function = function, .arg = arg, .next = device->endings};
    device->endings = each;
    pthread_mutex_unlock(&device->mutex);
    return 0;
  }
  int code = failure_of(device, fence, text);
  pthread_mutex_unlock(&device->mutex);
  function(arg, code, text);
  return 0;
}

const pjrt_driver_table host_driver = {
    .struct_size = sizeof(pjrt_driver_table),
    .platform_name = "host",
    .platform_version = "pjrt host 1",
    .open = open_host,
    .close = close_host,
    .describe = describe_host,
    .allocate = allocate_host,
    .free = free_host,
    .copy_in = copy_in_host,
    .copy_out = copy_out_host,
    .load = load_host,
    .unload = unload_host,
    .launch = launch_host,
    .wait = wait_host,
    .on_done = on_done_host,
    .host_view = view_host,
    .pointer = pointer_host,
    .import = import_host,
};
