/* Memory of the host that the plugin may still read after a call: its checksum, to compare it later. */
#ifndef PJRT_LAYER_VALIDATE_HOST_MEMORY_H_
#define PJRT_LAYER_VALIDATE_HOST_MEMORY_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pjrt_check;

typedef struct pjrt_host_watch {
  const void *start;
  size_t size;
  uint64_t checksum;
  int16_t function;   /* the call that the memory was given to */
  const void *buffer; /* that uses the memory in place; null: it is copied */
} pjrt_host_watch;

typedef enum { PJRT_HOST_SAME, PJRT_HOST_CHANGED, PJRT_HOST_FREED } pjrt_host_verdict;

uint64_t pjrt_checksum(const void *start, size_t size);
/* Null without memory. */
pjrt_host_watch *pjrt_host_watch_make(const pjrt_host_watch *contents);
void pjrt_host_watch_free(pjrt_host_watch *watch);
/* Compares the memory with its checksum. The caller holds the lock of the handle that the watch was on: another thread
 * that learns that the memory is free waits for it, and frees the memory only then. */
pjrt_host_verdict pjrt_host_watch_compare(const pjrt_host_watch *watch);
/* Makes a finding, unless the memory is the same, and frees the watch. Null watches do nothing. */
void pjrt_host_watch_end(struct pjrt_check *check, pjrt_host_watch *watch, pjrt_host_verdict verdict);

#endif /* PJRT_LAYER_VALIDATE_HOST_MEMORY_H_ */
