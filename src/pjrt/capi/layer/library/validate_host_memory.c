/* Memory of the host, compared by checksums. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include "validate_host_memory.h"

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

pjrt_host_watch *pjrt_host_watch_make(const void *start, size_t size, uint64_t checksum, int16_t function) {
  pjrt_host_watch *watch = malloc(sizeof *watch);
  if (watch != NULL) *watch = (pjrt_host_watch){start, size, checksum, function};
  return watch;
}

void pjrt_host_watch_free(pjrt_host_watch *watch) { free(watch); }

void pjrt_host_watch_end(pjrt_check *check, pjrt_host_watch *watch) {
  const pjrt_memory_range range = {watch->start, watch->size};
  if (!pjrt_readable(&range, 1))
    pjrt_found(check, PJRT_RULE_HOST_MEMORY_FREED, NULL, NULL, "%zu bytes at 0x%" PRIxPTR ", given to %s, are gone",
               watch->size, (uintptr_t)watch->start, pjrt_call_name(watch->function));
  else if (pjrt_checksum(watch->start, watch->size) != watch->checksum)
    pjrt_found(check, PJRT_RULE_HOST_MEMORY_CHANGED, NULL, NULL, "%zu bytes at 0x%" PRIxPTR ", given to %s, differ",
               watch->size, (uintptr_t)watch->start, pjrt_call_name(watch->function));
  pjrt_host_watch_free(watch);
}
