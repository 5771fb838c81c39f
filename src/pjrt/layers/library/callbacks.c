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
#include "callback_records.h"

static void *enter_callback(int kind, void **user_data, void *args);

#include "generated/callbacks.h"

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

static void put(pjrt_patches *done, void **where, void *value, pjrt_token token, int kind) {
  if (done != NULL) {
    done->list[done->count].place = where;
    done->list[done->count].old = *where;
    done->list[done->count].token = token;
    done->list[done->count++].kind = kind;
  }
  *where = value;
}

static void put_back(pjrt_patches *done) {
  while (done->count > 0) {
    done->count--;
    *done->list[done->count].place = done->list[done->count].old;
  }
}

/* A token for a callback of this kind; 0 if it stays as it is. */
static pjrt_token token_for(const pjrt_place *from, int kind, void (*target)(void), void *user_arg) {
  const pjrt_record record = {{(uint16_t)from->function, from->handle, target, user_arg, 0}, from->stack, (uint16_t)kind,
                              from->up, lifetime_of(kind) == LIVES_ONCE};
  return pjrt_record_new(&record);
}

void pjrt_replace_field(const pjrt_place *from, const pjrt_struct *type, int index, char *base, pjrt_patches *done) {
  const pjrt_field *field = &type->fields[index];
  void **function = (void **)(base + field->offset);
  const int kind = field->type;
  if (*function == NULL || kind < 0 || stand_ins[kind].target == NULL) return;
  /* It may be called for each of several transfers, or never, and nothing tells when that is over. */
  if (kind == PJRT_CALLBACK_Transfers_CrossHostSendCancelNotifier) return;
  void (*target)(void);
  memcpy(&target, function, sizeof target);
  if (stand_ins[kind].user_data < 0) {
    void (*entry)(void) = pjrt_plain_entry(from->stack, kind, from->function, from->up, target);
    void *value;
    memcpy(&value, &entry, sizeof value);
    if (done == NULL || done->count < PJRT_MAX_PATCHES) put(done, function, value, 0, kind);
    return;
  }
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *data = &type->fields[i];
    if (data->kind != PJRT_KIND_USER_DATA || data->owner != index || !pjrt_has_field(type, data, base)) continue;
    if (done != NULL && done->count + 2 > PJRT_MAX_PATCHES) return;
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
static void replace(const pjrt_place *from, const pjrt_struct *type, void *struct_base, pjrt_direction direction,
                    pjrt_patches *done) {
  char *base = struct_base;
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->direction != direction || !pjrt_has_field(type, field, base)) continue;
    if (field->kind == PJRT_KIND_CALLBACK) {
      pjrt_replace_field(from, type, i, base, done);
    } else if (field->kind == PJRT_KIND_STRUCT_VALUE) {
      replace(from, &pjrt_structs[field->type], base + field->offset, direction, done);
    } else if (field->kind == PJRT_KIND_STRUCT && field->type == PJRT_STRUCT_Chunk) {
      void *chunk = *(void **)(base + field->offset);
      if (chunk != NULL) replace(from, &pjrt_structs[PJRT_STRUCT_Chunk], chunk, direction, done);
    }
  }
}

/* Calls. */

void *pjrt_run_callback(pjrt_stack *stack, int kind, bool up, const pjrt_callback_origin *origin, void *args) {
  const int16_t start = up ? stack->num_layers : -1;
  pjrt_frame frame = {stack, &pjrt_callbacks[kind], (uint16_t)kind, start, up, origin};
  return pjrt_next_callback(&frame, args);
}

static void *enter_callback(int kind, void **user_data, void *args) {
  const pjrt_token token = (pjrt_token)*user_data;
  pjrt_record record;
  memset(&record, 0, sizeof record);
  if (!pjrt_record_use(token, &record)) { /* called again, or too late */
    if (record.stack == NULL) return NULL;
    return pjrt_run_callback(record.stack, kind, record.up, NULL, args);
  }
  *user_data = record.origin.user_arg;
  record.origin.token = token;
  void *result = pjrt_run_callback(record.stack, kind, record.up, &record.origin, args);
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
  const pjrt_place from = {frame->stack, frame->origin->function, frame->origin->handle, !frame->up};
  pjrt_patches done = {0};
  /* What a callback is given is called the other way; what it returns (the deleter of a value) its own way. */
  replace(&from, frame->function->args, args, PJRT_IN, &done);
  void *result = stand_ins[kind].target(frame->origin->target, args);
  put_back(&done);
  const pjrt_place back = {frame->stack, frame->origin->function, frame->origin->handle, frame->up};
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
  if (frame->index == PJRT_FUNCTION_LoadedExecutable_Execute) return pjrt_execute_with_callbacks(frame, slot, args);
  const pjrt_field *method_of = function->handle >= 0 ? &function->args->fields[function->handle] : NULL;
  void *handle = method_of != NULL && pjrt_has_field(function->args, method_of, args)
                     ? *(void **)((char *)args + method_of->offset)
                     : NULL;
  if (frame->index == PJRT_FUNCTION_Client_Destroy) {
    void *result = slot(args);
    if (result == NULL) end_client(frame->stack, handle);
    return result;
  }
  const pjrt_place from = {frame->stack, frame->index, handle, true};
  pjrt_patches done = {0};
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
  const pjrt_place back = {frame->stack, frame->index, handle, false};
  if (success) replace(&back, function->args, args, PJRT_OUT, NULL);
  return result;
}
