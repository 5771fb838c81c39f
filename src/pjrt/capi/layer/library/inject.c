/* The inject layer: makes calls fail, slow, or end wrong, as its rules ask for. */
#include "inject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"

/* ---- rules --------------------------------------------------------------------------------------------------------*/
static uint64_t mixed(uint64_t number) { /* splitmix64 */
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ number >> 30) * 0xbf58476d1ce4e5b9u;
  number = (number ^ number >> 27) * 0x94d049bb133111ebu;
  return number ^ number >> 31;
}

/* Whether a rule's fault happens to this call, which is one more of its calls. */
static bool hits(inject_rule *rule, uint64_t *number) {
  *number = atomic_fetch_add_explicit(&rule->calls, 1, memory_order_relaxed) + 1;
  if (rule->nth != 0 && *number != rule->nth) return false;
  if (*number < rule->from) return false;
  if (rule->every != 0 && (rule->from != 0 ? *number - rule->from : *number) % rule->every != 0) return false;
  if (rule->by_chance && mixed(rule->seed ^ mixed(*number)) >= rule->chance) return false;
  const uint64_t before = atomic_fetch_add_explicit(&rule->hits, 1, memory_order_relaxed);
  if (rule->times == 0 || before < rule->times) return true;
  atomic_fetch_sub_explicit(&rule->hits, 1, memory_order_relaxed);
  return false;
}

/* Whether a call must be made although it fails: it ends the life of an object, or takes something over. */
static bool must_be_made(const pjrt_function *function) {
  for (int i = 0; i < function->args->num_fields; i++) {
    if (function->args->fields[i].marks & (PJRT_MARK_DESTROYS | PJRT_MARK_CONSUMES)) return true;
  }
  return false;
}

static PJRT_Error *rule_error(const inject_rule *rule, const char *function, uint64_t number) {
  if (rule->message[0]) return pjrt_make_error(rule->code, "%s", rule->message);
  return pjrt_make_error(rule->code, "injected into call %llu of %s by rule %d (%s)", (unsigned long long)number,
                         function, rule->number, rule->text);
}

static void *fail(const inject_rule *rule, uint64_t number, pjrt_frame *frame, void *args) {
  PJRT_Error *error = rule_error(rule, frame->function->name, number);
  if (must_be_made(frame->function)) {
    void *result = pjrt_next(frame, args);
    if (result == NULL) return error;
    PJRT_Error_Destroy_Args destroy = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
    pjrt_call_layer_error(PJRT_FUNCTION_Error_Destroy, &destroy);
    return result;
  }
  pjrt_clear_outputs(frame->function->args, args);
  return error;
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
static void *call(void *state, pjrt_frame *frame, void *args) {
  inject *inject = state;
  const int index = frame->index;
  if (inject->parts[index] == 0) return pjrt_next(frame, args);
  for (int i = 0; i < inject->num_rules; i++) {
    inject_rule *rule = &inject->rules[i];
    uint64_t number;
    if (!rule->functions[index] || !hits(rule, &number)) continue;
    if (rule->slow > 0) pjrt_sleep((double)rule->slow * 1e-9);
    if (rule->fails) return fail(rule, number, frame, args);
  }
  return pjrt_next(frame, args);
}

/* ---- the layer ----------------------------------------------------------------------------------------------------*/
static void *open_layer(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  inject *state = calloc(1, sizeof *state);
  if (state == NULL) {
    snprintf(problem, problem_size, "inject: no memory is left");
    return NULL;
  }
  state->stack = stack;
  if (!inject_read_rules(state, options, problem, problem_size)) {
    free(state);
    return NULL;
  }
  for (int i = 0; i < state->num_rules; i++) {
    for (int k = 0; k < PJRT_NUM_FUNCTIONS; k++)
      if (state->rules[i].functions[k]) state->parts[k] |= INJECT_BY_RULES;
  }
  return state;
}

const pjrt_layer pjrt_layer_inject = {.name = "inject", .open = open_layer, .call = call};
