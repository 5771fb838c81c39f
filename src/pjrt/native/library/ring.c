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

enum { LOOK_NS = 100000, ALONE_NS = 8000, SWITCH_NS = 2000, HOLD_NS = 5000, LONGEST_SKIP = 3 };

static void futex(_Atomic uint32_t *word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation, value, NULL, NULL, 0);
}

char *ring_reserve(ring *each, uint64_t *posted, size_t size, bool *is_broken) {
  uint64_t used = *posted - atomic_load(&each->taken);
  if (used > RING_SIZE || *posted % 8) {
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
  const int64_t start = nanoseconds();
  for (int64_t time = start; time - start < LOOK_NS; time = nanoseconds()) {
    for (int i = 0; i < 16; ++i) {
      ring_relax();
      if (atomic_load_explicit(&each->posted, memory_order_acquire) != taken || atomic_load(&each->signal) != signal) {
        of->next_skip = 0;
        return true;
      }
      if (others && atomic_load(others)) return false;
    }
    if (others == NULL && !of->shares_core && time - start < ALONE_NS) continue;
    time = nanoseconds();
    sched_yield(); /* the other side may wait for this very core */
    of->shares_core = nanoseconds() - time > SWITCH_NS;
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

/* ---- the worker's side ----------------------------------------------------------------------------------------------------*/
/* Whether there are answers that nobody reads: the thread that listens sleeps, and wants to be woken. */
static bool owes_wake(shared_memory *shared) {
  ring *answers = &shared->answers;
  return atomic_load(&answers->sleeps) && atomic_load(&answers->posted) != atomic_load(&answers->taken);
}

/* Whoever waits for an answer mostly looks for it soon, and reads it then. To wake the thread that listens before would
 * take longer than a small program. */
static void wake_host(shared_memory *shared, bool is_patient) {
  ring *commands = &shared->commands;
  int64_t end = is_patient ? nanoseconds() + HOLD_NS : 0;
  while (owes_wake(shared)) {
    if (atomic_load(&commands->posted) != atomic_load(&commands->taken)) return;
    if (nanoseconds() >= end) {
      ring_wake(&shared->answers);
      return;
    }
    for (int i = 0; i < 4; ++i) ring_relax();
  }
}

void worker_wait(shared_memory *shared, const atomic_bool *is_over) {
  static _Thread_local patience patience;
  ring *commands = &shared->commands;
  uint32_t signal;
  for (;;) {
    uint64_t taken = atomic_load(&commands->taken);
    if (atomic_load(&commands->posted) != taken || atomic_load(is_over)) return;
    wake_host(shared, patience.skip == 0);
    if (ring_comes_soon(commands, taken, &patience, NULL) || !ring_say_sleeps(commands, taken, &signal)) continue;
    if (!atomic_load(is_over)) ring_sleep(commands, signal);
  }
}

void worker_stop(shared_memory *shared, atomic_bool *is_over) {
  atomic_store(is_over, true);
  ring_wake(&shared->commands);
}

int worker_take(shared_memory *shared, command *last) {
  ring *commands = &shared->commands;
  uint64_t taken = atomic_load(&commands->taken);
  for (uint32_t ended = last->size;; ended = last->size) {
    if (ended) {
      atomic_store(&commands->taken, taken += ended);
      if (atomic_load(&commands->waits)) ring_wake(&shared->answers);
    }
    last->size = 0;
    uint64_t left = atomic_load(&commands->posted) - taken;
    if (left == 0) return 0;
    size_t at = taken % RING_SIZE, room = left < RING_SIZE - at ? left : RING_SIZE - at;
    const char *place = commands->data + at;
    uint32_t head[2];
    if (left > RING_SIZE || at % 8) return -1;
    memcpy(head, place, sizeof head); /* once: the other side may write there again */
    if (head[0] % 8 || head[0] < 8 || head[0] > room || (head[1] != RECORD_SKIP && head[0] < sizeof(record))) return -1;
    *last = (command){.size = head[0], .kind = head[1], .data = place + sizeof(record)};
    if (head[1] == RECORD_SKIP) continue;
    memcpy(&last->fence, place + sizeof head, sizeof last->fence);
    if (head[1] != FREE && owes_wake(shared)) ring_wake(&shared->answers); /* the next one may take long */
    return 1;
  }
}

bool worker_is_cancelled(shared_memory *shared, uint64_t fence) {
  uint64_t count = atomic_load(&shared->num_cancelled);
  for (size_t i = 0; i < CANCELLED_KEPT && i < count; ++i) {
    if (atomic_load(&shared->cancelled[i]) == fence) return true;
  }
  return false;
}

static pthread_mutex_t answering = PTHREAD_MUTEX_INITIALIZER;

int worker_answer(shared_memory *shared, const void *data, size_t size, bool wakes) {
  bool is_broken = false;
  pthread_mutex_lock(&answering);
  uint64_t posted = atomic_load(&shared->answers.posted);
  char *place = ring_reserve(&shared->answers, &posted, size, &is_broken);
  if (place) {
    memcpy(place, data, size);
    ring_post(&shared->answers, &posted, size, wakes);
  }
  pthread_mutex_unlock(&answering);
  return is_broken ? -1 : place != NULL;
}

int worker_answer_later(shared_memory *shared, const void *data, size_t size, const atomic_bool *is_over) {
  int posted;
  while ((posted = worker_answer(shared, data, size, true)) == 0 && !atomic_load(is_over)) usleep(100);
  return posted;
}
