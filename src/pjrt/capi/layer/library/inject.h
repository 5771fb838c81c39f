/* The inject layer: faults by rule, to test what frameworks do about them. */
#ifndef PJRT_LAYER_INJECT_H_
#define PJRT_LAYER_INJECT_H_

#include "layer.h"
#include "pjrt_support/system.h"

enum { INJECT_MAX_RULES = 32, INJECT_TEXT = 512 };

typedef enum { INJECT_ANY_THREAD, INJECT_MAIN_THREAD, INJECT_OTHER_THREADS } inject_thread;

/* What happens to the events and buffers of a call. */
typedef enum { INJECT_NO_FATE, INJECT_NEVER_READY, INJECT_READY_WITH_ERROR, INJECT_FLIPPED } inject_fate;

typedef struct inject_rule {
  int number;             /* from 1 on, in the order of the options */
  char text[INJECT_TEXT]; /* as it is written in the options */
  bool functions[PJRT_NUM_FUNCTIONS];
  /* When: of the calls that pass the filters, counted from 1 on. */
  uint64_t nth, from, every, times; /* 0: not asked for */
  bool by_chance;
  uint64_t chance; /* in parts of 2^64 */
  uint64_t seed;
  int64_t client; /* in the order of their creation, from 0 on; -1: every one */
  inject_thread thread;
  /* What. */
  uint64_t slow; /* nanoseconds */
  bool fails;
  PJRT_Error_Code code; /* of the call, or of its events */
  char message[INJECT_TEXT]; /* empty: one that names the rule */
  inject_fate fate;
  uint64_t bit;
  bool limits_memory;
  uint64_t limit; /* bytes of each device */
  _Atomic uint64_t calls, hits;
} inject_rule;

typedef struct inject {
  pjrt_stack *stack;
  uint8_t parts[PJRT_NUM_FUNCTIONS]; /* which parts of the layer look at a function: inject_part, or-ed */
  int num_rules;
  inject_rule rules[INJECT_MAX_RULES];
} inject;

typedef enum {
  INJECT_BY_RULES = 1 << 0,
} inject_part;

/* Reads all rules; false with the reason in `problem`. */
bool inject_read_rules(inject *inject, const char *options, char *problem, size_t problem_size);

/* Whether a rule can make a function fail: it returns an error of the plugin's kind. */
static inline bool inject_can_fail(int function) { return pjrt_functions[function].result == PJRT_RESULT_ERROR; }

#endif /* PJRT_LAYER_INJECT_H_ */
