/* The calls under way in a scope, and the handles that live in it, for Pythons with and without the GIL.
 *
 * With the GIL there is one lane, which the GIL protects. Without it a thread has a lane of its own, as long as there are
 * no more threads than lanes: threads that call at the same time share no lock and no cache line. A call is counted in
 * the lane of its thread; a handle is listed in the lane of the thread that opened it. All functions are called by
 * threads that Python knows. A scope of zeros is open and empty. */
#ifndef PJRT_SUPPORT_LANES_H_
#define PJRT_SUPPORT_LANES_H_

#include <Python.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef Py_GIL_DISABLED
#include <stdatomic.h>
#define PJRT_NUM_LANES 32
typedef atomic_int pjrt_counter;
typedef void *_Atomic pjrt_pointer;
#else
#define PJRT_NUM_LANES 1
typedef int pjrt_counter;
typedef void *pjrt_pointer;
#endif

/* A place in the list of a lane: a member of the handle. */
typedef struct pjrt_link {
  struct pjrt_link *previous, *next;
#ifdef Py_GIL_DISABLED
  unsigned lane;
#endif
} pjrt_link;

typedef struct pjrt_lane {
  pjrt_counter calls;
  pjrt_link *first;
#ifdef Py_GIL_DISABLED
  PyMutex mutex;
  char padding[96]; /* two cache lines, because processors load pairs of them */
#endif
} pjrt_lane;

typedef struct pjrt_lanes {
  pjrt_counter closed;
  pjrt_lane lane[PJRT_NUM_LANES];
} pjrt_lanes;

#ifdef Py_GIL_DISABLED

static inline unsigned pjrt_lane_here(void) {
  static atomic_uint threads;
  static _Thread_local unsigned lane; /* counted from 1 */
  if (lane == 0) lane = 1 + atomic_fetch_add(&threads, 1) % PJRT_NUM_LANES;
  return lane - 1;
}

static inline void pjrt_lane_lock(pjrt_lane *lane) { PyMutex_Lock(&lane->mutex); }
static inline void pjrt_lane_unlock(pjrt_lane *lane) { PyMutex_Unlock(&lane->mutex); }
static inline int pjrt_counter_add(pjrt_counter *counter, int number) {
  return atomic_fetch_add(counter, number) + number;
}
static inline int pjrt_counter_read(pjrt_counter *counter) { return atomic_load(counter); }
static inline void *pjrt_pointer_take(pjrt_pointer *pointer) { return atomic_exchange(pointer, NULL); }

#else

static inline unsigned pjrt_lane_here(void) { return 0; }
static inline void pjrt_lane_lock(pjrt_lane *lane) { (void)lane; }
static inline void pjrt_lane_unlock(pjrt_lane *lane) { (void)lane; }
static inline int pjrt_counter_add(pjrt_counter *counter, int number) { return *counter += number; }
static inline int pjrt_counter_read(pjrt_counter *counter) { return *counter; }
static inline void *pjrt_pointer_take(pjrt_pointer *pointer) {
  void *taken = *pointer;
  *pointer = NULL;
  return taken;
}

#endif

/* Sets a null pointer; returns false for one that another thread has set. */
static inline bool pjrt_pointer_set_first(pjrt_pointer *pointer, void *value) {
#ifdef Py_GIL_DISABLED
  void *none = NULL;
  return atomic_compare_exchange_strong(pointer, &none, value);
#else
  if (*pointer != NULL) return false;
  *pointer = value;
  return true;
#endif
}

/* Adds one to a counter that is not zero; returns false for one that is, which stays so. */
static inline bool pjrt_counter_join(pjrt_counter *counter) {
#ifdef Py_GIL_DISABLED
  int number = atomic_load(counter);
  while (number != 0) {
    if (atomic_compare_exchange_weak(counter, &number, number + 1)) return true;
  }
  return false;
#else
  if (*counter == 0) return false;
  ++*counter;
  return true;
#endif
}

/* Calls. */

static inline bool pjrt_lanes_closed(pjrt_lanes *lanes) { return pjrt_counter_read(&lanes->closed) != 0; }

/* Counts a call, also in a closed scope: one that frees a handle. */
static inline void pjrt_lanes_begin_always(pjrt_lanes *lanes) {
  pjrt_counter_add(&lanes->lane[pjrt_lane_here()].calls, 1);
}

static inline void pjrt_lanes_end(pjrt_lanes *lanes) { pjrt_counter_add(&lanes->lane[pjrt_lane_here()].calls, -1); }

/* Counts a call; returns false, and counts nothing, in a closed scope. */
static inline bool pjrt_lanes_begin(pjrt_lanes *lanes) {
  /* Counted before the look at the flag: the closing thread sets the flag, then reads the counts. */
  pjrt_lanes_begin_always(lanes);
  if (!pjrt_lanes_closed(lanes)) return true;
  pjrt_lanes_end(lanes);
  return false;
}

/* Refuses new calls from now on; returns whether this call closed the scope. */
static inline bool pjrt_lanes_close(pjrt_lanes *lanes) {
  return !pjrt_lanes_closed(lanes) && pjrt_counter_add(&lanes->closed, 1) == 1;
}

/* Whether calls are under way. In a closed scope a false stays false, but for calls that free handles. A call may end in
 * another lane than it began in, so only the sum counts. */
static inline bool pjrt_lanes_busy(pjrt_lanes *lanes) {
  int calls = 0;
  for (unsigned i = 0; i < PJRT_NUM_LANES; i++) calls += pjrt_counter_read(&lanes->lane[i].calls);
  return calls != 0;
}

/* Handles. */

/* Lists a handle, of which the link is a member. */
static inline void pjrt_lanes_add(pjrt_lanes *lanes, pjrt_link *link, PyObject *handle) {
  const unsigned number = pjrt_lane_here();
  pjrt_lane *lane = &lanes->lane[number];
#ifdef Py_GIL_DISABLED
  /* So that pjrt_lanes_any may find the handle while another thread drops its last reference. */
#if PY_VERSION_HEX >= 0x030E0000
  PyUnstable_EnableTryIncRef(handle);
#else
  Py_ssize_t shared = _Py_atomic_load_ssize_relaxed(&handle->ob_ref_shared);
  while ((shared & _Py_REF_SHARED_FLAG_MASK) == 0 &&
         !_Py_atomic_compare_exchange_ssize(&handle->ob_ref_shared, &shared, shared | _Py_REF_MAYBE_WEAKREF)) {
  }
#endif
  link->lane = number;
#else
  (void)handle;
#endif
  pjrt_lane_lock(lane);
  link->previous = NULL;
  link->next = lane->first;
  if (link->next != NULL) link->next->previous = link;
  lane->first = link;
  pjrt_lane_unlock(lane);
}

/* Takes a listed handle off its list. */
static inline void pjrt_lanes_remove(pjrt_lanes *lanes, pjrt_link *link) {
#ifdef Py_GIL_DISABLED
  pjrt_lane *lane = &lanes->lane[link->lane];
#else
  pjrt_lane *lane = &lanes->lane[0];
#endif
  pjrt_lane_lock(lane);
  if (link->previous != NULL) {
    link->previous->next = link->next;
  } else {
    lane->first = link->next;
  }
  if (link->next != NULL) link->next->previous = link->previous;
  link->previous = link->next = NULL;
  pjrt_lane_unlock(lane);
}

/* Adds a reference to an object of a list, unless it is dying: then returns false. */
static inline bool pjrt_try_hold(PyObject *object) {
#ifndef Py_GIL_DISABLED
  if (Py_REFCNT(object) == 0) return false;
  Py_INCREF(object);
  return true;
#elif PY_VERSION_HEX >= 0x030E0000
  return PyUnstable_TryIncRef(object);
#else
  if (_Py_IsOwnedByCurrentThread(object)) { /* an owner that has dropped all its references is none any more */
    Py_INCREF(object);
    return true;
  }
  Py_ssize_t shared = _Py_atomic_load_ssize_relaxed(&object->ob_ref_shared);
  do {
    if (shared == 0 || shared == _Py_REF_MERGED) return false;
  } while (!_Py_atomic_compare_exchange_ssize(
      &object->ob_ref_shared, &shared, shared + ((Py_ssize_t)1 << _Py_REF_SHARED_SHIFT)));
  return true;
#endif
}

/* Returns a new reference to a listed handle, or null. `left` is set to whether the lists are not empty: a handle that
 * is dying takes itself off. `offset` is that of the link in a handle. */
static inline PyObject *pjrt_lanes_any(pjrt_lanes *lanes, size_t offset, int *left) {
  *left = false;
  for (unsigned i = 0; i < PJRT_NUM_LANES; i++) {
    pjrt_lane *lane = &lanes->lane[i];
    PyObject *handle = NULL;
    pjrt_lane_lock(lane);
    for (pjrt_link *link = lane->first; link != NULL && handle == NULL; link = link->next) {
      *left = true;
      handle = (PyObject *)((char *)link - offset);
      if (!pjrt_try_hold(handle)) handle = NULL;
    }
    pjrt_lane_unlock(lane);
    if (handle != NULL) return handle;
  }
  return NULL;
}

#endif /* PJRT_SUPPORT_LANES_H_ */
