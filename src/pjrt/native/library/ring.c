/* Rings in shared memory, and the worker's side of them. */
#include "ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_NS = 100000, LONGEST_SKIP = 3 };

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

char *ring_reserve(ring *each, uint64_t *posted, size_t size, bool *is_broken) {
  uint64_t used = *posted - atomic_load(&each->taken);
  if (used > RING_SIZE) {
    *is_broken = true;
    return NULL;
  }
  size_t at = *posted % RING_SIZE, left = RING_SIZE - at, skipped = left < size ? left : 0;
  if (size + skipped > RING_SIZE - used) return NULL;
  if (skipped) {
    record skip = {.size = (uint32_t)skipped, .kind = RECORD_SKIP};
    memcpy(each->data + at, &skip, 8);
    *posted += skipped;
    at = 0;
  }
  return each->data + at;
}

void ring_wake(ring *each) {
  atomic_fetch_add(&each->signal, 1);
  if (atomic_load(&each->sleeps)) futex(&each->signal, FUTEX_WAKE, INT_MAX);
}

void ring_post(ring *each, uint64_t *posted, size_t size, bool wakes) {
  *posted += size;
  atomic_store(&each->posted, *posted);
  if (wakes) ring_wake(each);
}

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

void ring_relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

/* Looks again for about as long as it takes to wake a thread. Where nothing came in that time, the next times sleep at
 * once: on a busy machine the other side waits for this core. */
bool ring_comes_soon(ring *each, uint64_t taken, patience *of, const atomic_int *others) {
  if (of->skip) {
    --of->skip;
    return false;
  }
  uint32_t signal = atomic_load(&each->signal);
  for (int64_t end = nanoseconds() + LOOK_NS; nanoseconds() < end;) {
    for (int i = 0; i < 16; ++i) {
      ring_relax();
      if (atomic_load_explicit(&each->posted, memory_order_acquire) != taken || atomic_load(&each->signal) != signal) {
        of->next_skip = 0;
        return true;
      }
      if (others && atomic_load(others)) return false;
    }
  }
  of->next_skip = of->next_skip < LONGEST_SKIP ? of->next_skip * 2 + 1 : LONGEST_SKIP;
  of->skip = of->next_skip;
  return false;
}

bool ring_say_sleeps(ring *each, uint64_t taken, uint32_t *signal) {
  *signal = atomic_load(&each->signal);
  atomic_store(&each->sleeps, 1);
  if (atomic_load(&each->posted) == taken) return true;
  atomic_store(&each->sleeps, 0);
  return false;
}

void ring_sleep(ring *each, uint32_t signal) {
  futex(&each->signal, FUTEX_WAIT, signal);
  atomic_store(&each->sleeps, 0);
}

/* ---- the worker's side, which Python calls ----------------------------------------------------------------------------*/
#define VISIBLE __attribute__((visibility("default")))

/* Ends the record that the last call gave, and waits for the next one; returns its offset in the memory. */
VISIBLE int64_t pjrt_worker_next(shared_memory *shared, uint64_t ended) {
  static patience patience;
  ring *commands = &shared->commands;
  uint64_t taken = atomic_load(&commands->taken) + ended;
  atomic_store(&commands->taken, taken);
  for (;;) {
    if (ended && atomic_load(&commands->waits)) ring_wake(&shared->answers);
    uint32_t signal;
    while (atomic_load(&commands->posted) == taken) {
      if (!ring_comes_soon(commands, taken, &patience, NULL) && ring_say_sleeps(commands, taken, &signal))
        ring_sleep(commands, signal);
    }
    record *next = (record *)(void *)(commands->data + taken % RING_SIZE);
    if (next->kind != RECORD_SKIP) return (char *)next - (char *)shared;
    taken += ended = next->size;
    atomic_store(&commands->taken, taken);
  }
}

/* Posts an answer; waits for room where there is none. A worker whose memory somebody has written to ends. */
VISIBLE void pjrt_worker_answer(shared_memory *shared, const void *data, uint64_t size) {
  static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  bool is_broken = false;
  pthread_mutex_lock(&mutex);
  uint64_t posted = atomic_load(&shared->answers.posted);
  char *place;
  while ((place = ring_reserve(&shared->answers, &posted, size, &is_broken)) == NULL) {
    if (is_broken) abort();
    usleep(100); /* the host is slower than a worker with many threads: it will come */
  }
  memcpy(place, data, size);
  ring_post(&shared->answers, &posted, size, true);
  pthread_mutex_unlock(&mutex);
}
