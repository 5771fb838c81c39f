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
  int16_t function; /* the call that the memory was given to */
} pjrt_host_watch;

uint64_t pjrt_checksum(const void *start, size_t size);
/* Null without memory. */
pjrt_host_watch *pjrt_host_watch_make(const void *start, size_t size, uint64_t checksum, int16_t function);
void pjrt_host_watch_free(pjrt_host_watch *watch);
/* Compares the memory with its checksum, makes a finding where it differs, and frees the watch. */
void pjrt_host_watch_end(struct pjrt_check *check, pjrt_host_watch *watch);

#endif /* PJRT_LAYER_VALIDATE_HOST_MEMORY_H_ */
