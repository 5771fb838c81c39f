/* Callbacks of an execution: lists of structs behind its options. They are copied, not changed in place: frameworks may give
 * the same options to several threads. */
#include <stdlib.h>
#include <string.h>

#include "callbacks.h"
#include "callback_records.h"

typedef struct execution {
  pjrt_stack *stack;
  _Atomic size_t devices; /* which are not complete yet */
  bool own_events;
  PJRT_ExecuteOptions *options;
  PJRT_Event **events;
  void *memory[4];
  size_t num_tokens, max_tokens;
  pjrt_token tokens[];
} execution;

static size_t num_execution_callbacks(const PJRT_ExecuteOptions *options, size_t num_devices) {
  size_t number = 0;
  if (options->struct_size >= offsetof(PJRT_ExecuteOptions, num_recv_ops) + sizeof options->num_recv_ops) {
    if (options->send_callbacks != NULL) number += num_devices * options->num_send_ops;
    if (options->recv_callbacks != NULL) number += num_devices * options->num_recv_ops;
  }
  if (options->struct_size >= PJRT_ExecuteOptions_STRUCT_SIZE && options->hlo_output_callbacks != NULL)
    number += options->num_hlo_output_callbacks;
  return number;
}

static void end_execution(execution *one) {
  for (size_t i = 0; i < one->num_tokens; i++) pjrt_record_retire(one->tokens[i]);
  for (size_t i = 0; i < sizeof one->memory / sizeof *one->memory; i++) free(one->memory[i]);
  free(one->options);
  free(one->events);
  free(one);
}

static void replace_in_execution(const pjrt_place *from, const pjrt_struct *type, void *info, execution *one) {
  for (int i = 0; i < type->num_fields; i++) {
    if (type->fields[i].kind != PJRT_KIND_CALLBACK) continue;
    pjrt_patches done = {0};
    pjrt_replace_field(from, type, i, info, &done);
    if (done.count > 0 && done.list[0].token != 0 && one->num_tokens < one->max_tokens)
      one->tokens[one->num_tokens++] = done.list[0].token;
  }
}

/* A copy of lists[num_devices][num_ops] with our callbacks; null if there is no memory. */
static void *copy_lists(const pjrt_place *from, int struct_index, size_t size, void *const *lists, size_t num_devices,
                        size_t num_ops, execution *one) {
  void **copy = calloc(1, num_devices * (sizeof *copy + num_ops * size));
  if (copy == NULL) return NULL;
  char *infos = (char *)(copy + num_devices);
  for (size_t device = 0; device < num_devices; device++) {
    if (lists[device] == NULL) continue;
    copy[device] = infos + device * num_ops * size;
    memcpy(copy[device], lists[device], num_ops * size);
    for (size_t op = 0; op < num_ops; op++)
      replace_in_execution(from, &pjrt_structs[struct_index], (char *)copy[device] + op * size, one);
  }
  return copy;
}

static execution *new_execution(const pjrt_place *from, const PJRT_LoadedExecutable_Execute_Args *args, size_t number) {
  const size_t size = args->options->struct_size, devices = args->num_devices;
  execution *one = calloc(1, sizeof *one + number * sizeof *one->tokens);
  PJRT_ExecuteOptions *options = size < (1 << 16) ? calloc(1, size > sizeof *options ? size : sizeof *options) : NULL;
  if (one == NULL || options == NULL) {
    free(one);
    free(options);
    return NULL;
  }
  one->stack = from->stack;
  one->max_tokens = number;
  one->options = options;
  memcpy(options, args->options, size);
  if (options->send_callbacks != NULL && options->num_send_ops > 0) {
    one->memory[0] = copy_lists(from, PJRT_STRUCT_SendCallbackInfo, sizeof(PJRT_SendCallbackInfo),
                                (void *const *)options->send_callbacks, devices, options->num_send_ops, one);
    if (one->memory[0] != NULL) options->send_callbacks = one->memory[0];
  }
  if (options->recv_callbacks != NULL && options->num_recv_ops > 0) {
    one->memory[1] = copy_lists(from, PJRT_STRUCT_RecvCallbackInfo, sizeof(PJRT_RecvCallbackInfo),
                                (void *const *)options->recv_callbacks, devices, options->num_recv_ops, one);
    if (one->memory[1] != NULL) options->recv_callbacks = one->memory[1];
  }
  if (size >= PJRT_ExecuteOptions_STRUCT_SIZE && options->hlo_output_callbacks != NULL) {
    void *const list = options->hlo_output_callbacks;
    void **copy = copy_lists(from, PJRT_STRUCT_HloOutputCallbackInfo, sizeof(PJRT_HloOutputCallbackInfo), &list, 1,
                             options->num_hlo_output_callbacks, one);
    one->memory[2] = copy;
    if (copy != NULL) options->hlo_output_callbacks = copy[0];
  }
  return one;
}

static void destroy_event(pjrt_stack *stack, PJRT_Event *event) {
  PJRT_Event_Destroy_Args args = {PJRT_Event_Destroy_Args_STRUCT_SIZE, NULL, event};
  void *nothing;
  pjrt_call_below(stack, PJRT_FUNCTION_Event_Destroy, &args, &nothing);
}

static void destroy_error(pjrt_stack *stack, PJRT_Error *error) {
  PJRT_Error_Destroy_Args args = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, error};
  void *nothing;
  if (error != NULL) pjrt_call_below(stack, PJRT_FUNCTION_Error_Destroy, &args, &nothing);
}

static void device_complete(PJRT_Error *error, void *user_arg) {
  execution *one = user_arg;
  destroy_error(one->stack, error);
  if (atomic_fetch_sub(&one->devices, 1) == 1) end_execution(one);
}

/* Has the records end with the execution; its events are those that the framework wanted, or ours. */
static void watch_execution(execution *one, PJRT_Event **events, size_t num_devices) {
  pjrt_stack *stack = one->stack;
  const bool own = one->own_events;
  atomic_store(&one->devices, num_devices + 1);
  for (size_t i = 0; i < num_devices; i++) {
    PJRT_Event_OnReady_Args args = {PJRT_Event_OnReady_Args_STRUCT_SIZE, NULL, events[i], device_complete, one};
    void *error = NULL;
    if (events[i] == NULL || !pjrt_call_below(stack, PJRT_FUNCTION_Event_OnReady, &args, &error) || error != NULL)
      device_complete(error, one); /* an unknown end: the records live on for some thousand others */
    if (own && events[i] != NULL) destroy_event(stack, events[i]);
  }
  device_complete(NULL, one);
}

void *pjrt_execute_with_callbacks(pjrt_frame *frame, pjrt_slot slot, PJRT_LoadedExecutable_Execute_Args *args) {
  const bool complete_struct = args->struct_size >= offsetof(PJRT_LoadedExecutable_Execute_Args, execute_device);
  const size_t number =
      complete_struct && args->options != NULL ? num_execution_callbacks(args->options, args->num_devices) : 0;
  const pjrt_place from = {frame->stack, frame->index, args->executable, true};
  execution *one = number > 0 ? new_execution(&from, args, number) : NULL;
  if (one == NULL) return slot(args);
  PJRT_ExecuteOptions *options = args->options;
  PJRT_Event **events = args->device_complete_events;
  args->options = one->options;
  if (events == NULL) {
    one->own_events = true;
    args->device_complete_events = one->events = calloc(args->num_devices + 1, sizeof *one->events);
  }
  void *error = slot(args);
  PJRT_Event **complete = args->device_complete_events;
  args->options = options;
  args->device_complete_events = events;
  if (error == NULL && complete != NULL) {
    watch_execution(one, complete, args->num_devices);
  } else {
    end_execution(one);
  }
  return error;
}

