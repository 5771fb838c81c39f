/* Rings in shared memory, and the worker's side of them. */
#include "ring.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <stdbool.h>
#include <unistd.h>

enum { LOOK_NS = 100000, LONGEST_SKIP = 3, AWAITED_LOOK_NS = 1000000, AWAITED_IDLE = 50 };

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
    if (others) sched_yield();
  }
  of->next_skip = of->next_skip < LONGEST_SKIP ? of->next_skip * 2 + 1 : LONGEST_SKIP;
  of->skip = of->next_skip;
  return false;
}

static void futex_for(_Atomic uint32_t *word, uint32_t value, long nanoseconds) {
  struct timespec limit = {.tv_nsec = nanoseconds};
  syscall(SYS_futex, word, FUTEX_WAIT, value, &limit, NULL, 0);
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

/* A thread that waits for what it asked for does the work itself, where the worker is a thread of the same process: two
 * that change places at each step need several times as long. Once it did so, the next commands wake nobody. The worker
 * looks for those that are left from time to time, and sleeps as ever when there were none for long. */
static void wait_while_awaited(shared_memory *shared) {
  ring *commands = &shared->commands;
  for (int idle = 0; atomic_load(&shared->is_awaited) && !atomic_load(&shared->is_over);) {
    uint64_t before = atomic_load(&commands->posted);
    uint32_t signal = atomic_load(&commands->signal);
    futex_for(&commands->signal, signal, AWAITED_LOOK_NS);
    bool is_left = atomic_load(&commands->posted) != atomic_load(&commands->taken);
    if (atomic_load(&commands->signal) != signal || (is_left && atomic_load(&commands->posted) == before) ||
        (idle = is_left || atomic_load(&commands->posted) != before ? 0 : idle + 1) > AWAITED_IDLE)
      atomic_store(&shared->is_awaited, 0);
  }
}

static bool wait_for_command(shared_memory *shared) {
  static _Thread_local patience patience;
  ring *commands = &shared->commands;
  uint32_t signal;
  for (;;) {
    if (atomic_load(&shared->is_awaited)) wait_while_awaited(shared);
    if (atomic_load(&shared->is_over)) return false;
    uint64_t taken = atomic_load(&commands->taken);
    if (atomic_load(&commands->posted) != taken) return true;
    if (!ring_comes_soon(commands, taken, &patience, NULL) && ring_say_sleeps(commands, taken, &signal))
      ring_sleep(commands, signal);
  }
}

/* The next record, up to where `until` stands, or the next one that comes where that is null. */
static int64_t take(shared_memory *shared, uint64_t ended, const uint64_t *until) {
  ring *commands = &shared->commands;
  uint64_t taken = atomic_load(&commands->taken) + ended;
  atomic_store(&commands->taken, taken);
  for (;;) {
    if (ended && atomic_load(&commands->waits)) ring_wake(&shared->answers);
    if (until == NULL && !wait_for_command(shared)) return -1;
    if (atomic_load(&commands->posted) == taken || (until && (int64_t)(taken - *until) >= 0)) return 0;
    record *next = (record *)(void *)(commands->data + taken % RING_SIZE);
    if (next->kind != RECORD_SKIP) return (char *)next - (char *)shared;
    taken += ended = next->size;
    atomic_store(&commands->taken, taken);
  }
}

/* Ends the record that the last call gave, and waits for the next one; returns its offset in the memory, or -1 after
 * pjrt_worker_end. */
VISIBLE int64_t pjrt_worker_next(shared_memory *shared, uint64_t ended) { return take(shared, ended, NULL); }

/* The same without waiting: 0 where none is left of those that had been posted then. */
VISIBLE int64_t pjrt_worker_take(shared_memory *shared, uint64_t ended, uint64_t posted) {
  return take(shared, ended, &posted);
}

/* How far commands have been posted. */
VISIBLE uint64_t pjrt_worker_posted(shared_memory *shared) { return atomic_load(&shared->commands.posted); }

/* The fences of what is not to be done, of which there are CANCELLED_KEPT; each time that there are more, a signal comes. */
VISIBLE uint64_t *pjrt_worker_cancelled(shared_memory *shared) { return (uint64_t *)shared->cancelled; }

/* Waits until there is a command to take; returns 0 after pjrt_worker_end. */
VISIBLE int pjrt_worker_wait(shared_memory *shared) { return wait_for_command(shared); }

VISIBLE void pjrt_worker_end(shared_memory *shared) {
  atomic_store(&shared->is_over, 1);
  ring_wake(&shared->commands);
}

static pthread_mutex_t answering = PTHREAD_MUTEX_INITIALIZER;

/* Posts an answer; false where there is no room. Whoever will read it on this thread need not be woken. A worker whose
 * memory somebody has written to ends. */
VISIBLE bool pjrt_worker_try_answer(shared_memory *shared, const void *data, uint64_t size, bool wakes) {
  bool is_broken = false;
  pthread_mutex_lock(&answering);
  uint64_t posted = atomic_load(&shared->answers.posted);
  char *place = ring_reserve(&shared->answers, &posted, size, &is_broken);
  if (is_broken) abort();
  if (place) {
    memcpy(place, data, size);
    ring_post(&shared->answers, &posted, size, wakes);
  }
  pthread_mutex_unlock(&answering);
  return place != NULL;
}

/* The same, waiting for room: the host is slower than a worker with many threads, but it will come. */
VISIBLE void pjrt_worker_answer(shared_memory *shared, const void *data, uint64_t size) {
  while (!pjrt_worker_try_answer(shared, data, size, true)) usleep(100);
}
