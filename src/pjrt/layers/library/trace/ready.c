/* Readiness, where the framework does not ask for it: the layer's own callbacks on events. */
#include <stdlib.h>

#include "trace.h"

struct listener {
  struct trace *trace;
  uint64_t begin;
  const void *event;
  const void *buffer;
  uint16_t function;
};

static void on_ready(PJRT_Error *error, void *user_arg) {
  struct listener *listener = user_arg;
  struct trace *trace = listener->trace;
  struct trace_file *file = trace->file;
  const uint64_t end = trace_now(file);
  /* Before the record: the plugin may be one that calls another traced plugin, on this thread. */
  const uint16_t code = error == NULL ? 0 : (uint16_t)pjrt_error_code(trace->stack, error);
  struct trace_writer *writer = trace_writer_of(file);
  struct trace_ready *record = writer == NULL ? NULL : trace_reserve(file, writer, sizeof *record);
  if (record != NULL) {
    *record = (struct trace_ready){
        .size = sizeof *record, .kind = TRACE_READY, .function = listener->function, .stack = trace->stack->index,
        .event = (uintptr_t)listener->event, .buffer = (uintptr_t)listener->buffer, .begin = listener->begin,
        .end = end, .code = code};
    trace_commit(writer, sizeof *record);
  }
  if (error != NULL) {
    PJRT_Error_Destroy_Args args = {SIZED(Error_Destroy), .error = error};
    void *result;
    pjrt_call_below(trace->stack, PJRT_FUNCTION_Error_Destroy, &args, &result);
  }
  free(listener);
}

/* An error of a call that the layer made for itself: nobody else destroys it. */
static bool succeeded(struct trace *trace, void *error) {
  if (error == NULL) return true;
  PJRT_Error_Destroy_Args args = {SIZED(Error_Destroy), .error = error};
  void *result;
  pjrt_call_below(trace->stack, PJRT_FUNCTION_Error_Destroy, &args, &result);
  return false;
}

static void listen(struct trace *trace, uint16_t function, PJRT_Event *event, const void *buffer) {
  struct listener *listener = malloc(sizeof *listener);
  if (listener == NULL || event == NULL) {
    free(listener);
    return;
  }
  *listener = (struct listener){trace, trace_now(trace->file), event, buffer, function};
  PJRT_Event_OnReady_Args args = {
      SIZED(Event_OnReady), .event = event, .callback = on_ready, .user_arg = listener};
  void *error = NULL;
  if (!pjrt_call_below(trace->stack, PJRT_FUNCTION_Event_OnReady, &args, &error) || !succeeded(trace, error))
    free(listener);
}

static void listen_to_buffer(struct trace *trace, uint16_t function, PJRT_Buffer *buffer) {
  PJRT_Buffer_ReadyEvent_Args args = {SIZED(Buffer_ReadyEvent), .buffer = buffer};
  void *error = NULL;
  if (buffer == NULL || !pjrt_call_below(trace->stack, PJRT_FUNCTION_Buffer_ReadyEvent, &args, &error) ||
      !succeeded(trace, error))
    return;
  listen(trace, function, args.event, buffer);
  /* A callback that is registered is still called. */
  PJRT_Event_Destroy_Args destroy = {SIZED(Event_Destroy), .event = args.event};
  if (pjrt_call_below(trace->stack, PJRT_FUNCTION_Event_Destroy, &destroy, &error)) succeeded(trace, error);
}

void trace_listen(struct trace *trace, const pjrt_function *function, uint16_t index, const void *args) {
  const pjrt_struct *type = function->args;
  for (uint16_t i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->kind != PJRT_KIND_HANDLE || field->direction == PJRT_IN || !pjrt_has_field(type, field, args)) continue;
    void *handle = pjrt_pointer_in(field, args);
    if (field->type == PJRT_HANDLE_Event) {
      listen(trace, index, handle, NULL);
    } else if (field->type == PJRT_HANDLE_Buffer && trace->options.ready == TRACE_READY_BUFFERS) {
      listen_to_buffer(trace, index, handle);
    }
  }
}

void trace_listen_to_execution(struct trace *trace, const PJRT_LoadedExecutable_Execute_Args *args,
                               size_t num_outputs) {
  for (size_t device = 0; device < args->num_devices; device++) {
    if (args->device_complete_events != NULL)
      listen(trace, PJRT_FUNCTION_LoadedExecutable_Execute, args->device_complete_events[device], NULL);
    if (trace->options.ready != TRACE_READY_BUFFERS || args->output_lists == NULL) continue;
    for (size_t i = 0; i < num_outputs; i++)
      listen_to_buffer(trace, PJRT_FUNCTION_LoadedExecutable_Execute, args->output_lists[device][i]);
  }
}
