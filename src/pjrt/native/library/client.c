/* Clients: one open driver, its devices, and what only the client knows. */
#include <unistd.h>

#include "runtime.h"

struct open_end {
  PJRT_Client *client;
  completion *of;
  open_end *next;
};

struct dma_region {
  void *data;
  size_t size;
  dma_region *next;
};

struct user_data {
  const void *key;
  void *data;
  void (*destructor)(void *);
  user_data *next;
};

/* ---- data that the caller hangs on a memory -----------------------------------------------------------------------------*/
static pthread_mutex_t user_data_mutex = PTHREAD_MUTEX_INITIALIZER;

static void *get_user_data(PJRT_Memory *memory, const void *key) {
  void *data = NULL;
  pthread_mutex_lock(&user_data_mutex);
  for (user_data *each = ((memory_space *)memory)->user_data; each; each = each->next) {
    if (each->key == key) data = each->data;
  }
  pthread_mutex_unlock(&user_data_mutex);
  return data;
}

static void set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*destructor)(void *)) {
  memory_space *space = (memory_space *)memory;
  pthread_mutex_lock(&user_data_mutex);
  user_data *each = space->user_data;
  while (each && each->key != key) each = each->next;
  user_data old = {0};
  if (each) {
    old = *each;
  } else {
    each = new_zeroed(1, sizeof *each);
    each->next = space->user_data;
    space->user_data = each;
  }
  each->key = key;
  each->data = data;
  each->destructor = destructor;
  pthread_mutex_unlock(&user_data_mutex);
  if (old.destructor) old.destructor(old.data);
}

static const PJRT_Memory_FunctionTable memory_table = {
    .struct_size = PJRT_Memory_FunctionTable_STRUCT_SIZE,
    .instance_struct_size = sizeof(PJRT_Memory),
    .get_user_data = get_user_data,
    .set_user_data = set_user_data,
};

/* ---- making ---------------------------------------------------------------------------------------------------------*/
static void make_space(PJRT_Device *device, size_t kind, const pjrt_driver_device *facts, int id) {
  memory_space *space = &device->spaces[kind];
  space->base.vtable = &memory_table;
  space->device = device;
  space->id = id;
  space->kind_number = kind;
  space->kind = copy_of(facts->memory_kinds[kind], strlen(facts->memory_kinds[kind]));
  space->limit = facts->memory_limits ? facts->memory_limits[kind] : 0;
  space->to_string = printed("%s(id=%d)", space->kind, id);
  space->debug_string = printed("%s(id=%d, device=%d)", space->kind, id, device->description->id);
  pthread_mutex_init(&space->mutex, NULL);
  device->space_handles[kind] = &space->base;
}

static PJRT_Error *check_attributes(const char *function, const pjrt_driver_attribute *attributes, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const pjrt_driver_attribute *each = attributes ? &attributes[i] : NULL;
    bool is_one = each && (each->type == PJRT_DRIVER_INTEGER || each->type == PJRT_DRIVER_BOOLEAN);
    if (each && each->name && each->type >= PJRT_DRIVER_TEXT && each->type <= PJRT_DRIVER_BOOLEAN &&
        (each->type != PJRT_DRIVER_TEXT || each->text) && (each->num_integers == 0 || each->integers) &&
        (!is_one || each->num_integers == 1))
      continue;
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function %s gave attribute %zu (%s) without its name or its value", function, i,
                      each && each->name ? each->name : "no name");
  }
  return NULL;
}

/* Programs run on any device: all have the same kinds of memory. */
static PJRT_Error *check_description(const pjrt_driver_device *facts, size_t number, const pjrt_driver_device *first) {
  if (facts->num_memory_kinds > MAX_KINDS)
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function describe gave %zu kinds of memory of device %zu, expected 1 to %d",
                      facts->num_memory_kinds, number, MAX_KINDS);
  if (facts->kind && !facts->is_addressable && facts->num_memory_kinds == 0) return NULL;
  if (facts->kind == NULL || facts->num_memory_kinds == 0 || facts->memory_kinds == NULL)
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function describe left out the kind or the kinds of memory of device %zu", number);
  for (size_t i = 0; i < facts->num_memory_kinds; ++i) {
    if (facts->memory_kinds[i] == NULL)
      return error_make(PJRT_Error_Code_INTERNAL,
                        "the driver's function describe gave no name for kind of memory %zu of device %zu", i, number);
    if (facts->memory_limits && facts->memory_limits[i] < 0)
      return error_make(PJRT_Error_Code_INTERNAL,
                        "the driver's function describe gave a limit of %lld bytes for kind of memory %zu of device %zu",
                        (long long)facts->memory_limits[i], i, number);
    if (i < first->num_memory_kinds && strcmp(facts->memory_kinds[i], first->memory_kinds[i]) == 0) continue;
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function describe gave the kind of memory %s of device %zu, expected the kinds of "
                      "device 0", facts->memory_kinds[i], number);
  }
  if (facts->num_memory_kinds < first->num_memory_kinds)
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function describe gave %zu kinds of memory of device %zu, expected the %zu of device 0",
                      facts->num_memory_kinds, number, first->num_memory_kinds);
  return NULL;
}

/* What the driver says, with the runtime's own words where it says nothing. */
static PJRT_Error *describe_all(PJRT_Client *client, const char *topology, bytes *message) {
  pjrt_driver_client about = {.struct_size = sizeof about, .platform_version = client->table->platform_version};
  if (DRIVER_HAS(client->table, describe_client)) client->table->describe_client(client->driver, &about);
  PJRT_Error *error = check_attributes("describe_client", about.attributes, about.num_attributes);
  if (!error && about.platform_version == NULL)
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function describe_client gave null as the platform's version");
  if (error) return error;
  client->process_index = about.process_index;
  error = check_attributes("describe_client", about.plugin_attributes, about.num_plugin_attributes);
  if (error) return error;
  plugin_learn(about.plugin_attributes, about.num_plugin_attributes);
  facts_write_client(message, about.platform_name ? about.platform_name : client->table->platform_name, topology, &about);
  pjrt_driver_device first = {0};
  for (size_t i = 0; i < client->num_devices; ++i) {
    pjrt_driver_device each = {.struct_size = sizeof each, .id = (int)i, .process_index = about.process_index,
                               .is_addressable = 1, .local_hardware_id = (int)i};
    client->table->describe(client->driver, i, &each);
    if (first.kind == NULL && each.num_memory_kinds) first = each;
    error = check_description(&each, i, first.kind ? &first : &each);
    if (!error) error = check_attributes("describe", each.attributes, each.num_attributes);
    if (error) return error;
    facts_write_device(message, &each);
  }
  return NULL;
}

static PJRT_Error *make_devices(PJRT_Client *client, const char *topology) {
  bytes message = {0};
  PJRT_Error *error = describe_all(client, topology, &message);
  client->topology = error ? NULL : topology_make(&message);
  if (client->topology) client->topology->owner = client;
  free(message.data);
  if (error) return error;
  if (client->topology == NULL) return error_make(PJRT_Error_Code_INTERNAL, "the driver's facts cannot be read");
  const facts *known = &client->topology->facts;
  size_t num_spaces = 0;
  for (size_t i = 0; i < client->num_devices; ++i) num_spaces += known->devices[i].num_memory_kinds;
  client->devices = new_zeroed(client->num_devices, sizeof *client->devices);
  client->device_handles = new_zeroed(client->num_devices, sizeof *client->device_handles);
  client->addressable_handles = new_zeroed(client->num_devices, sizeof *client->addressable_handles);
  client->space_handles = new_zeroed(num_spaces, sizeof *client->space_handles);
  for (size_t i = 0; i < client->num_devices; ++i) {
    PJRT_Device *device = client->device_handles[i] = &client->devices[i];
    device->client = client;
    device->number = i;
    device->description = &client->topology->descriptions[i];
    device->is_addressable = known->devices[i].is_addressable;
    device->local_hardware_id = known->devices[i].local_hardware_id;
    if (device->is_addressable) {
      client->addressable_handles[client->num_addressable++] = device;
      device->num_spaces = known->devices[i].num_memory_kinds;
    }
    device->spaces = new_zeroed(device->num_spaces, sizeof *device->spaces);
    device->space_handles = new_zeroed(device->num_spaces, sizeof *device->space_handles);
    pthread_mutex_init(&device->mutex, NULL);
    pthread_cond_init(&device->changed, NULL);
    for (size_t kind = 0; kind < device->num_spaces; ++kind) {
      make_space(device, kind, &known->devices[i], (int)client->num_spaces);
      client->space_handles[client->num_spaces++] = device->space_handles[kind];
    }
  }
  return NULL;
}

/* How long the watchdog waits: an option of the runtime, which drivers do not see. */
static PJRT_Error *read_patience(const PJRT_NamedValue *option, int64_t *nanoseconds) {
  double seconds = option->type == PJRT_NamedValue_kInt64   ? (double)option->int64_value
                   : option->type == PJRT_NamedValue_kFloat ? (double)option->float_value
                                                            : 0;
  if (!(seconds >= 1e-3 && seconds <= 1e6))
    return error_make(INVALID, "option watchdog_seconds: expected a number of seconds from 0.001 to 1000000");
  *nanoseconds = (int64_t)(seconds * 1e9);
  return NULL;
}

static PJRT_Error *open_with(PJRT_Client *client, const pjrt_driver_option *options, size_t num_options) {
  const pjrt_driver_table *table = client->table;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  int code = DRIVER_HAS(table, open_in_job)
                 ? table->open_in_job(options, num_options, store_of(client->store), &client->driver,
                                      &client->num_devices, message)
                 : table->open(options, num_options, &client->driver, &client->num_devices, message);
  return error_of_driver("open", code, message);
}

static PJRT_Error *open_driver(PJRT_Client *client, const PJRT_NamedValue *options, size_t num_options) {
  pjrt_driver_option *given = new_zeroed(num_options, sizeof *given);
  PJRT_Error *error = NULL;
  size_t num_given = 0;
  for (size_t i = 0; i < num_options && !error; ++i) {
    const PJRT_NamedValue *option = &options[i];
    if (named_value_is(option, "watchdog_seconds")) {
      error = read_patience(option, &client->patience);
      continue;
    }
    /* TorchTPU gives this option of TPUs to every plugin. A device in Python says itself whether it takes it. */
    if (driver_is_in_c() && named_value_is(option, "premapped_buffer_size")) continue;
    pjrt_driver_option *each = &given[num_given++];
    each->name = copy_of(option->name, option->name_size);
    if (option->type == PJRT_NamedValue_kString) each->text = copy_of(option->string_value, option->value_size);
    else if (option->type == PJRT_NamedValue_kInt64) each->number = option->int64_value;
    else if (option->type == PJRT_NamedValue_kBool) each->number = option->bool_value, each->is_boolean = 1;
    else error = error_make(INVALID, "option %s: expected a text, a number or a boolean, found a value of type %d",
                            each->name, (int)option->type);
  }
  if (!error) error = open_with(client, given, num_given);
  if (error) {
    client->driver = NULL;
  } else if (client->driver == NULL) {
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function open gave null as the driver");
  } else if (client->num_devices == 0 || client->num_devices > MAX_DEVICES) {
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function open gave %zu devices, expected 1 to %d",
                       client->num_devices, MAX_DEVICES);
  }
  for (size_t i = 0; i < num_given; ++i) {
    free((char *)given[i].name);
    free((char *)given[i].text);
  }
  free(given);
  return error;
}

static char *topology_option(const PJRT_NamedValue *options, size_t num_options) {
  for (size_t i = 0; i < num_options; ++i) {
    if (named_value_is(&options[i], "topology") && options[i].type == PJRT_NamedValue_kString)
      return copy_of(options[i].string_value, options[i].value_size);
  }
  return NULL;
}

static void init_order(PJRT_Client *client) {
  pthread_mutexattr_t recursive; /* what ends meanwhile may start another execution on this thread */
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&client->order, &recursive);
  pthread_mutexattr_destroy(&recursive);
}

/* ---- Ctrl-C --------------------------------------------------------------------------------------------------------------*/
static pthread_mutex_t living_mutex = PTHREAD_MUTEX_INITIALIZER;
static PJRT_Client *living;

/* No other thread has these locks while the process is forked: the new one has no thread that would let them go. */
static void before_fork(void) {
  pthread_mutex_lock(&living_mutex);
  for (PJRT_Client *client = living; client; client = client->next_living) {
    for (size_t i = 0; i < client->num_devices; ++i) pthread_mutex_lock(&client->devices[i].mutex);
    if (is_python(client)) client->python->hold(client->driver, true);
  }
}

static void let_go(void) {
  for (PJRT_Client *client = living; client; client = client->next_living) {
    if (is_python(client)) client->python->hold(client->driver, false);
    for (size_t i = 0; i < client->num_devices; ++i) pthread_mutex_unlock(&client->devices[i].mutex);
  }
  pthread_mutex_unlock(&living_mutex);
}

/* ---- forks ----------------------------------------------------------------------------------------------------------
 * A fork has none of a driver's threads, and one of them may have its locks. */
static int refuse(char *message) {
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the devices belong to the process that was forked; make a new client");
  return PJRT_Error_Code_FAILED_PRECONDITION;
}

static int allocate(pjrt_driver *driver, size_t device, size_t kind, size_t bytes, uint64_t *memory, char *message) {
  (void)driver, (void)device, (void)kind, (void)bytes, (void)memory;
  return refuse(message);
}

static void leave(pjrt_driver *driver, size_t device, uint64_t number) { (void)driver, (void)device, (void)number; }

static int copy_in(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                   const void *host, size_t bytes, pjrt_fence *fence, char *message) {
  (void)driver, (void)device, (void)memory, (void)shape, (void)offset, (void)host, (void)bytes, (void)fence;
  return refuse(message);
}

static int copy_out(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                    void *host, size_t bytes, pjrt_fence *fence, char *message) {
  (void)driver, (void)device, (void)memory, (void)shape, (void)offset, (void)host, (void)bytes, (void)fence;
  return refuse(message);
}

static int load(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable, char *message) {
  (void)driver, (void)device, (void)code, (void)size, (void)executable;
  return refuse(message);
}

static int launch_program(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  (void)driver, (void)launch, (void)fence;
  return refuse(message);
}

/* Returns what a fork has of a driver in C. */
static const pjrt_driver_table *driver_of_fork(const pjrt_driver_table *of) {
  static pjrt_driver_table table;
  table = (pjrt_driver_table){.struct_size = sizeof table, .platform_name = of->platform_name,
                              .platform_version = of->platform_version, .open = of->open, .close = of->close,
                              .describe = of->describe, .allocate = allocate, .free = leave, .copy_in = copy_in,
                              .copy_out = copy_out, .load = load, .unload = leave, .launch = launch_program};
  if (DRIVER_HAS(of, layout)) table.layout = of->layout;
  if (DRIVER_HAS(of, host_view)) table.host_view = of->host_view;
  if (DRIVER_HAS(of, pointer)) table.pointer = of->pointer;
  return &table;
}

/* Nothing that is in flight ends here, and a thread of the other process may have these locks. */
static void in_fork(void) {
  events_fork();
  for (PJRT_Client *client = living; client; client = client->next_living) {
    if (!is_python(client)) client->table = driver_of_fork(client->table);
    pthread_mutex_init(&client->mutex, NULL);
    init_order(client);
    for (size_t i = 0; i < client->num_devices; ++i) {
      PJRT_Device *device = &client->devices[i];
      device->first_watch = device->last_watch = NULL;
      device->in_flight = 0;
      pthread_cond_init(&device->changed, NULL);
      device->waiter = NULL;
      device->launches = NULL;
      device->host = NULL;
      for (size_t j = 0; j < device->num_spaces; ++j) pthread_mutex_init(&device->spaces[j].mutex, NULL);
    }
  }
  let_go();
}

static void watch_forks(void) { pthread_atfork(before_fork, let_go, in_fork); }

static void begin_life(PJRT_Client *client) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, watch_forks);
  client->owner = getpid();
  pthread_mutex_lock(&living_mutex);
  client->next_living = living;
  living = client;
  pthread_mutex_unlock(&living_mutex);
}

static void end_life(PJRT_Client *client) {
  if (client->owner != getpid()) return; /* somebody may have had the mutex when the process was forked */
  pthread_mutex_lock(&living_mutex);
  PJRT_Client **place = &living;
  while (*place && *place != client) place = &(*place)->next_living;
  if (*place) *place = client->next_living;
  pthread_mutex_unlock(&living_mutex);
}

static bool is_referred(PJRT_Client *client) {
  int refs = atomic_load(&client->refs);
  while (refs && !atomic_compare_exchange_weak(&client->refs, &refs, refs + 1)) continue;
  return refs != 0;
}

PJRT_Client **clients_of_process(size_t *count) {
  size_t most = 0;
  *count = 0;
  pthread_mutex_lock(&living_mutex);
  for (const PJRT_Client *client = living; client; client = client->next_living) ++most;
  PJRT_Client **clients = new_zeroed(most, sizeof(PJRT_Client *));
  for (PJRT_Client *client = living; client; client = client->next_living) {
    if (client->owner == getpid() && is_referred(client)) clients[(*count)++] = client;
  }
  pthread_mutex_unlock(&living_mutex);
  return clients;
}

/* PRESSED notes what is in flight. Of that, UNHELD gives up the executions whose results nobody has any more; it may be
 * called again and again. AWAITED gives up all, because a wait for one of them must end. What was noted before and is in
 * flight is given up at PRESSED; a worker in which it was given up before is ended then. ENDING does all this to whatever is
 * in flight, because the process ends. Returns how many executions are in flight. */
__attribute__((visibility("default"))) int pjrt_native_interrupt(int stage) {
  size_t count = 0;
  pthread_mutex_lock(&living_mutex);
  queue_call(true); /* what is given up may be told on this thread, and its last reference does not close a client here */
  for (PJRT_Client *client = living; client; client = client->next_living) {
    for (size_t i = 0; client->owner == getpid() && i < client->num_devices; ++i) {
      if (client->devices[i].is_addressable) count += launches_interrupt(&client->devices[i], (interrupt)stage);
    }
  }
  queue_call(false);
  pthread_mutex_unlock(&living_mutex);
  if (stage == AWAITED) events_interrupt();
  return (int)count;
}

PJRT_Error *native_Client_Create(PJRT_Client_Create_Args *args) {
  const pjrt_driver_table *table;
  PJRT_Error *error = driver_find(&table);
  if (error) return error;
  PJRT_Client *client = new_zeroed(1, sizeof *client);
  atomic_init(&client->refs, 1);
  pthread_mutex_init(&client->mutex, NULL);
  init_order(client);
  client->table = table;
  client->python = table->open == worker_driver.open ? &worker_functions : table->open == here_driver.open ? &here_functions : NULL;
  client->store = store_make(args);
  error = open_driver(client, args->create_options, args->num_options);
  if (!error && is_python(client) && client->python->has_layouts && client->python->has_layouts(client->driver)) {
    client->laid_out = *client->table;
    client->laid_out.layout = client->python->layout;
    client->table = &client->laid_out;
  }
  char *topology = topology_option(args->create_options, args->num_options);
  if (!error) error = make_devices(client, topology);
  free(topology);
  if (!error) error = watchdog_start(client);
  if (error) {
    client_unref(client);
    return error;
  }
  if (!is_python(client)) process_let_ask(client->compiler = process_make("pjrt.native.compiling", "compiles", -1, NULL));
  begin_life(client);
  args->client = client;
  return NULL;
}

/* ---- the end --------------------------------------------------------------------------------------------------------*/
PJRT_Client *client_ref(PJRT_Client *client) {
  atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
  return client;
}

static void free_device(PJRT_Device *device) {
  steps_stop(device);
  queue_stop(device);
  for (size_t kind = 0; kind < device->num_spaces; ++kind) {
    memory_space *space = &device->spaces[kind];
    while (space->user_data) {
      user_data *each = space->user_data;
      space->user_data = each->next;
      if (each->destructor) each->destructor(each->data);
      free(each);
    }
    pthread_mutex_destroy(&space->mutex);
    free(space->kind);
    free(space->to_string);
    free(space->debug_string);
  }
  pthread_cond_destroy(&device->changed);
  pthread_mutex_destroy(&device->mutex);
  free(device->spaces);
  free(device->space_handles);
}

static void *close_client(void *arg) {
  PJRT_Client *client = arg;
  /* A thread that dropped the last reference while it told of an end is not done with the queue yet. */
  if (client->devices) client_wait_for_all(client);
  end_life(client);
  watchdog_stop(client);
  for (size_t i = 0; client->devices && i < client->num_devices; ++i) free_device(&client->devices[i]);
  if (client->driver) client->table->close(client->driver);
  process_free(client->compiler);
  while (client->dma_regions) {
    dma_region *next = client->dma_regions->next;
    free(client->dma_regions);
    client->dma_regions = next;
  }
  together_unref(client->last);
  pthread_mutex_destroy(&client->order);
  topology_free(client->topology);
  free(client->devices);
  free(client->device_handles);
  free(client->addressable_handles);
  free(client->store);
  free(client->space_handles);
  pthread_mutex_destroy(&client->mutex);
  free(client);
  return NULL;
}

void client_unref(PJRT_Client *client) {
  if (atomic_fetch_sub(&client->refs, 1) != 1) return;
  pthread_t thread;
  if (!queue_is_calling()) close_client(client);
  else if (pthread_create(&thread, NULL, close_client, client) == 0) pthread_detach(thread);
}

void device_ref(PJRT_Device *device) {
  if (atomic_fetch_add_explicit(&device->refs, 1, memory_order_relaxed) == 0) client_ref(device->client);
}

void device_unref(PJRT_Device *device) {
  PJRT_Client *client = device->client; /* somebody else may give the last reference back in between */
  if (atomic_fetch_sub(&device->refs, 1) == 1) client_unref(client);
}

open_end *open_end_make(PJRT_Client *client, completion *of) {
  open_end *each = new_zeroed(1, sizeof *each);
  each->client = client_ref(client);
  each->of = completion_ref(of);
  pthread_mutex_lock(&client->mutex);
  each->next = client->open_ends;
  client->open_ends = each;
  pthread_mutex_unlock(&client->mutex);
  return each;
}

completion *open_end_take(open_end *owned) {
  PJRT_Client *client = owned->client;
  pthread_mutex_lock(&client->mutex);
  open_end **each = &client->open_ends;
  while (*each && *each != owned) each = &(*each)->next;
  if (*each) *each = owned->next;
  pthread_mutex_unlock(&client->mutex);
  completion *of = owned->of;
  free(owned);
  client_unref(client);
  return of;
}

/* What only the caller could have ended, ends now. The entries stay until the caller gives them back. */
static void end_open_ends(PJRT_Client *client) {
  for (;;) {
    pthread_mutex_lock(&client->mutex);
    open_end *each = client->open_ends;
    completion *of = each ? completion_ref(each->of) : NULL;
    if (each) client->open_ends = each->next;
    pthread_mutex_unlock(&client->mutex);
    if (of == NULL) return;
    completion_set(of, pjrt_error_of_text(PJRT_Error_Code_CANCELLED, "the client was destroyed"));
    completion_unref(of);
  }
}

PJRT_Error *native_Client_Destroy(PJRT_Client_Destroy_Args *args) {
  PJRT_Client *client = args->client;
  if (client == NULL || client->owner != getpid()) return NULL; /* what is in flight never ends in a fork */
  end_open_ends(client);
  client_wait_for_all(client);
  client_unref(client);
  return NULL;
}

/* ---- what a client answers --------------------------------------------------------------------------------------------*/
PJRT_Error *native_Client_PlatformName(PJRT_Client_PlatformName_Args *args) {
  args->platform_name = args->client->topology->facts.platform;
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

PJRT_Error *native_Client_ProcessIndex(PJRT_Client_ProcessIndex_Args *args) {
  args->process_index = args->client->process_index;
  return NULL;
}

PJRT_Error *native_Client_PlatformVersion(PJRT_Client_PlatformVersion_Args *args) {
  args->platform_version = args->client->topology->facts.client.platform_version;
  args->platform_version_size = strlen(args->platform_version);
  return NULL;
}

PJRT_Error *native_Client_TopologyDescription(PJRT_Client_TopologyDescription_Args *args) {
  args->topology = args->client->topology;
  return NULL;
}

PJRT_Error *native_Client_Devices(PJRT_Client_Devices_Args *args) {
  args->devices = args->client->device_handles;
  args->num_devices = args->client->num_devices;
  return NULL;
}

PJRT_Error *native_Client_AddressableDevices(PJRT_Client_AddressableDevices_Args *args) {
  args->addressable_devices = args->client->addressable_handles;
  args->num_addressable_devices = args->client->num_addressable;
  return NULL;
}

PJRT_Device *client_device(PJRT_Client *client, int64_t id) {
  for (size_t i = 0; i < client->num_devices; ++i)
    if (client->devices[i].description->id == id) return &client->devices[i];
  return NULL;
}

/* Frameworks look for XLA's words in these two errors. */
PJRT_Error *native_Client_LookupDevice(PJRT_Client_LookupDevice_Args *args) {
  args->device = client_device(args->client, args->id);
  return args->device ? NULL : error_make(INVALID, "No matching device found for device_id %d", args->id);
}

PJRT_Error *native_Client_LookupAddressableDevice(PJRT_Client_LookupAddressableDevice_Args *args) {
  for (size_t i = 0; i < args->client->num_addressable; ++i) {
    args->addressable_device = args->client->addressable_handles[i];
    if (args->addressable_device->local_hardware_id == args->local_hardware_id) return NULL;
  }
  return error_make(INVALID, "No matching device found for local_hardware_id %d", args->local_hardware_id);
}

PJRT_Error *native_Client_AddressableMemories(PJRT_Client_AddressableMemories_Args *args) {
  args->addressable_memories = args->client->space_handles;
  args->num_addressable_memories = args->client->num_spaces;
  return NULL;
}

/* Other processes are nothing to a device of this one. */
PJRT_Error *native_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  (void)args;
  return NULL;
}

/* XLA answers for any number of devices, also for more than there are: only compiling for missing ones fails. */
PJRT_Error *native_Client_DefaultDeviceAssignment(PJRT_Client_DefaultDeviceAssignment_Args *args) {
  PJRT_Client *client = args->client;
  int64_t wanted = (int64_t)args->num_replicas * args->num_partitions;
  if (args->num_replicas < 1 || args->num_partitions < 1)
    return error_make(INVALID, "a device assignment has at least 1 replica and 1 partition, found %d and %d",
                      args->num_replicas, args->num_partitions);
  if ((int64_t)args->default_assignment_size < wanted)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION,
                      "PJRT_Client_DefaultDeviceAssignment: `default_assignment_size` %zu < `num_replicas * "
                      "num_partitions`, %d * %d = %lld", args->default_assignment_size, args->num_replicas,
                      args->num_partitions, (long long)wanted);
  bool is_enough = wanted <= (int64_t)client->num_devices;
  for (int64_t i = 0; i < wanted; ++i) args->default_assignment[i] = is_enough ? client->devices[i].description->id : (int)i;
  return NULL;
}

/* ---- memory of the host that is registered for transfers; drivers copy from any ---------------------------------------------*/
PJRT_Error *native_Client_DmaMap(PJRT_Client_DmaMap_Args *args) {
  if (args->data == NULL || args->size == 0)
    return error_make(INVALID, "expected the address of at least one byte, found %zu bytes at %p", args->size,
                      args->data);
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&args->client->mutex);
  for (dma_region *each = args->client->dma_regions; each && !error; each = each->next) {
    if ((char *)args->data < (char *)each->data + each->size && (char *)each->data < (char *)args->data + args->size)
      error = error_make(PJRT_Error_Code_ALREADY_EXISTS, "the memory overlaps with memory that is mapped");
  }
  if (error == NULL) {
    dma_region *region = new_zeroed(1, sizeof *region);
    *region = (dma_region){args->data, args->size, args->client->dma_regions};
    args->client->dma_regions = region;
  }
  pthread_mutex_unlock(&args->client->mutex);
  return error;
}

PJRT_Error *native_Client_DmaUnmap(PJRT_Client_DmaUnmap_Args *args) {
  pthread_mutex_lock(&args->client->mutex);
  dma_region **each = &args->client->dma_regions;
  while (*each && (*each)->data != args->data) each = &(*each)->next;
  dma_region *found = *each;
  if (found) *each = found->next;
  pthread_mutex_unlock(&args->client->mutex);
  free(found);
  return found ? NULL : error_make(PJRT_Error_Code_NOT_FOUND, "no memory is mapped at %p", args->data);
}
