/* What a trace has to know about a loaded executable: how many outputs an execution has, how large they are, and which
 * arguments it takes for good. The layer asks the plugin itself, once, at the first execution. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

static bool ask(struct trace *trace, int function, void *args) {
  void *error = NULL;
  if (!pjrt_call_below(trace->stack, function, args, &error)) return false;
  if (error == NULL) return true;
  PJRT_Error_Destroy_Args destroy = {SIZED(Error_Destroy), .error = error};
  void *nothing;
  pjrt_call_below(trace->stack, PJRT_FUNCTION_Error_Destroy, &destroy, &nothing);
  return false;
}

#define TEXT_SIZE 8192

struct line {
  char text[TEXT_SIZE];
  size_t length;
};

static void add(struct line *line, const char *format, unsigned long long value) {
  if (line->length + 32 >= TEXT_SIZE) return;
  line->length += (size_t)snprintf(line->text + line->length, TEXT_SIZE - line->length, format, value);
}

/* "executable HANDLE outputs TYPE:DIM,DIM …", with the types as numbers. */
static void describe_outputs(struct trace *trace, PJRT_Executable *executable, struct line *line) {
  PJRT_Executable_OutputElementTypes_Args types = {SIZED(Executable_OutputElementTypes), .executable = executable};
  PJRT_Executable_OutputDimensions_Args dims = {SIZED(Executable_OutputDimensions), .executable = executable};
  if (!ask(trace, PJRT_FUNCTION_Executable_OutputElementTypes, &types) ||
      !ask(trace, PJRT_FUNCTION_Executable_OutputDimensions, &dims) || types.num_output_types != dims.num_outputs)
    return;
  const int64_t *dim = dims.dims;
  for (size_t i = 0; i < dims.num_outputs; i++) {
    add(line, " %llu:", (unsigned long long)types.output_types[i]);
    for (size_t k = 0; k < dims.dim_sizes[i]; k++) add(line, k ? ",%llu" : "%llu", (unsigned long long)*dim++);
  }
}

size_t trace_num_outputs(struct trace *trace, PJRT_LoadedExecutable *executable, bool *first) {
  *first = false;
  pjrt_mutex_lock(&trace->lock);
  for (struct trace_executable **at = &trace->executables; *at != NULL; at = &(*at)->next) {
    if ((*at)->handle != executable) continue;
    struct trace_executable *entry = *at;
    const size_t num_outputs = entry->num_outputs;
    *at = entry->next; /* to the front: a program that runs runs again */
    entry->next = trace->executables;
    trace->executables = entry;
    pjrt_mutex_unlock(&trace->lock);
    return num_outputs;
  }
  pjrt_mutex_unlock(&trace->lock);
  *first = true;
  size_t num_outputs = 0;
  PJRT_LoadedExecutable_GetExecutable_Args get = {SIZED(LoadedExecutable_GetExecutable), .loaded_executable = executable};
  if (ask(trace, PJRT_FUNCTION_LoadedExecutable_GetExecutable, &get)) {
    PJRT_Executable_NumOutputs_Args count = {SIZED(Executable_NumOutputs), .executable = get.executable};
    if (ask(trace, PJRT_FUNCTION_Executable_NumOutputs, &count)) num_outputs = count.num_outputs;
    struct line *line = calloc(1, sizeof *line);
    PJRT_Executable_Name_Args name = {SIZED(Executable_Name), .executable = get.executable};
    if (line != NULL && ask(trace, PJRT_FUNCTION_Executable_Name, &name)) {
      add(line, "executable %llx name ", (unsigned long long)(uintptr_t)executable);
      const size_t room = sizeof line->text - line->length - 1;
      memcpy(line->text + line->length, name.executable_name,
             name.executable_name_size < room ? name.executable_name_size : room);
      trace_file_note(trace->file, trace->stack->index, line->text);
      memset(line, 0, sizeof *line);
    }
    if (line != NULL) {
      add(line, "executable %llx outputs", (unsigned long long)(uintptr_t)executable);
      describe_outputs(trace, get.executable, line);
      trace_file_note(trace->file, trace->stack->index, line->text);
      free(line);
    }
    PJRT_Executable_Destroy_Args destroy = {SIZED(Executable_Destroy), .executable = get.executable};
    ask(trace, PJRT_FUNCTION_Executable_Destroy, &destroy);
  }
  struct trace_executable *entry = malloc(sizeof *entry);
  if (entry != NULL) {
    pjrt_mutex_lock(&trace->lock);
    *entry = (struct trace_executable){executable, num_outputs, trace->executables};
    trace->executables = entry;
    pjrt_mutex_unlock(&trace->lock);
  }
  return num_outputs;
}

void trace_note_donations(struct trace *trace, const PJRT_LoadedExecutable_Execute_Args *args) {
  if (args->num_devices == 0 || args->num_args == 0) return;
  struct line *line = calloc(1, sizeof *line);
  if (line == NULL) return;
  add(line, "executable %llx donates", (unsigned long long)(uintptr_t)args->executable);
  const size_t least = line->length;
  for (size_t i = 0; i < args->num_args; i++) {
    PJRT_Buffer_IsDeleted_Args deleted = {SIZED(Buffer_IsDeleted), .buffer = args->argument_lists[0][i]};
    if (deleted.buffer != NULL && ask(trace, PJRT_FUNCTION_Buffer_IsDeleted, &deleted) && deleted.is_deleted)
      add(line, " %llu", (unsigned long long)i);
  }
  if (line->length > least) trace_file_note(trace->file, trace->stack->index, line->text);
  free(line);
}

void trace_forget_executable(struct trace *trace, const void *handle) {
  pjrt_mutex_lock(&trace->lock);
  for (struct trace_executable **at = &trace->executables; *at != NULL; at = &(*at)->next) {
    if ((*at)->handle != handle) continue;
    struct trace_executable *entry = *at;
    *at = entry->next;
    free(entry);
    break;
  }
  pjrt_mutex_unlock(&trace->lock);
}
