/* The queues of devices: the work that is in flight, the fences that tell of its end, and the watchdog that gives up
 * what does not end.
 *
 * Work that was given up is late: whoever waits for it has an error, and nothing else waits for it. Its memory stays
 * until the driver says that it has ended, because the device may write there. */
#include <time.h>

#include "runtime.h"

static bool has_watchdog(const PJRT_Client *client) { return client->patience > 0; }

bool queue_leaves_work(const PJRT_Client *client) {
  return has_watchdog(client) && !DRIVER_HAS(client->table, cancel) && !DRIVER_HAS(client->table, reset);
}

/* ---- watches ----------------------------------------------------------------------------------------------------------
 * What a driver gives back is an entry of ours. The last ones that ended are kept unused, so that a call that comes
 * twice is noticed. */
enum { WATCHES_KEPT = 256 };

typedef enum watch_state { ENDED, RUNNING, LATE } watch_state;

struct watch {
  PJRT_Device *device;
  work work;
  pjrt_fence fence;
  watch_state state;
  PJRT_Error *late;       /* of work that was given up */
  int64_t begun;          /* where there is a watchdog */
  int64_t called;         /* where a profiler records: when the driver was asked */
  watch *previous, *next; /* in the queue; next also among those that are unused */
};

/* The thread of the driver or of the watchdog does work of ours: it cannot close the driver, which would wait for it. */
static _Thread_local int is_within_queue;

bool queue_is_calling(void) { return is_within_queue != 0; }

void queue_call(bool begins) { is_within_queue += begins ? 1 : -1; }

static watch *take_unused(PJRT_Device *device, size_t kept) {
  watch *each = device->num_unused > kept ? device->first_unused : NULL;
  if (each) {
    device->first_unused = each->next;
    --device->num_unused;
  }
  return each;
}

static void put_unused(PJRT_Device *device, watch *each) {
  each->next = NULL;
  if (device->num_unused++) device->last_unused->next = each;
  else device->first_unused = each;
  device->last_unused = each;
}

static watch *begin_watch(PJRT_Device *device, pjrt_fence fence, const work *of) {
  int64_t begun = has_watchdog(device->client) ? monotonic_now() : 0, called = recording_called();
  pthread_mutex_lock(&device->mutex);
  watch *each = take_unused(device, WATCHES_KEPT);
  if (each == NULL) each = new_zeroed(1, sizeof *each);
  *each = (watch){.device = device, .work = *of, .fence = fence, .state = RUNNING, .begun = begun,
                  .called = called, .previous = device->last_watch};
  *(each->previous ? &each->previous->next : &device->first_watch) = each;
  device->last_watch = each;
  ++device->in_flight;
  pthread_mutex_unlock(&device->mutex);
  return each;
}

/* Takes the entry out of the queue; false where it has ended before. It stays in use until its work is told. */
static bool leave_queue(watch *each, watch *was) {
  PJRT_Device *device = each->device;
  int64_t ended = has_watchdog(device->client) || each->called ? monotonic_now() : 0;
  pthread_mutex_lock(&device->mutex);
  *was = *each;
  if (was->called && was->called < device->moved) was->called = device->moved; /* it began behind what was before it */
  each->state = ENDED;
  if (was->state != ENDED) {
    *(each->previous ? &each->previous->next : &device->first_watch) = each->next;
    *(each->next ? &each->next->previous : &device->last_watch) = each->previous;
    device->moved = ended;
    device->remedy = NO_REMEDY;
  }
  pthread_mutex_unlock(&device->mutex);
  return was->state != ENDED;
}

/* The error with which work ended, told by the driver; null for none. */
static PJRT_Error *told_error(const watch *of, const char *function, int code, const char *message) {
  PJRT_Error *error = error_of_driver(function ? function : of->work.function, code, message);
  const PJRT_Client *client = of->device->client;
  if (error == NULL || function || !DRIVER_HAS(client->table, payload)) return error;
  const char *name, *value;
  size_t size;
  for (size_t i = 0; client->table->payload(client->driver, of->device->number, of->fence, i, &name, &value, &size); ++i)
    pjrt_error_add_payload(error, name, strlen(name), value, size);
  return error;
}

static void end_watch(watch *each, const char *function, int code, const char *message) {
  watch was;
  if (!leave_queue(each, &was)) {
    fputs("pjrt: the driver called the function of on_done twice for one fence; the second call is ignored\n", stderr);
    return;
  }
  PJRT_Device *device = was.device;
  recording_work(device, &was.work, was.called);
  PJRT_Error *error = was.late ? was.late : told_error(&was, function, code, message);
  ++is_within_queue;
  was.work.then(error, was.work.arg);
  pthread_mutex_lock(&device->mutex);
  if (was.state != LATE) --device->in_flight;
  ++device->ended;
  put_unused(device, each);
  watch *oldest = take_unused(device, 2 * WATCHES_KEPT);
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
  free(oldest);
  if (was.state == LATE) client_unref(device->client);
  --is_within_queue;
  pjrt_error_release(error);
}

/* ---- how a driver says that work has ended -------------------------------------------------------------------------------*/
static void driver_is_done(void *arg, int code, const char *message) {
  end_watch(arg, NULL, code, message ? message : "");
}

/* The thread of a device that waits for its fences in their order, for a driver without on_done. */
typedef struct wait_item {
  pjrt_fence fence;
  watch *watch;
  struct wait_item *next;
} wait_item;

struct waiter {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  wait_item *first, **last;
  bool is_stopped;
  PJRT_Device *device;
};

static void *wait_for_fences(void *arg) {
  struct waiter *waiter = arg;
  PJRT_Client *client = waiter->device->client;
  pthread_mutex_lock(&waiter->mutex);
  for (;;) {
    while (waiter->first == NULL && !waiter->is_stopped) pthread_cond_wait(&waiter->changed, &waiter->mutex);
    wait_item *item = waiter->first;
    if (item == NULL) break;
    waiter->first = item->next;
    if (waiter->first == NULL) waiter->last = &waiter->first;
    pthread_mutex_unlock(&waiter->mutex);
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    int code = client->table->wait(client->driver, waiter->device->number, item->fence, -1, message);
    end_watch(item->watch, "wait", code, message);
    free(item);
    pthread_mutex_lock(&waiter->mutex);
  }
  pthread_mutex_unlock(&waiter->mutex);
  return NULL;
}

static struct waiter *waiter_of(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  if (device->waiter == NULL) {
    struct waiter *waiter = new_zeroed(1, sizeof *waiter);
    pthread_mutex_init(&waiter->mutex, NULL);
    pthread_cond_init(&waiter->changed, NULL);
    waiter->last = &waiter->first;
    waiter->device = device;
    if (pthread_create(&waiter->thread, NULL, wait_for_fences, waiter) != 0) {
      pthread_cond_destroy(&waiter->changed);
      pthread_mutex_destroy(&waiter->mutex);
      free(waiter);
    } else {
      device->waiter = waiter;
    }
  }
  struct waiter *waiter = device->waiter;
  pthread_mutex_unlock(&device->mutex);
  return waiter;
}

static void stop_waiter(struct waiter *waiter) {
  pthread_mutex_lock(&waiter->mutex);
  waiter->is_stopped = true;
  pthread_cond_signal(&waiter->changed);
  pthread_mutex_unlock(&waiter->mutex);
  pthread_join(waiter->thread, NULL);
  pthread_cond_destroy(&waiter->changed);
  pthread_mutex_destroy(&waiter->mutex);
  free(waiter);
}

void queue_follow(PJRT_Device *device, pjrt_fence fence, work of) {
  PJRT_Client *client = device->client;
  if (fence == 0) {
    recording_work(device, &of, recording_called());
    of.then(NULL, of.arg);
    return;
  }
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  watch *each = begin_watch(device, fence, &of);
  if (DRIVER_HAS(client->table, on_done)) {
    int code = client->table->on_done(client->driver, device->number, fence, driver_is_done, each, message);
    if (code) end_watch(each, "on_done", code, message);
    return;
  }
  if (!DRIVER_HAS(client->table, wait)) {
    snprintf(message, sizeof message,
             "the driver returned the fence %llu, and it has neither wait nor on_done; return 0 where the work is done",
             (unsigned long long)fence);
    end_watch(each, of.function, PJRT_Error_Code_INTERNAL, message);
    return;
  }
  struct waiter *waiter = waiter_of(device);
  if (waiter == NULL) {
    end_watch(each, "wait", PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system has no thread left to wait for a device");
    return;
  }
  wait_item *item = new_zeroed(1, sizeof *item);
  item->fence = fence;
  item->watch = each;
  pthread_mutex_lock(&waiter->mutex);
  *waiter->last = item;
  waiter->last = &item->next;
  pthread_cond_signal(&waiter->changed);
  pthread_mutex_unlock(&waiter->mutex);
}

void queue_stop(PJRT_Device *device) {
  if (device->waiter) stop_waiter(device->waiter);
  for (watch *each; (each = take_unused(device, 0));) free(each);
}

void queue_hold(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  ++device->in_flight;
  pthread_mutex_unlock(&device->mutex);
}

void queue_let_go(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  --device->in_flight;
  ++device->ended;
  pthread_cond_broadcast(&device->changed);
  pthread_mutex_unlock(&device->mutex);
}

/* ---- waiting for the queues ------------------------------------------------------------------------------------------------*/
uint64_t client_ended(PJRT_Client *client) {
  uint64_t sum = 0;
  for (size_t i = 0; i < client->num_devices; ++i) {
    pthread_mutex_lock(&client->devices[i].mutex);
    sum += client->devices[i].ended;
    pthread_mutex_unlock(&client->devices[i].mutex);
  }
  return sum;
}

bool client_wait_for_one(PJRT_Client *client, uint64_t seen) {
  for (size_t i = 0; i < client->num_devices; ++i) {
    if (client_ended(client) != seen) return true;
    PJRT_Device *device = &client->devices[i];
    pthread_mutex_lock(&device->mutex);
    uint64_t before = device->ended;
    while (device->in_flight && device->ended == before) pthread_cond_wait(&device->changed, &device->mutex);
    pthread_mutex_unlock(&device->mutex);
  }
  return client_ended(client) != seen;
}

/* What ends on one device may begin work on another one. */
void client_wait_for_all(PJRT_Client *client) {
  uint64_t seen;
  do {
    seen = client_ended(client);
    for (size_t i = 0; i < client->num_devices; ++i) {
      PJRT_Device *device = &client->devices[i];
      pthread_mutex_lock(&device->mutex);
      while (device->in_flight) pthread_cond_wait(&device->changed, &device->mutex);
      pthread_mutex_unlock(&device->mutex);
    }
  } while (client_ended(client) != seen);
}

/* ---- the watchdog ------------------------------------------------------------------------------------------------------------
 * The first work of a queue has so much time from when it was submitted or from when the work before it ended. Then it is
 * cancelled, and the queue goes on. Where the driver has no cancel, or the work does not end for it, all work of the
 * queue is given up, and the device is reset. */
struct watchdog {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool is_stopped;
  PJRT_Client *client;
};

static PJRT_Error *late_error(const watch *each) {
  const PJRT_Device *device = each->device;
  const char *program = each->work.program;
  return error_make(PJRT_Error_Code_DEADLINE_EXCEEDED,
                    "%s: %s%s%s was not done within %g seconds, the time that watchdog_seconds gives it",
                    device->description->to_string, each->work.function, program ? " of the program " : "",
                    program ? program : "", (double)device->client->patience / 1e9);
}

/* Marks work as late, the first or all; returns who must hear of it. The device's mutex is held. */
static size_t give_up(PJRT_Device *device, bool all, PJRT_Error *error, completion **told) {
  size_t count = 0;
  for (watch *each = device->first_watch; each; each = each->next) {
    if (each->state == LATE) continue;
    each->state = LATE;
    each->late = pjrt_error_share(error);
    client_ref(device->client);
    --device->in_flight;
    ++device->ended;
    told[count++] = completion_ref(each->work.done);
    if (!all) break;
  }
  pthread_cond_broadcast(&device->changed);
  return count;
}

static void apply(PJRT_Device *device, remedy remedy, pjrt_fence fence) {
  PJRT_Client *client = device->client;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  const char *function = remedy == CANCELLED ? "cancel" : "reset";
  int code = remedy == CANCELLED ? client->table->cancel(client->driver, device->number, fence, message)
                                 : client->table->reset(client->driver, device->number, message);
  PJRT_Error *error = error_of_driver(function, code, message);
  if (error == NULL) return;
  const char *text;
  size_t size;
  pjrt_error_read(error, &text, &size);
  fprintf(stderr, "pjrt: %s: the driver's function %s failed: %.*s\n", device->description->to_string, function,
          (int)size, text);
  pjrt_error_release(error);
}

void queue_cancel(PJRT_Device *device, completion *done) {
  PJRT_Device *same;
  pjrt_fence fence, *parts;
  size_t count = 0;
  if (!DRIVER_HAS(device->client->table, cancel)) return;
  if (completion_fence(done, &same, &fence)) {
    apply(device, CANCELLED, fence);
    return;
  }
  pthread_mutex_lock(&device->mutex);
  parts = new_zeroed(device->in_flight, sizeof *parts);
  for (watch *each = device->first_watch; each; each = each->next) {
    if (each->work.done == done && each->state == RUNNING) parts[count++] = each->fence;
  }
  pthread_mutex_unlock(&device->mutex);
  for (size_t i = 0; i < count; ++i) apply(device, CANCELLED, parts[i]);
  free(parts);
}

/* Looks after a device; returns when to look again. */
static int64_t look_after(PJRT_Device *device, int64_t time) {
  const pjrt_driver_table *table = device->client->table;
  const bool cancels = DRIVER_HAS(table, cancel), resets = DRIVER_HAS(table, reset);
  const int64_t patience = device->client->patience;
  pthread_mutex_lock(&device->mutex);
  watch *first = device->first_watch;
  while (first && first->state == LATE && !(device->remedy == CANCELLED && resets)) first = first->next;
  int64_t since = first == NULL ? time : first->begun > device->moved ? first->begun : device->moved;
  if (time - since < patience) {
    pthread_mutex_unlock(&device->mutex);
    return since + patience;
  }
  bool is_cancelled = cancels && device->remedy == NO_REMEDY;
  bool acts = is_cancelled || (resets && device->remedy != RESET);
  remedy remedy = device->remedy = is_cancelled ? CANCELLED : RESET;
  device->moved = time;
  PJRT_Error *error = late_error(first);
  completion **told = new_zeroed(device->in_flight, sizeof *told);
  size_t count = give_up(device, !is_cancelled, error, told);
  pjrt_fence fence = first->fence;
  pthread_mutex_unlock(&device->mutex);
  if (acts) apply(device, remedy, fence); /* before anybody hears of it, who might free memory that the work uses */
  ++is_within_queue;
  for (size_t i = 0; i < count; ++i) {
    completion_set(told[i], pjrt_error_share(error));
    completion_unref(told[i]);
  }
  --is_within_queue;
  free(told);
  pjrt_error_release(error);
  return time + patience;
}

static void *watch_queues(void *arg) {
  struct watchdog *watchdog = arg;
  PJRT_Client *client = watchdog->client;
  pthread_mutex_lock(&watchdog->mutex);
  while (!watchdog->is_stopped) {
    pthread_mutex_unlock(&watchdog->mutex);
    int64_t time = monotonic_now(), next = time + client->patience;
    for (size_t i = 0; i < client->num_devices; ++i) {
      int64_t wanted = look_after(&client->devices[i], time);
      if (wanted < next) next = wanted;
    }
    struct timespec until = {.tv_sec = next / 1000000000, .tv_nsec = next % 1000000000};
    pthread_mutex_lock(&watchdog->mutex);
    if (!watchdog->is_stopped) pthread_cond_timedwait(&watchdog->changed, &watchdog->mutex, &until);
  }
  pthread_mutex_unlock(&watchdog->mutex);
  return NULL;
}

PJRT_Error *watchdog_start(PJRT_Client *client) {
  if (!has_watchdog(client)) return NULL;
  struct watchdog *watchdog = new_zeroed(1, sizeof *watchdog);
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&watchdog->changed, &attributes);
  pthread_condattr_destroy(&attributes);
  pthread_mutex_init(&watchdog->mutex, NULL);
  watchdog->client = client;
  if (pthread_create(&watchdog->thread, NULL, watch_queues, watchdog) == 0) {
    client->watchdog = watchdog;
    return NULL;
  }
  pthread_cond_destroy(&watchdog->changed);
  pthread_mutex_destroy(&watchdog->mutex);
  free(watchdog);
  return error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system has no thread left for the watchdog");
}

void watchdog_stop(PJRT_Client *client) {
  struct watchdog *watchdog = client->watchdog;
  if (watchdog == NULL) return;
  pthread_mutex_lock(&watchdog->mutex);
  watchdog->is_stopped = true;
  pthread_cond_signal(&watchdog->changed);
  pthread_mutex_unlock(&watchdog->mutex);
  pthread_join(watchdog->thread, NULL);
  pthread_cond_destroy(&watchdog->changed);
  pthread_mutex_destroy(&watchdog->mutex);
  free(watchdog);
}
