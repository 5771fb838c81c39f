/* The example's chip, of which functions and work fail at random: $FAULTS of a thousand, by default none. With $HOLDS, as
 * many of a thousand fences are not told until the driver is asked to cancel its work, or to reset the device. With
 * $TWICE, as many are told twice. */
#define pjrt_driver_entry chip_entry
#include "chip.c"
#undef pjrt_driver_entry

static const pjrt_driver_table *chip;

static bool happens(const char *name) {
  static _Thread_local unsigned random = 12345;
  const char *share = getenv(name);
  random = random * 1103515245 + 12345;
  return share && (int)(random / 65536 % 1000) < atoi(share);
}

static int fault(char *message, int code, const char *function) {
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%s was told to fail", function);
  return code;
}

static int faulty_allocate(pjrt_driver *driver, size_t device, size_t kind, size_t bytes, uint64_t *memory,
                           char *message) {
  if (happens("FAULTS")) return fault(message, EXHAUSTED, "allocate");
  return chip->allocate(driver, device, kind, bytes, memory, message);
}

static int faulty_in(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                     const void *host, size_t bytes, pjrt_fence *fence, char *message) {
  if (happens("FAULTS")) return fault(message, 13, "copy_in");
  return chip->copy_in(driver, device, memory, shape, offset, host, bytes, fence, message);
}

static int faulty_out(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape,
                      size_t offset, void *host, size_t bytes, pjrt_fence *fence, char *message) {
  if (happens("FAULTS")) return fault(message, 13, "copy_out");
  return chip->copy_out(driver, device, memory, shape, offset, host, bytes, fence, message);
}

static int faulty_copy(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory,
                       size_t bytes, pjrt_fence *fence, char *message) {
  if (happens("FAULTS")) return fault(message, 13, "copy");
  return chip->copy(driver, device, memory, to_device, to_memory, bytes, fence, message);
}

static int faulty_launch(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  if (happens("FAULTS")) return fault(message, 13, "launch");
  return chip->launch(driver, launch, fence, message);
}

/* ---- fences -----------------------------------------------------------------------------------------------------------*/
typedef struct told {
  pjrt_driver_done function;
  void *arg;
  size_t device;
  pjrt_fence fence;
  bool fails, is_held, is_done;
  struct told *next;
} told;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static told *held; /* what the runtime is not told */

static void tell(told *each, int code, const char *message) {
  if (each->fails && code == 0) each->function(each->arg, 13, "the work was told to fail");
  else each->function(each->arg, code, message);
  if (happens("TWICE")) each->function(each->arg, code, message);
  free(each);
}

static void work_is_done(void *arg, int code, const char *message) {
  told *each = arg;
  pthread_mutex_lock(&mutex);
  each->is_done = true;
  bool is_held = each->is_held;
  pthread_mutex_unlock(&mutex);
  if (!is_held) tell(each, code, message);
}

static int faulty_done(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                       char *message) {
  told *each = calloc(1, sizeof *each);
  *each = (told){function, arg, device, fence, happens("FAULTS"), happens("HOLDS"), false, NULL};
  if (each->is_held) {
    pthread_mutex_lock(&mutex);
    each->next = held;
    held = each;
    pthread_mutex_unlock(&mutex);
  }
  return chip->on_done(driver, device, fence, work_is_done, each, message);
}

/* Lets go of one fence, or of all where that is 0. */
static int faulty_cancel(pjrt_driver *driver, size_t device, pjrt_fence fence, char *message) {
  told *due = NULL;
  pthread_mutex_lock(&mutex);
  for (told **place = &held; *place;) {
    told *each = *place;
    if (each->device != device || (fence && each->fence != fence)) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    each->is_held = false;
    if (!each->is_done) continue; /* the runtime is told when it is */
    each->next = due;
    due = each;
  }
  pthread_mutex_unlock(&mutex);
  while (due) {
    told *each = due;
    due = each->next;
    tell(each, 1, "the work was given up");
  }
  return chip->cancel(driver, device, fence, message);
}

static int faulty_reset(pjrt_driver *driver, size_t device, char *message) {
  return faulty_cancel(driver, device, 0, message);
}

const pjrt_driver_table *pjrt_driver_entry(void) {
  static pjrt_driver_table table;
  chip = chip_entry();
  table = *chip;
  table.allocate = faulty_allocate;
  table.copy_in = faulty_in;
  table.copy_out = faulty_out;
  table.copy = faulty_copy;
  table.launch = faulty_launch;
  table.on_done = faulty_done;
  if (getenv("HOLDS")) table.cancel = faulty_cancel, table.reset = faulty_reset;
  return &table;
}
