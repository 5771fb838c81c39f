/* What executions of a loaded executable have shown: how many arguments, outputs and devices it has, and which arguments
 * it takes the memory of. */
#ifndef PJRT_LAYER_VALIDATE_PROGRAMS_H_
#define PJRT_LAYER_VALIDATE_PROGRAMS_H_

#include <stdint.h>

enum { PJRT_MAYBE_DONATED = 0, PJRT_NEVER_DONATED = 1, PJRT_DONATED = 2 };

typedef struct pjrt_program_facts {
  int64_t num_arguments; /* -1: unknown */
  int64_t num_outputs;   /* -1: unknown */
  int64_t num_devices;   /* -1: unknown */
  uint8_t *donation;     /* for each argument; null until the first execution */
} pjrt_program_facts;

void pjrt_program_facts_free(pjrt_program_facts *facts);

#endif /* PJRT_LAYER_VALIDATE_PROGRAMS_H_ */
