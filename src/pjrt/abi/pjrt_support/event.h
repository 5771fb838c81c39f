/* The events of exported plugins: waited for, watched and set without Python.
 *
 * An event is counted: the framework's handle is one reference, the object that will set it another. All that are
 * pending hang on one list, so that they can be failed together when the interpreter ends or the user interrupts. */
#ifndef PJRT_SUPPORT_EVENT_H_
#define PJRT_SUPPORT_EVENT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "error.h"
#include "pjrt_abi.h"
#include "system.h"

typedef struct pjrt_callback {
  PJRT_Event_OnReadyCallback function;
  void *user_arg;
  struct pjrt_callback *next;
} pjrt_callback;

typedef struct pjrt_event {
  atomic_int references;
  pjrt_mutex mutex;
  pjrt_condition changed;
  bool done;
  bool listed;
  PJRT_Error *error;
  pjrt_callback *callbacks;
  pjrt_callback **last_callback;
  struct pjrt_event *previous, *next; /* the list of pending events, under its own mutex */
} pjrt_event;

typedef struct pjrt_pending {
  pjrt_mutex mutex;
  pjrt_event *first;
} pjrt_pending;

static inline void pjrt_pending_init(pjrt_pending *pending) {
  pjrt_mutex_init(&pending->mutex);
  pending->first = NULL;
}

static inline void pjrt_event_unlist(pjrt_pending *pending, pjrt_event *event) {
  pjrt_mutex_lock(&pending->mutex);
  if (event->listed) {
    event->listed = false;
    if (event->previous != NULL) event->previous->next = event->next;
    else pending->first = event->next;
    if (event->next != NULL) event->next->previous = event->previous;
  }
  pjrt_mutex_unlock(&pending->mutex);
}

/* A pending event with that many references; null without memory. */
static inline pjrt_event *pjrt_event_new(pjrt_pending *pending, int references) {
  pjrt_event *event = (pjrt_event *)calloc(1, sizeof *event);
  if (event == NULL) return NULL;
  atomic_init(&event->references, references);
  pjrt_mutex_init(&event->mutex);
  pjrt_condition_init(&event->changed);
  event->last_callback = &event->callbacks;
  if (pending != NULL) {
    pjrt_mutex_lock(&pending->mutex);
    event->listed = true;
    event->next = pending->first;
    if (event->next != NULL) event->next->previous = event;
    pending->first = event;
    pjrt_mutex_unlock(&pending->mutex);
  }
  return event;
}

/* An event that is ready from the start; owns the error. */
static inline pjrt_event *pjrt_event_ready(PJRT_Error *error) {
  pjrt_event *event = pjrt_event_new(NULL, 1);
  if (event == NULL) return NULL;
  event->done = true;
  event->error = error;
  return event;
}

static inline void pjrt_event_hold(pjrt_event *event) { atomic_fetch_add(&event->references, 1); }

static inline void pjrt_event_release(pjrt_pending *pending, pjrt_event *event) {
  if (event == NULL || atomic_fetch_sub(&event->references, 1) != 1) return;
  pjrt_event_unlist(pending, event);
  /* Nothing is left that could set the event: its callbacks get an error, instead of waiting for ever. */
  while (event->callbacks != NULL) {
    pjrt_callback *callback = event->callbacks;
    event->callbacks = callback->next;
    callback->function(
        pjrt_error_of_text(PJRT_Error_Code_CANCELLED, "the event was destroyed before it was set"), callback->user_arg);
    free(callback);
  }
  pjrt_error_release(event->error);
  pjrt_condition_destroy(&event->changed);
  pjrt_mutex_destroy(&event->mutex);
  free(event);
}

/* Sets the event and calls its callbacks here; owns the error. Returns whether it was this call that set it.
 * Call without the GIL: the callbacks are the framework's. */
static inline bool pjrt_event_set(pjrt_pending *pending, pjrt_event *event, PJRT_Error *error) {
  pjrt_mutex_lock(&event->mutex);
  if (event->done) {
    pjrt_mutex_unlock(&event->mutex);
    pjrt_error_release(error);
    return false;
  }
  atomic_fetch_add(&event->references, 1); /* a callback may drop the last handle */
  event->error = error;
  event->done = true;
  pjrt_callback *callbacks = event->callbacks;
  event->callbacks = NULL;
  event->last_callback = &event->callbacks;
  pjrt_condition_broadcast(&event->changed);
  pjrt_mutex_unlock(&event->mutex);
  pjrt_event_unlist(pending, event);
  while (callbacks != NULL) {
    pjrt_callback *callback = callbacks;
    callbacks = callback->next;
    callback->function(pjrt_error_share(error), callback->user_arg);
    free(callback);
  }
  pjrt_event_release(pending, event);
  return true;
}

static inline bool pjrt_event_is_ready(pjrt_event *event) {
  pjrt_mutex_lock(&event->mutex);
  const bool done = event->done;
  pjrt_mutex_unlock(&event->mutex);
  return done;
}

/* Blocks until the event is ready; the error, if any, is the caller's. */
static inline PJRT_Error *pjrt_event_await(pjrt_pending *pending, pjrt_event *event) {
  atomic_fetch_add(&event->references, 1);
  pjrt_mutex_lock(&event->mutex);
  while (!event->done) pjrt_condition_wait(&event->changed, &event->mutex);
  PJRT_Error *error = pjrt_error_share(event->error);
  pjrt_mutex_unlock(&event->mutex);
  pjrt_event_release(pending, event);
  return error;
}

/* Registers a function to be called when the event is ready, at once if it is; returns false without memory. */
static inline bool pjrt_event_on_ready(pjrt_event *event, PJRT_Event_OnReadyCallback function, void *user_arg) {
  pjrt_mutex_lock(&event->mutex);
  if (!event->done) {
    pjrt_callback *callback = (pjrt_callback *)malloc(sizeof *callback);
    if (callback != NULL) {
      callback->function = function;
      callback->user_arg = user_arg;
      callback->next = NULL;
      *event->last_callback = callback;
      event->last_callback = &callback->next;
    }
    pjrt_mutex_unlock(&event->mutex);
    return callback != NULL;
  }
  PJRT_Error *error = pjrt_error_share(event->error);
  pjrt_mutex_unlock(&event->mutex);
  function(error, user_arg);
  return true;
}

/* Fails everything that is pending now. Call without the GIL. */
static inline void pjrt_pending_fail(pjrt_pending *pending, PJRT_Error_Code code, const char *message) {
  for (;;) {
    pjrt_mutex_lock(&pending->mutex);
    pjrt_event *event = pending->first;
    int count = event == NULL ? 0 : atomic_load(&event->references);
    /* An event whose last reference is being released right now leaves the list by itself. */
    while (count > 0 && !atomic_compare_exchange_weak(&event->references, &count, count + 1)) {
    }
    pjrt_mutex_unlock(&pending->mutex);
    if (event == NULL) return;
    if (count == 0) continue;
    pjrt_event_set(pending, event, pjrt_error_of_text(code, message));
    pjrt_event_release(pending, event);
  }
}

#endif /* PJRT_SUPPORT_EVENT_H_ */
