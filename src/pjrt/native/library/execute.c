/* Starting programs: what is asked is checked, arguments are taken, and the driver launches.
 *
 * A launch goes to the driver from the caller's thread where its arguments are there, or are promised by a queue. Else
 * the thread that completes the last of them submits it. What a program reads was filled before in the same queue, or
 * the driver is told to wait for the fence of another. */
#include "runtime.h"

/* ---- executions with collectives --------------------------------------------------------------------------------------------
 * Their launches wait for one another on the devices, so the devices get them in the same order. Launches of which some
 * are submitted later, or in steps, hold up the next execution with collectives until they have ended.
 *
 * None is submitted before the arguments of all are there or promised. Else a queue could be in a collective, while an
 * argument of another launch needs work behind it.
 *
 * They also end together: where one fails, the others wait for what does not come, or were given what is worth nothing.
 * All have its error then, and those that are in a queue are cancelled. */
typedef struct member {
  struct together *of;
  PJRT_Device *device;
  completion *late; /* of a launch that is submitted later, or in steps: its end; else null */
  bool has_ended;   /* or was given up; guarded by the mutex */
} member;

struct together {
  atomic_int refs;
  pthread_mutex_t mutex; /* guards the next three */
  PJRT_Error *error;     /* the first */
  launch *ended;         /* those that wait for the others to end, by `next` */
  size_t num_running;
  completion **needs; /* the arguments of all members that nothing promised at the start */
  size_t num_needs;
  size_t num_members;
  member members[];
};

static struct together *together_make(size_t num_members) {
  struct together *each = new_zeroed(1, sizeof *each + num_members * sizeof *each->members);
  atomic_init(&each->refs, 1);
  pthread_mutex_init(&each->mutex, NULL);
  each->num_members = each->num_running = num_members;
  return each;
}

static struct together *together_ref(struct together *each) {
  if (each) atomic_fetch_add(&each->refs, 1);
  return each;
}

void together_unref(struct together *each) {
  if (each == NULL || atomic_fetch_sub(&each->refs, 1) != 1) return;
  for (size_t i = 0; i < each->num_members; ++i) completion_unref(each->members[i].late);
  for (size_t i = 0; i < each->num_needs; ++i) completion_unref(each->needs[i]);
  free(each->needs);
  pjrt_error_release(each->error);
  pthread_mutex_destroy(&each->mutex);
  free(each);
}

static PJRT_Error *together_error(struct together *each) {
  if (each == NULL) return NULL;
  pthread_mutex_lock(&each->mutex);
  PJRT_Error *error = pjrt_error_share(each->error);
  pthread_mutex_unlock(&each->mutex);
  return error;
}

static bool together_is_open(const struct together *each) {
  for (size_t i = 0; each && i < each->num_members; ++i) {
    if (each->members[i].late && !completion_is_set(each->members[i].late)) return true;
  }
  return false;
}

/* ---- a launch -----------------------------------------------------------------------------------------------------------*/
struct launch {
  PJRT_LoadedExecutable *loaded; /* a reference */
  PJRT_Device *device;
  uint64_t executable;
  int id, replica, partition;
  int64_t run;
  bool is_deferred, is_apart; /* apart: its device's queue does not wait for others */
  atomic_size_t waiting; /* arguments that nothing promises yet, and one for the call that registers */
  storage **arguments;   /* a reference each; null where it was donated */
  completion **defined;
  bool *is_read; /* whether the argument counts as read until the launch is in the queue */
  storage **outputs;
  storage *scratch;
  storage **values; /* between steps; null where it stays on the host */
  uint64_t *inputs_memory, *outputs_memory, *values_memory; /* one behind the other */
  completion *done;   /* null until something can wait for it */
  execute_options *options; /* null for the defaults */
  uint64_t execution; /* of several devices */
  struct together *behind; /* a reference to what must have ended before, or null */
  struct together *group;  /* a reference to its own execution with collectives, or null */
  member *member;          /* of the group */
  PJRT_Error *poison; /* guarded by the device's mutex, with what follows */
  bool is_interrupted, is_given_up; /* it was in flight when Ctrl-C was pressed; it ends because of that */
  bool is_listed;
  launch *next, *newer;
};

static size_t aligned(size_t size) { return (size + 15) & ~(size_t)15; }

static launch *launch_make(PJRT_LoadedExecutable *loaded, PJRT_Device *device) {
  const executable *core = loaded->core;
  size_t in = core->num_parameters, out = core->num_outputs, between = core->num_values;
  size_t sizes[] = {sizeof(launch), in * sizeof(storage *), in * sizeof(completion *), (out + between) * sizeof(storage *),
                    (in + out + between) * sizeof(uint64_t), in * sizeof(bool)};
  size_t total = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) total += aligned(sizes[i]);
  char *memory = new_zeroed(1, total);
  launch *each = (launch *)(void *)memory;
  char *at = memory + aligned(sizes[0]);
  each->arguments = (storage **)(void *)at, at += aligned(sizes[1]);
  each->defined = (completion **)(void *)at, at += aligned(sizes[2]);
  each->outputs = (storage **)(void *)at, at += aligned(sizes[3]);
  each->values = each->outputs + out;
  each->inputs_memory = (uint64_t *)(void *)at, at += aligned(sizes[4]);
  each->outputs_memory = each->inputs_memory + in;
  each->values_memory = each->outputs_memory + out;
  each->is_read = (bool *)at;
  atomic_fetch_add_explicit(&loaded->refs, 1, memory_order_relaxed);
  each->loaded = loaded;
  each->device = device;
  return each;
}

static void end_reads(launch *each) {
  for (size_t i = 0; i < each->loaded->core->num_parameters; ++i) {
    if (!each->is_read[i]) continue;
    each->is_read[i] = false;
    atomic_fetch_sub(&each->arguments[i]->readers, 1);
  }
}

static void launch_free(launch *each) {
  const executable *core = each->loaded->core;
  end_reads(each);
  for (size_t i = 0; i < core->num_parameters; ++i) {
    storage_unref(each->arguments[i]);
    completion_unref(each->defined[i]);
  }
  for (size_t i = 0; i < core->num_outputs; ++i) storage_unref(each->outputs[i]);
  for (size_t i = 0; i < core->num_values; ++i) storage_unref(each->values[i]);
  storage_unref(each->scratch);
  completion_unref(each->done);
  execute_options_end(each->options);
  together_unref(each->behind);
  together_unref(each->group);
  pjrt_error_release(each->poison);
  loaded_unref(each->loaded);
  free(each);
}

/* The launch leaves the list of its device; gives the error with which it was poisoned. */
static PJRT_Error *leave_list(launch *each) {
  PJRT_Device *device = each->device;
  pthread_mutex_lock(&device->mutex);
  if (each->is_listed) {
    *(each->newer ? &each->newer->next : &device->launches) = each->next;
    if (each->next) each->next->newer = each->newer;
    each->is_listed = false;
  }
  PJRT_Error *poison = pjrt_error_share(each->poison);
  pthread_mutex_unlock(&device->mutex);
  return poison;
}

/* Its memory is given back before anybody hears of the end, so that whoever waited finds room. */
static void tell_end(launch *each, PJRT_Error *owned) {
  completion *done = completion_ref(each->done);
  launch_free(each);
  completion_set(done, owned);
  completion_unref(done);
}

/* The completion of a launch of the group that is in the list of a device; a reference, or null. */
static completion *done_of_member(PJRT_Device *device, const struct together *group) {
  pthread_mutex_lock(&device->mutex);
  const launch *each = device->launches;
  while (each && each->group != group) each = each->next;
  completion *done = each ? completion_ref(each->done) : NULL;
  pthread_mutex_unlock(&device->mutex);
  return done;
}

/* The others wait for a launch that failed: they are cancelled, or will not begin. */
static void fail_together(struct together *group, PJRT_Error *owned) {
  pthread_mutex_lock(&group->mutex);
  bool is_first = group->error == NULL;
  if (is_first) group->error = owned;
  pthread_mutex_unlock(&group->mutex);
  if (!is_first) pjrt_error_release(owned);
  for (size_t i = 0; i < group->num_members && is_first; ++i) {
    PJRT_Device *device = group->members[i].device;
    completion *done = done_of_member(device, group);
    if (done) queue_cancel(device, done);
    completion_unref(done);
  }
}

/* A launch has ended; or was given up, and is null. With the last one, all hear of it. */
static void end_together(member *member, launch *each, PJRT_Error *owned) {
  struct together *group = together_ref(member->of);
  if (owned) fail_together(group, owned);
  pthread_mutex_lock(&group->mutex);
  if (!member->has_ended) --group->num_running;
  member->has_ended = true;
  if (each) each->next = group->ended, group->ended = each;
  launch *due = group->num_running ? NULL : group->ended;
  if (due) group->ended = NULL;
  pthread_mutex_unlock(&group->mutex);
  while (due) {
    each = due;
    due = each->next;
    tell_end(each, together_error(group));
  }
  together_unref(group);
}

/* The watchdog has told of the end of a launch that goes on: the others do not wait for it. */
static void member_is_given_up(PJRT_Error *borrowed, void *arg) {
  member *each = arg;
  struct together *group = each->of;
  end_together(each, NULL, pjrt_error_share(borrowed));
  together_unref(group);
}

static void join_group(struct together *group, launch *each, size_t number) {
  each->group = together_ref(group);
  each->member = &group->members[number];
  *each->member = (member){.of = group, .device = each->device};
  each->done = completion_make();
  if (each->device->client->patience) {
    together_ref(group);
    completion_then(each->done, member_is_given_up, each->member);
  }
}

/* All work of the launch is done, or was never begun. */
static void finish(launch *each, PJRT_Error *owned) {
  PJRT_Error *poison = leave_list(each);
  if (poison) {
    pjrt_error_release(owned);
    owned = poison;
  }
  if (each->group) end_together(each->member, each, owned);
  else tell_end(each, owned);
}

PJRT_Error *launch_refusal(launch *each) {
  PJRT_Error *error = together_error(each->group);
  pthread_mutex_lock(&each->device->mutex);
  if (!error) error = pjrt_error_share(each->poison);
  pthread_mutex_unlock(&each->device->mutex);
  return error;
}

static void arguments_are_set(PJRT_Error *borrowed, void *arg);

/* The first error of an argument; null where there is none. Sets is_open where one is not known yet. */
static PJRT_Error *argument_error(launch *each, bool *is_open) {
  for (size_t i = 0; i < each->loaded->core->num_parameters; ++i) {
    if (!completion_is_set(each->defined[i])) {
      *is_open = true;
      continue;
    }
    if (completion_error(each->defined[i])) return pjrt_error_share(completion_error(each->defined[i]));
  }
  return NULL;
}

/* The queue has run the launch. An argument's work was run before, but its end may be told later. */
static void launch_ended(PJRT_Error *borrowed, void *arg) {
  launch *each = arg;
  bool is_open = false;
  PJRT_Error *error = argument_error(each, &is_open);
  if (!error && borrowed) error = pjrt_error_share(borrowed);
  if (!error && is_open) {
    atomic_store(&each->waiting, 1);
    for (size_t i = 0; i < each->loaded->core->num_parameters; ++i) {
      if (completion_is_set(each->defined[i])) continue;
      atomic_fetch_add(&each->waiting, 1);
      completion_then(each->defined[i], arguments_are_set, each);
    }
    arguments_are_set(NULL, each);
    return;
  }
  finish(each, error);
}

static void arguments_are_set(PJRT_Error *borrowed, void *arg) {
  (void)borrowed;
  launch *each = arg;
  if (atomic_fetch_sub(&each->waiting, 1) != 1) return;
  bool is_open = false;
  finish(each, argument_error(each, &is_open));
}

/* What the driver has to wait for: fences of other devices' queues. */
static size_t other_fences(launch *each, size_t *devices, pjrt_fence *fences) {
  size_t count = 0;
  for (size_t i = 0; i < each->loaded->core->num_parameters && count < MAX_DEVICES; ++i) {
    if (completion_is_set(each->defined[i])) continue;
    PJRT_Device *device;
    pjrt_fence fence;
    if (!completion_fence(each->defined[i], &device, &fence) || device == each->device) continue;
    devices[count] = device->number;
    fences[count++] = fence;
  }
  return count;
}

static void fill_memory(launch *each) {
  const executable *core = each->loaded->core;
  for (size_t i = 0; i < core->num_parameters; ++i) each->inputs_memory[i] = storage_memory(each->arguments[i]);
  for (size_t i = 0; i < core->num_outputs; ++i) each->outputs_memory[i] = storage_memory(each->outputs[i]);
  for (size_t i = 0; i < core->num_values; ++i)
    each->values_memory[i] = each->values[i] ? storage_memory(each->values[i]) : 0;
}

/* Gives the launch to the driver. Returns whether it is done already, with its error; else it ends by itself. */
static bool submit(launch *each, PJRT_Error **error) {
  PJRT_Client *client = each->loaded->client;
  const executable *core = each->loaded->core;
  bool is_open = false;
  *error = argument_error(each, &is_open);
  /* A worker is told, because its other devices may wait for this one. */
  bool is_told = *error && is_python(client) && each->loaded->num_participants;
  if (is_told) each->options = execute_options_fail(each->options, *error);
  else if (*error || (each->done && (*error = launch_refusal(each)))) return true;
  pjrt_error_release(*error);
  *error = NULL;
  size_t after_devices[MAX_DEVICES];
  pjrt_fence after[MAX_DEVICES];
  size_t num_after = is_open ? other_fences(each, after_devices, after) : 0;
  fill_memory(each);
  worker_launch given = {.options = each->options, .launch = {
      .struct_size = sizeof given,
      .device = each->device->number,
      .executable = each->executable,
      .num_inputs = is_told ? 0 : core->num_parameters,
      .inputs = each->inputs_memory,
      .num_outputs = core->num_outputs,
      .outputs = each->outputs_memory,
      .scratch = each->scratch ? storage_memory(each->scratch) : 0,
      .num_after = num_after,
      .after_devices = after_devices,
      .after = after,
      .replica = each->replica,
      .partition = each->partition,
      .run = each->run,
      .must_not_block = each->is_deferred,
      .num_participants = each->loaded->num_participants,
      .participants = each->loaded->participants,
      .execution = each->execution,
  }};
  char message[PJRT_DRIVER_MESSAGE_SIZE];
  message[0] = 0;
  pjrt_fence fence = 0;
  int code = client->table->launch(client->driver, &given.launch, &fence, message);
  end_reads(each);
  if (code) {
    *error = error_of_driver("launch", code, message);
    return true;
  }
  if (fence == 0 && !is_open) {
    recording_work(each->device, &(work){.program = core->name}, recording_called());
    return true;
  }
  if (each->done == NULL) each->done = completion_make();
  if (fence) completion_submit(each->done, each->device, fence);
  return false;
}

static pjrt_fence fence_of(const launch *each) {
  PJRT_Device *device;
  pjrt_fence fence = 0;
  completion_fence(each->done, &device, &fence);
  return fence;
}

static void follow(launch *each) {
  PJRT_Device *device = each->device;
  struct together *group = together_ref(each->group); /* the launch may end at once */
  completion *done = completion_ref(each->done);
  queue_follow(device, fence_of(each), (work){"launch", each->loaded->core->name, done, launch_ended, each});
  /* Whoever looked for it before it was submitted has not found it. */
  PJRT_Error *error = together_error(group);
  if (error) queue_cancel(device, done);
  pjrt_error_release(error);
  completion_unref(done);
  together_unref(group);
}

static void steps_ended(PJRT_Error *borrowed, void *arg) { finish(arg, pjrt_error_share(borrowed)); }

/* The steps read arguments until they have ended. */
static void run_steps(launch *each) {
  fill_memory(each);
  steps_run(&(stepped){.loaded = each->loaded, .device = each->device, .launch = each, .replica = each->replica,
                       .partition = each->partition, .run = each->run, .execution = each->execution, .memory = each->inputs_memory,
                       .scratch = each->scratch ? storage_memory(each->scratch) : 0, .defined = each->defined,
                       .done = each->done, .then = steps_ended, .arg = each});
}

/* The last argument that nothing promised is there, or failed. */
static void submit_deferred(PJRT_Error *borrowed, void *arg) {
  (void)borrowed;
  launch *each = arg;
  if (atomic_fetch_sub(&each->waiting, 1) != 1) return;
  PJRT_Error *error = NULL;
  if (each->loaded->core->num_steps) run_steps(each);
  else if (submit(each, &error)) finish(each, error);
  else follow(each);
}

/* ---- what is asked for ------------------------------------------------------------------------------------------------------*/
static bool is_donated(const PJRT_LoadedExecutable_Execute_Args *args, size_t parameter) {
  if (!args->executable->core->donated[parameter]) return false;
  const PJRT_ExecuteOptions *options = args->options;
  if (options == NULL || !HAS(options, PJRT_ExecuteOptions, num_non_donatable_input_indices)) return true;
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == (int64_t)parameter) return false;
  }
  return true;
}

static PJRT_Error *wrong_argument(size_t number, const char *what, char *owned_found, char *owned_expected) {
  PJRT_Error *error = error_make(INVALID, "argument %zu: expected %s%s, found %s", number, what, owned_expected, owned_found);
  free(owned_found);
  free(owned_expected);
  return error;
}

/* Frameworks begin a chain of tokens with an empty array of booleans. */
static bool stands_for_token(const shape *found, const shape *expected) {
  return expected->type == PJRT_Buffer_Type_TOKEN && found->type == PJRT_Buffer_Type_PRED && found->rank == 1 &&
         found->dims[0] == 0;
}

/* XLA's plugins compare numbers of bytes alone, and frameworks rely on it: TorchTPU gives an array of one element for a
 * scalar. Other arrays of another shape are rather a mistake. */
static bool stands_for_scalar(const PJRT_Buffer *found, const shape *expected) {
  return found->shape.type == expected->type && shape_elements(&found->shape) == 1 && shape_elements(expected) == 1 &&
         storage_is_plain(found->space, &found->shape) && storage_is_plain(found->space, expected);
}

static PJRT_Error *check_argument(const PJRT_LoadedExecutable_Execute_Args *args, size_t list, size_t number,
                                  const PJRT_Device *device) {
  PJRT_Buffer *const *arguments = args->argument_lists[list];
  const parameter *expected = &args->executable->core->parameters[number];
  PJRT_Buffer *buffer = arguments[number];
  if (buffer == NULL) return error_make(INVALID, "argument %zu: expected a buffer, found null", number);
  if (buffer->space->device != device)
    return error_make(INVALID, "argument %zu: expected a buffer on %s, found one on %s", number,
                      device->description->to_string, buffer->space->device->description->to_string);
  if (buffer->space->kind_number != expected->kind && !args->executable->core->takes_any_memory)
    return error_make(INVALID, "argument %zu: expected memory of kind %s, found %s", number,
                      device->spaces[expected->kind].kind, buffer->space->kind);
  bool is_same = shape_same(&buffer->shape, &expected->shape);
  if (!is_same && !stands_for_token(&buffer->shape, &expected->shape) && !stands_for_scalar(buffer, &expected->shape))
    return wrong_argument(number, "", shape_text(&buffer->shape), shape_text(&expected->shape));
  if (is_same && DRIVER_HAS(device->client->table, layout) && !shape_same_order(&buffer->shape, &expected->shape))
    return wrong_argument(number, "the layout ", layout_text(&buffer->shape, NULL), layout_text(&expected->shape, NULL));
  PJRT_Error *error = buffer_check(buffer);
  if (error || !args->executable->core->donated[number] || !is_donated(args, number)) return error;
  for (size_t j = 0; j < args->num_args; ++j) {
    if (j != number && arguments[j] == buffer)
      return error_make(INVALID, "argument %zu is donated, and is given again as argument %zu", number, j);
  }
  return NULL;
}

static PJRT_Error *check_request(const PJRT_LoadedExecutable_Execute_Args *args) {
  const PJRT_LoadedExecutable *loaded = args->executable;
  if (atomic_load(&loaded->is_deleted)) return error_make(INVALID, "the executable was deleted");
  if (args->num_args != loaded->core->num_parameters)
    return error_make(INVALID, "expected %zu arguments, found %zu", loaded->core->num_parameters, args->num_args);
  for (size_t i = 0; i < args->num_devices && args->num_args; ++i) {
    if (args->argument_lists == NULL || args->argument_lists[i] == NULL)
      return error_make(INVALID, "expected a list of arguments, found a null pointer");
  }
  if (args->execute_device) {
    if (args->execute_device->client != loaded->client)
      return error_make(INVALID, "expected a device of the client that loaded the executable, found one of another");
    if (args->num_devices == 1) return NULL;
    return error_make(INVALID, "with execute_device expected one list of arguments, found %zu", args->num_devices);
  }
  if (loaded->core->is_portable) return error_make(INVALID, "a portable executable needs execute_device");
  if (args->num_devices == loaded->num_local) return NULL;
  return error_make(INVALID, "the executable runs on %zu devices, expected as many lists of arguments, found %zu",
                    loaded->num_local, args->num_devices);
}

/* The device of a list of arguments, and its place in the assignment. */
static PJRT_Error *find_place(const PJRT_LoadedExecutable_Execute_Args *args, size_t list, launch **out) {
  PJRT_LoadedExecutable *loaded = args->executable;
  PJRT_Device *device = args->execute_device ? args->execute_device : loaded->devices[list];
  size_t place = list;
  if (args->execute_device && !loaded->core->is_portable) {
    for (place = 0; place < loaded->num_local && loaded->devices[place] != device; ++place) {
    }
    if (place == loaded->num_local)
      return error_make(INVALID, "the executable was not compiled for %s", device->description->to_string);
  }
  launch *each = *out = launch_make(loaded, device);
  if (!loaded->core->is_portable) {
    each->replica = loaded->ids[place].replica;
    each->partition = loaded->ids[place].partition;
  }
  if (args->options) each->id = args->options->launch_id;
  const PJRT_Client *client = loaded->client;
  if (is_python(client)) each->options = execute_options_make(args->options, loaded->core, list, client->python->has_contexts && client->python->has_contexts(client->driver));
  return loaded_on(loaded, device, &each->executable);
}

static PJRT_Error *take_outputs(launch *each) {
  const executable *core = each->loaded->core;
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < core->num_outputs && !error; ++i) {
    const output *wanted = &core->outputs[i];
    if (wanted->alias < 0 || core->num_steps) /* a later step may read the argument */
      error = storage_allocate(&each->device->spaces[wanted->kind], &wanted->shape, &each->outputs[i]);
  }
  for (size_t i = 0; i < core->num_values && !error; ++i) {
    const value *wanted = &core->values[i];
    if (!wanted->is_on_host)
      error = storage_allocate(&each->device->spaces[wanted->kind], &wanted->shape, &each->values[i]);
  }
  if (!error && core->scratch) error = storage_allocate_bytes(&each->device->spaces[0], core->scratch, &each->scratch);
  return error;
}

static bool can_write(const storage *each, const memory_space *space, const shape *of, const shape *was) {
  return each->space == space && each->target == NULL && shape_same(of, was) && shape_same_order(of, was) &&
         atomic_load(&each->sharers) == 0 && atomic_load(&each->readers) == 0;
}

/* A donated argument's memory becomes the output's where nobody else looks at it, or will. */
static PJRT_Error *take_arguments(const PJRT_LoadedExecutable_Execute_Args *args, size_t list, launch *each) {
  const executable *core = each->loaded->core;
  for (size_t i = 0; i < core->num_parameters; ++i) {
    PJRT_Buffer *buffer = args->argument_lists[list][i];
    each->defined[i] = completion_ref(buffer->defined);
    bool donates = core->donated[i] && is_donated(args, i);
    PJRT_Error *error = donates ? buffer_donate(buffer, &each->arguments[i]) : buffer_use(buffer, &each->arguments[i]);
    if (error) return error;
    each->is_read[i] = !donates;
  }
  for (size_t i = 0; i < core->num_outputs; ++i) {
    const output *wanted = &core->outputs[i];
    if (wanted->alias < 0 || core->num_steps) continue;
    memory_space *space = &each->device->spaces[wanted->kind];
    storage *from = each->arguments[wanted->alias];
    if (!each->is_read[wanted->alias] &&
        can_write(from, space, &wanted->shape, &core->parameters[wanted->alias].shape)) {
      each->outputs[i] = storage_ref(from);
      continue;
    }
    PJRT_Error *error = storage_allocate(space, &wanted->shape, &each->outputs[i]);
    if (error) return error;
  }
  return NULL;
}

/* ---- running ----------------------------------------------------------------------------------------------------------------*/
/* A call is refused: its arguments are as they were. */
static void give_back(const PJRT_LoadedExecutable_Execute_Args *args, size_t list, launch *each) {
  for (size_t i = 0; i < args->num_args; ++i) {
    if (each->arguments[i] == NULL || each->is_read[i]) continue;
    buffer_take_back(args->argument_lists[list][i], each->arguments[i]);
    each->arguments[i] = NULL;
  }
  launch_free(each);
}

/* Whether nothing promises an argument yet. The driver waits for other queues before a launch, not before steps. */
static bool is_open(const launch *each, size_t number) {
  PJRT_Device *device;
  pjrt_fence fence;
  if (completion_is_set(each->defined[number])) return false;
  bool is_promised = completion_fence(each->defined[number], &device, &fence);
  return !is_promised || ((each->is_apart || each->loaded->core->num_steps) && device != each->device);
}

/* Two queues must not wait for each other: one in a collective, for a launch that comes to the other queue later; and that
 * one for a fence behind the collective. A group that is being started is whole when its lock is free; one of which
 * launches come later makes others wait on the host. */
static bool must_be_apart(const launch *each) {
  PJRT_Client *client = each->device->client;
  PJRT_Device *device;
  pjrt_fence fence;
  bool has_other = false;
  for (size_t i = 0; i < each->loaded->core->num_parameters && !has_other && !each->group; ++i)
    has_other = !completion_is_set(each->defined[i]) && completion_fence(each->defined[i], &device, &fence) &&
                device != each->device;
  if (!has_other) return false;
  pthread_mutex_lock(&client->order);
  bool is_open = together_is_open(client->last);
  pthread_mutex_unlock(&client->order);
  return is_open;
}

static bool has_open_arguments(const launch *each) {
  if (each->group) return each->group->num_needs != 0;
  for (size_t i = 0; i < each->loaded->core->num_parameters; ++i) {
    if (is_open(each, i)) return true;
  }
  return false;
}

static void find_needs(struct together *group, const launch *each) {
  size_t count = each->loaded->core->num_parameters;
  for (size_t i = 0; i < count; ++i) {
    if (!is_open(each, i)) continue;
    if (group->needs == NULL) group->needs = new_zeroed(count * group->num_members, sizeof(completion *));
    group->needs[group->num_needs++] = completion_ref(each->defined[i]);
  }
}

static void wait_for(launch *each, completion *of) {
  atomic_fetch_add(&each->waiting, 1);
  completion_then(of, submit_deferred, each);
}

/* Submits the launch or lets it wait, and gives its results to the caller. */
static void start(const PJRT_LoadedExecutable_Execute_Args *args, size_t list, launch *each) {
  const executable *core = each->loaded->core;
  PJRT_Device *device = each->device;
  PJRT_Error *error = NULL;
  each->is_apart = must_be_apart(each);
  bool is_done = false, waits = has_open_arguments(each) || together_is_open(each->behind);
  storage *outputs_on_stack[16], **outputs = outputs_on_stack;
  if (core->num_outputs > 16) outputs = new_zeroed(core->num_outputs, sizeof *outputs);
  for (size_t i = 0; i < core->num_outputs; ++i) outputs[i] = storage_ref(each->outputs[i]);
  if (!each->done && (waits || core->num_steps)) each->done = completion_make();
  if (!waits && !core->num_steps) is_done = submit(each, &error);
  completion *done = is_done && !each->group ? completion_with(error) : completion_ref(each->done);
  for (size_t i = 0; i < core->num_outputs; ++i)
    args->output_lists[list][i] = buffer_make(&device->spaces[core->outputs[i].kind], &core->outputs[i].shape,
                                              outputs[i], completion_ref(done));
  if (args->device_complete_events) args->device_complete_events[list] = event_make(done);
  if (each->group && (waits || core->num_steps)) each->member->late = completion_ref(done);
  completion_unref(done);
  if (outputs != outputs_on_stack) free(outputs);
  if (is_done) {
    if (each->group) finish(each, error);
    else launch_free(each);
    return;
  }
  pthread_mutex_lock(&device->mutex);
  each->next = device->launches;
  if (each->next) each->next->newer = each;
  device->launches = each;
  each->is_listed = true;
  pthread_mutex_unlock(&device->mutex);
  if (!waits) {
    if (core->num_steps) run_steps(each);
    else follow(each);
    return;
  }
  each->is_deferred = true;
  atomic_store(&each->waiting, 1);
  for (size_t i = 0; !each->group && i < core->num_parameters; ++i) {
    if (is_open(each, i)) wait_for(each, each->defined[i]);
  }
  for (size_t i = 0; each->group && i < each->group->num_needs; ++i) wait_for(each, each->group->needs[i]);
  for (size_t i = 0; each->behind && i < each->behind->num_members; ++i) {
    if (each->behind->members[i].late) wait_for(each, each->behind->members[i].late);
  }
  submit_deferred(NULL, each);
}

static void start_together(const PJRT_LoadedExecutable_Execute_Args *args, launch **launches) {
  PJRT_Client *client = args->executable->client;
  uint64_t execution = atomic_fetch_add(&client->executions, 1) + 1;
  for (size_t i = 0; i < args->num_devices; ++i) launches[i]->execution = execution;
  if (!args->executable->core->has_collectives) {
    for (size_t i = 0; i < args->num_devices; ++i) start(args, i, launches[i]);
    return;
  }
  struct together *group = together_make(args->num_devices);
  for (size_t i = 0; i < args->num_devices; ++i) join_group(group, launches[i], i);
  for (size_t i = 0; i < args->num_devices; ++i) find_needs(group, launches[i]);
  pthread_mutex_lock(&client->order);
  for (size_t i = 0; i < args->num_devices; ++i) {
    launches[i]->behind = together_ref(client->last);
    start(args, i, launches[i]);
  }
  together_unref(client->last);
  client->last = group;
  pthread_mutex_unlock(&client->order);
}

PJRT_Error *native_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = check_request(args);
  if (error) return error;
  size_t count = args->num_devices;
  launch *on_stack[8], **launches = on_stack;
  if (count > 8) launches = new_zeroed(count, sizeof *launches);
  else memset(on_stack, 0, sizeof on_stack);
  /* Everything is checked before anything is taken, so that a refused call leaves its arguments alone. */
  for (size_t i = 0; i < count && !error; ++i) {
    error = find_place(args, i, &launches[i]);
    for (size_t j = 0; j < args->num_args && !error; ++j) error = check_argument(args, i, j, launches[i]->device);
  }
  for (size_t i = 0; i < count && !error; ++i) error = take_outputs(launches[i]);
  for (size_t i = 0; i < count && !error; ++i) error = take_arguments(args, i, launches[i]);
  int64_t run = error ? 0 : atomic_fetch_add(&args->executable->runs, 1);
  for (size_t i = 0; i < count; ++i) {
    if (launches[i] == NULL) continue;
    if (error) {
      give_back(args, i, launches[i]);
      continue;
    }
    launches[i]->run = run;
    if (count == 1) start(args, i, launches[i]);
  }
  if (!error && count > 1) start_together(args, launches);
  if (launches != on_stack) free(launches);
  return error;
}

PJRT_Error *native_Device_PoisonExecution(PJRT_Device_PoisonExecution_Args *args) {
  PJRT_Device *device = args->device;
  args->poisoned = false;
  PJRT_Error *error = error_from_parts(args->error_code, args->error_message, args->error_message_size);
  if (error == NULL) return error_make(INVALID, "expected the code of an error, found OK");
  if (HAS(args, PJRT_Device_PoisonExecution_Args, num_payload)) error_add_payloads(error, args->payload, args->num_payload);
  pthread_mutex_lock(&device->mutex);
  launch *earliest = NULL; /* the list begins with the latest */
  completion *done = NULL;
  for (launch *each = device->launches; each; each = each->next) {
    if (each->id == args->launch_id && !each->poison) earliest = each;
  }
  if (earliest) {
    earliest->poison = pjrt_error_share(error);
    args->poisoned = true;
    done = completion_ref(earliest->done);
  }
  pthread_mutex_unlock(&device->mutex);
  pjrt_error_release(error);
  if (done) queue_cancel(device, done);
  completion_unref(done);
  return NULL;
}

/* ---- Ctrl-C -----------------------------------------------------------------------------------------------------------------*/
static bool reads(const launch *each, const storage *what) {
  for (size_t i = 0; i < each->loaded->core->num_parameters; ++i) {
    if (each->arguments[i] == what) return true;
  }
  return false;
}

/* Whether a buffer, or a later launch that is not given up, has a result. */
static bool is_held(const PJRT_Device *device, const launch *of) {
  const size_t num_outputs = of->loaded->core->num_outputs;
  for (size_t i = 0; i < num_outputs; ++i) {
    if (of->outputs[i] == NULL || atomic_load(&of->outputs[i]->holders)) return true;
    for (const launch *later = device->launches; later != of; later = later->next) {
      if (!later->is_given_up && reads(later, of->outputs[i])) return true;
    }
  }
  return num_outputs == 0;
}

static bool is_given_up_at(interrupt stage, const PJRT_Device *device, launch *each) {
  bool was_interrupted = each->is_interrupted;
  if (stage == PRESSED || stage == ENDING) each->is_interrupted = true;
  if (each->is_given_up || stage == NONE) return false;
  return stage == ENDING || (was_interrupted && (stage != UNHELD || !is_held(device, each)));
}

size_t launches_interrupt(PJRT_Device *device, interrupt stage) {
  PJRT_Client *client = device->client;
  completion *given_up[64];
  size_t count = 0, in_flight = 0;
  bool goes_on = false;
  pthread_mutex_lock(&device->mutex);
  for (launch *each = device->launches; each; each = each->next) { /* the latest first: an earlier one may be for it */
    ++in_flight;
    goes_on |= each->is_given_up && (stage == PRESSED || stage == ENDING);
    if (!is_given_up_at(stage, device, each)) continue;
    each->is_given_up = true;
    if (!each->poison)
      each->poison = error_make(PJRT_Error_Code_CANCELLED, "%s", stage == UNHELD
                                    ? "Ctrl-C ended a wait for a device, and nothing holds the results"
                                    : stage == ENDING ? "the process ends" : "Ctrl-C ended a wait for the device");
    if (count < sizeof given_up / sizeof *given_up && each->done) given_up[count++] = completion_ref(each->done);
  }
  pthread_mutex_unlock(&device->mutex);
  for (size_t i = 0; i < count; ++i) {
    queue_cancel(device, given_up[i]);
    completion_unref(given_up[i]);
  }
  if (goes_on && is_python(client) && client->python->end) client->python->end(client->driver);
  return in_flight;
}
