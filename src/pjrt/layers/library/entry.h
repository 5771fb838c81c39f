/* Loading a plugin's library, and the wrapping that PJRT_LAYERS asks for. */
#ifndef PJRT_LAYER_ENTRY_H_
#define PJRT_LAYER_ENTRY_H_

#include "layer.h"
#include "pjrt_support/system.h"

/* The table of a plugin's library; null with the reason in `problem`. */
const PJRT_Api *pjrt_load_target(const char *path, char *problem, size_t problem_size);

/* Reports on the error stream why a plugin's table is missing. */
void pjrt_complain(const char *name, const char *problem);

/* The table with the layers of PJRT_LAYERS; the table itself without them; null with the reason in `problem`. */
PJRT_EXPORTED const PJRT_Api *pjrt_layer_wrap_by_environment(const PJRT_Api *table, const char *name, char *problem,
                                                             size_t problem_size);
/* Whether this library wrapped the table, as PJRT_LAYERS asked for. */
PJRT_EXPORTED int pjrt_layer_is_from_environment(const PJRT_Api *table);

#endif /* PJRT_LAYER_ENTRY_H_ */
