/* Records in chunks that are never freed, with a list of free ones that takes no lock. */
#include <stdlib.h>

#include "pjrt_support/system.h"
#include "callback_records.h"

enum { CHUNK = 1024, MAX_CHUNKS = 4096, RETIRED = 4096 };

enum { WORDS = (sizeof(pjrt_record) + sizeof(uintptr_t) - 1) / sizeof(uintptr_t) };

/* The contents in words, because a call that comes too late may read them while another use begins. */
typedef union contents {
  pjrt_record record;
  uintptr_t words[WORDS];
} contents;

typedef struct slot {
  _Atomic uintptr_t words[WORDS];
  _Atomic uint32_t use;  /* odd while in use; each use has its own number */
  _Atomic uint32_t next; /* in the list of free ones: index + 1 */
} slot;

static slot *_Atomic chunks[MAX_CHUNKS];
static _Atomic uint32_t num_chunks;
static _Atomic uint64_t free_slots; /* a number that changes with each change, and index + 1 of the first */
static _Atomic size_t num_used, num_retired;
static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;

static slot *slot_at(uint32_t index) { return &atomic_load(&chunks[index / CHUNK])[index % CHUNK]; }

static void push(uint32_t index) {
  uint64_t head = atomic_load(&free_slots);
  do atomic_store(&slot_at(index)->next, (uint32_t)head);
  while (!atomic_compare_exchange_weak(&free_slots, &head, ((head >> 32) + 1) << 32 | (index + 1)));
}

static bool pop(uint32_t *index) {
  uint64_t head = atomic_load(&free_slots);
  for (;;) {
    if ((uint32_t)head == 0) return false;
    *index = (uint32_t)head - 1;
    const uint32_t next = atomic_load(&slot_at(*index)->next); /* may be old: then the exchange fails */
    if (atomic_compare_exchange_weak(&free_slots, &head, ((head >> 32) + 1) << 32 | next)) return true;
  }
}

static bool add_chunk(void) {
  pjrt_mutex_lock(&mutex);
  bool done = (uint32_t)atomic_load(&free_slots) != 0; /* another thread has added one */
  const uint32_t number = atomic_load(&num_chunks);
  slot *chunk = !done && number < MAX_CHUNKS ? calloc(CHUNK, sizeof *chunk) : NULL;
  if (chunk != NULL) {
    atomic_store(&chunks[number], chunk);
    atomic_store(&num_chunks, number + 1);
    for (uint32_t i = 0; i < CHUNK; i++) push(number * CHUNK + i);
    done = true;
  }
  pjrt_mutex_unlock(&mutex);
  return done;
}

pjrt_token pjrt_record_new(const pjrt_record *contents) {
  uint32_t index;
  while (!pop(&index))
    if (!add_chunk()) return 0;
  slot *place = slot_at(index);
  union contents all = {.words = {0}};
  all.record = *contents;
  for (int i = 0; i < WORDS; i++) atomic_store_explicit(&place->words[i], all.words[i], memory_order_relaxed);
  const uint32_t use = atomic_fetch_add(&place->use, 1) + 1;
  atomic_fetch_add_explicit(&num_used, 1, memory_order_relaxed);
  return (pjrt_token)use << 32 | (index + 1);
}

static slot *slot_of(pjrt_token token) {
  const uint32_t index = (uint32_t)token - 1;
  return (uint32_t)token != 0 && index < atomic_load(&num_chunks) * CHUNK ? slot_at(index) : NULL;
}

/* True for one caller only. */
static bool finish(pjrt_token token, slot *place) {
  uint32_t use = (uint32_t)(token >> 32);
  if (!atomic_compare_exchange_strong(&place->use, &use, use + 1)) return false;
  atomic_fetch_sub_explicit(&num_used, 1, memory_order_relaxed);
  return true;
}

bool pjrt_record_use(pjrt_token token, pjrt_record *contents) {
  slot *place = slot_of(token);
  if (place == NULL) return false;
  const bool current = atomic_load(&place->use) == (uint32_t)(token >> 32);
  union contents all; /* of another use, perhaps: its stack is all that is needed then */
  for (int i = 0; i < WORDS; i++) all.words[i] = atomic_load_explicit(&place->words[i], memory_order_relaxed);
  *contents = all.record;
  atomic_thread_fence(memory_order_acquire);
  if (!current || atomic_load(&place->use) != (uint32_t)(token >> 32)) return false;
  if (!contents->once) return true;
  if (!finish(token, place)) return false;
  push((uint32_t)token - 1);
  return true;
}

void pjrt_record_end(pjrt_token token) {
  slot *place = slot_of(token);
  if (place != NULL && finish(token, place)) push((uint32_t)token - 1);
}

void pjrt_record_retire(pjrt_token token) {
  static pjrt_token retired[RETIRED];
  static unsigned oldest;
  pjrt_mutex_lock(&mutex);
  const pjrt_token out = retired[oldest];
  retired[oldest] = token;
  oldest = (oldest + 1) % RETIRED;
  pjrt_mutex_unlock(&mutex);
  if (out == 0) atomic_fetch_add(&num_retired, 1);
  pjrt_record_end(out);
}

size_t pjrt_num_records(void) { return atomic_load(&num_used) - atomic_load(&num_retired); }
