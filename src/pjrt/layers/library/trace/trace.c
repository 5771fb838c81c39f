/* The trace layer: it records each call, and each callback, in a file that survives the process. */
#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A record of a call that has not ended. */
struct open_call {
  struct trace_record *record;
  struct trace_chunk *chunk;
  char *after; /* where the next record would be, if the call records nothing more */
  uint32_t parent;
  uint32_t generation;
};

static struct trace_record *begin(struct trace *trace, struct trace_writer *writer, const struct trace_plan *plan,
                                  uint8_t kind, const pjrt_frame *frame, struct open_call *call) {
  const size_t size = plan->record_size;
  struct trace_record *record = trace_reserve(trace->file, writer, size);
  if (record == NULL) return NULL;
  record->size = (uint32_t)size;
  record->kind = kind;
  record->flags = 0;
  record->depth = writer->depth++;
  record->number = ++writer->number;
  record->parent = call->parent = writer->parent;
  record->function = frame->index;
  record->code = 0;
  record->stack = trace->stack->index;
  record->end = 0;
  writer->parent = writer->number;
  writer->open++;
  call->record = record;
  call->chunk = writer->chunk;
  call->generation = writer->generation;
  return record;
}

static inline void copy_args(const struct trace_plan *plan, const pjrt_struct *type, const void *args, void *copy) {
  size_t size = plan->args_size;
  if (type->sized) {
    const size_t known = *(const size_t *)args;
    if (known < size) { /* an older caller: the rest is not there */
      memset((char *)copy + known, 0, size - known);
      size = known;
    }
  }
  memcpy(copy, args, size);
}

/* Returns whether the record stays. */
static bool end(struct trace *trace, struct trace_writer *writer, struct open_call *call, uint64_t now) {
  struct trace_record *record = call->record;
  /* The file was closed meanwhile, or this is the child of a fork inside of the call. */
  if (call->generation != writer->generation) return false;
  writer->depth--;
  writer->parent = call->parent;
  record->end = now;
  bool keep = true;
  if (trace->selective) {
    keep = now - record->begin >= trace->slower &&
           (!trace->options.errors_only || (record->flags & TRACE_FAILED));
    if (!keep) record->flags |= TRACE_HIDDEN;
  }
  if (call->chunk == writer->chunk) {
    writer->open--;
    if (!keep && writer->at == call->after) {
      writer->at = (char *)record;
      trace_commit(writer, 0);
    }
  } else {
    trace_unpin(call->chunk);
  }
  return keep;
}

static void *trace_call(void *state, pjrt_frame *frame, void *args) {
  struct trace *trace = state;
  struct trace_file *file = trace->file;
  const struct trace_plan *plan = &trace->plans[frame->index];
  if (!atomic_load_explicit(file->enabled, memory_order_relaxed) || !plan->wanted) return pjrt_next(frame, args);
  if (trace->options.sample > 1) {
    _Atomic uint32_t *count = &trace->counts[frame->index];
    const uint32_t calls = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, calls + 1, memory_order_relaxed);
    if (calls % trace->options.sample != 0) return pjrt_next(frame, args);
  }
  struct trace_writer *writer = trace_writer_of(file);
  if (writer == NULL) return pjrt_next(frame, args);
  const pjrt_function *function = frame->function;
  const pjrt_struct *type = function->args;
  size_t num_outputs = 0;
  bool first = false;
  if (plan->execution && trace->options.ask)
    num_outputs = trace_num_outputs(trace, ((PJRT_LoadedExecutable_Execute_Args *)args)->executable, &first);
  struct open_call call;
  struct trace_record *record = begin(trace, writer, plan, TRACE_CALL, frame, &call);
  if (record == NULL) return pjrt_next(frame, args);
  copy_args(plan, type, args, record + 1);
  record->begin = trace_now(file);
  trace_commit(writer, plan->record_size);
  if (plan->has_inputs) trace_values(trace, writer, type, args, false);
  call.after = writer->at;
  if (frame->index == PJRT_FUNCTION_LoadedExecutable_Destroy)
    trace_forget_executable(trace, ((PJRT_LoadedExecutable_Destroy_Args *)args)->executable);
  if (plan->has_inputs) record->begin = trace_now(file);
  void *result = pjrt_next(frame, args);
  const uint64_t now = trace_now(file);
  /* The functions that destroy have freed what they were given, but never the struct of the arguments. */
  copy_args(plan, type, args, record + 1);
  const bool failed = function->result == PJRT_RESULT_ERROR && result != NULL;
  if (failed) {
    record->flags |= TRACE_FAILED;
    record->code = (uint16_t)pjrt_error_code(trace->stack, result);
  }
  const uint32_t number = record->number;
  const bool keep = end(trace, writer, &call, now);
  if (failed) {
    if (keep) {
      const uint32_t parent = writer->parent;
      writer->parent = number;
      trace_error_text(trace, writer, result);
      writer->parent = parent;
    }
    return result;
  }
  if (keep && plan->has_outputs) {
    const uint32_t parent = writer->parent;
    writer->parent = number;
    trace_values(trace, writer, type, args, true);
    if (plan->execution) trace_outputs(trace, writer, args, num_outputs);
    writer->parent = parent;
  }
  if (first) trace_note_donations(trace, args);
  if (plan->makes_event && trace->options.ready != TRACE_READY_CALLS) {
    if (plan->execution) {
      trace_listen_to_execution(trace, args, num_outputs);
    } else {
      trace_listen(trace, function, frame->index, args);
    }
  }
  return result;
}

/* What a callback record has between its header and its arguments. */
struct origin {
  uint64_t function;
  uint64_t handle;
};

static void *trace_callback(void *state, pjrt_frame *frame, void *args) {
  struct trace *trace = state;
  struct trace_file *file = trace->file;
  const struct trace_plan *plan = &trace->callback_plans[frame->index];
  struct trace_writer *writer;
  struct open_call call;
  struct trace_record *record;
  PJRT_Error *error = NULL; /* that the framework gets */
  uint16_t code = 0;
  if (frame->index == PJRT_CALLBACK_Event_OnReadyCallback) error = *(PJRT_Error **)args;
  /* Before the record: the plugin may be one that calls another traced plugin, on this thread. */
  if (error != NULL) code = (uint16_t)pjrt_error_code(trace->stack, error);
  if (!atomic_load_explicit(file->enabled, memory_order_relaxed) ||
      !(plan->wanted || (frame->origin != NULL && trace->plans[frame->origin->function].wanted)) ||
      (writer = trace_writer_of(file)) == NULL ||
      (record = begin(trace, writer, plan, TRACE_CALLBACK, frame, &call)) == NULL)
    return pjrt_next_callback(frame, args);
  const pjrt_struct *type = frame->function->args;
  struct origin *origin = (struct origin *)(record + 1);
  origin->function = frame->origin == NULL ? UINT64_MAX : frame->origin->function;
  origin->handle = frame->origin == NULL ? 0 : (uintptr_t)frame->origin->handle;
  copy_args(plan, type, args, origin + 1);
  if (error != NULL) record->flags |= TRACE_FAILED;
  record->code = code;
  record->begin = trace_now(file);
  trace_commit(writer, plan->record_size);
  if (error != NULL) trace_error_text(trace, writer, error);
  call.after = writer->at;
  void *result = pjrt_next_callback(frame, args);
  const uint64_t now = trace_now(file);
  if (frame->function->result == PJRT_RESULT_ERROR && result != NULL) {
    record->flags |= TRACE_FAILED;
    record->code = (uint16_t)pjrt_error_code(trace->stack, result);
  }
  end(trace, writer, &call, now);
  return result;
}

void trace_outputs(struct trace *trace, struct trace_writer *writer, const PJRT_LoadedExecutable_Execute_Args *args,
                   size_t num_outputs) {
  const pjrt_struct *type = pjrt_functions[PJRT_FUNCTION_LoadedExecutable_Execute].args;
  uint16_t path[TRACE_PATH];
  memset(path, 0xff, sizeof path);
  for (uint16_t i = 0; i < type->num_fields; i++) {
    if (type->fields[i].offset == offsetof(PJRT_LoadedExecutable_Execute_Args, output_lists)) path[0] = i;
  }
  for (size_t device = 0; args->output_lists != NULL && device < args->num_devices && device < 64; device++) {
    path[1] = (uint16_t)device;
    trace_write_data(trace, writer, path, args->output_lists[device], num_outputs, sizeof(void *),
                     trace_limit(trace, PJRT_KIND_HANDLE, sizeof(void *)));
  }
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void plan_function(struct trace *trace, const pjrt_function *function, struct trace_plan *plan, size_t extra) {
  const pjrt_struct *type = function->args;
  plan->wanted = type != NULL && trace_wants(&trace->options, function->name);
  if (type == NULL) return;
  plan->args_size = type->size;
  plan->record_size = (uint16_t)(sizeof(struct trace_record) + extra + ((type->size + 7u) & ~7u));
  const bool values = trace->options.text > 0 || trace->options.array > 0;
  for (uint16_t i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (trace_has_values(field)) {
      plan->has_inputs |= values && !trace_is_output(field);
      plan->has_outputs |= values && trace_is_output(field);
    }
    if (field->kind == PJRT_KIND_HANDLE && field->direction != PJRT_IN && (field->marks & PJRT_MARK_CREATES))
      plan->makes_event |= field->type == PJRT_HANDLE_Event || field->type == PJRT_HANDLE_Buffer;
  }
}

static void *trace_open(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  struct trace *trace = calloc(1, sizeof *trace);
  char *schema = trace_schema_text();
  if (trace == NULL || schema == NULL) {
    snprintf(problem, problem_size, "trace: no memory");
  } else if (trace_read_options(options, &trace->options, problem, problem_size)) {
    const struct trace_options *read = &trace->options;
    char detail[1200];
    trace->file = trace_file_open(read->file, read->ring, read->keep_first, read->enabled, read->sample, options,
                                  schema, detail, sizeof detail);
    if (trace->file == NULL) snprintf(problem, problem_size, "trace: %s", detail);
  }
  free(schema);
  if (trace == NULL || trace->file == NULL) {
    free(trace);
    return NULL;
  }
  trace->stack = stack;
  pjrt_mutex_init(&trace->lock);
  trace->selective = trace->options.errors_only || trace->options.slower > 0;
  trace->slower = trace->options.slower;
  if (trace->file->ticks) {
    const struct trace_header *header = trace->file->header;
    const double ticks = (double)(header->last.ticks - header->first.ticks);
    trace->slower = (uint64_t)((double)trace->options.slower * ticks /
                               (double)(header->last.nanoseconds - header->first.nanoseconds));
  }
  for (size_t i = 0; i < PJRT_NUM_FUNCTIONS; i++) plan_function(trace, &pjrt_functions[i], &trace->plans[i], 0);
  for (size_t i = 0; i < PJRT_NUM_CALLBACKS; i++)
    plan_function(trace, &pjrt_callbacks[i], &trace->callback_plans[i], sizeof(struct origin));
  struct trace_plan *execution = &trace->plans[PJRT_FUNCTION_LoadedExecutable_Execute];
  execution->execution = execution->makes_event = true;
  char note[300];
  snprintf(note, sizeof note, "plugin %s", stack->name);
  trace_file_note(trace->file, stack->index, note);
  return trace;
}

static void trace_flush(void *state) { trace_file_flush(((struct trace *)state)->file); }

static void trace_close(void *state) { trace_file_close(((struct trace *)state)->file); }

const pjrt_layer pjrt_layer_trace = {
    .name = "trace",
    .open = trace_open,
    .call = trace_call,
    .callback = trace_callback,
    .flush = trace_flush,
    .close = trace_close,
};
