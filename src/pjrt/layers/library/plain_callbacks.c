/* Callbacks without user data: deleters that are called with nothing but what they delete. For each stack and kind there
 * are a few functions of ours, of which each remembers one target. */
#include <string.h>

#include "callbacks.h"
#include "trampolines.h"

enum { NUM_VARIANTS = 4 };

typedef struct plain_target {
  void (*_Atomic target)(void);
  _Atomic uint32_t origin; /* the function that it was handed over with, whether the plugin calls it, and 1 */
} plain_target;

static plain_target plain_targets[PJRT_MAX_STACKS][PJRT_NUM_CALLBACKS][NUM_VARIANTS];

__attribute__((used, visibility("hidden"))) void pjrt_enter_plain(void *parameter, unsigned number) {
  const unsigned variant = number % NUM_VARIANTS, kind = number / NUM_VARIANTS % PJRT_NUM_CALLBACKS;
  const unsigned stack = number / NUM_VARIANTS / PJRT_NUM_CALLBACKS;
  plain_target *plain = &plain_targets[stack][kind][variant];
  const uint32_t packed = atomic_load(&plain->origin) - 1;
  const pjrt_callback_origin origin = {(uint16_t)(packed >> 1), NULL, atomic_load(&plain->target), NULL, 0};
  pjrt_run_callback(pjrt_stack_at((int)stack), (int)kind, packed & 1, &origin, &parameter);
}

PJRT_DEFINE_TRAMPOLINES(pjrt_plain_callbacks, PJRT_MAX_STACKS * PJRT_NUM_CALLBACKS * NUM_VARIANTS, pjrt_enter_plain)

void (*pjrt_plain_entry(const pjrt_stack *stack, int kind, int function, bool up, void (*target)(void)))(void) {
  const uint32_t origin = ((uint32_t)function << 1 | up) + 1;
  for (int i = 0; i < NUM_VARIANTS; i++) {
    plain_target *plain = &plain_targets[stack->index][kind][i];
    void (*unused)(void) = NULL;
    const void *address =
        PJRT_TRAMPOLINE(pjrt_plain_callbacks, (stack->index * PJRT_NUM_CALLBACKS + kind) * NUM_VARIANTS + i);
    void (*entry)(void);
    memcpy(&entry, &address, sizeof entry);
    if (entry == target) return target; /* handed back to where it came from */
    if (atomic_compare_exchange_strong(&plain->target, &unused, target)) {
      atomic_store(&plain->origin, origin);
      return entry;
    }
    if (unused == target) {
      while (atomic_load(&plain->origin) == 0) continue; /* another thread is about to set it */
      return entry;
    }
  }
  return target;
}

