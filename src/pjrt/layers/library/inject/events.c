/* The readiness of events that a rule decides over: never, with an error, or with a wrong bit in what was read. */
#include <stdlib.h>

#include "inject.h"

/* A callback that waits for the end of its event, with copies of what lies on the plugin's stack. */
typedef struct inject_held {
  pjrt_frame frame;
  pjrt_callback_origin origin;
  struct {
    PJRT_Error *error;
    void *user_arg;
  } args;
  struct inject_held *next;
} inject_held;

/* ---- reads --------------------------------------------------------------------------------------------------------*/
bool inject_reads(int function) {
  return function == PJRT_FUNCTION_Buffer_ToHostBuffer || function == PJRT_FUNCTION_Buffer_CopyRawToHost ||
         function == PJRT_FUNCTION_RawBuffer_CopyRawDeviceToHost;
}

size_t inject_host_memory(int function, const void *args, unsigned char **memory) {
  size_t size = 0;
  *memory = NULL;
  if (function == PJRT_FUNCTION_Buffer_ToHostBuffer) {
    *memory = INJECT_ARG(Buffer_ToHostBuffer, dst);
    size = INJECT_ARG(Buffer_ToHostBuffer, dst_size);
  } else if (function == PJRT_FUNCTION_Buffer_CopyRawToHost) {
    *memory = INJECT_ARG(Buffer_CopyRawToHost, dst);
    size = (size_t)INJECT_ARG(Buffer_CopyRawToHost, transfer_size);
  } else if (function == PJRT_FUNCTION_RawBuffer_CopyRawDeviceToHost) {
    *memory = INJECT_ARG(RawBuffer_CopyRawDeviceToHost, dst);
    size = (size_t)INJECT_ARG(RawBuffer_CopyRawDeviceToHost, transfer_size);
  }
  return *memory != NULL ? size : 0;
}

void inject_flip(inject *inject, const void *event) {
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, event);
  if (object != NULL && object->flipped != NULL) {
    *object->flipped ^= object->mask;
    object->flipped = NULL;
  }
  pjrt_mutex_unlock(&inject->mutex);
}

/* ---- the end of what is never ready -------------------------------------------------------------------------------*/
static PJRT_Error *end_error(const inject_rule *rule) {
  return pjrt_make_error(PJRT_Error_Code_CANCELLED,
                         "the event was never ready, as rule %d (%s) asks for; it ended with its client or its handle",
                         rule->number, rule->text);
}

/* Ends an event, with the mutex held; returns the callbacks that are now to be made, without it. */
static inject_held *end(inject *inject, inject_object *event) {
  inject_held *held = event->held;
  event->ended = true;
  event->held = NULL;
  pjrt_condition_broadcast(&inject->condition);
  return held;
}

static void make_callbacks(inject *inject, inject_held *held, const inject_rule *rule) {
  while (held != NULL) {
    inject_held *next = held->next;
    inject_destroy_error(inject, held->args.error);
    held->args.error = end_error(rule);
    pjrt_next_callback(&held->frame, &held->args);
    free(held);
    held = next;
  }
}

static bool is_never_ready(const inject_object *object) {
  return object->kind == PJRT_HANDLE_Event && object->rule != NULL && object->rule->fate == INJECT_NEVER_READY;
}

void inject_end_event(inject *inject, const void *event) {
  inject_held *held = NULL;
  const inject_rule *rule = NULL;
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, event);
  if (object != NULL && is_never_ready(object)) {
    rule = object->rule;
    held = end(inject, object);
  }
  pjrt_mutex_unlock(&inject->mutex);
  make_callbacks(inject, held, rule);
}

void inject_end_events(inject *inject, const void *client) {
  const inject_rule *rule;
  do { /* callbacks destroy events: after each one the table may be another */
    inject_held *held = NULL;
    rule = NULL;
    pjrt_mutex_lock(&inject->mutex);
    for (int i = 0; i < INJECT_BUCKETS && rule == NULL; i++) {
      inject_object *object = inject->buckets[i];
      while (object != NULL && (object->ended || !is_never_ready(object) ||
                                (object->client != client && object->client != NULL)))
        object = object->next;
      if (object == NULL) continue;
      rule = object->rule;
      held = end(inject, object);
    }
    pjrt_mutex_unlock(&inject->mutex);
    make_callbacks(inject, held, rule);
  } while (rule != NULL);
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
static PJRT_Error *await_end(inject *inject, inject_object *event) {
  const inject_rule *rule = event->rule;
  event->waiting++;
  while (!event->ended && !event->gone) pjrt_condition_wait(&inject->condition, &inject->mutex);
  if (--event->waiting == 0 && event->gone) free(event);
  return end_error(rule);
}

/* Does a call of an event that is never ready, with the mutex held; false if the plugin is to do it. */
static bool never_ready_call(inject *inject, inject_object *event, int function, void *args, void **result) {
  *result = NULL;
  if (function == PJRT_FUNCTION_Event_IsReady) {
    INJECT_ARG(Event_IsReady, is_ready) = event->ended;
  } else if (function == PJRT_FUNCTION_Event_Await) {
    *result = await_end(inject, event);
  } else if (function == PJRT_FUNCTION_Event_Error) {
    *result = event->ended ? end_error(event->rule)
                           : pjrt_make_error(PJRT_Error_Code_FAILED_PRECONDITION, "the event is not ready");
  } else {
    return false;
  }
  return true;
}

bool inject_event_call(inject *inject, pjrt_frame *frame, void *args, void **result) {
  const int function = frame->index;
  if (function != PJRT_FUNCTION_Event_IsReady && function != PJRT_FUNCTION_Event_Await &&
      function != PJRT_FUNCTION_Event_Error)
    return false;
  PJRT_Event *event = INJECT_ARG(Event_Await, event); /* the first field behind the head in all three */
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, event);
  const inject_rule *rule = object != NULL ? object->rule : NULL;
  const bool done = rule != NULL && rule->fate == INJECT_NEVER_READY &&
                    never_ready_call(inject, object, function, args, result);
  pjrt_mutex_unlock(&inject->mutex);
  if (done || rule == NULL) return done;
  *result = pjrt_next(frame, args);
  if (*result != NULL) return true;
  const bool ready = function != PJRT_FUNCTION_Event_IsReady || INJECT_ARG(Event_IsReady, is_ready);
  if (rule->fate == INJECT_FLIPPED && ready) inject_flip(inject, event);
  if (rule->fate == INJECT_READY_WITH_ERROR && function != PJRT_FUNCTION_Event_IsReady)
    *result = inject_error(rule, NULL, 0);
  return true;
}

void *inject_on_ready(inject *inject, pjrt_frame *frame, void *args) {
  inject_held *held = NULL;
  PJRT_Error **error = args; /* the first parameter */
  const void *event = frame->origin->handle;
  pjrt_mutex_lock(&inject->mutex);
  inject_object *object = inject_find(inject, event);
  const inject_rule *rule = object != NULL ? object->rule : NULL;
  const bool ended = rule != NULL && object->ended;
  if (rule != NULL && rule->fate == INJECT_NEVER_READY && !ended) {
    held = malloc(sizeof *held);
    if (held != NULL) {
      held->frame = *frame;
      held->origin = *frame->origin;
      held->frame.origin = &held->origin;
      held->args.error = *error;
      held->args.user_arg = ((void **)args)[1];
      held->next = object->held;
      object->held = held;
    }
  }
  pjrt_mutex_unlock(&inject->mutex);
  if (held != NULL) return NULL;
  if (rule != NULL && rule->fate == INJECT_FLIPPED && *error == NULL) inject_flip(inject, event);
  if (rule != NULL && rule->fate == INJECT_READY_WITH_ERROR && *error == NULL)
    *error = inject_error(rule, NULL, 0);
  if (ended && *error == NULL) *error = end_error(rule);
  return pjrt_next_callback(frame, args);
}
