/* A simulated accelerator, as an example of a driver: pjrt_driver.h explains each function.
 *
 * The chip has memory of its own behind handles, in words of four bytes. Arrays lie there in tiles of 8 x 128 elements, with
 * padding, in any order of their dimensions; an element takes a word, or as many as it needs, and those of less than a byte
 * lie packed in words. Each of its devices, which are two unless the option `num_devices` says more, has a queue on a thread
 * of its own, and fences. With the option `at_once` a launch is done when it returns, where it need not wait. Its programs
 * are instructions that `compiler.py` writes.
 *
 *     cc -O2 -shared -fPIC -I "$(python -c 'import pjrt.native; print(pjrt.native.get_include())')" chip.c -o libchip.so \
 *        -lm -lpthread */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pjrt_driver.h"

enum { MOST_DEVICES = 8, TILE_ROWS = 8, TILE_COLUMNS = 128, MAX_RANK = 8, MOST_SPARE = 4, MOST_WORDS = 1 << 30 };
enum { CANCELLED = 1, INVALID_ARGUMENT = 3, DEADLINE_EXCEEDED = 4, EXHAUSTED = 8, UNIMPLEMENTED = 12 };
/* Numbers of PJRT_Buffer_Type. Programs compute with three types; arrays of the others are kept and copied. */
enum { PRED = 1, S32 = 4, F32 = 11, TOKEN = 23, LAST_TYPE = 33 };

/* The bytes of an element on the host, by its type; 0 for none. */
static int size_on_host(int type) {
  enum { S16 = 3, S64 = 5, U16 = 7, U32, U64, F16, F64 = 12, BF16, C64, C128 };
  switch (type) {
    case S16: case U16: case F16: case BF16: return 2;
    case S32: case U32: case F32: return 4;
    case S64: case U64: case F64: case C64: return 8;
    case C128: return 16;
    case TOKEN: return 0;
    default: return type > 0 && type <= LAST_TYPE ? 1 : 0;
  }
}

/* The bits of an element that lies packed in a word with others, by its type; 0 for other types. */
static int packed_bits(int type) {
  enum { S4 = 21, U4, S2 = 24, U2, F4E2M1FN = 29, S1, U1 };
  switch (type) {
    case S4: case U4: case F4E2M1FN: return 4;
    case S2: case U2: return 2;
    case S1: case U1: return 1;
    default: return 0;
  }
}

static bool has_sign(int type) { return type == 21 || type == 24 || type == 30; } /* of the packed types */

/* What each device did since the process began, for whoever measures it: in the order of these names. */
enum { LAUNCHES, BUSY_NANOSECONDS, TIMES_EMPTY, NUM_COUNTERS };
static int64_t counters[MOST_DEVICES][NUM_COUNTERS];

static void count(int device, int counter, int64_t by) {
  __atomic_fetch_add(&counters[device][counter], by, __ATOMIC_RELAXED);
}

void chip_read_counters(int device, int64_t *out) {
  for (int i = 0; i < NUM_COUNTERS; ++i) out[i] = __atomic_load_n(&counters[device][i], __ATOMIC_RELAXED);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* ---- arrays in tiles --------------------------------------------------------------------------------------------------*/
typedef struct array {
  int32_t type, rank;
  int32_t dims[MAX_RANK];
} array;

static int64_t rows_of(const array *a) { return a->rank > 1 ? a->dims[a->rank - 2] : 1; }
static int64_t columns_of(const array *a) { return a->rank ? a->dims[a->rank - 1] : 1; }
static int64_t elements_of(const array *a) {
  int64_t count = 1;
  for (int i = 0; i < a->rank; ++i) count *= a->dims[i];
  return count;
}
static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* The words of so many elements. */
static int64_t words_for(const array *a, int64_t elements) {
  int bits = packed_bits(a->type);
  return bits ? (elements * bits + 31) / 32 : elements * ((size_on_host(a->type) + 3) / 4);
}

static int64_t words_of(const array *a) {
  if (a->rank == 0) return words_for(a, 1);
  if (a->rank == 1) return words_for(a, round_up(a->dims[0], TILE_ROWS * TILE_COLUMNS));
  int64_t elements = round_up(rows_of(a), TILE_ROWS) * round_up(columns_of(a), TILE_COLUMNS);
  for (int i = 0; i < a->rank - 2; ++i) elements *= a->dims[i];
  return words_for(a, elements);
}

/* Where the element with a number, counted in rows, lies in the tiles, counted in elements. */
static int64_t word_at(const array *a, int64_t number) {
  if (a->rank < 2) return number;
  int64_t columns = columns_of(a), line = number / columns, column = number % columns, row = line % rows_of(a);
  int64_t tile_row = line / rows_of(a) * ((rows_of(a) + TILE_ROWS - 1) / TILE_ROWS) + row / TILE_ROWS;
  int64_t tile = tile_row * ((columns + TILE_COLUMNS - 1) / TILE_COLUMNS) + column / TILE_COLUMNS;
  return tile * TILE_ROWS * TILE_COLUMNS + row % TILE_ROWS * TILE_COLUMNS + column % TILE_COLUMNS;
}

/* The array as it lies in the memory: the most major dimension first. */
static bool read_shape(const pjrt_driver_shape *shape, array *out) {
  if (size_on_host(shape->type) == 0 || shape->rank > MAX_RANK) return false;
  int64_t words = 1;
  for (size_t i = 0; i < shape->rank; ++i) {
    if (shape->dims[i] > MOST_WORDS || (words *= shape->dims[i] ? shape->dims[i] : 1) > MOST_WORDS) return false;
  }
  out->type = shape->type;
  out->rank = (int32_t)shape->rank;
  for (size_t i = 0; i < shape->rank; ++i) {
    size_t from = shape->minor_to_major ? (size_t)shape->minor_to_major[shape->rank - 1 - i] : i;
    out->dims[i] = (int32_t)shape->dims[from];
  }
  return true;
}

/* ---- the queue of a device --------------------------------------------------------------------------------------------*/
typedef struct job {
  int (*run)(struct job *job, char *message);
  void (*finish)(struct job *job);
  pjrt_fence fence;
  bool is_cancelled; /* guarded by the device's mutex */
  bool uses_host;    /* its memory */
  struct job *next;
} job;

typedef struct ending {
  pjrt_fence fence;
  pjrt_driver_done function;
  void *arg;
  struct ending *next;
} ending;

typedef struct failure {
  pjrt_fence fence;
  int code;
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  struct failure *next;
} failure;

typedef struct memory memory;

typedef struct device {
  int number;
  int64_t place[2];
  pjrt_driver_attribute coords; /* the place */
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  job *first, **last;
  job *running;
  pjrt_fence given, done;
  bool is_stopped;
  ending *endings;
  failure *failures;
  memory *spare; /* freed memory, for the next array of the same size */
  int num_spare;
  int64_t in_use;
} device;

/* Devices that run an instruction together: each shows its words, copies those of the others, and then goes on. */
typedef struct meeting {
  uint64_t execution;
  int32_t number, group; /* of the instruction, and of the devices that it lets meet */
  size_t arrived, copied, gone;
  bool is_given_up; /* one of those that came has gone */
  const union word *words[MOST_DEVICES];
  struct meeting *next;
} meeting;

struct pjrt_driver {
  int num_devices;
  bool is_at_once;
  device devices[MOST_DEVICES];
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t changed;
  meeting *meetings;
  pjrt_driver_event tell; /* what a profiler wants to hear of; null for no profiler */
  void *tell_arg;
  int64_t limit; /* bytes of each device */
};

typedef union word {
  float f;
  int32_t i;
} word;

struct memory {
  word *words;
  size_t size;
  memory *next;
};

static memory *memory_of(uint64_t handle) { return (memory *)(uintptr_t)(handle ^ 0x5a5a); } /* no address to others */

static int code_of(const device *d, pjrt_fence fence, char *message) {
  for (const failure *each = d->failures; each; each = each->next) {
    if (each->fence != fence) continue;
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%s", each->message);
    return each->code;
  }
  return 0;
}

static void end_job(device *d, int code, const char *message) {
  pthread_mutex_lock(&d->mutex);
  d->running = NULL;
  pjrt_fence fence = ++d->done;
  if (code) {
    failure *each = calloc(1, sizeof *each);
    each->fence = fence;
    each->code = code;
    snprintf(each->message, sizeof each->message, "%s", message);
    each->next = d->failures;
    d->failures = each;
  }
  ending *due = NULL, **place = &d->endings;
  while (*place) {
    ending *each = *place;
    if (each->fence > fence) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    each->next = due;
    due = each;
  }
  pthread_cond_broadcast(&d->changed);
  pthread_mutex_unlock(&d->mutex);
  while (due) {
    ending *each = due;
    due = each->next;
    each->function(each->arg, code, message);
    free(each);
  }
}

/* Whether the job was given up: it looks now and then. */
static int stop_where_cancelled(device *d, const job *each, char *message) {
  pthread_mutex_lock(&d->mutex);
  int code = each->is_cancelled ? CANCELLED : 0;
  pthread_mutex_unlock(&d->mutex);
  if (code) snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the work was cancelled");
  return code;
}

static void *run_queue(void *arg) {
  device *d = arg;
  pthread_mutex_lock(&d->mutex);
  for (;;) {
    bool was_empty = d->first == NULL && d->done;
    while (d->first == NULL && !d->is_stopped) pthread_cond_wait(&d->changed, &d->mutex);
    job *each = d->first;
    if (each == NULL) break;
    if (was_empty) count(d->number, TIMES_EMPTY, 1);
    d->first = each->next;
    if (d->first == NULL) d->last = &d->first;
    d->running = each;
    pthread_mutex_unlock(&d->mutex);
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    int64_t begun = now();
    int code = stop_where_cancelled(d, each, message);
    if (!code) code = each->run(each, message);
    count(d->number, BUSY_NANOSECONDS, now() - begun);
    if (each->finish) each->finish(each);
    end_job(d, code, message);
    free(each);
    pthread_mutex_lock(&d->mutex);
  }
  pthread_mutex_unlock(&d->mutex);
  return NULL;
}

static pjrt_fence enqueue(device *d, job *each) {
  pthread_mutex_lock(&d->mutex);
  each->next = NULL;
  *d->last = each;
  d->last = &each->next;
  pjrt_fence fence = each->fence = ++d->given;
  pthread_cond_broadcast(&d->changed);
  pthread_mutex_unlock(&d->mutex);
  return fence;
}

static int chip_wait(pjrt_driver *driver, size_t number, pjrt_fence fence, int64_t nanoseconds, char *message) {
  device *d = &driver->devices[number];
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  int64_t end = until.tv_nsec + (nanoseconds < 0 ? 0 : nanoseconds);
  until.tv_sec += end / 1000000000;
  until.tv_nsec = end % 1000000000;
  bool is_late = false;
  pthread_mutex_lock(&d->mutex);
  while (d->done < fence && !is_late) {
    if (nanoseconds < 0) pthread_cond_wait(&d->changed, &d->mutex);
    else is_late = pthread_cond_timedwait(&d->changed, &d->mutex, &until) != 0;
  }
  int code = d->done < fence ? DEADLINE_EXCEEDED : code_of(d, fence, message);
  pthread_mutex_unlock(&d->mutex);
  return code;
}

static int chip_on_done(pjrt_driver *driver, size_t number, pjrt_fence fence, pjrt_driver_done function, void *arg,
                        char *message) {
  (void)message;
  device *d = &driver->devices[number];
  char text[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pthread_mutex_lock(&d->mutex);
  bool is_done = d->done >= fence;
  int code = is_done ? code_of(d, fence, text) : 0;
  if (!is_done) {
    ending *each = malloc(sizeof *each);
    *each = (ending){fence, function, arg, d->endings};
    d->endings = each;
  }
  pthread_mutex_unlock(&d->mutex);
  if (is_done) function(arg, code, text);
  return 0;
}

/* Gives up the job of a fence; with 0, all jobs. A program notices that between two instructions, and where it waits for
 * the other chips; a copy, which uses the host's memory, is waited for. */
static int chip_cancel(pjrt_driver *driver, size_t number, pjrt_fence fence, char *message) {
  (void)message;
  device *d = &driver->devices[number];
  pthread_mutex_lock(&d->mutex);
  if (d->running && (fence == 0 || d->running->fence == fence)) d->running->is_cancelled = true;
  for (job *each = d->first; each; each = each->next) {
    if (fence == 0 || each->fence == fence) each->is_cancelled = true;
  }
  while (d->running && d->running->is_cancelled && d->running->uses_host) pthread_cond_wait(&d->changed, &d->mutex);
  pthread_mutex_unlock(&d->mutex);
  pthread_mutex_lock(&driver->mutex);
  pthread_cond_broadcast(&driver->changed);
  pthread_mutex_unlock(&driver->mutex);
  return 0;
}

static int chip_reset(pjrt_driver *driver, size_t number, char *message) {
  return chip_cancel(driver, number, 0, message);
}

/* ---- life and memory ----------------------------------------------------------------------------------------------------*/
static int chip_open(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                     char *message) {
  int64_t limit = 1 << 30, devices = 2;
  bool is_at_once = false;
  for (size_t i = 0; i < num_options; ++i) {
    int64_t number = options[i].text ? 0 : options[i].number;
    if (strcmp(options[i].name, "memory") == 0 && number > 0) {
      limit = number;
    } else if (strcmp(options[i].name, "num_devices") == 0 && number > 0 && number <= MOST_DEVICES) {
      devices = number;
    } else if (strcmp(options[i].name, "at_once") == 0 && options[i].is_boolean) {
      is_at_once = number != 0;
    } else {
      snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "expected the options memory, a number of bytes, num_devices, 1 to %d, "
               "and at_once, a boolean; found the option %s", MOST_DEVICES, options[i].name);
      return INVALID_ARGUMENT;
    }
  }
  pjrt_driver *driver = calloc(1, sizeof *driver);
  driver->limit = limit;
  driver->is_at_once = is_at_once;
  driver->num_devices = (int)devices;
  pthread_mutex_init(&driver->mutex, NULL);
  pthread_cond_init(&driver->changed, NULL);
  for (int i = 0; i < driver->num_devices; ++i) {
    device *d = &driver->devices[i];
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->last = &d->first;
    d->number = i;
    pthread_create(&d->thread, NULL, run_queue, d);
  }
  *out = driver;
  *num_devices = (size_t)devices;
  return 0;
}

static void chip_close(pjrt_driver *driver) {
  for (int i = 0; i < driver->num_devices; ++i) {
    device *d = &driver->devices[i];
    pthread_mutex_lock(&d->mutex);
    d->is_stopped = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL);
    while (d->spare) {
      memory *next = d->spare->next;
      free(d->spare->words);
      free(d->spare);
      d->spare = next;
    }
    while (d->failures) {
      failure *next = d->failures->next;
      free(d->failures);
      d->failures = next;
    }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
  }
  pthread_cond_destroy(&driver->changed);
  pthread_mutex_destroy(&driver->mutex);
  free(driver);
}

static void chip_describe(pjrt_driver *driver, size_t number, pjrt_driver_device *out) {
  static const char *const kinds[] = {"device"};
  out->kind = "Simulated chip, 8x128 tiles";
  out->num_memory_kinds = 1;
  out->memory_kinds = kinds;
  out->memory_limits = &driver->limit;
  if (out->struct_size < sizeof *out) return; /* an older runtime */
  device *d = &driver->devices[number];
  d->place[0] = (int64_t)number;
  d->coords = (pjrt_driver_attribute){
      .name = "coords", .type = PJRT_DRIVER_INTEGERS, .integers = d->place, .num_integers = 2};
  out->attributes = &d->coords;
  out->num_attributes = 1;
}

static int no_such_array(char *message) {
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the chip has arrays with up to %d dimensions and %d elements", MAX_RANK,
           MOST_WORDS);
  return UNIMPLEMENTED;
}

static int chip_layout(pjrt_driver *driver, size_t number, size_t kind, const pjrt_driver_shape *shape,
                       pjrt_driver_layout *out, char *message) {
  (void)driver, (void)number, (void)kind;
  static const size_t ranks[] = {1, 2};
  static const int64_t line[] = {TILE_ROWS * TILE_COLUMNS}, tile[] = {TILE_ROWS, TILE_COLUMNS};
  array a;
  if (!read_shape(shape, &a)) return no_such_array(message);
  out->bytes = (size_t)words_of(&a) * sizeof(word);
  out->num_tiles = a.rank > 0;
  out->tile_ranks = &ranks[a.rank > 1];
  out->tile_dims = a.rank > 1 ? tile : line;
  if (out->struct_size >= sizeof *out) out->element_bits = (size_t)packed_bits(a.type);
  return 0;
}

static memory *take_spare(device *d, size_t size) {
  pthread_mutex_lock(&d->mutex);
  memory **place = &d->spare;
  while (*place && (*place)->size != size) place = &(*place)->next;
  memory *found = *place;
  if (found) *place = found->next, --d->num_spare;
  pthread_mutex_unlock(&d->mutex);
  return found;
}

static int chip_allocate(pjrt_driver *driver, size_t number, size_t kind, size_t size, uint64_t *out, char *message) {
  (void)kind;
  device *d = &driver->devices[number];
  memory *each = take_spare(d, size);
  if (each == NULL) {
    each = calloc(1, sizeof *each);
    each->words = malloc(size ? size : 1);
    each->size = size;
  }
  if (each->words == NULL) {
    free(each);
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the simulated chip finds no %zu bytes", size);
    return EXHAUSTED;
  }
  __atomic_fetch_add(&d->in_use, (int64_t)size, __ATOMIC_RELAXED);
  *out = (uint64_t)(uintptr_t)each ^ 0x5a5a;
  return 0;
}

static void chip_free(pjrt_driver *driver, size_t number, uint64_t handle) {
  device *d = &driver->devices[number];
  memory *each = memory_of(handle);
  __atomic_fetch_sub(&d->in_use, (int64_t)each->size, __ATOMIC_RELAXED);
  pthread_mutex_lock(&d->mutex);
  bool is_kept = d->num_spare < MOST_SPARE;
  if (is_kept) each->next = d->spare, d->spare = each, ++d->num_spare;
  pthread_mutex_unlock(&d->mutex);
  if (is_kept) return;
  free(each->words);
  free(each);
}

static void chip_stats(pjrt_driver *driver, size_t number, size_t kind, pjrt_driver_stats *out) {
  (void)kind;
  out->bytes_in_use = __atomic_load_n(&driver->devices[number].in_use, __ATOMIC_RELAXED);
}

/* ---- copies -----------------------------------------------------------------------------------------------------------*/
typedef struct copy_job {
  job base;
  memory *from, *to; /* one is null, which is the host, or none */
  bool is_raw;
  array shape;
  bool is_in_rows;
  int64_t dims[MAX_RANK], steps[MAX_RANK]; /* of the host's array, and by how many elements a dimension goes on here */
  size_t offset, size;
  char *host;
} copy_job;

/* Where an element of the host's array is, in the array that lies in the memory. */
static int64_t number_of(const copy_job *each, int64_t on_host) {
  int64_t number = 0;
  if (each->is_in_rows) return on_host;
  for (int d = each->shape.rank; d-- > 0; on_host /= each->dims[d]) number += on_host % each->dims[d] * each->steps[d];
  return number;
}

static void turn(copy_job *each, const pjrt_driver_shape *shape) {
  int64_t step = 1;
  each->is_in_rows = shape->minor_to_major == NULL;
  for (size_t i = 0; i < shape->rank && !each->is_in_rows; ++i) {
    int64_t d = shape->minor_to_major[i];
    each->dims[d] = shape->dims[d];
    each->steps[d] = step;
    step *= shape->dims[d];
  }
}

/* Writes an element into its bits, or reads it into a byte. */
static void copy_packed(bool is_in, word *words, int64_t number, int type, char *host) {
  const int bits = packed_bits(type), at = (int)(number * bits % 32);
  const uint32_t mask = (1u << bits) - 1;
  uint32_t *within = (uint32_t *)&words[number * bits / 32], value = (uint8_t)*host & mask;
  if (is_in) {
    *within = (*within & ~(mask << at)) | value << at;
    return;
  }
  value = *within >> at & mask;
  if (has_sign(type) && value >> (bits - 1)) value |= ~mask;
  *host = (char)value;
}

static int run_copy(job *base, char *message) {
  (void)message;
  copy_job *each = (copy_job *)base;
  memory *chip = each->to ? each->to : each->from;
  if (each->from && each->to) {
    memcpy(each->to->words, each->from->words, each->size);
  } else if (each->is_raw) {
    char *at = (char *)chip->words + each->offset;
    memcpy(each->to ? at : each->host, each->to ? each->host : at, each->size);
  } else {
    int64_t count = elements_of(&each->shape), size = size_on_host(each->shape.type);
    const bool is_packed = packed_bits(each->shape.type) != 0;
    for (int64_t i = 0; i < count; ++i) {
      int64_t number = word_at(&each->shape, number_of(each, i));
      word *on_chip = &chip->words[is_packed ? 0 : words_for(&each->shape, number)];
      if (is_packed) copy_packed(each->to != NULL, on_chip, number, each->shape.type, &each->host[i]);
      else if (each->shape.type == PRED && each->to) on_chip->i = each->host[i] != 0;
      else if (each->shape.type == PRED) each->host[i] = on_chip->i != 0;
      else if (each->to) memcpy(on_chip, each->host + i * size, (size_t)size);
      else memcpy(each->host + i * size, on_chip, (size_t)size);
    }
  }
  return 0;
}

static int copy_host(pjrt_driver *driver, size_t number, memory *from, memory *to, const pjrt_driver_shape *shape,
                     size_t offset, void *host, size_t size, pjrt_fence *fence, char *message) {
  copy_job *each = calloc(1, sizeof *each);
  *each = (copy_job){.base = {.run = run_copy, .uses_host = true}, .from = from, .to = to, .offset = offset, .size = size,
                     .host = host, .is_raw = shape == NULL};
  if (shape && !read_shape(shape, &each->shape)) {
    free(each);
    return no_such_array(message);
  }
  if (shape) turn(each, shape);
  *fence = enqueue(&driver->devices[number], &each->base);
  return 0;
}

static int chip_copy_in(pjrt_driver *driver, size_t number, uint64_t to, const pjrt_driver_shape *shape, size_t offset,
                        const void *host, size_t size, pjrt_fence *fence, char *message) {
  return copy_host(driver, number, NULL, memory_of(to), shape, offset, (void *)host, size, fence, message);
}

static int chip_copy_out(pjrt_driver *driver, size_t number, uint64_t from, const pjrt_driver_shape *shape,
                         size_t offset, void *host, size_t size, pjrt_fence *fence, char *message) {
  return copy_host(driver, number, memory_of(from), NULL, shape, offset, host, size, fence, message);
}

static int chip_copy(pjrt_driver *driver, size_t number, uint64_t from, size_t to_number, uint64_t to, size_t size,
                     pjrt_fence *fence, char *message) {
  (void)to_number, (void)message;
  copy_job *each = calloc(1, sizeof *each);
  *each = (copy_job){.base.run = run_copy, .from = memory_of(from), .to = memory_of(to), .size = size};
  *fence = enqueue(&driver->devices[number], &each->base);
  return 0;
}

/* ---- programs: what compiler.py writes --------------------------------------------------------------------------------------*/
enum op { CONSTANT, IOTA, MOVE, ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, MINIMUM, POWER, EQ, NE, LT, LE, GT, GE, NEGATE,
          EXP, LOG, TANH, SQRT, RSQRT, ABS, SIGN, NOT, SELECT, CONVERT, MATMUL, SUM, MAX_OF, ALL_GATHER, FAIL, NUM_OPS };
static const char *const op_names[] = {
    "CONSTANT", "IOTA", "MOVE", "ADD", "SUBTRACT", "MULTIPLY", "DIVIDE", "MAXIMUM", "MINIMUM", "POWER", "EQ", "NE", "LT",
    "LE", "GT", "GE", "NEGATE", "EXP", "LOG", "TANH", "SQRT", "RSQRT", "ABS", "SIGN", "NOT", "SELECT", "CONVERT", "MATMUL",
    "SUM", "MAX_OF", "ALL_GATHER", "FAIL"};

typedef struct instruction {
  int32_t op, result, operands[3];
  int32_t start, strides[MAX_RANK]; /* MOVE: the number of the element, of the result's indices; IOTA: the dimension */
  int32_t sizes[4];                 /* MATMUL: batch, m, k, n; SUM and MAX_OF: outer, reduced, inner; ALL_GATHER: the
                                       members of a group, of which `start` is the first of the first chip; MOVE: one
                                       more than where the table has, for each chip, what `start` grows by, or 0 */
  word value;                       /* CONSTANT; FAIL: the status code */
} instruction;

typedef struct header {
  char mark[8];
  int32_t num_registers, num_inputs, num_outputs, num_instructions, num_groups;
} header;

/* A register is an input, an output, or a part of the scratch memory. */
typedef struct reg {
  array shape;
  int32_t place, number; /* place: 0 an input, 1 an output, 2 scratch: the number of its first word */
} reg;

typedef struct program {
  header head;
  reg *registers;
  instruction *instructions;
  int32_t *groups; /* what differs from chip to chip: the members of its group, or where it begins to read */
} program;

static int chip_load(pjrt_driver *driver, size_t number, const void *code, size_t size, uint64_t *out, char *message) {
  (void)driver, (void)number;
  header head;
  bool is_one = size >= sizeof head;
  if (is_one) memcpy(&head, code, sizeof head);
  is_one = is_one && memcmp(head.mark, "CHIPCODE", 8) == 0 && head.num_registers >= 0 && head.num_instructions >= 0 &&
           head.num_groups >= 0 &&
           size == sizeof head + (size_t)head.num_registers * sizeof(reg) +
                       (size_t)head.num_instructions * sizeof(instruction) + (size_t)head.num_groups * sizeof(int32_t);
  if (!is_one) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "these %zu bytes are no program of the chip", size);
    return INVALID_ARGUMENT;
  }
  program *each = calloc(1, sizeof *each);
  each->head = head;
  const char *at = (const char *)code + sizeof head;
  size_t registers = (size_t)head.num_registers * sizeof(reg), rest = (size_t)head.num_instructions * sizeof(instruction);
  each->registers = malloc(registers + 1);
  memcpy(each->registers, at, registers);
  each->instructions = malloc(rest + 1);
  memcpy(each->instructions, at + registers, rest);
  each->groups = malloc((size_t)head.num_groups * sizeof(int32_t) + 1);
  memcpy(each->groups, at + registers + rest, (size_t)head.num_groups * sizeof(int32_t));
  for (int32_t i = 0; i < head.num_instructions; ++i) {
    if (each->instructions[i].op >= 0 && each->instructions[i].op < NUM_OPS) continue;
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the chip has no instruction %d", each->instructions[i].op);
    return INVALID_ARGUMENT;
  }
  *out = (uint64_t)(uintptr_t)each;
  return 0;
}

static void chip_unload(pjrt_driver *driver, size_t number, uint64_t executable) {
  (void)driver, (void)number;
  program *each = (program *)(uintptr_t)executable;
  free(each->registers);
  free(each->instructions);
  free(each->groups);
  free(each);
}

typedef struct launch_job {
  job base;
  pjrt_driver *driver;
  size_t device;
  program *program;
  uint64_t *memories; /* inputs, outputs, scratch */
  size_t num_after;
  size_t *after_devices;
  pjrt_fence *after;
  size_t num_participants, place;
  uint64_t execution;
} launch_job;

static word *words(const launch_job *launch, const reg *r) {
  const header *head = &launch->program->head;
  if (r->place == 0) return memory_of(launch->memories[r->number])->words;
  if (r->place == 1) return memory_of(launch->memories[head->num_inputs + r->number])->words;
  const uint64_t scratch = launch->memories[head->num_inputs + head->num_outputs];
  return scratch ? memory_of(scratch)->words + r->number : NULL; /* arrays without elements need none */
}

static word binary(enum op op, bool is_float, word a, word b) {
  word out = {0};
  if (is_float) {
    switch (op) {
      case ADD: out.f = a.f + b.f; break;
      case SUBTRACT: out.f = a.f - b.f; break;
      case MULTIPLY: out.f = a.f * b.f; break;
      case DIVIDE: out.f = a.f / b.f; break;
      case MAXIMUM: out.f = a.f != a.f ? a.f : a.f < b.f || b.f != b.f ? b.f : a.f; break;
      case MINIMUM: out.f = a.f != a.f ? a.f : b.f < a.f || b.f != b.f ? b.f : a.f; break;
      case POWER: out.f = powf(a.f, b.f); break;
      case EQ: out.i = a.f == b.f; break;
      case NE: out.i = a.f != b.f; break;
      case LT: out.i = a.f < b.f; break;
      case LE: out.i = a.f <= b.f; break;
      case GT: out.i = a.f > b.f; break;
      default: out.i = a.f >= b.f; break;
    }
    return out;
  }
  switch (op) {
    case ADD: out.i = (int32_t)((uint32_t)a.i + (uint32_t)b.i); break;
    case SUBTRACT: out.i = (int32_t)((uint32_t)a.i - (uint32_t)b.i); break;
    case MULTIPLY: out.i = (int32_t)((uint32_t)a.i * (uint32_t)b.i); break;
    case DIVIDE: out.i = b.i == 0 ? -1 : b.i == -1 ? (int32_t)(0u - (uint32_t)a.i) : a.i / b.i; break;
    case MAXIMUM: out.i = a.i < b.i ? b.i : a.i; break;
    case MINIMUM: out.i = b.i < a.i ? b.i : a.i; break;
    case EQ: out.i = a.i == b.i; break;
    case NE: out.i = a.i != b.i; break;
    case LT: out.i = a.i < b.i; break;
    case LE: out.i = a.i <= b.i; break;
    case GT: out.i = a.i > b.i; break;
    default: out.i = a.i >= b.i; break;
  }
  return out;
}

static word unary(enum op op, bool is_float, word a) {
  word out = a;
  switch (op) {
    case NEGATE: if (is_float) out.f = -a.f; else out.i = (int32_t)(0u - (uint32_t)a.i); break;
    case EXP: out.f = expf(a.f); break;
    case LOG: out.f = logf(a.f); break;
    case TANH: out.f = tanhf(a.f); break;
    case SQRT: out.f = sqrtf(a.f); break;
    case RSQRT: out.f = 1 / sqrtf(a.f); break;
    case ABS: if (is_float) out.f = fabsf(a.f); else out.i = a.i < 0 ? (int32_t)(0u - (uint32_t)a.i) : a.i; break;
    case SIGN: if (is_float) out.f = a.f != a.f || a.f == 0 ? a.f : a.f > 0 ? 1 : -1; else out.i = (a.i > 0) - (a.i < 0); break;
    default: out.i = !a.i; break;
  }
  return out;
}

/* Waits until all members have come; false where the launch is cancelled before. The others wait on, for their own end. */
static bool arrive(const launch_job *launch, meeting *each, size_t wanted) {
  pjrt_driver *driver = launch->driver;
  char ignored[PJRT_DRIVER_MESSAGE_SIZE];
  ++each->arrived;
  pthread_cond_broadcast(&driver->changed);
  while (each->arrived < wanted || each->is_given_up) {
    if (stop_where_cancelled(&driver->devices[launch->device], &launch->base, ignored)) {
      each->is_given_up = true;
      return false;
    }
    pthread_cond_wait(&driver->changed, &driver->mutex);
  }
  return true;
}

/* The members are the chips of a group, in its order. */
static int all_gather(const launch_job *launch, int32_t number, const int32_t *group, int32_t members, const array *shape,
                      const word *in, const array *to, word *out, char *message) {
  pjrt_driver *driver = launch->driver;
  size_t place = 0, wanted = (size_t)members;
  while (group[place] != (int32_t)launch->place) ++place;
  pthread_mutex_lock(&driver->mutex);
  meeting *each = driver->meetings;
  /* One to which all have come is left by them: another kernel of the execution may have an instruction of this number. */
  while (each && (each->execution != launch->execution || each->number != number || each->group != group[0] ||
                  each->arrived == wanted))
    each = each->next;
  if (each == NULL) {
    each = calloc(1, sizeof *each);
    *each = (meeting){.execution = launch->execution, .number = number, .group = group[0], .next = driver->meetings};
    driver->meetings = each;
  }
  each->words[place] = in;
  bool is_whole = arrive(launch, each, wanted);
  pthread_mutex_unlock(&driver->mutex);
  int64_t count = elements_of(shape);
  for (size_t m = 0; m < wanted && is_whole; ++m) {
    for (int64_t i = 0; i < count; ++i) out[word_at(to, (int64_t)m * count + i)] = each->words[m][word_at(shape, i)];
  }
  pthread_mutex_lock(&driver->mutex);
  ++each->copied;
  pthread_cond_broadcast(&driver->changed);
  while (is_whole && each->copied < wanted) /* nobody writes what another one reads */
    pthread_cond_wait(&driver->changed, &driver->mutex);
  if (++each->gone == each->arrived) {
    meeting **at = &driver->meetings;
    while (*at != each) at = &(*at)->next;
    *at = each->next;
    free(each);
  }
  pthread_mutex_unlock(&driver->mutex);
  return is_whole ? 0 : stop_where_cancelled(&driver->devices[launch->device], &launch->base, message);
}

static int run_instruction(const launch_job *launch, const instruction *each, char *message) {
  const reg *registers = launch->program->registers, *to = &registers[each->result];
  if (each->op == FAIL) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the chip was told to fail");
    return each->value.i;
  }
  const reg *from[3] = {0};
  const word *in[3] = {0};
  for (int i = 0; i < 3; ++i) {
    if (each->operands[i] < 0) continue;
    from[i] = &registers[each->operands[i]];
    in[i] = words(launch, from[i]);
  }
  word *out = words(launch, to);
  const array *shape = &to->shape;
  int64_t count = elements_of(shape);
  bool is_float = from[0] ? from[0]->shape.type == F32 : shape->type == F32;
#define AT(i, number) in[i][word_at(&from[i]->shape, number)]
#define OUT(number) out[word_at(shape, number)]
  switch (each->op) {
    case CONSTANT:
      for (int64_t i = 0; i < count; ++i) OUT(i) = each->value;
      return 0;
    case IOTA:
    case MOVE: {
      int64_t start = each->start;
      if (each->sizes[0]) { /* it depends on the chip; -1 for one that gets zeros */
        int32_t own = launch->program->groups[each->sizes[0] - 1 + (int32_t)launch->place];
        for (int64_t i = 0; i < count && own < 0; ++i) OUT(i) = (word){0};
        if (own < 0) return 0;
        start += own;
      }
      for (int64_t i = 0; i < count; ++i) {
        int64_t rest = i, source = start;
        for (int d = shape->rank; d-- > 0; rest /= shape->dims[d]) source += rest % shape->dims[d] * each->strides[d];
        if (each->op == MOVE) OUT(i) = AT(0, source);
        else if (shape->type == F32) OUT(i).f = (float)source;
        else OUT(i).i = (int32_t)source;
      }
      return 0;
    }
    case ALL_GATHER:
      return all_gather(launch, (int32_t)(each - launch->program->instructions),
                        &launch->program->groups[each->start + (int64_t)launch->place * each->sizes[0]], each->sizes[0],
                        &from[0]->shape, in[0], shape, out, message);
    case SELECT:
      for (int64_t i = 0; i < count; ++i) OUT(i) = AT(0, from[0]->shape.rank ? i : 0).i ? AT(1, i) : AT(2, i);
      return 0;
    case CONVERT:
      for (int64_t i = 0; i < count; ++i) {
        word w = AT(0, i);
        if (shape->type == PRED) OUT(i).i = is_float ? w.f != 0 : w.i != 0;
        else if (shape->type == F32) OUT(i).f = is_float ? w.f : (float)w.i;
        else OUT(i).i = is_float ? (int32_t)w.f : w.i;
      }
      return 0;
    case MATMUL: {
      const int64_t m = each->sizes[1], k = each->sizes[2], n = each->sizes[3];
      for (int64_t i = 0; i < count; ++i) {
        int64_t batch = i / (m * n), row = i / n % m, column = i % n;
        float sum = 0;
        for (int64_t j = 0; j < k; ++j) sum += AT(0, (batch * m + row) * k + j).f * AT(1, (batch * k + j) * n + column).f;
        OUT(i).f = sum;
      }
      return 0;
    }
    case SUM:
    case MAX_OF: {
      const int64_t reduced = each->sizes[1], inner = each->sizes[2];
      for (int64_t i = 0; i < count; ++i) {
        word total = AT(1, 0);
        for (int64_t j = 0; j < reduced; ++j)
          total = binary(each->op == SUM ? ADD : MAXIMUM, is_float, total, AT(0, (i / inner * reduced + j) * inner + i % inner));
        OUT(i) = total;
      }
      return 0;
    }
    default:
      for (int64_t i = 0; i < count; ++i)
        OUT(i) = each->op >= NEGATE ? unary((enum op)each->op, is_float, AT(0, i))
                                    : binary((enum op)each->op, is_float, AT(0, i), AT(1, i));
      return 0;
  }
}

static int chip_trace(pjrt_driver *driver, pjrt_driver_event function, void *arg, char *message) {
  (void)message;
  pthread_mutex_lock(&driver->mutex);
  __atomic_store_n(&driver->tell, function, __ATOMIC_RELAXED);
  driver->tell_arg = arg;
  pthread_mutex_unlock(&driver->mutex);
  return 0;
}

/* Shows a profiler an instruction that ends now. */
static void show(const launch_job *each, enum op op, int64_t begun) {
  pjrt_driver *driver = each->driver;
  pthread_mutex_lock(&driver->mutex);
  if (driver->tell && begun) driver->tell(driver->tell_arg, each->device, "instructions", op_names[op], begun, now());
  pthread_mutex_unlock(&driver->mutex);
}

static int run_launch(job *base, char *message) {
  launch_job *each = (launch_job *)base;
  for (size_t i = 0; i < each->num_after; ++i) { /* whether that work failed, the runtime sees itself */
    char ignored[PJRT_DRIVER_MESSAGE_SIZE];
    chip_wait(each->driver, each->after_devices[i], each->after[i], -1, ignored);
  }
  int code = 0;
  for (int32_t i = 0; i < each->program->head.num_instructions && !code; ++i) {
    const instruction *it = &each->program->instructions[i];
    const bool is_shown = __atomic_load_n(&each->driver->tell, __ATOMIC_RELAXED) != NULL;
    const int64_t begun = is_shown ? now() : 0;
    code = run_instruction(each, it, message);
    if (is_shown) show(each, (enum op)it->op, begun);
    if (!code && base->fence) code = stop_where_cancelled(&each->driver->devices[each->device], base, message);
  }
  return code;
}

static void free_launch(job *base) {
  launch_job *each = (launch_job *)base;
  free(each->memories);
  free(each->after_devices);
  free(each->after);
}

enum { MOST_AT_ONCE = 64 }; /* memories of a launch on the caller's thread */

/* Where nothing is before it in the queue, and no other chip takes part. */
static bool runs_at_once(pjrt_driver *driver, const pjrt_driver_launch *launch) {
  device *d = &driver->devices[launch->device];
  if (!driver->is_at_once || launch->must_not_block || launch->num_after) return false;
  if (launch->num_inputs + launch->num_outputs >= MOST_AT_ONCE) return false;
  if (launch->struct_size >= sizeof *launch && launch->num_participants > 1) return false;
  pthread_mutex_lock(&d->mutex);
  bool is_idle = d->done == d->given;
  pthread_mutex_unlock(&d->mutex);
  return is_idle;
}

static void copy_memories(uint64_t *to, const pjrt_driver_launch *launch) {
  memcpy(to, launch->inputs, launch->num_inputs * sizeof *to);
  memcpy(to + launch->num_inputs, launch->outputs, launch->num_outputs * sizeof *to);
  to[launch->num_inputs + launch->num_outputs] = launch->scratch;
}

static int run_at_once(pjrt_driver *driver, const pjrt_driver_launch *launch, char *message) {
  uint64_t memories[MOST_AT_ONCE];
  copy_memories(memories, launch);
  launch_job each = {.driver = driver, .device = launch->device, .program = (program *)(uintptr_t)launch->executable,
                     .memories = memories};
  int64_t begun = now();
  int code = run_launch(&each.base, message);
  count((int)launch->device, BUSY_NANOSECONDS, now() - begun);
  return code;
}

static int chip_launch(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  count((int)launch->device, LAUNCHES, 1);
  *fence = 0;
  if (runs_at_once(driver, launch)) return run_at_once(driver, launch, message);
  launch_job *each = calloc(1, sizeof *each);
  each->base.run = run_launch;
  each->base.finish = free_launch;
  each->driver = driver;
  each->device = launch->device;
  each->program = (program *)(uintptr_t)launch->executable;
  size_t in = launch->num_inputs, out = launch->num_outputs;
  each->memories = calloc(in + out + 1, sizeof *each->memories);
  copy_memories(each->memories, launch);
  each->num_after = launch->num_after;
  each->after_devices = calloc(launch->num_after + 1, sizeof *each->after_devices);
  each->after = calloc(launch->num_after + 1, sizeof *each->after);
  memcpy(each->after_devices, launch->after_devices, launch->num_after * sizeof *each->after_devices);
  memcpy(each->after, launch->after, launch->num_after * sizeof *each->after);
  if (launch->struct_size >= sizeof *launch) {
    each->execution = launch->execution;
    each->num_participants = launch->num_participants;
    while (each->place < launch->num_participants && launch->participants[each->place] != launch->device) ++each->place;
  }
  *fence = enqueue(&driver->devices[launch->device], &each->base);
  return 0;
}

const pjrt_driver_table *pjrt_driver_entry(void) {
  static const pjrt_driver_table table = {
      .struct_size = sizeof(pjrt_driver_table),
      .platform_name = "chip",
      .platform_version = "simulated chip 1",
      .open = chip_open,
      .close = chip_close,
      .describe = chip_describe,
      .allocate = chip_allocate,
      .free = chip_free,
      .copy_in = chip_copy_in,
      .copy_out = chip_copy_out,
      .load = chip_load,
      .unload = chip_unload,
      .launch = chip_launch,
      .wait = chip_wait,
      .on_done = chip_on_done,
      .layout = chip_layout,
      .copy = chip_copy,
      .stats = chip_stats,
      .cancel = chip_cancel,
      .reset = chip_reset,
      .trace = chip_trace,
  };
  return &table;
}
