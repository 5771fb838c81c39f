/* The driver "worker": devices that a Python process computes for.
 *
 * Commands go to it through a ring in memory that both share, and answers come back through another. What is asked seldom
 * goes through the socket of its process (see process.c): the devices, programs to compile and to load. An array that the
 * host wrote lies in the heap, the rest of the shared memory, and the worker looks at it there: no command is needed to
 * bring it. An array that the worker computed is the worker's own, until the host asks for its bytes.
 *
 * The commands, each behind a `record`:
 *   LAUNCH    device, inputs, outputs, bytes of the options (4 bytes each); executable; run; each input {id, place, size
 *             and kind of memory}; each output {id}; the options (see execute_options.c). The worker knows an input by
 *             its id, or finds its bytes at the place in the heap. The kind of memory is in the highest byte.
 *   FREE      id
 *   UNLOAD    executable
 *   COPY_OUT  id; place in the heap; first byte; bytes
 *   COPY      id; id of the copy, its device and kind of memory (4 bytes each)
 * The answers:
 *   DONE      code, bytes of the message (4 bytes each); message, filled up to 8 bytes; what belongs to the error, each
 *             {bytes of the name, bytes of the value (4 bytes each); name with a zero and value, filled up to 8 bytes}
 *   RELEASE   place in the heap that the worker no longer looks at; id of the array that was there
 * Nothing that the worker writes is trusted: what cannot be ends it. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ring.h"
#include "runtime.h"

static const uint64_t NOWHERE = UINT64_MAX;

typedef struct lent lent;
typedef struct block {
  uint64_t id;
  size_t device, kind, size;
  uint64_t heap;   /* where its bytes are; NOWHERE */
  lent *lent;      /* the worker looks at them, and says when it no longer does; else null */
  int readers;     /* those who copy them from there */
  bool is_known;   /* the worker has an array of this id */
} block;

/* What was asked for. */
typedef struct asked {
  pending pending;
  void *to; /* of a copy to the host, from its place in the heap */
  uint64_t heap;
  size_t size;
} asked;

/* A place in the heap that the worker looks at. */
struct lent {
  uint64_t place, id; /* of the array that was there */
  block *block;       /* which is still there; null where its memory is another, or free */
  size_t size;
  lent *next; /* in its bucket */
};

enum { BUCKETS = 1024, CLASSES = 160, LAZY = 64 };
enum { CANCEL_SIGNAL = SIGURG }; /* it ends no process that does not expect it */
static const size_t LARGE = 1 << 20, KEPT = 1 << 28;

struct pjrt_driver {
  process *process;
  pid_t owner;
  int file;
  shared_memory *shared;
  size_t mapped;
  facts facts;
  pthread_t listener, watcher;
  pthread_mutex_t reading; /* guards what follows, up to the next mutex */
  uint64_t taken;          /* bytes of the answers */
  bytes answer;
  bool listener_sleeps;
  patience looks;
  atomic_int lookers; /* those who look for an answer themselves */
  bool listens, watches;
  atomic_bool is_closed, is_over;
  pthread_mutex_t mutex; /* guards what follows */
  PJRT_Error *loss;      /* why the worker is gone */
  uint64_t posted, last_id;
  size_t lazy; /* commands that nobody was woken for */
  bytes overflow;  /* what does not fit into the ring */
  size_t moved;    /* the bytes of it that were moved there */
  fences fences;
  known_layouts layouts;
  lent *lent[BUCKETS];
  uint64_t heap_end;
  struct { uint64_t *places; size_t count, capacity; } free_places[CLASSES];
  size_t kept;
};

static block *block_of(uint64_t memory) { return (block *)(uintptr_t)memory; }
static char *bytes_at(pjrt_driver *driver, uint64_t place) { return (char *)driver->shared + place; }

/* ---- the heap: places in classes of sizes, four for each power of two -------------------------------------------------*/
static size_t class_of(size_t size, size_t *rounded) {
  size_t number = 0, power = 64;
  while (power < size) power *= 2, number += 4;
  *rounded = power;
  if (power == 64) return 0;
  for (size_t step = 1; step < 4; ++step) { /* from half the power on, in steps of an eighth */
    size_t smaller = power / 2 + power / 8 * step;
    if (size <= smaller && power >= 512) {
      *rounded = smaller;
      return number - 4 + step;
    }
  }
  return number;
}

static uint64_t heap_take(pjrt_driver *driver, size_t size) {
  size_t rounded, number = class_of(size ? size : 1, &rounded);
  if (number >= CLASSES) return NOWHERE;
  if (driver->free_places[number].count) {
    if (rounded >= LARGE) driver->kept -= rounded < driver->kept ? rounded : driver->kept;
    return driver->free_places[number].places[--driver->free_places[number].count];
  }
  if (rounded > driver->mapped - driver->heap_end) return NOWHERE;
  uint64_t place = driver->heap_end;
  driver->heap_end += rounded;
  return place;
}

/* The system gets the pages of large places back, but for some that the next arrays will want. */
static void heap_free(pjrt_driver *driver, uint64_t place, size_t size) {
  size_t rounded, number = class_of(size ? size : 1, &rounded);
  if (rounded >= LARGE && driver->kept + rounded > KEPT)
    fallocate(driver->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place, (off_t)rounded);
  else if (rounded >= LARGE)
    driver->kept += rounded;
  if (driver->free_places[number].count == driver->free_places[number].capacity) {
    size_t capacity = driver->free_places[number].capacity * 2 + 16;
    uint64_t *places = realloc(driver->free_places[number].places, capacity * sizeof *places);
    if (places == NULL) return; /* the place is lost */
    driver->free_places[number].places = places;
    driver->free_places[number].capacity = capacity;
  }
  driver->free_places[number].places[driver->free_places[number].count++] = place;
}

/* ---- commands -----------------------------------------------------------------------------------------------------------*/
/* Moves what did not fit into the ring. */
static void flush(pjrt_driver *driver) {
  ring *commands = &driver->shared->commands;
  bytes *overflow = &driver->overflow;
  bool is_broken = false;
  while (driver->moved < overflow->size) {
    uint32_t size;
    memcpy(&size, overflow->data + driver->moved, sizeof size);
    char *place = ring_reserve(commands, &driver->posted, size, &is_broken);
    if (is_broken) process_kill(driver->process);
    if (place == NULL) {
      if (is_broken || atomic_exchange(&commands->waits, 1)) break;
      continue; /* once more: the worker may have made room before it could see that we wait */
    }
    memcpy(place, overflow->data + driver->moved, size);
    ring_post(commands, &driver->posted, size, true);
    driver->moved += size;
  }
  if (driver->moved <= overflow->size / 2 && overflow->size) return; /* what is left may be much */
  overflow->size -= driver->moved;
  if (overflow->size) memmove(overflow->data, overflow->data + driver->moved, overflow->size);
  else atomic_store(&commands->waits, 0);
  driver->moved = 0;
}

/* A place to write a command of this size; `post` ends it. Nothing waits here: what does not fit is moved later. */
static char *reserve(pjrt_driver *driver, size_t size, bool *is_overflow) {
  bool is_broken = false;
  char *place = driver->overflow.size
                    ? NULL : ring_reserve(&driver->shared->commands, &driver->posted, size, &is_broken);
  if (is_broken) process_kill(driver->process);
  *is_overflow = place == NULL;
  if (place) return place;
  size_t at = driver->overflow.size;
  char *zeros = new_zeroed(1, size);
  bytes_add(&driver->overflow, zeros, size);
  free(zeros);
  return driver->overflow.data + at;
}

static void post(pjrt_driver *driver, size_t size, bool is_overflow, bool wakes) {
  driver->lazy = wakes ? 0 : driver->lazy + 1;
  if (driver->lazy > LAZY) wakes = true, driver->lazy = 0;
  if (is_overflow) flush(driver);
  else ring_post(&driver->shared->commands, &driver->posted, size, wakes);
}

/* A command that has no answer. */
static void post_number(pjrt_driver *driver, uint32_t kind, uint64_t number, bool wakes) {
  uint64_t command[3] = {0};
  record head = {.size = sizeof command, .kind = kind};
  memcpy(command, &head, sizeof head);
  command[2] = number;
  bool is_overflow;
  memcpy(reserve(driver, sizeof command, &is_overflow), command, sizeof command);
  post(driver, sizeof command, is_overflow, wakes);
}

static void post_free(pjrt_driver *driver, const block *each) {
  post_number(driver, FREE, each->id, each->size >= LARGE);
}

static int refuse_lost(pjrt_driver *driver, char *message) {
  if (driver->owner != getpid()) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the devices belong to the process that was forked; make a new client");
    return PJRT_Error_Code_FAILED_PRECONDITION;
  }
  return driver->loss ? error_say(driver->loss, message) : 0;
}

static asked *asked_make(pjrt_driver *driver) {
  asked *each = (asked *)fences_begin(&driver->fences, sizeof *each);
  each->heap = NOWHERE;
  return each;
}

/* ---- answers --------------------------------------------------------------------------------------------------------------*/
/* The bytes of the block will be others: whoever looks at those that are there keeps them. */
static void leave_heap(pjrt_driver *driver, block *each) {
  if (each->heap != NOWHERE && each->lent == NULL) heap_free(driver, each->heap, each->size);
  if (each->lent) each->lent->block = NULL;
  each->heap = NOWHERE;
  each->lent = NULL;
}

static void tell(pjrt_driver *driver, pending *owned) {
  const asked *each = (const asked *)owned;
  if (each->to && owned->code == 0) memcpy(each->to, bytes_at(driver, each->heap), each->size);
  if (each->heap != NOWHERE) {
    pthread_mutex_lock(&driver->mutex);
    heap_free(driver, each->heap, each->size);
    pthread_mutex_unlock(&driver->mutex);
  }
  pending_tell(owned);
}

static bool read_done(pjrt_driver *driver, const record *head, const char *data, size_t size, pending **ended) {
  uint32_t code_and_size[2];
  if (size < sizeof code_and_size) return false;
  memcpy(code_and_size, data, sizeof code_and_size);
  data += sizeof code_and_size;
  size -= sizeof code_and_size;
  if (code_and_size[1] > size) return false;
  size_t message_end = ((size_t)code_and_size[1] + 7) / 8 * 8;
  bool has_payloads = message_end < size;
  *ended = fences_end(&driver->fences, head->fence, (int)code_and_size[0], data, code_and_size[1],
                      has_payloads ? data + message_end : NULL, has_payloads ? size - message_end : 0);
  return true;
}

/* The worker has an array of its own now: the bytes in the heap are kept where somebody is looking at them. */
static bool read_release(pjrt_driver *driver, const char *data, size_t size) {
  uint64_t place_and_id[2];
  if (size < sizeof place_and_id) return false;
  memcpy(place_and_id, data, sizeof place_and_id);
  lent **at = &driver->lent[place_and_id[1] % BUCKETS];
  while (*at && ((*at)->id != place_and_id[1] || (*at)->place != place_and_id[0])) at = &(*at)->next;
  lent *found = *at;
  if (found == NULL) return false;
  *at = found->next;
  block *each = found->block;
  if (each) each->lent = NULL;
  bool is_kept = each && each->readers;
  if (!is_kept) heap_free(driver, found->place, found->size);
  if (each && !is_kept) each->heap = NOWHERE;
  free(found);
  return true;
}

/* Takes one answer out of the ring; false where there is none, or none that can be. */
static bool take_answer(pjrt_driver *driver, uint64_t *taken, bytes *copy, bool *is_broken) {
  ring *answers = &driver->shared->answers;
  for (;;) {
    uint64_t available = atomic_load(&answers->posted) - *taken;
    if (available == 0) return false;
    size_t at = *taken % RING_SIZE;
    record head = {0};
    memcpy(&head, answers->data + at, RING_SIZE - at < sizeof head ? 8 : sizeof head);
    *is_broken = available > RING_SIZE || head.size % 8 || head.size < 8 || head.size > available ||
                 head.size > RING_SIZE - at || (head.kind != RECORD_SKIP && head.size < sizeof head);
    if (*is_broken) return false;
    copy->size = 0;
    if (head.kind != RECORD_SKIP) {
      bytes_add(copy, &head, sizeof head);
      bytes_add(copy, answers->data + at + sizeof head, head.size - sizeof head);
    }
    *taken += head.size;
    atomic_store(&answers->taken, *taken);
    if (head.kind != RECORD_SKIP) return true;
  }
}

static void fail_all(pjrt_driver *driver) {
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  int code = error_say(driver->loss, message);
  for (size_t i = 0; i < FENCE_BUCKETS; ++i) {
    for (;;) {
      pthread_mutex_lock(&driver->mutex);
      const pending *each = driver->fences.buckets[i];
      while (each && each->is_ended) each = each->next;
      bool is_left = each != NULL;
      pending *ended = is_left ? fences_end(&driver->fences, each->fence, code, message, strlen(message), NULL, 0) : NULL;
      pthread_mutex_unlock(&driver->mutex);
      if (!is_left) break;
      if (ended) tell(driver, ended);
    }
  }
}

static _Thread_local pjrt_driver *reads; /* whose answers this thread reads, and calls back for */

/* Does what the answers that are there say; false where one cannot be, or the worker is gone. With the mutex `reading`. */
static bool read_answers(pjrt_driver *driver) {
  bool is_broken = false;
  pjrt_driver *before = reads;
  reads = driver;
  while (!atomic_load(&driver->is_over) && take_answer(driver, &driver->taken, &driver->answer, &is_broken)) {
    record head;
    memcpy(&head, driver->answer.data, sizeof head);
    const char *data = driver->answer.data + sizeof head;
    size_t size = driver->answer.size - sizeof head;
    pending *ended = NULL;
    pthread_mutex_lock(&driver->mutex);
    is_broken = head.kind == DONE ? !read_done(driver, &head, data, size, &ended) : !read_release(driver, data, size);
    pthread_mutex_unlock(&driver->mutex);
    if (is_broken) break;
    if (ended) tell(driver, ended);
  }
  reads = before;
  return !is_broken && !atomic_load(&driver->is_over);
}

static void flush_locked(pjrt_driver *driver) {
  pthread_mutex_lock(&driver->mutex);
  flush(driver);
  pthread_mutex_unlock(&driver->mutex);
}

/* Reads answers where nobody who waits for one does. While it sleeps or looks for some, others may read. */
static void *listen_to_worker(void *arg) {
  pjrt_driver *driver = arg;
  ring *answers = &driver->shared->answers;
  patience patience = {0};
  pthread_mutex_lock(&driver->reading);
  while (read_answers(driver)) {
    uint64_t taken = driver->taken;
    pthread_mutex_unlock(&driver->reading);
    bool comes = ring_comes_soon(answers, taken, &patience, &driver->lookers);
    flush_locked(driver);
    pthread_mutex_lock(&driver->reading);
    uint32_t signal;
    if (comes || !ring_say_sleeps(answers, driver->taken, &signal)) continue;
    driver->listener_sleeps = true;
    pthread_mutex_unlock(&driver->reading);
    if (!atomic_load(&driver->is_over)) ring_sleep(answers, signal);
    pthread_mutex_lock(&driver->reading);
    driver->listener_sleeps = false;
  }
  pthread_mutex_unlock(&driver->reading);
  if (!atomic_load(&driver->is_over)) process_kill(driver->process);
  return NULL;
}

/* Somebody else holds it no longer than answers take that are there. */
static bool take_reading(pjrt_driver *driver) {
  bool is_taken = false;
  for (int i = 0; i < 100 && !is_taken; ++i, ring_relax()) is_taken = pthread_mutex_trylock(&driver->reading) == 0;
  return is_taken;
}

/* Reads answers of the worker on this thread until the completion is set, for as long as it takes to wake a thread. */
static void worker_look(pjrt_driver *driver, completion *until) {
  ring *answers = &driver->shared->answers;
  if (driver->owner != getpid()) return;
  atomic_fetch_add(&driver->lookers, 1); /* the listener goes to sleep */
  if (!take_reading(driver)) {
    atomic_fetch_sub(&driver->lookers, 1);
    return;
  }
  bool is_right = true;
  atomic_store(&answers->sleeps, 0); /* the worker need not wake the listener */
  do is_right = read_answers(driver);
  while (is_right && !completion_is_set(until) && ring_comes_soon(answers, driver->taken, &driver->looks, NULL));
  if (driver->listener_sleeps) {
    /* From here on it is woken again, also for what came meanwhile. */
    atomic_store(&answers->sleeps, 1);
    if (!is_right || atomic_load(&answers->posted) != driver->taken || atomic_load(&driver->is_over)) ring_wake(answers);
  }
  pthread_mutex_unlock(&driver->reading);
  atomic_fetch_sub(&driver->lookers, 1);
  flush_locked(driver);
}

/* Waits for the end of the process, and makes an error of everything that it was to do. */
static void *watch_worker(void *arg) {
  pjrt_driver *driver = arg;
  PJRT_Error *loss = process_wait(driver->process);
  pthread_mutex_lock(&driver->mutex);
  driver->loss = loss;
  pthread_mutex_unlock(&driver->mutex);
  atomic_store(&driver->is_over, true);
  ring_wake(&driver->shared->answers);
  if (driver->listens) pthread_join(driver->listener, NULL);
  if (!atomic_load(&driver->is_closed)) fail_all(driver);
  return NULL;
}

/* ---- life -----------------------------------------------------------------------------------------------------------------*/
static PJRT_Error *share_memory(pjrt_driver *driver) {
  int file = memfd_create("pjrt-worker", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  driver->file = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, 4); /* it becomes the worker's descriptor 3 */
  if (file >= 0) close(file);
  driver->mapped = 8 * (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE); /* pages come when they are used */
  for (; driver->file >= 0 && driver->mapped > sizeof(shared_memory); driver->mapped /= 2) {
    if (ftruncate(driver->file, (off_t)driver->mapped) != 0) continue;
    void *start = mmap(NULL, driver->mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, driver->file, 0);
    if (start == MAP_FAILED) continue;
    driver->shared = start;
    memcpy(driver->shared->mark, SHARED_MARK, sizeof SHARED_MARK);
    driver->shared->heap = driver->heap_end = (sizeof(shared_memory) + 4095) / 4096 * 4096;
    driver->shared->size = driver->mapped;
    fcntl(driver->file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); /* nobody reads behind its end */
    return NULL;
  }
  return error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system gives no memory to share with a worker");
}

static PJRT_Error *meet_devices(pjrt_driver *driver, const pjrt_driver_option *options, size_t num_options,
                                bool has_store) {
  bytes request = {0};
  request_open(&request, options, num_options, has_store);
  answer devices;
  PJRT_Error *error = process_ask(driver->process, &request, &devices);
  free(request.data);
  if (error) return error;
  if (!facts_read(&driver->facts, devices.data, devices.data_size))
    error = error_make(PJRT_Error_Code_INTERNAL, "the worker gave devices that cannot be read");
  answer_free(&devices);
  return error;
}

static void close_worker(pjrt_driver *driver) {
  bool is_ours = driver->owner == getpid();
  atomic_store(&driver->is_closed, true);
  process_close(driver->process);
  if (driver->watches && is_ours) pthread_join(driver->watcher, NULL);
  process_free(driver->process);
  facts_free(&driver->facts);
  for (size_t i = 0; i < CLASSES; ++i) free(driver->free_places[i].places);
  fences_free(&driver->fences);
  known_layouts_free(&driver->layouts);
  for (size_t i = 0; i < BUCKETS; ++i) {
    while (driver->lent[i]) {
      lent *each = driver->lent[i];
      driver->lent[i] = each->next;
      free(each);
    }
  }
  free(driver->overflow.data);
  free(driver->answer.data);
  if (driver->shared) munmap(driver->shared, driver->mapped);
  if (driver->file >= 0) close(driver->file);
  pjrt_error_release(driver->loss);
  pthread_mutex_destroy(&driver->reading);
  pthread_mutex_destroy(&driver->mutex);
  free(driver);
}

static int open_in_job(const pjrt_driver_option *options, size_t num_options, const pjrt_driver_store *store,
                       pjrt_driver **out, size_t *num_devices, char *message) {
  pjrt_driver *driver = new_zeroed(1, sizeof *driver);
  driver->owner = getpid();
  pthread_mutex_init(&driver->mutex, NULL);
  pthread_mutex_init(&driver->reading, NULL);
  PJRT_Error *error = share_memory(driver);
  bool serves_others = setting("shared") != NULL;
  driver->process = process_make(serves_others ? "pjrt.native.shared" : "pjrt.native.worker", "computes", driver->file, store);
  if (serves_others) process_share(driver->process);
  if (!error) error = process_start(driver->process);
  if (!error) {
    driver->listens = pthread_create(&driver->listener, NULL, listen_to_worker, driver) == 0;
    driver->watches = driver->listens && pthread_create(&driver->watcher, NULL, watch_worker, driver) == 0;
    if (!driver->watches) error = error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system has no thread left for a worker");
  }
  if (!error) error = meet_devices(driver, options, num_options, store != NULL);
  if (error) {
    close_worker(driver);
    return error_give(error, message);
  }
  *out = driver;
  *num_devices = driver->facts.num_devices;
  return 0;
}

static int open_worker(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                       char *message) {
  return open_in_job(options, num_options, NULL, out, num_devices, message);
}

static void describe_worker(pjrt_driver *driver, size_t device, pjrt_driver_device *out) {
  *out = driver->facts.devices[device];
}

static void describe_client(pjrt_driver *driver, pjrt_driver_client *out) {
  *out = driver->facts.client;
  if (setting("platform")) out->platform_name = NULL;
}

static PJRT_Error *ask_process(pjrt_driver *driver, bytes *request, answer *out) {
  if (driver->owner == getpid()) return process_ask(driver->process, request, out);
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  int code = refuse_lost(driver, message);
  return error_from_parts((PJRT_Error_Code)code, message, strlen(message));
}

static bool has_layouts(pjrt_driver *driver) { return driver->facts.has_layouts; }

static int layout_worker(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *shape,
                         pjrt_driver_layout *layout, char *message) {
  return ask_for_layout(&driver->layouts, &driver->mutex, ask_process, driver, device, kind, shape, layout, message);
}

/* ---- memory -----------------------------------------------------------------------------------------------------------------*/
static int heap_is_full(size_t size, char *message) {
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the memory that is shared with the worker has no %zu bytes left", size);
  return PJRT_Error_Code_RESOURCE_EXHAUSTED;
}

static int allocate_worker(pjrt_driver *driver, size_t device, size_t kind, size_t size, uint64_t *memory, char *message) {
  if (size > driver->mapped) return heap_is_full(size, message); /* others may find room elsewhere, or later */
  block *each = new_zeroed(1, sizeof *each);
  *each = (block){.device = device, .kind = kind, .size = size, .heap = NOWHERE};
  pthread_mutex_lock(&driver->mutex);
  each->id = ++driver->last_id;
  pthread_mutex_unlock(&driver->mutex);
  *memory = (uintptr_t)each;
  return 0;
}

static void free_worker(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)device;
  block *each = block_of(memory);
  pthread_mutex_lock(&driver->mutex);
  if (each->is_known && driver->loss == NULL && driver->owner == getpid()) post_free(driver, each);
  leave_heap(driver, each);
  pthread_mutex_unlock(&driver->mutex);
  free(each);
}

/* Asks the worker for bytes of an array of its own. */
static int post_copy_out(pjrt_driver *driver, const block *each, size_t offset, void *to, size_t size, pjrt_fence *fence,
                         char *message) {
  uint64_t place = heap_take(driver, size);
  if (place == NOWHERE) return heap_is_full(size, message);
  asked *copied = asked_make(driver);
  copied->to = to;
  copied->heap = place;
  copied->size = size;
  uint64_t command[6];
  record head = {.size = sizeof command, .kind = COPY_OUT, .fence = copied->pending.fence};
  memcpy(command, &head, sizeof head);
  command[2] = each->id;
  command[3] = place;
  command[4] = offset;
  command[5] = size;
  bool is_overflow;
  memcpy(reserve(driver, sizeof command, &is_overflow), command, sizeof command);
  post(driver, sizeof command, is_overflow, true);
  *fence = copied->pending.fence;
  return 0;
}

static void stop_reading(pjrt_driver *driver, block *each) {
  pthread_mutex_lock(&driver->mutex);
  --each->readers;
  pthread_mutex_unlock(&driver->mutex);
}

static int copy_out_worker(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape,
                           size_t offset, void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)device, (void)shape;
  block *each = block_of(memory);
  int code = 0;
  *fence = 0;
  pthread_mutex_lock(&driver->mutex);
  uint64_t place = each->heap;
  if (place == NOWHERE && each->is_known) {
    code = refuse_lost(driver, message);
    if (!code) code = post_copy_out(driver, each, offset, host, size, fence, message);
  }
  each->readers += place != NOWHERE;
  pthread_mutex_unlock(&driver->mutex);
  if (place == NOWHERE && *fence == 0 && !code) memset(host, 0, size); /* nobody ever wrote there */
  if (place == NOWHERE) return code;
  memcpy(host, bytes_at(driver, place) + offset, size);
  stop_reading(driver, each);
  return code;
}

static int on_done_worker(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                          char *message);

/* The thread that reads the answers cannot wait for another one to do so. Returns false where the worker has ended. */
static bool read_until(pjrt_driver *driver, pjrt_fence fence, const waiting *wait) {
  while (!wait->is_done) {
    bool goes_on = read_answers(driver);
    ring_relax();
    if (goes_on || wait->is_done) continue;
    /* Its end is told by another thread, which waits for this one: nobody may hear of it here later. */
    pthread_mutex_lock(&driver->mutex);
    pending *left = fences_take(&driver->fences, fence);
    pthread_mutex_unlock(&driver->mutex);
    if (left == NULL) return true; /* it is being told now */
    pending_free(left);
    return false;
  }
  return true;
}

static int wait_for_fence(pjrt_driver *driver, pjrt_fence fence, char *message) {
  waiting wait = WAITING(message);
  on_done_worker(driver, 0, fence, waiting_wake, &wait, message);
  if (reads == driver && !read_until(driver, fence, &wait)) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the worker ended, or wrote what cannot be, before it gave an array");
    return PJRT_Error_Code_UNAVAILABLE;
  }
  return waiting_sleep(&wait);
}

/* All bytes of a worker's array come to the heap: before some of them are written, or are looked at there. */
static int bring(pjrt_driver *driver, block *each, uint64_t place, char *message) {
  pjrt_fence fence = 0;
  int code = copy_out_worker(driver, each->device, (uintptr_t)each, NULL, 0, bytes_at(driver, place), each->size, &fence,
                             message);
  return code || fence == 0 ? code : wait_for_fence(driver, fence, message);
}

static int copy_in_worker(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape,
                          size_t offset, const void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)device, (void)shape;
  block *each = block_of(memory);
  *fence = 0;
  pthread_mutex_lock(&driver->mutex);
  int code = refuse_lost(driver, message);
  bool is_new = each->heap == NOWHERE || each->is_known;
  uint64_t place = is_new ? NOWHERE : each->heap;
  if (!code && is_new && (place = heap_take(driver, each->size)) == NOWHERE) code = heap_is_full(each->size, message);
  pthread_mutex_unlock(&driver->mutex);
  if (code) return code;
  if (is_new && size != each->size) code = bring(driver, each, place, message);
  pthread_mutex_lock(&driver->mutex);
  if (code) {
    heap_free(driver, place, each->size);
  } else if (is_new) {
    if (each->is_known) post_free(driver, each);
    leave_heap(driver, each);
    each->is_known = false;
    each->heap = place;
  }
  pthread_mutex_unlock(&driver->mutex);
  if (!code) memcpy(bytes_at(driver, place) + offset, host, size);
  return code;
}

static int copy_worker(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory,
                       size_t size, pjrt_fence *fence, char *message) {
  (void)device;
  block *from = block_of(memory), *to = block_of(to_memory);
  *fence = 0;
  pthread_mutex_lock(&driver->mutex);
  uint64_t place = from->heap;
  int code = refuse_lost(driver, message);
  if (!code && place == NOWHERE && from->is_known) {
    leave_heap(driver, to);
    to->is_known = true;
    uint64_t command[5];
    record head = {.size = sizeof command, .kind = COPY, .fence = *fence = asked_make(driver)->pending.fence};
    memcpy(command, &head, sizeof head);
    command[2] = from->id;
    command[3] = to->id;
    command[4] = to_device | (uint64_t)to->kind << 32;
    bool is_overflow;
    memcpy(reserve(driver, sizeof command, &is_overflow), command, sizeof command);
    post(driver, sizeof command, is_overflow, true);
  }
  from->readers += place != NOWHERE;
  pthread_mutex_unlock(&driver->mutex);
  if (place == NOWHERE) return code;
  if (!code) code = copy_in_worker(driver, to_device, to_memory, NULL, 0, bytes_at(driver, place), size, fence, message);
  stop_reading(driver, from);
  return code;
}

/* ---- programs ---------------------------------------------------------------------------------------------------------------*/
static int load_worker(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable,
                       char *message) {
  return ask_to_load(ask_process, driver, device, code, size, executable, message);
}

static void unload_worker(pjrt_driver *driver, size_t device, uint64_t executable) {
  (void)device;
  pthread_mutex_lock(&driver->mutex);
  if (driver->loss == NULL && driver->owner == getpid()) post_number(driver, UNLOAD, executable, false);
  pthread_mutex_unlock(&driver->mutex);
}

/* The worker does not begin it, or ends what it does for it. It uses no memory of this process but what was lent. */
static int cancel_worker(pjrt_driver *driver, size_t device, pjrt_fence fence, char *message) {
  (void)device, (void)message;
  if (driver->owner != getpid()) return 0;
  pthread_mutex_lock(&driver->mutex);
  uint64_t count = atomic_load(&driver->shared->num_cancelled);
  atomic_store(&driver->shared->cancelled[count % CANCELLED_KEPT], fence);
  atomic_store(&driver->shared->num_cancelled, count + 1);
  pthread_mutex_unlock(&driver->mutex);
  process_signal(driver->process, CANCEL_SIGNAL);
  return 0;
}

static void worker_end(pjrt_driver *driver) { process_kill(driver->process); }

static void lend(pjrt_driver *driver, block *each) {
  lent *place = new_zeroed(1, sizeof *place), **bucket = &driver->lent[each->id % BUCKETS];
  *place = (lent){.place = each->heap, .id = each->id, .size = each->size, .block = each, .next = *bucket};
  *bucket = place;
  each->lent = place;
}

/* The message of what the execution was given beside its arguments; null for nothing. */
static const bytes *options_of(const pjrt_driver_launch *launch) {
  const execute_options *options = ((const worker_launch *)(const void *)launch)->options;
  return options ? execute_options_message(options) : NULL;
}

static void write_launch(pjrt_driver *driver, const pjrt_driver_launch *launch, uint64_t fence, char *place, size_t size) {
  const bytes *options = options_of(launch);
  uint32_t counts[4] = {(uint32_t)launch->device, (uint32_t)launch->num_inputs, (uint32_t)launch->num_outputs,
                        options ? (uint32_t)options->size : 0};
  record head = {.size = (uint32_t)size, .kind = LAUNCH, .fence = fence};
  uint64_t which[2] = {launch->executable, (uint64_t)launch->run};
  memcpy(place, &head, sizeof head);
  memcpy(place + 16, counts, sizeof counts);
  memcpy(place + 32, which, sizeof which);
  place += 48;
  for (size_t i = 0; i < launch->num_inputs; ++i, place += 24) {
    block *each = block_of(launch->inputs[i]);
    uint64_t input[3] = {each->id, each->is_known ? NOWHERE : each->heap,
                         each->size | (uint64_t)each->kind << 56};
    memcpy(place, input, sizeof input);
    if (!each->is_known && each->heap != NOWHERE) lend(driver, each);
    each->is_known = true;
  }
  for (size_t i = 0; i < launch->num_outputs; ++i, place += 8) {
    block *each = block_of(launch->outputs[i]);
    leave_heap(driver, each);
    each->is_known = true;
    memcpy(place, &each->id, 8);
  }
  if (options) memcpy(place, options->data, options->size);
}

static int launch_worker(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  const bytes *options = options_of(launch);
  size_t size = 48 + 24 * launch->num_inputs + 8 * launch->num_outputs + (options ? (options->size + 7) / 8 * 8 : 0);
  if (size > RECORD_LARGEST) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "a worker takes programs of at most %d arguments and results, found %zu",
             RECORD_LARGEST / 24, launch->num_inputs + launch->num_outputs);
    return PJRT_Error_Code_UNIMPLEMENTED;
  }
  pthread_mutex_lock(&driver->mutex);
  int code = refuse_lost(driver, message);
  if (!code) {
    const pending *started = &asked_make(driver)->pending;
    bool is_overflow;
    write_launch(driver, launch, started->fence, reserve(driver, size, &is_overflow), size);
    post(driver, size, is_overflow, true);
    *fence = started->fence;
  }
  pthread_mutex_unlock(&driver->mutex);
  return code;
}

/* ---- fences -----------------------------------------------------------------------------------------------------------------*/
static int on_done_worker(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                          char *message) {
  (void)device;
  pending *ended;
  pthread_mutex_lock(&driver->mutex);
  if (driver->loss) { /* nobody else is left who would end it */
    char text[PJRT_DRIVER_MESSAGE_SIZE];
    int lost = error_say(driver->loss, text);
    fences_end(&driver->fences, fence, lost, text, strlen(text), NULL, 0);
  }
  int code = fences_follow(&driver->fences, fence, function, arg, &ended, message);
  pthread_mutex_unlock(&driver->mutex);
  if (ended) tell(driver, ended);
  return code;
}

static void hold(pjrt_driver *driver, bool holds) {
  if (holds) pthread_mutex_lock(&driver->mutex);
  else pthread_mutex_unlock(&driver->mutex);
}

const python_functions worker_functions = {
    .ask = ask_process, .hold = hold, .has_layouts = has_layouts, .layout = layout_worker,
    .end = worker_end, .look = worker_look,
    .copies_at_once = true,
};

const pjrt_driver_table worker_driver = {
    .struct_size = sizeof(pjrt_driver_table),
    .platform_name = "worker", .platform_version = "pjrt worker 1",
    .open = open_worker, .open_in_job = open_in_job, .describe_client = describe_client, .close = close_worker,
    .describe = describe_worker, .allocate = allocate_worker, .free = free_worker, .copy_in = copy_in_worker,
    .copy_out = copy_out_worker, .load = load_worker, .unload = unload_worker, .launch = launch_worker,
    .cancel = cancel_worker, .on_done = on_done_worker, .copy = copy_worker, .payload = pending_payload,
};
