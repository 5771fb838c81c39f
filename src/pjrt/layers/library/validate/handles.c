/* The table of handles: hash maps of chains, each with a lock of its own, so that threads seldom meet. */
#include "handles.h"

#include <stdlib.h>
#include <string.h>

#include "programs.h"
#include "host_memory.h"

enum { FIRST_BUCKETS = 64, QUARANTINE = 512 };

static inline uint64_t hash_of(const void *address) {
  uint64_t bits = (uint64_t)(uintptr_t)address >> 4; /* addresses are aligned */
  bits *= UINT64_C(0x9E3779B97F4A7C15);
  return bits ^ bits >> 32;
}

static inline size_t bucket_of(const pjrt_handle_shard *shard, const void *address) {
  return (size_t)(hash_of(address) / PJRT_HANDLE_SHARDS) & (shard->num_buckets - 1);
}

bool pjrt_handles_open(pjrt_handle_table *table) {
  atomic_init(&table->generations, 0);
  atomic_init(&table->owners_ended, 0);
  for (int i = 0; i < PJRT_HANDLE_SHARDS; i++) {
    pjrt_handle_shard *shard = &table->shards[i];
    memset(shard, 0, sizeof *shard);
    pjrt_mutex_init(&shard->mutex);
    shard->num_buckets = FIRST_BUCKETS;
    shard->buckets = (pjrt_handle_record **)calloc(FIRST_BUCKETS, sizeof *shard->buckets);
    shard->quarantine = (pjrt_handle_record **)calloc(QUARANTINE, sizeof *shard->quarantine);
    if (shard->buckets == NULL || shard->quarantine == NULL) return false;
  }
  return true;
}

pjrt_handle_shard *pjrt_handles_lock(pjrt_handle_table *table, const void *address) {
  pjrt_handle_shard *shard = &table->shards[hash_of(address) % PJRT_HANDLE_SHARDS];
  pjrt_mutex_lock(&shard->mutex);
  return shard;
}

pjrt_handle_record *pjrt_handles_find(pjrt_handle_shard *shard, const void *address, int kind) {
  pjrt_handle_record *record = shard->buckets[bucket_of(shard, address)];
  while (record != NULL && (record->address != address || record->kind != kind)) record = record->next;
  return record;
}

pjrt_handle_record *pjrt_handles_find_other(pjrt_handle_shard *shard, const void *address, int kind) {
  pjrt_handle_record *ended = NULL;
  for (pjrt_handle_record *record = shard->buckets[bucket_of(shard, address)]; record != NULL; record = record->next) {
    if (record->address != address || record->kind == kind) continue;
    if (record->state < PJRT_HANDLE_CONSUMED) return record;
    ended = record;
  }
  return ended;
}

static void grow(pjrt_handle_shard *shard) {
  const size_t number = shard->num_buckets * 2;
  pjrt_handle_record **buckets = (pjrt_handle_record **)calloc(number, sizeof *buckets);
  if (buckets == NULL) return; /* the chains become longer, nothing else */
  pjrt_handle_record **old = shard->buckets;
  const size_t old_number = shard->num_buckets;
  shard->buckets = buckets;
  shard->num_buckets = number;
  for (size_t i = 0; i < old_number; i++) {
    while (old[i] != NULL) {
      pjrt_handle_record *record = old[i];
      old[i] = record->next;
      pjrt_handle_record **place = &buckets[bucket_of(shard, record->address)];
      record->next = *place;
      *place = record;
    }
  }
  free(old);
}

static void free_facts(pjrt_handle_record *record) {
  pjrt_host_watch_free(record->watch);
  pjrt_program_facts_free(record->program);
  record->watch = NULL;
  record->program = NULL;
}

/* Removes a record that the quarantine pushes out. One that is live again, or that a call is using, stays. */
static void forget(pjrt_handle_shard *shard, pjrt_handle_record *record) {
  pjrt_handle_record **place = &shard->buckets[bucket_of(shard, record->address)];
  while (*place != NULL && *place != record) place = &(*place)->next;
  if (*place == NULL) return;
  *place = record->next;
  shard->num_records--;
  free_facts(record);
  free(record);
}

pjrt_handle_record *pjrt_handles_add(pjrt_handle_table *table, pjrt_handle_shard *shard, const void *address, int kind,
                                     pjrt_call_site made) {
  pjrt_handle_record *record = pjrt_handles_find(shard, address, kind);
  if (record == NULL) {
    record = (pjrt_handle_record *)calloc(1, sizeof *record);
    if (record == NULL) return NULL;
    if (shard->num_records >= shard->num_buckets * 2) grow(shard);
    pjrt_handle_record **place = &shard->buckets[bucket_of(shard, address)];
    record->next = *place;
    *place = record;
    record->address = address;
    record->kind = (int16_t)kind;
    shard->num_records++;
  } else {
    free_facts(record);
    const size_t kept = offsetof(pjrt_handle_record, kind) + sizeof record->kind;
    memset((char *)record + kept, 0, sizeof *record - kept);
  }
  record->state = PJRT_HANDLE_LIVE;
  record->generation = atomic_fetch_add_explicit(&table->generations, 1, memory_order_relaxed) + 1;
  record->made = made;
  record->used.function = -1;
  record->ended.function = -1;
  return record;
}

void pjrt_handles_end(pjrt_handle_shard *shard, pjrt_handle_record *record, pjrt_handle_state state,
                      pjrt_call_site ended) {
  record->state = (uint8_t)state;
  record->ended = ended;
  /* A record may be in the ring several times, if its address was used again. It goes with its last entry. */
  if (shard->quarantine_count == QUARANTINE) {
    pjrt_handle_record *oldest = shard->quarantine[shard->quarantine_start];
    shard->quarantine_start = (shard->quarantine_start + 1) % QUARANTINE;
    shard->quarantine_count--;
    oldest->quarantined--;
    if (oldest->quarantined == 0 && oldest->state >= PJRT_HANDLE_CONSUMED && oldest != record &&
        atomic_load_explicit(&oldest->uses, memory_order_acquire) == 0)
      forget(shard, oldest);
  }
  shard->quarantine[(shard->quarantine_start + shard->quarantine_count++) % QUARANTINE] = record;
  record->quarantined++;
}

void pjrt_handles_visit(pjrt_handle_table *table, void (*visitor)(pjrt_handle_record *record, void *arg), void *arg) {
  for (int i = 0; i < PJRT_HANDLE_SHARDS; i++) {
    pjrt_handle_shard *shard = &table->shards[i];
    pjrt_mutex_lock(&shard->mutex);
    for (size_t j = 0; j < shard->num_buckets; j++) {
      for (pjrt_handle_record *record = shard->buckets[j]; record != NULL; record = record->next) visitor(record, arg);
    }
    pjrt_mutex_unlock(&shard->mutex);
  }
}
