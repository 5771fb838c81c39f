/* Events: whether they are ready, who sets and destroys them; callbacks, and waiting inside of them. */
#include <inttypes.h>

#include "validate.h"
#include "host_memory.h"

#define F(name) PJRT_FUNCTION_##name

_Thread_local int pjrt_callback_depth;
static _Thread_local void *event_of_callback; /* the event whose callback this thread is inside of */

/* Copies the record of a live event. */
static bool copy_event(pjrt_check *check, void *event, pjrt_handle_record *copy) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  const pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  const bool live = record != NULL && record->state == PJRT_HANDLE_LIVE;
  if (live) *copy = *record;
  pjrt_handles_unlock(shard);
  return live;
}

bool pjrt_event_is_ready(pjrt_check *check, void *event) {
  PJRT_Event_IsReady_Args args = {.struct_size = PJRT_Event_IsReady_Args_STRUCT_SIZE, .event = event};
  void *error = NULL;
  if (!pjrt_call_below(check->validate->stack, F(Event_IsReady), &args, &error)) return true;
  if (error == NULL) return args.is_ready;
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  pjrt_call_below(check->validate->stack, F(Error_Destroy), &destroy, &error);
  return true; /* unknown: nothing is reported */
}

void pjrt_event_became_ready(pjrt_check *check, void *event) {
  struct pjrt_host_watch *watch = NULL;
  pjrt_host_verdict verdict = PJRT_HOST_SAME;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  if (record != NULL && record->state == PJRT_HANDLE_LIVE) {
    record->ready = true;
    watch = record->watch;
    record->watch = NULL;
    if (watch != NULL) verdict = pjrt_host_watch_compare(watch);
  }
  pjrt_handles_unlock(shard);
  pjrt_host_watch_end(check, watch, verdict);
}

/* Without its event nobody learns when the memory is free again, except that a buffer that uses it in place ends. */
static void keep_watch(pjrt_check *check, void *event) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  struct pjrt_host_watch *watch = record != NULL ? record->watch : NULL;
  if (watch != NULL) record->watch = NULL;
  pjrt_handles_unlock(shard);
  if (watch == NULL || watch->buffer == NULL) {
    pjrt_host_watch_free(watch);
    return;
  }
  shard = pjrt_handles_lock(&check->validate->handles, watch->buffer);
  record = pjrt_handles_find(shard, watch->buffer, PJRT_HANDLE_Buffer);
  const bool kept = record != NULL && record->state == PJRT_HANDLE_LIVE && record->watch == NULL;
  if (kept) record->watch = watch;
  pjrt_handles_unlock(shard);
  if (!kept) pjrt_host_watch_free(watch);
}

static void before_destroy(pjrt_check *check, void *event) {
  pjrt_handle_record record;
  if (!copy_event(check, event, &record)) return;
  /* A callback tells the framework when the memory is free again, and may do so long before the buffer's end. */
  if (record.watch != NULL && (record.has_callback || pjrt_event_is_ready(check, event)))
    pjrt_event_became_ready(check, event);
  else if (record.watch != NULL) keep_watch(check, event);
  if (record.settable && !record.was_set)
    pjrt_found(check, PJRT_RULE_EVENT_DESTROYED_UNSET, "event", &record, "it was never set");
  if (event_of_callback == event)
    pjrt_found(check, PJRT_RULE_EVENT_DESTROYED_IN_CALLBACK, "event", &record, "its callback destroys it");
  else if (check->validate->advice && !record.settable && !record.ready && !record.has_callback &&
           !pjrt_event_is_ready(check, event))
    pjrt_found(check, PJRT_RULE_EVENT_DESTROYED_EARLY, "event", &record, "it is not ready");
}

static void before_set(pjrt_check *check, void *event) {
  pjrt_handle_record record;
  if (!copy_event(check, event, &record)) return;
  if (!record.settable)
    pjrt_found(check, PJRT_RULE_EVENT_NOT_SETTABLE, "event", &record, "it comes from %s",
               pjrt_call_name(record.made.function));
  else if (record.was_set)
    pjrt_found(check, PJRT_RULE_EVENT_SET_TWICE, "event", &record, "it was set before");
}

/* The callback may run during the call, so it is noted before. */
static void note_callback(pjrt_check *check, void *event) {
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
  pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
  if (record != NULL && record->state == PJRT_HANDLE_LIVE) record->has_callback = true;
  pjrt_handles_unlock(shard);
}

void pjrt_before_event_call(pjrt_check *check) {
  pjrt_handle_record record;
  /* All of these argument structs begin in the same way. */
  void *event = ((PJRT_Event_Destroy_Args *)check->args)->event;
  switch (check->frame->index) {
    case F(Event_Destroy): before_destroy(check, event); break;
    case F(Event_Set): before_set(check, event); break;
    case F(Event_Error):
      if (copy_event(check, event, &record) && !record.ready && !pjrt_event_is_ready(check, event))
        pjrt_found(check, PJRT_RULE_EVENT_NOT_READY, "event", &record, "it is not ready");
      break;
    case F(Event_Await):
      if (pjrt_callback_depth > 0 && copy_event(check, event, &record) && !record.ready &&
          !pjrt_event_is_ready(check, event))
        pjrt_found(check, PJRT_RULE_WAIT_IN_CALLBACK, "event", &record, "it is not ready");
      break;
    case F(Event_OnReady): note_callback(check, event); break;
    default: break;
  }
}

void pjrt_after_event_call(pjrt_check *check, void *result) {
  void *event = ((PJRT_Event_Destroy_Args *)check->args)->event;
  switch (check->frame->index) {
    case F(Event_Await): pjrt_event_became_ready(check, event); break;
    case F(Event_IsReady):
      if (result == NULL && ((PJRT_Event_IsReady_Args *)check->args)->is_ready) pjrt_event_became_ready(check, event);
      break;
    case F(Event_Set): {
      pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, event);
      pjrt_handle_record *record = pjrt_handles_find(shard, event, PJRT_HANDLE_Event);
      if (record != NULL && result == NULL) record->was_set = true;
      pjrt_handles_unlock(shard);
      break;
    }
    default: break;
  }
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------*/
/* The plugin gives the framework what the parameters hold: an error, a stream. */
static void note_parameters(pjrt_check *check) {
  const pjrt_struct *type = check->frame->function->args;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->kind == PJRT_KIND_HANDLE && field->direction == PJRT_IN && (field->marks & PJRT_MARK_CONSUMES))
      pjrt_note_handle(check, field, field->name, pjrt_pointer_in(field, check->args));
  }
}

void *pjrt_pass_callback(pjrt_check *check) {
  void *outer = event_of_callback;
  const pjrt_callback_origin *origin = check->frame->origin;
  const bool on_ready = origin != NULL && origin->function == F(Event_OnReady) && origin->handle != NULL;
  note_parameters(check);
  /* The stack passes on a call whose registration has ended, without its origin, and to nobody. */
  if (origin == NULL) pjrt_found(check, PJRT_RULE_CALLBACK_TWICE, NULL, NULL, "it was called before, or comes too late");
  if (on_ready) pjrt_event_became_ready(check, origin->handle);
  event_of_callback = on_ready ? origin->handle : outer;
  pjrt_callback_depth++;
  void *result = pjrt_next_callback(check->frame, check->args);
  pjrt_callback_depth--;
  event_of_callback = outer;
  return result;
}
