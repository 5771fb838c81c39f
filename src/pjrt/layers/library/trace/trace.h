/* The parts of the trace layer: options, values behind pointers, readiness, executables. */
#ifndef PJRT_LAYER_TRACE_H_
#define PJRT_LAYER_TRACE_H_

#include "layer.h"
#include "file.h"

/* The size of the layer's own arguments: up to the end of the last field, as plugins expect it. */
#define SIZED(function) .struct_size = PJRT_##function##_Args_STRUCT_SIZE

enum trace_readiness { TRACE_READY_CALLS, TRACE_READY_EVENTS, TRACE_READY_BUFFERS };

struct trace_options {
  char file[1024];
  char functions[1024]; /* patterns, separated by "|"; "!" before one excludes */
  size_t ring;
  bool keep_first;
  bool enabled;
  bool errors_only;
  bool ask; /* about the programs that run */
  uint64_t slower; /* nanoseconds */
  uint32_t sample;
  uint32_t text;  /* bytes of a text that are recorded */
  uint32_t array; /* elements of an array that are recorded */
  enum trace_readiness ready;
};

/* What is known before a call of a function. */
struct trace_plan {
  bool wanted;
  bool has_inputs;  /* values behind pointers, to record before the call */
  bool has_outputs; /* the same, after it */
  bool makes_event; /* or, if buffers are listened to, a buffer */
  bool execution;
  uint16_t args_size;   /* of the struct, rounded up to 8 bytes */
  uint16_t record_size; /* with the header */
};

struct trace {
  struct trace_file *file;
  pjrt_stack *stack;
  struct trace_options options;
  uint64_t slower; /* in units of the clock */
  bool selective;  /* which calls are kept depends on how they end */
  struct trace_plan plans[PJRT_NUM_FUNCTIONS];
  struct trace_plan callback_plans[PJRT_NUM_CALLBACKS];
  _Atomic uint32_t counts[PJRT_NUM_FUNCTIONS]; /* for sampling */
  pjrt_mutex lock;
  struct trace_executable *executables; /* those that ran, in a list */
};

/* What the trace asks about a loaded executable at its first execution. */
struct trace_executable {
  const void *handle;
  size_t num_outputs;
  struct trace_executable *next;
};

bool trace_read_options(const char *text, struct trace_options *options, char *problem, size_t problem_size);
bool trace_wants(const struct trace_options *options, const char *function);

/* The schema as text, as the reader of a file reads it. The caller frees it. */
char *trace_schema_text(void);

bool trace_has_values(const pjrt_field *field);
bool trace_is_output(const pjrt_field *field);
/* Records the values behind the pointers of a struct of arguments: those that come in, or those that go out. */
void trace_values(struct trace *trace, struct trace_writer *writer, const pjrt_struct *type, const void *args,
                  bool outputs);
/* The same for the lists of buffers and the events that an execution made. */
void trace_outputs(struct trace *trace, struct trace_writer *writer, const PJRT_LoadedExecutable_Execute_Args *args,
                   size_t num_outputs);
/* Records one array or text, at most `limit` elements of it. */
void trace_write_data(struct trace *trace, struct trace_writer *writer, const uint16_t path[TRACE_PATH], const void *data,
                      size_t total, size_t element_size, size_t limit);
size_t trace_limit(const struct trace *trace, int element, size_t element_size);
/* Records the text of an error as the value behind the field TRACE_ERROR_FIELD. */
void trace_error_text(struct trace *trace, struct trace_writer *writer, const PJRT_Error *error);
#define TRACE_ERROR_FIELD 0xfffe

/* Listens to the events, or to the ready events of the buffers, that a call made. */
void trace_listen(struct trace *trace, const pjrt_function *function, uint16_t index, const void *args);
void trace_listen_to_execution(struct trace *trace, const PJRT_LoadedExecutable_Execute_Args *args, size_t num_outputs);

/* The number of outputs of a loaded executable; 0 if the plugin does not answer. Asks at the first execution, and writes
 * a note with the sizes of the outputs. */
size_t trace_num_outputs(struct trace *trace, PJRT_LoadedExecutable *executable, bool *first);
/* After a first execution: writes a note with the arguments that it took, if any. */
void trace_note_donations(struct trace *trace, const PJRT_LoadedExecutable_Execute_Args *args);
void trace_forget_executable(struct trace *trace, const void *handle);

#endif /* PJRT_LAYER_TRACE_H_ */
