/* Linux and macOS: the functions that system.h lists. */
#ifndef PJRT_SUPPORT_SYSTEM_POSIX_H_
#define PJRT_SUPPORT_SYSTEM_POSIX_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for RTLD_DEFAULT and pthread_condattr_setclock */
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <time.h>

#define PJRT_EXPORTED __attribute__((visibility("default")))

typedef pthread_mutex_t pjrt_mutex;
#define PJRT_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER

static inline void pjrt_mutex_init(pjrt_mutex *mutex) { pthread_mutex_init(mutex, NULL); }
static inline void pjrt_mutex_lock(pjrt_mutex *mutex) { pthread_mutex_lock(mutex); }
static inline void pjrt_mutex_unlock(pjrt_mutex *mutex) { pthread_mutex_unlock(mutex); }
static inline void pjrt_mutex_destroy(pjrt_mutex *mutex) { pthread_mutex_destroy(mutex); }

static inline struct timespec pjrt_timespec(double seconds) {
  const time_t whole = (time_t)seconds;
  const struct timespec found = {whole, (long)((seconds - (double)whole) * 1e9)};
  return found;
}

static inline double pjrt_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void pjrt_sleep(double seconds) {
  const struct timespec pause = pjrt_timespec(seconds);
  nanosleep(&pause, NULL);
}

typedef pthread_cond_t pjrt_condition;

static inline void pjrt_condition_init(pjrt_condition *condition) {
#ifdef __APPLE__
  pthread_cond_init(condition, NULL); /* its waits for a time are given the time left, not the time of a clock */
#else
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(condition, &attributes);
  pthread_condattr_destroy(&attributes);
#endif
}

static inline void pjrt_condition_wait(pjrt_condition *condition, pjrt_mutex *mutex) {
  pthread_cond_wait(condition, mutex);
}

/* Waits at most so many seconds; it may return earlier without a reason, as all waits for conditions may. */
static inline void pjrt_condition_wait_for(pjrt_condition *condition, pjrt_mutex *mutex, double seconds) {
#ifdef __APPLE__
  const struct timespec left = pjrt_timespec(seconds);
  pthread_cond_timedwait_relative_np(condition, mutex, &left);
#else
  const struct timespec until = pjrt_timespec(pjrt_seconds() + seconds);
  pthread_cond_timedwait(condition, mutex, &until);
#endif
}

static inline void pjrt_condition_broadcast(pjrt_condition *condition) { pthread_cond_broadcast(condition); }
static inline void pjrt_condition_destroy(pjrt_condition *condition) { pthread_cond_destroy(condition); }

/* A function in a library, or, of null, in anything that the process has loaded with symbols for everyone. */
static inline void *pjrt_find_function(void *library, const char *name) {
  return dlsym(library != NULL ? library : RTLD_DEFAULT, name);
}

static inline void *pjrt_open_library(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }

static inline const char *pjrt_library_error(void) {
  const char *reason = dlerror();
  return reason != NULL ? reason : "no reason given";
}

#endif /* PJRT_SUPPORT_SYSTEM_POSIX_H_ */
