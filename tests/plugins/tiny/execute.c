/* Launching programs: on all devices, or on one. */
#include "tiny.h"

/* ---- execute contexts ---------------------------------------------------------------------------------------------*/
PJRT_Error *tiny_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args *args) {
  PJRT_ExecuteContext *context = tiny_calloc(1, sizeof *context);
  atomic_init(&context->refs, 1);
  pthread_mutex_init(&context->mutex, NULL);
  live_add(LIVE_CONTEXT, 1);
  args->context = context;
  return NULL;
}

void context_unref(PJRT_ExecuteContext *context) {
  if (context == NULL || atomic_fetch_sub(&context->refs, 1) != 1) return;
  pthread_mutex_destroy(&context->mutex);
  free(context->entries);
  free(context);
}

PJRT_Error *tiny_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args *args) {
  if (args->context == NULL) return NULL;
  live_add(LIVE_CONTEXT, -1);
  context_unref(args->context);
  return NULL;
}

/* ---- what is asked for ----------------------------------------------------------------------------------------------*/
typedef struct request {
  PJRT_LoadedExecutable *loaded;
  const PJRT_LoadedExecutable_Execute_Args *args;
  const PJRT_ExecuteOptions *options;
} request;

static bool is_donated(const request *r, size_t parameter) {
  const tiny_program *program = r->loaded->core->program;
  bool aliased = false;
  for (size_t i = 0; i < program->num_outputs; ++i) aliased |= program->outputs[i].alias == (int)parameter;
  if (!aliased || !TINY_HAS(r->options, PJRT_ExecuteOptions, num_non_donatable_input_indices)) return aliased;
  for (size_t i = 0; i < r->options->num_non_donatable_input_indices; ++i)
    aliased &= r->options->non_donatable_input_indices[i] != (int64_t)parameter;
  return aliased;
}

static tiny_status *check_argument(const request *r, PJRT_Buffer *const *arguments, size_t i, PJRT_Device *device) {
  const tiny_program *program = r->loaded->core->program;
  PJRT_Buffer *buffer = arguments[i];
  if (buffer == NULL) return status_make(INVALID, "Argument %zu is null", i);
  if (buffer->memory->device != device)
    return status_make(INVALID, "Argument %zu lies on %s, the program runs on %s", i,
                       buffer->memory->device->description->to_string, device->description->to_string);
  if (buffer->memory->kind_id != program->parameter_kinds[i])
    return status_make(INVALID, "Argument %zu lies in memory of kind %s, the program wants %s", i, buffer->memory->kind,
                       tiny_memory_kinds[program->parameter_kinds[i]]);
  if (!shape_same_dims(&buffer->shape, &program->values[i].shape) || !shape_is_row_major(&buffer->shape)) {
    char *got = shape_print(&buffer->shape), *layout = shape_print_layout(&buffer->shape);
    char *want = shape_print(&program->values[i].shape);
    tiny_status *status =
        status_make(INVALID, "Argument %zu is %s%s, the program wants a row-major %s", i, got, layout, want);
    free(got);
    free(layout);
    free(want);
    return status;
  }
  if (!is_donated(r, i)) return NULL;
  for (size_t j = 0; j < r->args->num_args; ++j) {
    if (j != i && arguments[j] == buffer)
      return status_make(INVALID, "Argument %zu is donated, and given again as argument %zu", i, j);
  }
  return NULL;
}

static tiny_status *check_request(const request *r) {
  const PJRT_LoadedExecutable_Execute_Args *args = r->args;
  if (atomic_load(&r->loaded->deleted)) return status_make(INVALID, "The executable was deleted");
  if (args->num_args != r->loaded->core->program->num_parameters)
    return status_make(INVALID, "The program takes %zu arguments, got %zu", r->loaded->core->program->num_parameters,
                       args->num_args);
  if (args->execute_device) {
    if (args->num_devices != 1)
      return status_make(INVALID, "execute_device goes with one list of arguments, got %zu", args->num_devices);
    if (args->execute_device->local_id < 0)
      return status_make(INVALID, "%s is not addressable by this process",
                         args->execute_device->description->to_string);
    return NULL;
  }
  if (r->loaded->core->options.portable) return status_make(INVALID, "A portable executable needs execute_device");
  if (args->num_devices != r->loaded->num_local)
    return status_make(INVALID, "The executable runs on %zu devices, got arguments for %zu", r->loaded->num_local,
                       args->num_devices);
  return NULL;
}

/* The device of list number i, and its place in the assignment. */
static tiny_status *find_place(const request *r, size_t i, tiny_launch *launch, size_t *index) {
  PJRT_Device *wanted = r->args->execute_device;
  launch->device = wanted ? wanted : r->loaded->local_devices[i];
  *index = 0;
  if (r->loaded->core->options.portable) return NULL;
  for (size_t j = 0; j < r->loaded->num_local; ++j) {
    if (r->loaded->local_devices[j] != launch->device) continue;
    *index = j;
    launch->replica = r->loaded->logical_ids[j].replica;
    launch->partition = r->loaded->logical_ids[j].partition;
    return NULL;
  }
  return status_make(INVALID, "The executable was not compiled for %s", wanted->description->to_string);
}

/* ---- launches -----------------------------------------------------------------------------------------------------*/
static void launch_free(tiny_launch *launch) {
  for (size_t i = 0; i < launch->num_arguments; ++i) {
    storage_unref(launch->arguments[i]);
    promise_unref(launch->argument_defined[i]);
  }
  for (size_t i = 0; i < launch->executable->program->num_outputs; ++i) storage_unref(launch->outputs[i]);
  free(launch->arguments);
  free(launch->argument_defined);
  free(launch->outputs);
  free(launch->sends);
  free(launch->recvs);
  free(launch->output_callbacks);
  context_unref(launch->context);
  meeting_unref(launch->meeting);
  status_unref(launch->poison);
  promise_unref(launch->done);
  executable_unref(launch->executable);
  free(launch);
}

static tiny_launch *launch_make(const request *r, size_t i) {
  const PJRT_ExecuteOptions *options = r->options;
  tiny_launch *launch = tiny_calloc(1, sizeof *launch);
  launch->executable = executable_ref(r->loaded->core);
  launch->num_arguments = r->args->num_args;
  launch->arguments = tiny_calloc(launch->num_arguments, sizeof *launch->arguments);
  launch->argument_defined = tiny_calloc(launch->num_arguments, sizeof *launch->argument_defined);
  launch->outputs = tiny_calloc(r->loaded->core->program->num_outputs, sizeof *launch->outputs);
  launch->done = promise_make();
  if (options->num_send_ops && options->send_callbacks) {
    launch->num_sends = options->num_send_ops;
    launch->sends = tiny_memdup(options->send_callbacks[i], launch->num_sends * sizeof *launch->sends);
  }
  if (options->num_recv_ops && options->recv_callbacks) {
    launch->num_recvs = options->num_recv_ops;
    launch->recvs = tiny_memdup(options->recv_callbacks[i], launch->num_recvs * sizeof *launch->recvs);
  }
  launch->launch_id = options->launch_id;
  if (TINY_HAS(options, PJRT_ExecuteOptions, context) && options->context) {
    launch->context = options->context;
    atomic_fetch_add(&launch->context->refs, 1);
  }
  if (TINY_HAS(options, PJRT_ExecuteOptions, num_hlo_output_callbacks) && options->num_hlo_output_callbacks) {
    launch->num_output_callbacks = options->num_hlo_output_callbacks;
    launch->output_callbacks = tiny_memdup(options->hlo_output_callbacks,
                                           launch->num_output_callbacks * sizeof *launch->output_callbacks);
  }
  return launch;
}

/* Uses or takes every argument, and collects what has to be waited for. */
static tiny_status *take_arguments(const request *r, size_t list, tiny_launch *launch, tiny_promise ***deps,
                                   size_t *num_deps) {
  tiny_promise **all = NULL;
  size_t count = 0;
  tiny_status *status = NULL;
  for (size_t i = 0; i < launch->num_arguments && !status; ++i) {
    PJRT_Buffer *buffer = r->args->argument_lists[list][i];
    launch->argument_defined[i] = promise_ref(buffer->defined);
    tiny_promise **more = NULL;
    size_t num_more = 0;
    if (is_donated(r, i)) {
      status = buffer_donate(buffer, &launch->arguments[i], &more, &num_more);
    } else {
      status = buffer_use(buffer, launch->done, &launch->arguments[i]);
      num_more = 1;
      more = tiny_calloc(1, sizeof *more);
      more[0] = promise_ref(buffer->defined);
    }
    if (status) {
      promises_free(more, is_donated(r, i) ? 0 : num_more);
      break;
    }
    tiny_promise **larger = tiny_calloc(count + num_more, sizeof *larger);
    if (count) memcpy(larger, all, count * sizeof *larger);
    memcpy(larger + count, more, num_more * sizeof *larger);
    free(all);
    free(more);
    all = larger;
    count += num_more;
  }
  *deps = all;
  *num_deps = count;
  return status;
}

/* Memory for the outputs that alias nothing, or for those that do. Donated memory is written in place where nobody else
 * looks at it. */
static tiny_status *take_outputs(const request *r, tiny_launch *launch, bool aliased) {
  const tiny_program *program = launch->executable->program;
  for (size_t i = 0; i < program->num_outputs; ++i) {
    const tiny_output *output = &program->outputs[i];
    if ((output->alias >= 0 && is_donated(r, (size_t)output->alias)) != aliased) continue;
    tiny_memory *memory = &launch->device->memories[output->kind];
    tiny_storage *donated = aliased ? launch->arguments[output->alias] : NULL;
    size_t size = shape_size(&program->values[output->value].shape);
    if (donated && !atomic_load(&donated->keep) && donated->memory == memory && donated->size == size) {
      launch->outputs[i] = storage_ref(donated);
      continue;
    }
    tiny_status *status = storage_allocate(memory, size, &launch->outputs[i]);
    if (status) return status;
  }
  return NULL;
}

typedef struct tiny_join {
  int64_t run;
  size_t joined;
  tiny_meeting *meeting;
  struct tiny_join *next;
} tiny_join;

/* The devices meet by how often each ran the executable, so that they find each other when launched one by one too. */
static void join_meeting(PJRT_LoadedExecutable *loaded, size_t index, tiny_launch *launch) {
  pthread_mutex_lock(&loaded->client->mutex);
  launch->run_id = loaded->runs[index]++;
  tiny_join **place = &loaded->joins;
  while (*place && (*place)->run != launch->run_id) place = &(*place)->next;
  if (*place == NULL) {
    tiny_join *join = tiny_calloc(1, sizeof *join);
    join->run = launch->run_id;
    join->meeting = meeting_make(loaded->num_local ? loaded->num_local : 1);
    *place = join;
  }
  tiny_join *join = *place;
  launch->meeting = meeting_ref(join->meeting);
  if (++join->joined >= loaded->num_local) {
    *place = join->next;
    meeting_unref(join->meeting);
    free(join);
  }
  pthread_mutex_unlock(&loaded->client->mutex);
}

void loaded_leave_meetings(PJRT_LoadedExecutable *loaded) {
  while (loaded->joins) {
    tiny_join *join = loaded->joins;
    loaded->joins = join->next;
    tiny_status *status = status_make(PJRT_Error_Code_ABORTED, "The executable was destroyed before all devices ran it");
    meeting_fail(join->meeting, status);
    status_unref(status);
    meeting_unref(join->meeting);
    free(join);
  }
}

/* ---- running ------------------------------------------------------------------------------------------------------*/
static tiny_status *take_poison(tiny_launch *launch, bool leave) {
  PJRT_Device *device = launch->device;
  pthread_mutex_lock(&device->mutex);
  if (leave) {
    tiny_launch **each = &device->launches;
    while (*each && *each != launch) each = &(*each)->next;
    if (*each) *each = launch->next;
  }
  tiny_status *poison = status_ref(launch->poison);
  pthread_mutex_unlock(&device->mutex);
  return poison;
}

static void run_launch(void *arg) {
  tiny_launch *launch = arg;
  atomic_fetch_add(&executions_started, 1);
  tiny_status *status = take_poison(launch, false);
  for (size_t i = 0; i < launch->num_arguments && !status; ++i)
    status = status_ref(promise_status(launch->argument_defined[i]));
  if (!status) status = ops_run(launch);
  tiny_status *poison = take_poison(launch, true);
  if (poison) {
    status_unref(status);
    status = poison;
  }
  if (status) meeting_fail(launch->meeting, status);
  for (size_t i = 0; i < launch->num_arguments; ++i) {
    storage_unref(launch->arguments[i]);
    launch->arguments[i] = NULL;
  }
  tiny_promise *done = promise_ref(launch->done);
  launch_free(launch);
  promise_set(done, status);
  promise_unref(done);
}

static void start(const request *r, size_t list, tiny_launch *launch, tiny_promise **deps, size_t num_deps) {
  const tiny_program *program = launch->executable->program;
  for (size_t i = 0; i < program->num_outputs; ++i) {
    const tiny_output *output = &program->outputs[i];
    r->args->output_lists[list][i] =
        buffer_make(&launch->device->memories[output->kind], &program->values[output->value].shape,
                    storage_ref(launch->outputs[i]), promise_ref(launch->done));
  }
  if (r->args->device_complete_events)
    r->args->device_complete_events[list] = event_make(launch->done, F_LoadedExecutable_Execute);
  pthread_mutex_lock(&launch->device->mutex);
  launch->next = launch->device->launches;
  launch->device->launches = launch;
  pthread_mutex_unlock(&launch->device->mutex);
  queue_push_after(launch->device->queue, deps, num_deps, run_launch, launch);
}

PJRT_Error *tiny_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args *args) {
  request r = {args->executable, args, args->options};
  tiny_status *status = check_request(&r);
  if (status) return error_from(status);
  size_t count = args->num_devices, indices[TINY_MAX_DEVICES], num_deps[TINY_MAX_DEVICES] = {0};
  tiny_launch *launches[TINY_MAX_DEVICES] = {0};
  tiny_promise **deps[TINY_MAX_DEVICES] = {0};
  /* Everything is checked before anything is taken, so that a refused call leaves its arguments alone. */
  for (size_t i = 0; i < count && !status; ++i) {
    launches[i] = launch_make(&r, i);
    status = find_place(&r, i, launches[i], &indices[i]);
    for (size_t j = 0; j < args->num_args && !status; ++j)
      status = check_argument(&r, args->argument_lists[i], j, launches[i]->device);
  }
  for (size_t i = 0; i < count && !status; ++i) status = take_outputs(&r, launches[i], false);
  for (size_t i = 0; i < count && !status; ++i) {
    status = take_arguments(&r, i, launches[i], &deps[i], &num_deps[i]);
    if (!status) status = take_outputs(&r, launches[i], true);
  }
  for (size_t i = 0; i < count; ++i) {
    if (launches[i] == NULL) continue;
    if (status) {
      promise_set(launches[i]->done, status_ref(status)); /* uses that were noted end here */
      launch_free(launches[i]);
    } else {
      join_meeting(args->executable, indices[i], launches[i]);
      start(&r, i, launches[i], deps[i], num_deps[i]);
    }
    promises_free(deps[i], num_deps[i]);
  }
  return error_from(status);
}
