/* The gate between threads that Python did not make and the interpreter.
 *
 * Such a thread must not ask for the GIL once the interpreter has begun to end: it would be stopped in the middle of
 * the plugin's code. So it enters the gate first; shutting the gate turns newcomers away and waits for those inside. */
#ifndef PJRT_SUPPORT_GATE_H_
#define PJRT_SUPPORT_GATE_H_

#include <stdatomic.h>
#include <stdbool.h>

#include "system.h"

typedef struct pjrt_gate {
  atomic_int inside;
  atomic_bool shut;
} pjrt_gate;

static inline bool pjrt_gate_enter(pjrt_gate *gate) {
  atomic_fetch_add(&gate->inside, 1);
  if (!atomic_load(&gate->shut)) return true;
  atomic_fetch_sub(&gate->inside, 1);
  return false;
}

static inline void pjrt_gate_leave(pjrt_gate *gate) { atomic_fetch_sub(&gate->inside, 1); }

/* Call without the GIL, for those inside may need it. It stops waiting after a while: a callback that never returns must not
 * keep the process from ending. Returns whether all have left. */
static inline bool pjrt_gate_shut(pjrt_gate *gate, int milliseconds) {
  atomic_store(&gate->shut, true);
  for (int i = 0; i < milliseconds && atomic_load(&gate->inside); i++) pjrt_sleep(0.001);
  return atomic_load(&gate->inside) == 0;
}

#endif /* PJRT_SUPPORT_GATE_H_ */
