/* The layers of this library. */
#include "layer.h"

/* Does nothing: it shows what a layer costs. */
static void *pass_open(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  (void)options, (void)problem, (void)problem_size;
  return stack;
}

static void *pass_call(void *state, pjrt_frame *frame, void *args) {
  (void)state;
  return pjrt_next(frame, args);
}

static void *pass_callback(void *state, pjrt_frame *frame, void *args) {
  (void)state;
  return pjrt_next_callback(frame, args);
}

static const pjrt_layer pass = {"pass", pass_open, pass_call, pass_callback, NULL, NULL};

extern const pjrt_layer pjrt_layer_inject, pjrt_layer_record, pjrt_layer_trace, pjrt_layer_validate;

const pjrt_layer *const pjrt_layers[] = {&pass, &pjrt_layer_trace, &pjrt_layer_validate, &pjrt_layer_record,
                                         &pjrt_layer_inject, &pjrt_layer_adapt};
const size_t pjrt_num_layers = sizeof pjrt_layers / sizeof *pjrt_layers;
