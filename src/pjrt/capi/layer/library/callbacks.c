/* Callbacks: each function pointer that one side hands to the other is replaced by one of ours, so that layers see its
 * calls too.
 *
 * A callback with user data gets a record, which its user data then names; how long the record lives follows from the
 * kind of callback. A callback without user data (a deleter that is called with nothing but what it deletes) gets one of
 * a few functions made for its stack and kind, of which each remembers one target: plugins have one deleter of a kind. A
 * callback for which none is left stays as it is, and so do those that no header describes. */
#include "callbacks.h"

#include <stdlib.h>
#include <string.h>

#include "pjrt_support/system.h"
#include "records.h"
#include "trampolines.h"

static void *enter_callback(int kind, void **user_data, void *args);

#include "_gen_callbacks.h"

enum { NUM_VARIANTS = 4, MAX_PATCHES = 16 };

/* Callbacks without user data. */

typedef struct plain_target {
  void (*_Atomic target)(void);
  _Atomic uint32_t origin; /* the function that it was handed over with, and whether it is called by the plugin */
} plain_target;

static plain_target plain_targets[PJRT_MAX_STACKS][PJRT_NUM_CALLBACKS][NUM_VARIANTS];

static void *run_callback(pjrt_stack *stack, int kind, bool up, const pjrt_callback_origin *origin, void *args) {
  const int16_t start = up ? stack->num_layers : -1;
  pjrt_frame frame = {stack, &pjrt_callbacks[kind], (uint16_t)kind, start, up, origin};
  return pjrt_next_callback(&frame, args);
}

__attribute__((used, visibility("hidden"))) void pjrt_enter_plain(void *parameter, unsigned number) {
  const unsigned variant = number % NUM_VARIANTS, kind = number / NUM_VARIANTS % PJRT_NUM_CALLBACKS;
  const unsigned stack = number / NUM_VARIANTS / PJRT_NUM_CALLBACKS;
  plain_target *plain = &plain_targets[stack][kind][variant];
  const uint32_t packed = atomic_load(&plain->origin);
  const pjrt_callback_origin origin = {(uint16_t)(packed >> 1), NULL, atomic_load(&plain->target), NULL, 0};
  run_callback(pjrt_stack_at((int)stack), (int)kind, packed & 1, &origin, &parameter);
}

PJRT_DEFINE_TRAMPOLINES(pjrt_plain_callbacks, PJRT_MAX_STACKS * PJRT_NUM_CALLBACKS * NUM_VARIANTS, pjrt_enter_plain)

/* Ours for a callback without user data; the callback itself if none is left. */
static void (*plain_entry(const pjrt_stack *stack, int kind, int function, bool up, void (*target)(void)))(void) {
  const uint32_t origin = (uint32_t)function << 1 | up;
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
    if (unused == target) return entry;
  }
  return target;
}

/* Replacing callbacks in structs. */

typedef enum { LIVES_ONCE, LIVES_CALL, LIVES_EXECUTION, LIVES_CLIENT, LIVES_FOREVER } lifetime;

static lifetime lifetime_of(int kind) {
  switch (kind) {
    case PJRT_CALLBACK_Error_PayloadVisitor:
      return LIVES_CALL;
    case PJRT_CALLBACK_SendCallback:
    case PJRT_CALLBACK_RecvCallback:
    case PJRT_CALLBACK_HloOutputCallback:
      return LIVES_EXECUTION;
    case PJRT_CALLBACK_KeyValueGetCallback:
    case PJRT_CALLBACK_KeyValueTryGetCallback:
    case PJRT_CALLBACK_KeyValuePutCallback:
    case PJRT_CALLBACK_Callback_Function:
      return LIVES_CLIENT;
    case PJRT_CALLBACK_Megascale_ErrorHandler:
      return LIVES_FOREVER;
    default:
      return LIVES_ONCE;
  }
}

/* What was replaced by a call, to put it back: the struct belongs to the caller. */
typedef struct patches {
  int count;
  struct {
    void **place;
    void *old;
    pjrt_token token; /* 0: of a callback without user data */
    int kind;
  } list[MAX_PATCHES];
} patches;

typedef struct place {
  pjrt_stack *stack;
  int function;
  void *handle;
  bool up; /* of callbacks that are handed over now */
} place;

static void put(patches *done, void **where, void *value, pjrt_token token, int kind) {
  if (done != NULL) {
    done->list[done->count].place = where;
    done->list[done->count].old = *where;
    done->list[done->count].token = token;
    done->list[done->count++].kind = kind;
  }
  *where = value;
}

static void put_back(patches *done) {
  while (done->count > 0) {
    done->count--;
    *done->list[done->count].place = done->list[done->count].old;
  }
}

/* A token for a callback of this kind; 0 if it stays as it is. */
static pjrt_token token_for(const place *from, int kind, void (*target)(void), void *user_arg) {
  const pjrt_record record = {{(uint16_t)from->function, from->handle, target, user_arg, 0}, from->stack, (uint16_t)kind,
                              from->up, lifetime_of(kind) == LIVES_ONCE};
  return pjrt_record_new(&record);
}

static void replace_field(const place *from, const pjrt_struct *type, int index, char *base, patches *done) {
  const pjrt_field *field = &type->fields[index];
  void **function = (void **)(base + field->offset);
  const int kind = field->type;
  if (*function == NULL || kind < 0 || stand_ins[kind].target == NULL) return;
  void (*target)(void);
  memcpy(&target, function, sizeof target);
  if (stand_ins[kind].user_data < 0) {
    void (*entry)(void) = plain_entry(from->stack, kind, from->function, from->up, target);
    void *value;
    memcpy(&value, &entry, sizeof value);
    if (done == NULL || done->count < MAX_PATCHES) put(done, function, value, 0, kind);
    return;
  }
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *data = &type->fields[i];
    if (data->kind != PJRT_KIND_USER_DATA || data->owner != index || !pjrt_has_field(type, data, base)) continue;
    if (done != NULL && done->count + 2 > MAX_PATCHES) return;
    void **user_data = (void **)(base + data->offset);
    const pjrt_token token = token_for(from, kind, target, *user_data);
    if (token == 0) return;
    void *entry;
    memcpy(&entry, &stand_ins[kind].entry, sizeof entry);
    put(done, function, entry, token, kind);
    put(done, user_data, (void *)token, 0, kind);
    return;
  }
}

/* Replaces the callbacks of one direction in a struct and in the structs that it holds. With `done` they can be put
 * back; without, they stay. */
static void replace(const place *from, const pjrt_struct *type, void *struct_base, pjrt_direction direction,
                    patches *done) {
  char *base = struct_base;
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->direction != direction || !pjrt_has_field(type, field, base)) continue;
    if (field->kind == PJRT_KIND_CALLBACK) {
      replace_field(from, type, i, base, done);
    } else if (field->kind == PJRT_KIND_STRUCT_VALUE) {
      replace(from, &pjrt_structs[field->type], base + field->offset, direction, done);
    } else if (field->kind == PJRT_KIND_STRUCT && field->type == PJRT_STRUCT_Chunk) {
      void *chunk = *(void **)(base + field->offset);
      if (chunk != NULL) replace(from, &pjrt_structs[PJRT_STRUCT_Chunk], chunk, direction, done);
    }
  }
}

/* Calls. */

static void *enter_callback(int kind, void **user_data, void *args) {
  const pjrt_token token = (pjrt_token)*user_data;
  pjrt_record record;
  memset(&record, 0, sizeof record);
  if (!pjrt_record_use(token, &record)) { /* called again, or too late */
    if (record.stack == NULL) return NULL;
    return run_callback(record.stack, kind, record.up, NULL, args);
  }
  *user_data = record.origin.user_arg;
  record.origin.token = token;
  void *result = run_callback(record.stack, kind, record.up, &record.origin, args);
  /* A struct of arguments is the caller's own: it gets back what it set. Parameters are a copy of ours. */
  *user_data = (void *)token;
  return result;
}

void *pjrt_next_callback(pjrt_frame *frame, void *args) {
  pjrt_stack *stack = frame->stack;
  const int16_t here = frame->position, step = frame->up ? -1 : 1;
  int16_t next = here + step;
  while (next >= 0 && next < stack->num_layers &&
         (!pjrt_layer_enabled(stack, next) || stack->layers[next].layer->callback == NULL))
    next += step;
  frame->position = next;
  void *result = next >= 0 && next < stack->num_layers
                     ? stack->layers[next].layer->callback(stack->layers[next].state, frame, args)
                     : pjrt_call_target(frame, args);
  frame->position = here;
  return result;
}

void *pjrt_call_target(pjrt_frame *frame, void *args) {
  const int kind = frame->index;
  if (frame->origin == NULL) return NULL;
  const place from = {frame->stack, frame->origin->function, frame->origin->handle, !frame->up};
  patches done = {0};
  /* What a callback is given is called the other way; what it returns (the deleter of a value) its own way. */
  replace(&from, frame->function->args, args, PJRT_IN, &done);
  void *result = stand_ins[kind].target(frame->origin->target, args);
  put_back(&done);
  const place back = {frame->stack, frame->origin->function, frame->origin->handle, frame->up};
  replace(&back, frame->function->args, args, PJRT_OUT, NULL);
  return result;
}

/* Callbacks that live as long as a client. */

typedef struct client_token {
  pjrt_stack *stack;
  void *client;
  pjrt_token token;
  struct client_token *next;
} client_token;

static pjrt_mutex clients_mutex = PJRT_MUTEX_INITIALIZER;
static client_token *client_tokens;

static void keep_for_client(pjrt_stack *stack, void *client, pjrt_token token) {
  client_token *one = malloc(sizeof *one);
  if (one == NULL) return; /* then the record lives as long as the process */
  *one = (client_token){stack, client, token, NULL};
  pjrt_mutex_lock(&clients_mutex);
  one->next = client_tokens;
  client_tokens = one;
  pjrt_mutex_unlock(&clients_mutex);
}

static void end_client(pjrt_stack *stack, const void *client) {
  client_token *ended = NULL;
  pjrt_mutex_lock(&clients_mutex);
  for (client_token **link = &client_tokens; *link != NULL;) {
    client_token *one = *link;
    if (one->stack != stack || one->client != client) {
      link = &one->next;
      continue;
    }
    *link = one->next;
    one->next = ended;
    ended = one;
  }
  pjrt_mutex_unlock(&clients_mutex);
  while (ended != NULL) {
    client_token *next = ended->next;
    pjrt_record_end(ended->token);
    free(ended);
    ended = next;
  }
}

/* Callbacks of an execution: lists of structs behind the options. They are copied, not changed in place: frameworks give
 * the same options to several threads. */

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

static void replace_in_execution(const place *from, const pjrt_struct *type, void *info, execution *one) {
  for (int i = 0; i < type->num_fields; i++) {
    if (type->fields[i].kind != PJRT_KIND_CALLBACK) continue;
    patches done = {0};
    replace_field(from, type, i, info, &done);
    if (done.count > 0 && done.list[0].token != 0 && one->num_tokens < one->max_tokens)
      one->tokens[one->num_tokens++] = done.list[0].token;
  }
}

/* A copy of lists[num_devices][num_ops] with our callbacks; null if there is no memory. */
static void *copy_lists(const place *from, int struct_index, size_t size, void *const *lists, size_t num_devices,
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

static execution *new_execution(const place *from, const PJRT_LoadedExecutable_Execute_Args *args, size_t number) {
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

static void *execute(pjrt_frame *frame, pjrt_slot slot, PJRT_LoadedExecutable_Execute_Args *args) {
  const bool complete_struct = args->struct_size >= offsetof(PJRT_LoadedExecutable_Execute_Args, execute_device);
  const size_t number =
      complete_struct && args->options != NULL ? num_execution_callbacks(args->options, args->num_devices) : 0;
  const place from = {frame->stack, frame->index, args->executable, true};
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

/* Whether a struct, or one in it, has a callback that is replaced. */
static bool has_callbacks(const pjrt_struct *type) {
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->kind == PJRT_KIND_CALLBACK) return true;
    if (field->kind == PJRT_KIND_STRUCT_VALUE && has_callbacks(&pjrt_structs[field->type])) return true;
    if (field->kind == PJRT_KIND_STRUCT && field->type == PJRT_STRUCT_Chunk) return true;
  }
  return false;
}

bool pjrt_moves_callbacks(int function) {
  return function == PJRT_FUNCTION_LoadedExecutable_Execute || function == PJRT_FUNCTION_Client_Destroy ||
         has_callbacks(pjrt_functions[function].args);
}

void *pjrt_call_with_callbacks(pjrt_frame *frame, pjrt_slot slot, void *args) {
  const pjrt_function *function = frame->function;
  if (args == NULL) return slot(args);
  if (frame->index == PJRT_FUNCTION_LoadedExecutable_Execute) return execute(frame, slot, args);
  const pjrt_field *method_of = function->handle >= 0 ? &function->args->fields[function->handle] : NULL;
  void *handle = method_of != NULL && pjrt_has_field(function->args, method_of, args)
                     ? *(void **)((char *)args + method_of->offset)
                     : NULL;
  if (frame->index == PJRT_FUNCTION_Client_Destroy) {
    void *result = slot(args);
    if (result == NULL) end_client(frame->stack, handle);
    return result;
  }
  const place from = {frame->stack, frame->index, handle, true};
  patches done = {0};
  replace(&from, function->args, args, PJRT_IN, &done);
  void *result = slot(args);
  const bool success = function->result == PJRT_RESULT_NOTHING || result == NULL;
  void *client = frame->index == PJRT_FUNCTION_Client_Create ? (void *)((PJRT_Client_Create_Args *)args)->client : handle;
  for (int i = 0; i < done.count; i++) {
    const pjrt_token token = done.list[i].token;
    if (token == 0) continue;
    const lifetime lives = lifetime_of(done.list[i].kind);
    if (!success || lives == LIVES_CALL) pjrt_record_end(token);
    else if (lives == LIVES_CLIENT) keep_for_client(frame->stack, client, token);
  }
  put_back(&done);
  const place back = {frame->stack, frame->index, handle, false};
  if (success) replace(&back, function->args, args, PJRT_OUT, NULL);
  return result;
}
