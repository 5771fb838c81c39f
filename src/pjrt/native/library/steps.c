/* Programs in steps: kernels of the driver, and what the host does between them.
 *
 * A step of the host calls a handler of this process, or has a Python process of ours run a program. Its inputs are
 * copied to the host, and its outputs to the device, by work in the device's queue. A kernel is launched as soon as work
 * that writes its inputs is in the queue: it waits for no other kernel, and for the host only where the host gives it
 * something. Steps of the host run one after the other, on a thread of the device that does nothing else.
 *
 * A step is {1 a kernel's code, 2 a program, 3 a handler's call: its target and attributes, 4 inputs, 5 outputs: the
 * numbers of values, three more each, 0 for a token, 1 and 2 for the place in the program's devices, 6 an input, 7 an output, as an array of a call without its bytes}. */
#include "runtime.h"

/* ---- values -----------------------------------------------------------------------------------------------------------*/
size_t num_values(const executable *core) { return core->num_parameters + core->num_outputs + core->num_values; }

static const shape *shape_of(const executable *core, size_t number) {
  if (number < core->num_parameters) return &core->parameters[number].shape;
  number -= core->num_parameters;
  return number < core->num_outputs ? &core->outputs[number].shape : &core->values[number - core->num_outputs].shape;
}

static bool is_on_device(const executable *core, size_t number) {
  size_t first = core->num_parameters + core->num_outputs;
  return number < first || !core->values[number - first].is_on_host;
}

/* ---- reading ----------------------------------------------------------------------------------------------------------*/
static PJRT_Error *damaged(size_t number, const char *what) {
  return error_make(PJRT_Error_Code_DATA_LOSS, "the executable is damaged: step %zu %s", number, what);
}

enum { VALUES = 3 }; /* the number of the first value in a message */

static int64_t *read_numbers(const proto_field *field, size_t *count) {
  int64_t *numbers = new_zeroed(field->size, sizeof *numbers); /* each takes a byte or more */
  *count = proto_int64s(field, numbers, field->size);
  for (size_t i = 0; i < *count; ++i) numbers[i] -= VALUES;
  return numbers;
}

static bool read_step(const proto_field *from, step *out) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  size_t num_inputs = 0, num_arrays = 0;
  while (proto_next(&cursor, end, &field)) {
    if (field.wire != 2) return false;
    if (field.number == 1) out->code = field.data, out->size = field.size;
    if (field.number == 2) out->program = field.data, out->size = field.size;
    if (field.number == 3) out->call = field.data, out->size = field.size;
    if (field.number == 4 && !out->inputs) out->inputs = read_numbers(&field, &out->num_inputs);
    if (field.number == 5 && !out->outputs) out->outputs = read_numbers(&field, &out->num_outputs);
    if (field.number == 6) ++num_inputs;
    if (field.number == 6 || field.number == 7) ++num_arrays;
  }
  if (cursor != end || (out->code != NULL) + (out->program != NULL) + (out->call != NULL) != 1) return false;
  if (out->code) return num_arrays == 0;
  if (num_inputs != out->num_inputs || num_arrays != num_inputs + out->num_outputs) return false;
  out->arrays = new_zeroed(num_arrays, sizeof *out->arrays);
  size_t next_input = 0, next_output = num_inputs;
  for (cursor = from->data; proto_next(&cursor, end, &field);) {
    if (field.number == 6) out->arrays[next_input++] = field;
    if (field.number == 7) out->arrays[next_output++] = field;
  }
  return true;
}

/* Each value is written once, before it is read. */
static PJRT_Error *check_step(const executable *core, size_t number, bool *is_written) {
  const step *each = &core->steps[number];
  int64_t count = (int64_t)num_values(core);
  for (size_t i = 0; i < each->num_inputs; ++i) {
    int64_t value = each->inputs[i];
    if (value >= TOKEN && value < 0 && !each->code) continue;
    if (value < 0 || value >= count || !is_written[value]) return damaged(number, "reads what no step before it writes");
    if (each->code && !is_on_device(core, (size_t)value)) return damaged(number, "reads what stays on the host");
  }
  for (size_t i = 0; i < each->num_outputs; ++i) {
    int64_t value = each->outputs[i];
    if (value == TOKEN && !each->code) continue;
    if (value < 0 || value >= count || is_written[value]) return damaged(number, "writes what was written before it");
    if (each->code && !is_on_device(core, (size_t)value)) return damaged(number, "writes what stays on the host");
    is_written[value] = true;
  }
  return NULL;
}

PJRT_Error *steps_read(executable *out) {
  const char *cursor = out->serialized, *end = cursor + out->serialized_size;
  proto_field field;
  PJRT_Error *error = NULL;
  size_t number = 0;
  if (out->num_steps == 0) return NULL;
  bool *is_written = new_zeroed(num_values(out), sizeof *is_written);
  for (size_t i = 0; i < out->num_parameters; ++i) is_written[i] = true;
  while (!error && proto_next(&cursor, end, &field)) {
    if (field.number != 18 || field.wire != 2) continue;
    if (!read_step(&field, &out->steps[number])) error = damaged(number, "cannot be read");
    if (!error) error = check_step(out, number++, is_written);
  }
  for (size_t i = 0; !error && i < out->num_outputs; ++i) {
    size_t value = out->num_parameters + i;
    if (!is_written[value] && shape_size(shape_of(out, value)))
      error = error_make(PJRT_Error_Code_DATA_LOSS, "the executable is damaged: no step writes result %zu", i);
  }
  free(is_written);
  return error;
}

void steps_free(executable *each) {
  for (size_t i = 0; each->steps && i < each->num_steps; ++i) {
    free(each->steps[i].inputs);
    free(each->steps[i].outputs);
    free(each->steps[i].arrays);
  }
  free(each->steps);
}

/* ---- the thread of a device that runs the host's steps --------------------------------------------------------------------*/
typedef struct host_job {
  void (*function)(void *arg, size_t number);
  void *arg;
  size_t number;
  struct host_job *next;
} host_job;

struct host_thread {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  host_job *first, **last;
  bool is_stopped;
  process *process; /* runs programs */
};

static void *run_jobs(void *arg) {
  struct host_thread *host = arg;
  pthread_mutex_lock(&host->mutex);
  for (;;) {
    while (host->first == NULL && !host->is_stopped) pthread_cond_wait(&host->changed, &host->mutex);
    host_job *job = host->first;
    if (job == NULL) break;
    host->first = job->next;
    if (host->first == NULL) host->last = &host->first;
    pthread_mutex_unlock(&host->mutex);
    queue_call(true);
    job->function(job->arg, job->number);
    queue_call(false);
    free(job);
    pthread_mutex_lock(&host->mutex);
  }
  pthread_mutex_unlock(&host->mutex);
  return NULL;
}

static void free_host(struct host_thread *host) {
  process_free(host->process);
  pthread_cond_destroy(&host->changed);
  pthread_mutex_destroy(&host->mutex);
  free(host);
}

/* Null where the system has no thread left. */
static struct host_thread *host_of(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  if (device->host == NULL) {
    struct host_thread *host = new_zeroed(1, sizeof *host);
    pthread_mutex_init(&host->mutex, NULL);
    pthread_cond_init(&host->changed, NULL);
    host->last = &host->first;
    host->process = process_make("pjrt.native.fallback", "runs the host's steps", -1, NULL);
    process_let_ask(host->process);
    if (pthread_create(&host->thread, NULL, run_jobs, host) == 0) device->host = host;
    else free_host(host);
  }
  struct host_thread *host = device->host;
  pthread_mutex_unlock(&device->mutex);
  return host;
}

static bool host_do(PJRT_Device *device, void (*function)(void *, size_t), void *arg, size_t number) {
  struct host_thread *host = host_of(device);
  if (host == NULL) return false;
  host_job *job = new_zeroed(1, sizeof *job);
  *job = (host_job){.function = function, .arg = arg, .number = number};
  pthread_mutex_lock(&host->mutex);
  *host->last = job;
  host->last = &job->next;
  pthread_cond_signal(&host->changed);
  pthread_mutex_unlock(&host->mutex);
  return true;
}

void steps_stop(PJRT_Device *device) {
  struct host_thread *host = device->host;
  if (host == NULL) return;
  pthread_mutex_lock(&host->mutex);
  host->is_stopped = true;
  pthread_cond_signal(&host->changed);
  pthread_mutex_unlock(&host->mutex);
  pthread_join(host->thread, NULL);
  free_host(host);
}

/* ---- a run --------------------------------------------------------------------------------------------------------------*/
typedef struct run run;
/* A step of the host: its inputs are copied, then it runs, then its outputs are copied. Kernels only wait. */
typedef enum state { WAITS, COPIES, RUNS, RETURNED, GONE } state;

typedef struct piece { /* work in the queue, or an argument that the queue promises */
  run *run;
  bool has_ended;
} piece;

struct run {
  stepped of;
  const executable *core;
  pthread_mutex_t mutex;
  bool is_going_on, again; /* one thread at a time begins work */
  size_t open;             /* work in the queue, and the host's steps that run */
  PJRT_Error *error;       /* the first */
  state *states;
  size_t *needs;           /* by step of the host: how much work must have ended */
  size_t num_pieces, num_ended; /* what was begun; how much has ended, all before it too */
  piece *pieces;
  bool *is_in_queue;       /* by value: the device has it for work that begins now */
  bool *comes;             /* by value: the host has its bytes, once the work that was begun has ended */
  char **host;             /* by value: these bytes */
};

static void go_on(run *each);

/* With the mutex. */
static void fail(run *each, PJRT_Error *owned) {
  if (each->error == NULL) each->error = owned;
  else pjrt_error_release(owned);
}

static void piece_ended(PJRT_Error *borrowed, void *arg) {
  piece *it = arg;
  run *each = it->run;
  pthread_mutex_lock(&each->mutex);
  it->has_ended = true;
  if (borrowed) fail(each, pjrt_error_share(borrowed));
  while (each->num_ended < each->num_pieces && each->pieces[each->num_ended].has_ended) ++each->num_ended;
  --each->open;
  go_on(each);
}

static piece *begin_piece(run *each) {
  pthread_mutex_lock(&each->mutex);
  piece *it = &each->pieces[each->num_pieces++];
  *it = (piece){.run = each};
  ++each->open;
  pthread_mutex_unlock(&each->mutex);
  return it;
}

static void follow(run *each, piece *it, const char *function, int code, pjrt_fence fence, const char *message) {
  if (code) {
    PJRT_Error *error = error_of_driver(function, code, message);
    piece_ended(error, it);
    pjrt_error_release(error);
    return;
  }
  const char *program = strcmp(function, "launch") == 0 ? each->core->name : NULL;
  queue_follow(each->of.device, fence, (work){function, program, each->of.done, piece_ended, it});
}

static void launch_kernel(run *each, size_t number) {
  const step *it = &each->core->steps[number];
  PJRT_Client *client = each->of.device->client;
  uint64_t on_stack[32], *memory = on_stack;
  if (it->num_inputs + it->num_outputs > 32) memory = new_zeroed(it->num_inputs + it->num_outputs, sizeof *memory);
  for (size_t i = 0; i < it->num_inputs; ++i) memory[i] = each->of.memory[it->inputs[i]];
  for (size_t i = 0; i < it->num_outputs; ++i) memory[it->num_inputs + i] = each->of.memory[it->outputs[i]];
  const size_t no_device = 0;
  const pjrt_fence no_fence = 0;
  pjrt_driver_launch given = {
      .struct_size = sizeof given,
      .device = each->of.device->number,
      .executable = each->of.loaded->kernels[each->of.device->number][number],
      .num_inputs = it->num_inputs,
      .inputs = memory,
      .num_outputs = it->num_outputs,
      .outputs = memory + it->num_inputs,
      .scratch = each->of.scratch,
      .after_devices = &no_device, /* what other queues promise was waited for */
      .after = &no_fence,
      .replica = each->of.replica,
      .partition = each->of.partition,
      .run = each->of.run,
      .must_not_block = 1,
      .num_participants = each->of.loaded->num_participants,
      .participants = each->of.loaded->participants,
      .execution = each->of.execution,
  };
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  piece *begun = begin_piece(each);
  for (size_t i = 0; i < it->num_outputs; ++i) each->is_in_queue[it->outputs[i]] = true;
  each->states[number] = GONE;
  PJRT_Error *refusal = launch_refusal(each->of.launch);
  int code = refusal ? 0 : client->table->launch(client->driver, &given, &fence, message);
  if (memory != on_stack) free(memory);
  if (refusal) piece_ended(refusal, begun);
  else follow(each, begun, "launch", code, fence, message);
  /* Whoever gave the launch up before the kernel was followed has not cancelled it. */
  if (!refusal && (refusal = launch_refusal(each->of.launch))) queue_cancel(each->of.device, each->of.done);
  pjrt_error_release(refusal);
}

/* Copies a value between its memory and its bytes on the host. */
static void copy_value(run *each, size_t value, bool to_host) {
  PJRT_Device *device = each->of.device;
  const pjrt_driver_table *table = device->client->table;
  const shape *of = shape_of(each->core, value);
  pjrt_driver_shape given = driver_shape(of);
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  piece *begun = begin_piece(each);
  int code = to_host ? table->copy_out(device->client->driver, device->number, each->of.memory[value], &given, 0,
                                       each->host[value], shape_size(of), &fence, message)
                     : table->copy_in(device->client->driver, device->number, each->of.memory[value], &given, 0,
                                      each->host[value], shape_size(of), &fence, message);
  follow(each, begun, to_host ? "copy_out" : "copy_in", code, fence, message);
}

/* Has the inputs copied that the host does not have yet. */
static void begin_host_step(run *each, size_t number) {
  const step *it = &each->core->steps[number];
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < it->num_inputs && !error; ++i) {
    int64_t value = it->inputs[i];
    if (value < 0 || each->comes[value]) continue;
    each->comes[value] = true;
    size_t size = shape_size(shape_of(each->core, (size_t)value));
    error = staging_make(size, &each->host[value]);
    if (!error && size) copy_value(each, (size_t)value, true);
  }
  pthread_mutex_lock(&each->mutex);
  each->states[number] = COPIES;
  each->needs[number] = each->num_pieces; /* also kernels: where one fails, nobody is called with its results */
  if (error) fail(each, error);
  pthread_mutex_unlock(&each->mutex);
}

static void end_host_step(run *each, size_t number) {
  const step *it = &each->core->steps[number];
  each->states[number] = GONE;
  for (size_t i = 0; i < it->num_outputs; ++i) {
    int64_t value = it->outputs[i];
    if (value == TOKEN) continue;
    each->comes[value] = true;
    if (!is_on_device(each->core, (size_t)value)) continue;
    each->is_in_queue[value] = true;
    if (shape_size(shape_of(each->core, (size_t)value))) copy_value(each, (size_t)value, false);
  }
}

/* ---- what a step of the host does ---------------------------------------------------------------------------------------------*/
static void add_array(bytes *message, int number, const proto_field *array, const char *data, size_t size) {
  bytes inner = {0};
  bytes_add(&inner, array->data, array->size);
  if (size) proto_bytes(&inner, 3, data, size);
  proto_bytes(message, number, inner.data, inner.size);
  free(inner.data);
}

static size_t size_of_value(const run *each, int64_t value) {
  if (value < 0) return value == TOKEN ? 0 : sizeof(uint32_t);
  return shape_size(shape_of(each->core, (size_t)value));
}

static const char *bytes_of_value(const run *each, int64_t value) {
  if (value == TOKEN) return NULL;
  if (value < 0) return (const char *)(value == REPLICA ? &each->of.replica : &each->of.partition);
  return each->host[value];
}

/* The call of a handler, as ffi.c has it; a program's inputs come in the same form. */
static PJRT_Error *add_arrays(const run *each, const step *it, bytes *message) {
  for (size_t i = 0; i < it->num_inputs; ++i)
    add_array(message, 2, &it->arrays[i], bytes_of_value(each, it->inputs[i]), size_of_value(each, it->inputs[i]));
  for (size_t i = 0; i < it->num_outputs && it->call; ++i) { /* zeros: old memory is nobody's to see */
    char *zeros;
    size_t size = size_of_value(each, it->outputs[i]);
    PJRT_Error *error = staging_make(size, &zeros);
    if (error) return error;
    memset(zeros, 0, size);
    add_array(message, 3, &it->arrays[it->num_inputs + i], zeros, size);
    free(zeros);
  }
  return NULL;
}

/* The bytes of all results, one behind the other. */
static PJRT_Error *take_results(run *each, const step *it, const char *data, size_t size) {
  size_t at = 0;
  for (size_t i = 0; i < it->num_outputs; ++i) {
    size_t part = size_of_value(each, it->outputs[i]);
    if (part > size - at) break;
    if (it->outputs[i] != TOKEN) {
      PJRT_Error *error = staging_make(part, &each->host[it->outputs[i]]);
      if (error) return error;
      if (part) memcpy(each->host[it->outputs[i]], data + at, part);
    }
    at += part;
    if (i + 1 == it->num_outputs && at == size) return NULL;
  }
  if (it->num_outputs == 0 && size == 0) return NULL;
  return error_make(PJRT_Error_Code_INTERNAL, "a step of the host gave %zu bytes, which are not those of its results", size);
}

static PJRT_Error *run_on_host(run *each, const step *it) {
  bytes message = {0};
  if (it->call) bytes_add(&message, it->call, it->size);
  PJRT_Error *error = add_arrays(each, it, &message);
  if (!error && it->call) {
    bytes results = {0};
    error = ffi_call(message.data, message.size, &results);
    if (!error) error = take_results(each, it, results.data, results.size);
    free(results.data);
  } else if (!error) {
    bytes request = {0};
    proto_bytes(&request, 1, "run", 3);
    proto_bytes(&request, 3, it->program, it->size);
    proto_bytes(&request, 6, message.data, message.size);
    answer given;
    error = process_ask(each->of.device->host->process, &request, &given);
    if (!error) error = take_results(each, it, given.data, given.data_size);
    if (!error) answer_free(&given);
    free(request.data);
  }
  free(message.data);
  return error;
}

static void run_host_step(void *arg, size_t number) {
  run *each = arg;
  PJRT_Error *error = launch_refusal(each->of.launch);
  int64_t begun = recording_now();
  if (!error) error = run_on_host(each, &each->core->steps[number]);
  recording_host(each->of.device->client, "steps of the host", each->core->name, begun);
  pthread_mutex_lock(&each->mutex);
  each->states[number] = RETURNED;
  if (error) fail(each, error);
  --each->open;
  go_on(each);
}

/* ---- what is next ---------------------------------------------------------------------------------------------------------*/
static bool has_inputs(const run *each, const step *it) {
  for (size_t i = 0; i < it->num_inputs; ++i) {
    int64_t value = it->inputs[i];
    if (value >= 0 && !each->is_in_queue[value] && (it->code || !each->comes[value])) return false;
  }
  return true;
}

/* A step that can go on; false where all wait, or are done. Steps of the host are in order: they have effects. So are
 * kernels of several devices, which may wait for one another. */
static bool next_step(const run *each, size_t *out) {
  bool host_waits = false, kernel_waits = false;
  for (size_t i = 0; i < each->core->num_steps && !each->error; ++i) {
    const step *it = &each->core->steps[i];
    bool is_behind = it->code ? kernel_waits : host_waits;
    bool goes_on = (each->states[i] == WAITS && !is_behind && has_inputs(each, it)) ||
                   (each->states[i] == COPIES && each->num_ended >= each->needs[i]) || each->states[i] == RETURNED;
    host_waits = host_waits || (!it->code && each->states[i] == WAITS);
    kernel_waits = kernel_waits || (each->of.loaded->num_participants && it->code && each->states[i] == WAITS);
    *out = i;
    if (goes_on) return true;
  }
  return false;
}

static void go_on_with(run *each, size_t number) {
  if (each->states[number] == RETURNED) {
    end_host_step(each, number);
  } else if (each->core->steps[number].code) {
    launch_kernel(each, number);
  } else if (each->states[number] == WAITS) {
    begin_host_step(each, number);
  } else {
    pthread_mutex_lock(&each->mutex);
    each->states[number] = RUNS;
    ++each->open;
    pthread_mutex_unlock(&each->mutex);
    if (host_do(each->of.device, run_host_step, each, number)) return;
    pthread_mutex_lock(&each->mutex);
    fail(each, error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system has no thread left for a step of the host"));
    --each->open;
    pthread_mutex_unlock(&each->mutex);
  }
}

static void end_run(run *each) {
  PJRT_Device *device = each->of.device;
  PJRT_Client *client = client_ref(device->client);
  size_t count = num_values(each->core);
  continuation then = each->of.then;
  void *arg = each->of.arg;
  PJRT_Error *error = each->error;
  for (size_t i = 0; i < count; ++i) free(each->host[i]);
  free(each->host);
  free(each->states);
  free(each->needs);
  free(each->pieces);
  free(each->is_in_queue);
  free(each->comes);
  pthread_mutex_destroy(&each->mutex);
  free(each);
  then(error, arg);
  pjrt_error_release(error);
  queue_let_go(device);
  client_unref(client);
}

/* Begins all that can begin, and ends the run behind the last. Takes the mutex from its caller. */
static void go_on(run *each) {
  if (each->is_going_on) {
    each->again = true;
    pthread_mutex_unlock(&each->mutex);
    return;
  }
  each->is_going_on = true;
  do {
    each->again = false;
    size_t number;
    while (next_step(each, &number)) {
      pthread_mutex_unlock(&each->mutex);
      go_on_with(each, number);
      pthread_mutex_lock(&each->mutex);
    }
  } while (each->again);
  each->is_going_on = false;
  bool is_over = each->open == 0;
  pthread_mutex_unlock(&each->mutex);
  if (is_over) end_run(each);
}

void steps_run(const stepped *of) {
  run *each = new_zeroed(1, sizeof *each);
  const executable *core = each->core = of->loaded->core;
  each->of = *of;
  pthread_mutex_init(&each->mutex, NULL);
  size_t num_pieces = core->num_parameters;
  for (size_t i = 0; i < core->num_steps; ++i)
    num_pieces += core->steps[i].code ? 1 : core->steps[i].num_inputs + core->steps[i].num_outputs;
  each->states = new_zeroed(core->num_steps, sizeof *each->states);
  each->needs = new_zeroed(core->num_steps, sizeof *each->needs);
  each->pieces = new_zeroed(num_pieces, sizeof *each->pieces);
  each->is_in_queue = new_zeroed(num_values(core), sizeof *each->is_in_queue);
  each->comes = new_zeroed(num_values(core), sizeof *each->comes);
  each->host = new_zeroed(num_values(core), sizeof *each->host);
  queue_hold(of->device);
  each->is_going_on = true; /* until all arguments are looked at */
  for (size_t i = 0; i < core->num_parameters; ++i) {
    each->is_in_queue[i] = true;
    completion_then(of->defined[i], piece_ended, begin_piece(each));
  }
  pthread_mutex_lock(&each->mutex);
  each->is_going_on = false;
  go_on(each);
}
