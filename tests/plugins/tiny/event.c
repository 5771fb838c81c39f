/* Promises, and the events that are handles on them. */
#include "tiny.h"

typedef struct continuation {
  tiny_continuation fn;
  void *arg;
  struct continuation *next;
} continuation;

struct tiny_promise {
  atomic_int refs;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  bool ready;
  tiny_status *status;
  continuation *first, **last;
};

struct PJRT_Event {
  tiny_promise *promise;
  bool settable; /* made by Event_Create, not set yet */
};

tiny_promise *promise_make(void) {
  tiny_promise *promise = tiny_calloc(1, sizeof *promise);
  atomic_init(&promise->refs, 1);
  pthread_mutex_init(&promise->mutex, NULL);
  pthread_cond_init(&promise->changed, NULL);
  promise->last = &promise->first;
  return promise;
}

tiny_promise *promise_done(tiny_status *owned) {
  tiny_promise *promise = promise_make();
  promise->ready = true;
  promise->status = owned;
  return promise;
}

tiny_promise *promise_ref(tiny_promise *promise) {
  if (promise) atomic_fetch_add(&promise->refs, 1);
  return promise;
}

void promise_unref(tiny_promise *promise) {
  if (promise == NULL || atomic_fetch_sub(&promise->refs, 1) != 1) return;
  if (promise->first) violation("a promise with continuations was dropped before it was set");
  while (promise->first) {
    continuation *next = promise->first->next;
    free(promise->first);
    promise->first = next;
  }
  status_unref(promise->status);
  pthread_cond_destroy(&promise->changed);
  pthread_mutex_destroy(&promise->mutex);
  free(promise);
}

bool promise_set(tiny_promise *promise, tiny_status *owned) {
  pthread_mutex_lock(&promise->mutex);
  if (promise->ready) {
    pthread_mutex_unlock(&promise->mutex);
    status_unref(owned);
    return false;
  }
  promise->ready = true;
  promise->status = owned;
  continuation *each = promise->first;
  promise->first = NULL;
  promise->last = &promise->first;
  atomic_fetch_add(&promise->refs, 1); /* a continuation may drop the reference of our caller */
  pthread_cond_broadcast(&promise->changed);
  pthread_mutex_unlock(&promise->mutex);
  while (each) {
    continuation *next = each->next;
    each->fn(promise->status, each->arg);
    free(each);
    each = next;
  }
  promise_unref(promise);
  return true;
}

bool promise_is_ready(tiny_promise *promise) {
  pthread_mutex_lock(&promise->mutex);
  bool ready = promise->ready;
  pthread_mutex_unlock(&promise->mutex);
  return ready;
}

tiny_status *promise_status(tiny_promise *promise) { return promise->status; }

tiny_status *promise_wait(tiny_promise *promise) {
  pthread_mutex_lock(&promise->mutex);
  while (!promise->ready) pthread_cond_wait(&promise->changed, &promise->mutex);
  pthread_mutex_unlock(&promise->mutex);
  return promise->status;
}

void promise_then(tiny_promise *promise, tiny_continuation fn, void *arg) {
  pthread_mutex_lock(&promise->mutex);
  if (!promise->ready) {
    continuation *each = tiny_calloc(1, sizeof *each);
    each->fn = fn;
    each->arg = arg;
    *promise->last = each;
    promise->last = &each->next;
    pthread_mutex_unlock(&promise->mutex);
    return;
  }
  pthread_mutex_unlock(&promise->mutex);
  fn(promise->status, arg);
}

/* ---- the handle ---------------------------------------------------------------------------------------------------*/
typedef struct replacement {
  tiny_promise *promise;
  tiny_status *status;
} replacement;

static void replace(tiny_status *borrowed, void *arg) {
  (void)borrowed;
  replacement *each = arg;
  promise_set(each->promise, each->status);
  promise_unref(each->promise);
  free(each);
}

PJRT_Event *event_make(tiny_promise *promise, tiny_function made_by) {
  PJRT_Event *event = tiny_calloc(1, sizeof *event);
  tiny_status *fault = fault_event(made_by);
  if (fault) {
    event->promise = promise_make();
    replacement *each = tiny_calloc(1, sizeof *each);
    each->promise = promise_ref(event->promise);
    each->status = fault;
    promise_then(promise, replace, each);
  } else {
    event->promise = promise_ref(promise);
  }
  live_add(LIVE_EVENT, 1);
  return event;
}

tiny_promise *event_promise(PJRT_Event *event) { return event->promise; }

void event_destroy(PJRT_Event *event) {
  if (event == NULL) return;
  if (event->settable)
    promise_set(event->promise, status_make(PJRT_Error_Code_CANCELLED, "The event was destroyed before it was set"));
  promise_unref(event->promise);
  free(event);
  live_add(LIVE_EVENT, -1);
}

PJRT_Error *tiny_Event_Destroy(PJRT_Event_Destroy_Args *args) {
  event_destroy(args->event);
  return NULL;
}

PJRT_Error *tiny_Event_IsReady(PJRT_Event_IsReady_Args *args) {
  args->is_ready = promise_is_ready(args->event->promise);
  return NULL;
}

PJRT_Error *tiny_Event_Error(PJRT_Event_Error_Args *args) {
  if (!promise_is_ready(args->event->promise))
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "PJRT_Event_Error was called on an event that is not ready");
  return error_from(status_ref(promise_status(args->event->promise)));
}

PJRT_Error *tiny_Event_Await(PJRT_Event_Await_Args *args) {
  return error_from(status_ref(promise_wait(args->event->promise)));
}

typedef struct on_ready {
  PJRT_Event_OnReadyCallback callback;
  void *user_arg;
} on_ready;

static void call_on_ready(tiny_status *borrowed, void *arg) {
  on_ready each = *(on_ready *)arg;
  free(arg);
  each.callback(error_from(status_ref(borrowed)), each.user_arg);
}

PJRT_Error *tiny_Event_OnReady(PJRT_Event_OnReady_Args *args) {
  if (args->callback == NULL) return error_make(INVALID, "PJRT_Event_OnReady needs a callback, got null");
  on_ready *each = tiny_calloc(1, sizeof *each);
  each->callback = args->callback;
  each->user_arg = args->user_arg;
  promise_then(args->event->promise, call_on_ready, each);
  return NULL;
}

PJRT_Error *tiny_Event_Create(PJRT_Event_Create_Args *args) {
  PJRT_Event *event = tiny_calloc(1, sizeof *event);
  event->promise = promise_make();
  event->settable = true;
  live_add(LIVE_EVENT, 1);
  args->event = event;
  return NULL;
}

PJRT_Error *tiny_Event_Set(PJRT_Event_Set_Args *args) {
  if (!args->event->settable)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION,
                      "PJRT_Event_Set needs an event made by PJRT_Event_Create that was not set before");
  args->event->settable = false;
  promise_set(args->event->promise, status_from_bytes(args->error_code, args->error_message, args->error_message_size));
  return NULL;
}
