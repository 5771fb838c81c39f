/* The inject layer: makes calls fail, slow, or end wrong, as its rules ask for. */
#include "inject.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "errors.h"
#include "pjrt_support/inspection.h"

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

bool inject_concerns(const inject_rule *rule, int64_t client) {
  if (rule->client >= 0 && rule->client != client) return false;
  return rule->thread == INJECT_ANY_THREAD || (rule->thread == INJECT_MAIN_THREAD) == pjrt_is_main_thread();
}

PJRT_Error *inject_error(const inject_rule *rule, const char *function, uint64_t call_number) {
  if (rule->message[0]) return pjrt_make_error(rule->code, "%s", rule->message);
  if (function == NULL) return pjrt_make_error(rule->code, "injected by rule %d (%s)", rule->number, rule->text);
  return pjrt_make_error(rule->code, "injected into call %llu of %s by rule %d (%s)", (unsigned long long)call_number,
                         function, rule->number, rule->text);
}

void inject_destroy_error(inject *inject, PJRT_Error *error) {
  PJRT_Error_Destroy_Args args = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  void *nothing;
  if (pjrt_is_layer_error(error)) pjrt_call_layer_error(PJRT_FUNCTION_Error_Destroy, &args);
  else if (error != NULL) pjrt_call_below(inject->stack, PJRT_FUNCTION_Error_Destroy, &args, &nothing);
}

bool inject_succeeds(inject *inject, int function, void *args) {
  void *error = NULL;
  const bool called = pjrt_call_below(inject->stack, function, args, &error);
  inject_destroy_error(inject, error);
  return called && error == NULL;
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
/* What the rules want of a call. */
typedef struct fault {
  PJRT_Error *error;
  const inject_rule *ready; /* decides when the results are ready */
} fault;

static fault fault_of(inject_plan *plan, const pjrt_frame *frame, const void *args, int64_t client) {
  fault fault = {NULL, NULL};
  const int index = frame->index;
  for (int i = 0; i < plan->num_rules && fault.error == NULL; i++) {
    inject_rule *rule = &plan->rules[i];
    unsigned char *memory;
    uint64_t number;
    if (!rule->functions[index] || !inject_concerns(rule, client)) continue;
    if (rule->fate == INJECT_FLIPPED && inject_host_memory(index, args, &memory) == 0) continue;
    if (!hits(rule, &number)) continue;
    if (rule->slow > 0) pjrt_sleep((double)rule->slow * 1e-9);
    if (rule->fails) fault.error = inject_error(rule, frame->function->name, number);
    if (rule->fate != INJECT_NO_FATE && fault.ready == NULL) fault.ready = rule;
  }
  return fault;
}

/* A call with an object: its client and its end are known, and its results are remembered. */
static void *make_call(inject *inject, uint8_t parts, pjrt_frame *frame, void *args, void *client,
                       const inject_rule *ready) {
  const int index = frame->index;
  void *result;
  if (!(parts & INJECT_BY_OBJECTS)) return pjrt_next(frame, args);
  if (inject_event_call(inject, frame, args, &result)) return result;
  if (ready == NULL) ready = inject_inherited(inject, frame, args);
  if (index == PJRT_FUNCTION_Client_Destroy) {
    client = INJECT_ARG(Client_Destroy, client); /* also one whose creation nobody saw */
    inject_end_events(inject, client);
  }
  inject_forget_destroyed(inject, frame, args);
  result = pjrt_next(frame, args);
  if (index == PJRT_FUNCTION_Client_Destroy) inject_forget_client(inject, client);
  if (result != NULL) return result;
  inject_note_results(inject, frame, args, client, ready);
  if (parts & INJECT_BY_MEMORY) inject_count_memory(inject, frame, args);
  return NULL;
}

/* Destroys what a call has made that returns an error all the same. */
static void destroy_results(inject *inject, const pjrt_frame *frame, const void *args) {
  const pjrt_struct *type = frame->function->args;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->direction != PJRT_OUT || field->kind != PJRT_KIND_HANDLE || !(field->marks & PJRT_MARK_CREATES)) continue;
    if (!pjrt_has_field(type, field, args)) continue;
    const int function = pjrt_handles[field->type].destroyed_by;
    /* All functions that destroy have the handle as their first field behind the head. */
    PJRT_Event_Destroy_Args destroy = {PJRT_Event_Destroy_Args_STRUCT_SIZE, NULL, pjrt_pointer_in(field, args)};
    if (function >= 0 && destroy.event != NULL) inject_succeeds(inject, function, &destroy);
  }
}

static void *call(void *state, pjrt_frame *frame, void *args) {
  inject *inject = state;
  inject_plan *plan = atomic_load_explicit(&inject->plan, memory_order_acquire);
  const uint8_t parts = plan->parts[frame->index];
  if (parts == 0) return pjrt_next(frame, args);
  int64_t number = -1;
  void *client = parts & INJECT_BY_OBJECTS ? inject_client_of(inject, frame, args, &number) : NULL;
  fault fault = {NULL, NULL};
  if (parts & INJECT_BY_RULES) fault = fault_of(plan, frame, args, number);
  if (fault.error == NULL && (parts & INJECT_BY_MEMORY))
    fault.error = inject_check_memory(inject, plan, frame, args, number);
  if (fault.error == NULL) return make_call(inject, parts, frame, args, client, fault.ready);
  if (!must_be_made(frame->function)) {
    pjrt_clear_outputs(frame->function->args, args);
    return fault.error;
  }
  void *result = make_call(inject, parts, frame, args, client, NULL);
  if (result != NULL) {
    inject_destroy_error(inject, fault.error);
    return result;
  }
  destroy_results(inject, frame, args);
  pjrt_clear_outputs(frame->function->args, args);
  return fault.error;
}

static void *callback(void *state, pjrt_frame *frame, void *args) {
  inject *inject = state;
  if (!atomic_load(&inject->plan)->follows_objects || frame->index != PJRT_CALLBACK_Event_OnReadyCallback || frame->origin == NULL)
    return pjrt_next_callback(frame, args);
  return inject_on_ready(inject, frame, args);
}

/* ---- the layer ----------------------------------------------------------------------------------------------------*/
static void *open_layer(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  inject *inject = calloc(1, sizeof *inject);
  inject_plan *plan = inject_read_rules(options, problem, problem_size);
  if (inject == NULL || plan == NULL) {
    if (inject == NULL) snprintf(problem, problem_size, "inject: no memory is left");
    free(inject);
    return NULL;
  }
  inject->stack = stack;
  atomic_init(&inject->plan, plan);
  pjrt_mutex_init(&inject->mutex);
  pjrt_condition_init(&inject->condition);
  return inject;
}

const pjrt_layer pjrt_layer_inject = {.name = "inject", .open = open_layer, .call = call, .callback = callback};

/* ---- for Python ---------------------------------------------------------------------------------------------------*/
static inject *layer_at(const PJRT_Api *table, int position) {
  const pjrt_stack *stack = pjrt_stack_of(table);
  if (stack == NULL || position < 0 || position >= stack->num_layers) return NULL;
  return stack->layers[position].layer == &pjrt_layer_inject ? stack->layers[position].state : NULL;
}

/* How often a rule was asked and how often its fault happened; returns its text, null behind the last one. */
PJRT_EXPORTED const char *pjrt_layer_inject_rule(const PJRT_Api *table, int position, int rule, uint64_t *calls,
                                                 uint64_t *faults) {
  const inject *inject = layer_at(table, position);
  inject_plan *plan = inject != NULL ? atomic_load(&inject->plan) : NULL;
  if (plan == NULL || rule < 0 || rule >= plan->num_rules) return NULL;
  *calls = atomic_load(&plan->rules[rule].calls);
  *faults = atomic_load(&plan->rules[rule].hits);
  return plan->rules[rule].text;
}

/* Replaces the rules. What is followed once is followed on: the ends of objects must be seen. Returns 0 with the reason in
 * `problem`, which stays empty if there is no such layer. */
PJRT_EXPORTED int pjrt_layer_inject_rules(const PJRT_Api *table, int position, const char *options, char *problem,
                                          size_t problem_size) {
  inject *inject = layer_at(table, position);
  inject_plan *plan = inject != NULL ? inject_read_rules(options, problem, problem_size) : NULL;
  if (plan == NULL) return 0;
  const inject_plan *before = atomic_load(&inject->plan);
  const uint8_t kept = INJECT_BY_OBJECTS | INJECT_BY_MEMORY;
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) plan->parts[i] |= before->parts[i] & kept;
  plan->follows_objects |= before->follows_objects;
  plan->limits_memory |= before->limits_memory;
  atomic_store_explicit(&inject->plan, plan, memory_order_release);
  return 1;
}
