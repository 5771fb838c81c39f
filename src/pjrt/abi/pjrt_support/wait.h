/* The state of a wait for an event: filled in by the plugin's callback, without the GIL. */
#ifndef PJRT_SUPPORT_WAIT_H_
#define PJRT_SUPPORT_WAIT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

#include "pjrt_abi.h"
#include "system.h"

typedef struct pjrt_wait {
  atomic_int references; /* the future's, and the callback's until it was called */
  const PJRT_Api *api;
  pjrt_mutex mutex;
  pjrt_condition changed;
  bool done;
  PJRT_Error *error; /* null on success; owned, and read by all who wait */
  void *watcher;     /* a reference to the Python object to wake, or null */
  struct pjrt_wait *failed_before; /* in the list of an event's waits for which no callback could be registered */
} pjrt_wait;

static inline pjrt_wait *pjrt_wait_new(const PJRT_Api *api) {
  pjrt_wait *wait = (pjrt_wait *)calloc(1, sizeof *wait);
  if (wait == NULL) return NULL;
  pjrt_mutex_init(&wait->mutex);
  pjrt_condition_init(&wait->changed);
  atomic_init(&wait->references, 1);
  wait->api = api;
  return wait;
}

static inline void pjrt_wait_acquire(pjrt_wait *wait) { atomic_fetch_add(&wait->references, 1); }

static inline void pjrt_wait_release(pjrt_wait *wait) {
  if (wait == NULL || atomic_fetch_sub(&wait->references, 1) != 1) return;
  if (wait->error != NULL) {
    PJRT_Error_Destroy_Args args = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, wait->error};
    wait->api->PJRT_Error_Destroy(&args);
  }
  pjrt_condition_destroy(&wait->changed);
  pjrt_mutex_destroy(&wait->mutex);
  free(wait);
}

/* The event is ready. Returns the watcher, whose reference is now the caller's. */
static inline void *pjrt_wait_finish(pjrt_wait *wait, PJRT_Error *error) {
  pjrt_mutex_lock(&wait->mutex);
  wait->error = error;
  wait->done = true;
  void *watcher = wait->watcher;
  wait->watcher = NULL;
  pjrt_condition_broadcast(&wait->changed);
  pjrt_mutex_unlock(&wait->mutex);
  return watcher;
}

static inline bool pjrt_wait_is_done(pjrt_wait *wait) {
  pjrt_mutex_lock(&wait->mutex);
  const bool done = wait->done;
  pjrt_mutex_unlock(&wait->mutex);
  return done;
}

/* Stores a reference to the object to wake; returns false where the event is ready already. */
static inline bool pjrt_wait_watch(pjrt_wait *wait, void *watcher) {
  pjrt_mutex_lock(&wait->mutex);
  const bool pending = !wait->done;
  if (pending) wait->watcher = watcher;
  pjrt_mutex_unlock(&wait->mutex);
  return pending;
}

/* Blocks until the event is ready or the time has passed. Call without the GIL. */
static inline bool pjrt_wait_block(pjrt_wait *wait, double seconds) {
  const double until = pjrt_seconds() + seconds;
  pjrt_mutex_lock(&wait->mutex);
  for (double left = seconds; !wait->done && left > 0; left = until - pjrt_seconds()) {
    pjrt_condition_wait_for(&wait->changed, &wait->mutex, left);
  }
  const bool done = wait->done;
  pjrt_mutex_unlock(&wait->mutex);
  return done;
}

#endif /* PJRT_SUPPORT_WAIT_H_ */
