/* Rings of records in memory that two processes share: one side writes, the other reads.
 *
 * A record is a multiple of 8 bytes, at most RECORD_LARGEST, and begins with its size in four bytes. It never goes round
 * the end: a record of kind RECORD_SKIP fills the rest. Whoever has nothing to do looks for some microseconds, and sleeps
 * on a futex then. */
#ifndef PJRT_NATIVE_RING_H_
#define PJRT_NATIVE_RING_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  RING_SIZE = 1 << 20,
  RECORD_LARGEST = 1 << 18,
  RECORD_SKIP = 0,
  LAUNCH = 1,   /* commands, to the worker */
  FREE = 2,
  COPY_OUT = 3,
  COPY = 4,
  UNLOAD = 5,
  DONE = 1,     /* answers, from it */
  RELEASE = 2,
  CANCELLED_KEPT = 256,
};

typedef struct record {
  uint32_t size, kind;
  uint64_t fence;
} record;

typedef struct ring {
  _Alignas(64) _Atomic uint64_t posted; /* bytes, since the beginning */
  _Atomic uint32_t signal, sleeps;      /* the reader sleeps on the signal, which changes with each post */
  _Alignas(64) _Atomic uint64_t taken;
  _Atomic uint32_t waits; /* the writer has more than fits, and wants to hear of room */
  _Alignas(64) char data[RING_SIZE];
} ring;

/* What the file begins with; the heap is behind it. */
typedef struct shared_memory {
  char mark[16];
  uint64_t heap, size;
  ring commands, answers;
  _Atomic uint64_t num_cancelled, cancelled[CANCELLED_KEPT]; /* the fences of what is not to be done, round and round */
} shared_memory;

#define SHARED_MARK "PJRT-WORKER-1"

/* A place for a record; null where there is no room now, or where the other side wrote what cannot be. */
char *ring_reserve(ring *each, uint64_t *posted, size_t size, bool *is_broken);
void ring_post(ring *each, uint64_t *posted, size_t size, bool wakes);
void ring_wake(ring *each);
/* Whether it was worth the time to look for a record before the reader slept, and whether others ran on its core then. */
typedef struct patience {
  uint32_t skip, next_skip;
  bool shares_core;
} patience;

/* Leaves the core to the thread that shares it, in a loop that looks at memory. */
void ring_relax(void);
/* Looks for something that was posted after what was taken, or for a wake, for about as long as it takes to wake a
 * thread; not each time where nothing came before. With `others` it leaves its core to whoever wants it meanwhile, and
 * does not look while there are others who do. */
bool ring_comes_soon(ring *each, uint64_t taken, patience *of, const atomic_int *others);
/* Sleeps until something is posted or someone wakes the ring. The reader says first that it sleeps; false where there is
 * something already. */
bool ring_say_sleeps(ring *each, uint64_t taken, uint32_t *signal);
void ring_sleep(ring *each, uint32_t signal);

/* ---- the worker's side, which _commands.pyx calls. ------------------------------------------------------------------------*/
typedef struct command {
  uint32_t size, kind; /* of the whole record, whose size was checked */
  uint64_t fence;
  const char *data;    /* behind the head, where the other side may still write */
} command;

/* Ends the command that the last call gave, and takes the next one; returns how many there are: where none is left, none
 * is in `last`. Where the other side has written what cannot be it returns -1. One thread takes all commands. It answers without waking the host: this function and the next one do so where it is due. */
int worker_take(shared_memory *shared, command *last);
/* Waits until there is a command to take, or `is_over` is set. */
void worker_wait(shared_memory *shared, const atomic_bool *is_over);
/* Sets it, and ends the wait. */
void worker_stop(shared_memory *shared, atomic_bool *is_over);
/* Whether the work with a fence is not to be done any more. Each time that there is more of it, a signal comes. */
bool worker_is_cancelled(shared_memory *shared, uint64_t fence);
/* Posts an answer; returns 0 where there is no room, and -1 where the other side has written what cannot be. Whoever will read it on this thread need not be woken. */
int worker_answer(shared_memory *shared, const void *data, size_t size, bool wakes);
/* The same, waiting for room, or until `is_over` is set: the host is slower than a worker with many threads, but it will
 * come. */
int worker_answer_later(shared_memory *shared, const void *data, size_t size, const atomic_bool *is_over);

#endif /* PJRT_NATIVE_RING_H_ */
