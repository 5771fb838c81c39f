/* Memory of the host, compared by checksums. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include "host_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "validate.h"

/* FNV-1a over words: fast, and any change of one word changes it. */
uint64_t pjrt_checksum(const void *start, size_t size) {
  const char *bytes = (const char *)start;
  uint64_t hash = UINT64_C(0xCBF29CE484222325), word;
  while (size >= sizeof word) {
    memcpy(&word, bytes, sizeof word);
    hash = (hash ^ word) * UINT64_C(0x100000001B3);
    bytes += sizeof word;
    size -= sizeof word;
  }
  word = 0;
  memcpy(&word, bytes, size);
  return (hash ^ word) * UINT64_C(0x100000001B3);
}

pjrt_host_watch *pjrt_host_watch_make(const pjrt_host_watch *contents) {
  pjrt_host_watch *watch = malloc(sizeof *watch);
  if (watch != NULL) *watch = *contents;
  return watch;
}

void pjrt_host_watch_free(pjrt_host_watch *watch) { free(watch); }

pjrt_host_verdict pjrt_host_watch_compare(const pjrt_host_watch *watch) {
  const pjrt_memory_range range = {watch->start, watch->size};
  if (!pjrt_readable(&range, 1)) return PJRT_HOST_FREED;
  return pjrt_checksum(watch->start, watch->size) == watch->checksum ? PJRT_HOST_SAME : PJRT_HOST_CHANGED;
}

void pjrt_host_watch_end(pjrt_check *check, pjrt_host_watch *watch, pjrt_host_verdict verdict) {
  if (verdict != PJRT_HOST_SAME)
    pjrt_found(check, verdict == PJRT_HOST_FREED ? PJRT_RULE_HOST_MEMORY_FREED : PJRT_RULE_HOST_MEMORY_CHANGED, NULL,
               NULL, "%zu bytes at 0x%" PRIxPTR ", given to %s, %s", watch->size, (uintptr_t)watch->start,
               pjrt_call_name(watch->function), verdict == PJRT_HOST_FREED ? "are gone" : "differ");
  pjrt_host_watch_free(watch);
}
