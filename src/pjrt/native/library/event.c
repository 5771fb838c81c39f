/* Completions, and the events that are handles on them. */
#include "runtime.h"

typedef struct callback {
  continuation function;
  void *arg;
  struct callback *next;
} callback;

struct completion {
  atomic_int refs;
  atomic_bool is_set;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  PJRT_Error *error;
  callback *first, **last;
  PJRT_Device *device; /* in whose queue the work is; null where it is in none */
  pjrt_fence fence;
  unsigned forks; /* how often its process had been forked, of this process and those before it */
};

struct PJRT_Event {
  completion *of;
  bool is_settable; /* made by Event_Create, not set yet */
  bool is_awaited;  /* whoever asks for it is likely to wait */
};

completion completion_done = {
    .is_set = true, .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* What is not done in a fork of its process never will be: the threads that would end it are in the other one. So it
 * counts as ended, with an error. One of them may have its mutex. */
static unsigned forks;
static PJRT_Error *fork_error;

static bool is_of_parent(const completion *each) { return each->forks != forks && each != &completion_done; }

completion *completion_make(void) {
  completion *each = new_zeroed(1, sizeof *each);
  each->forks = forks;
  atomic_init(&each->refs, 1);
  pthread_mutex_init(&each->mutex, NULL);
  pthread_cond_init(&each->changed, NULL);
  each->last = &each->first;
  return each;
}

completion *completion_with(PJRT_Error *owned) {
  if (owned == NULL) return &completion_done;
  completion *each = completion_make();
  each->error = owned;
  atomic_store(&each->is_set, true);
  return each;
}

completion *completion_ref(completion *each) {
  if (each != NULL && each != &completion_done) atomic_fetch_add_explicit(&each->refs, 1, memory_order_relaxed);
  return each;
}

void completion_unref(completion *each) {
  if (each == NULL || each == &completion_done || atomic_fetch_sub(&each->refs, 1) != 1) return;
  /* Nothing is left that could set it: what waits gets an error, instead of waiting for ever. */
  while (each->first) {
    callback *next = each->first;
    each->first = next->next;
    PJRT_Error *error = pjrt_error_of_text(PJRT_Error_Code_CANCELLED, "the work was given up before it was done");
    next->function(error, next->arg);
    pjrt_error_release(error);
    free(next);
  }
  pjrt_error_release(each->error);
  if (!is_of_parent(each)) { /* whose threads would be waited for */
    pthread_cond_destroy(&each->changed);
    pthread_mutex_destroy(&each->mutex);
  }
  free(each);
}

bool completion_set(completion *each, PJRT_Error *owned) {
  if (is_of_parent(each)) {
    pjrt_error_release(owned);
    return false;
  }
  pthread_mutex_lock(&each->mutex);
  if (atomic_load(&each->is_set)) {
    pthread_mutex_unlock(&each->mutex);
    pjrt_error_release(owned);
    return false;
  }
  each->error = owned;
  atomic_store(&each->is_set, true);
  callback *callbacks = each->first;
  each->first = NULL;
  each->last = &each->first;
  completion_ref(each); /* a callback may drop the reference of our caller */
  pthread_cond_broadcast(&each->changed);
  pthread_mutex_unlock(&each->mutex);
  while (callbacks) {
    callback *next = callbacks->next;
    callbacks->function(each->error, callbacks->arg);
    free(callbacks);
    callbacks = next;
  }
  completion_unref(each);
  return true;
}

bool completion_is_set(completion *each) {
  return atomic_load_explicit(&each->is_set, memory_order_acquire) || is_of_parent(each);
}

PJRT_Error *completion_error(completion *each) { return atomic_load(&each->is_set) ? each->error : fork_error; }

PJRT_Error *completion_wait(completion *each) {
  if (completion_is_set(each)) return completion_error(each);
  pthread_mutex_lock(&each->mutex);
  while (!atomic_load(&each->is_set)) pthread_cond_wait(&each->changed, &each->mutex);
  pthread_mutex_unlock(&each->mutex);
  return each->error;
}

void completion_then(completion *each, continuation function, void *arg) {
  if (!completion_is_set(each)) {
    callback *entry = new_zeroed(1, sizeof *entry);
    entry->function = function;
    entry->arg = arg;
    pthread_mutex_lock(&each->mutex);
    if (!atomic_load(&each->is_set)) {
      *each->last = entry;
      each->last = &entry->next;
      pthread_mutex_unlock(&each->mutex);
      return;
    }
    pthread_mutex_unlock(&each->mutex);
    free(entry);
  }
  function(completion_error(each), arg);
}

void completion_submit(completion *each, PJRT_Device *device, pjrt_fence fence) {
  pthread_mutex_lock(&each->mutex);
  each->device = device;
  each->fence = fence;
  pthread_mutex_unlock(&each->mutex);
}

bool completion_fence(completion *each, PJRT_Device **device, pjrt_fence *fence) {
  if (is_of_parent(each)) return false;
  pthread_mutex_lock(&each->mutex);
  *device = each->device;
  *fence = each->fence;
  pthread_mutex_unlock(&each->mutex);
  return *device != NULL;
}

/* Work that is nearly done is ended by the thread that waits for it, where the driver can do that. To wake another
 * thread, which wakes this one, would take longer than a small program. */
static void look(completion *each) {
  if (completion_is_set(each)) return;
  pthread_mutex_lock(&each->mutex);
  /* Until the completion is set, its work is in flight, and its client is not closed. */
  PJRT_Device *device = atomic_load(&each->is_set) ? NULL : each->device;
  if (device && !(is_python(device->client) && device->client->python->look)) device = NULL;
  if (device) queue_hold(device);
  pthread_mutex_unlock(&each->mutex);
  if (device == NULL) return;
  device->client->python->look(device->client->driver, each);
  queue_let_go(device);
}

/* ---- the handle -----------------------------------------------------------------------------------------------------*/
PJRT_Event *event_make(completion *of) {
  PJRT_Event *event = new_zeroed(1, sizeof *event);
  event->of = completion_ref(of);
  return event;
}

PJRT_Event *event_to_await(completion *of) {
  PJRT_Event *event = event_make(of);
  event->is_awaited = true;
  return event;
}

PJRT_Error *native_Event_Destroy(PJRT_Event_Destroy_Args *args) {
  PJRT_Event *event = args->event;
  if (event == NULL) return NULL;
  if (event->is_settable)
    completion_set(event->of, pjrt_error_of_text(PJRT_Error_Code_CANCELLED, "the event was destroyed before it was set"));
  completion_unref(event->of);
  free(event);
  return NULL;
}

PJRT_Error *native_Event_IsReady(PJRT_Event_IsReady_Args *args) {
  args->is_ready = completion_is_set(args->event->of);
  return NULL;
}

PJRT_Error *native_Event_Error(PJRT_Event_Error_Args *args) {
  if (!completion_is_set(args->event->of))
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION,
                      "PJRT_Event_Error needs an event that is ready; wait for it with PJRT_Event_Await first");
  return pjrt_error_share(completion_error(args->event->of));
}

/* Waits of frameworks, which Ctrl-C ends where no work is known that would. */
typedef struct event_wait {
  completion *of;
  bool is_given_up;
  struct event_wait *next;
} event_wait;

static pthread_mutex_t waits_mutex = PTHREAD_MUTEX_INITIALIZER;
static event_wait *waits;

static void begin_wait(event_wait *each) {
  pthread_mutex_lock(&waits_mutex);
  each->next = waits;
  waits = each;
  pthread_mutex_unlock(&waits_mutex);
}

static void end_wait(event_wait *each) {
  pthread_mutex_lock(&waits_mutex);
  event_wait **place = &waits;
  while (*place != each) place = &(*place)->next;
  *place = each->next;
  pthread_mutex_unlock(&waits_mutex);
}

void events_interrupt(void) {
  pthread_mutex_lock(&waits_mutex);
  for (event_wait *each = waits; each; each = each->next) {
    pthread_mutex_lock(&each->of->mutex);
    each->is_given_up = each->of->device == NULL;
    pthread_cond_broadcast(&each->of->changed);
    pthread_mutex_unlock(&each->of->mutex);
  }
  pthread_mutex_unlock(&waits_mutex);
}

void events_fork(void) {
  ++forks;
  pthread_mutex_init(&waits_mutex, NULL);
  waits = NULL;
  if (fork_error) return;
  fork_error = pjrt_error_of_text(PJRT_Error_Code_FAILED_PRECONDITION,
                                  "the work was in flight in the process that was forked, and does not end here");
}

PJRT_Error *native_Event_Await(PJRT_Event_Await_Args *args) {
  completion *of = args->event->of;
  look(of);
  if (completion_is_set(of)) return pjrt_error_share(completion_error(of));
  event_wait each = {.of = of};
  begin_wait(&each);
  pthread_mutex_lock(&of->mutex);
  while (!atomic_load(&of->is_set) && !each.is_given_up) pthread_cond_wait(&of->changed, &of->mutex);
  PJRT_Error *error = atomic_load(&of->is_set) ? pjrt_error_share(of->error)
                                               : error_make(PJRT_Error_Code_CANCELLED, "Ctrl-C ended a wait for an event");
  pthread_mutex_unlock(&of->mutex);
  end_wait(&each);
  return error;
}

typedef struct on_ready {
  PJRT_Event_OnReadyCallback function;
  void *user_arg;
} on_ready;

static void call_on_ready(PJRT_Error *borrowed, void *arg) {
  on_ready each = *(on_ready *)arg;
  free(arg);
  each.function(pjrt_error_share(borrowed), each.user_arg);
}

PJRT_Error *native_Event_OnReady(PJRT_Event_OnReady_Args *args) {
  if (args->callback == NULL) return error_make(INVALID, "PJRT_Event_OnReady: expected a callback, found null");
  on_ready *each = new_zeroed(1, sizeof *each);
  each->function = args->callback;
  each->user_arg = args->user_arg;
  if (args->event->is_awaited) look(args->event->of);
  completion_then(args->event->of, call_on_ready, each);
  return NULL;
}

PJRT_Error *native_Event_Create(PJRT_Event_Create_Args *args) {
  args->event = new_zeroed(1, sizeof *args->event);
  args->event->of = completion_make();
  args->event->is_settable = true;
  return NULL;
}

PJRT_Error *native_Event_Set(PJRT_Event_Set_Args *args) {
  if (!args->event->is_settable)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION,
                      "PJRT_Event_Set needs an event that PJRT_Event_Create made and that was not set before");
  args->event->is_settable = false;
  completion_set(args->event->of, error_from_parts(args->error_code, args->error_message, args->error_message_size));
  return NULL;
}
