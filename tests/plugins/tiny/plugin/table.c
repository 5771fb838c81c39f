/* GetPjrtApi: the runtime's table, each function behind its faults and counts, and the shapes of table that old, new and
 * broken plugins have. A few functions answer what the runtime does not. */
#include <unistd.h>

#include "tiny.h"

#undef GetPjrtApi /* the build calls that of the runtime by another name */
const PJRT_Api *runtime_table(void);

/* ---- what callers get and give back --------------------------------------------------------------------------------*/
typedef struct handle {
  tiny_live kind;
  size_t offset;
} handle;
#define HANDLE(name, field, kind) {LIVE_##kind, offsetof(PJRT_##name##_Args, field)}
#define MADE(name, field, kind) [F_##name] = {HANDLE(name, field, kind)}
static const handle made[F_COUNT][2] = {
    MADE(Client_Create, client, CLIENT), MADE(TopologyDescription_Create, topology, TOPOLOGY),
    MADE(TopologyDescription_Deserialize, topology, TOPOLOGY), MADE(Compile, executable, EXECUTABLE),
    MADE(LoadedExecutable_GetExecutable, executable, EXECUTABLE), MADE(Client_Compile, executable, LOADED_EXECUTABLE),
    MADE(Client_Load, loaded_executable, LOADED_EXECUTABLE),
    MADE(Executable_DeserializeAndLoad, loaded_executable, LOADED_EXECUTABLE),
    [F_Client_BufferFromHostBuffer] = {HANDLE(Client_BufferFromHostBuffer, buffer, BUFFER),
                                       HANDLE(Client_BufferFromHostBuffer, done_with_host_buffer, EVENT)},
    [F_Client_CreateAliasBuffer] = {HANDLE(Client_CreateAliasBuffer, alias_buffer, BUFFER),
                                    HANDLE(Client_CreateAliasBuffer, fulfill_alias_buffer_cb, ALIAS)},
    MADE(Buffer_CopyToDevice, dst_buffer, BUFFER), MADE(Buffer_CopyToMemory, dst_buffer, BUFFER),
    MADE(Client_CreateUninitializedBuffer, buffer, BUFFER), MADE(Client_CreateErrorBuffer, buffer, BUFFER),
    MADE(Client_CreateViewOfDeviceBuffer, buffer, BUFFER), MADE(Buffer_Bitcast, out_buffer, BUFFER),
    MADE(Buffer_DonateWithControlDependency, out_buffer, BUFFER),
    MADE(AsyncHostToDeviceTransferManager_RetrieveBuffer, buffer_out, BUFFER), MADE(Buffer_ReadyEvent, event, EVENT),
    MADE(Buffer_ToHostBuffer, event, EVENT), MADE(Buffer_CopyRawToHost, event, EVENT),
    MADE(Buffer_CopyRawToHostFuture, event, EVENT), MADE(Event_Create, event, EVENT),
    MADE(AsyncHostToDeviceTransferManager_TransferData, done_with_h2d_transfer, EVENT),
    MADE(AsyncHostToDeviceTransferManager_TransferLiteral, done_with_h2d_transfer, EVENT),
    MADE(CopyToDeviceStream_AddChunk, transfer_complete, EVENT),
    MADE(Device_CreateAsyncTrackingEvent, event, TRACKING_EVENT), MADE(ExecuteContext_Create, context, CONTEXT),
    MADE(Client_CreateBuffersForAsyncHostToDevice, transfer_manager, MANAGER),
};
#define GONE(name, field, kind) [F_##name] = HANDLE(name, field, kind)
static const handle gone[F_COUNT] = {
    GONE(Client_Destroy, client, CLIENT), GONE(TopologyDescription_Destroy, topology, TOPOLOGY),
    GONE(Executable_Destroy, executable, EXECUTABLE), GONE(LoadedExecutable_Destroy, executable, LOADED_EXECUTABLE),
    GONE(Buffer_Destroy, buffer, BUFFER), GONE(Event_Destroy, event, EVENT),
    GONE(Client_FulfillAliasBuffer, fulfill_alias_buffer_cb, ALIAS),
    GONE(AsyncTrackingEvent_Destroy, event, TRACKING_EVENT), GONE(ExecuteContext_Destroy, context, CONTEXT),
    GONE(AsyncHostToDeviceTransferManager_Destroy, transfer_manager, MANAGER),
    GONE(CopyToDeviceStream_Destroy, stream, STREAM),
};
/* Bytes that the caller gives back by the function that comes with them. */
#define BYTES(name, field) [F_##name] = offsetof(PJRT_##name##_Args, field)
static const size_t deleters[F_COUNT] = {
    BYTES(Executable_Serialize, serialized_executable_deleter),
    BYTES(Executable_GetCompileOptions, serialized_compile_options_deleter),
    BYTES(LoadedExecutable_GetDeviceAssignment, serialized_device_assignment_deleter),
    BYTES(TopologyDescription_Serialize, serialized_topology_deleter),
    BYTES(TopologyDescription_MakeCanonicalShapeForMemorySpace, serialized_shape_deleter),
};

static void delete_bytes(void *bytes) {
  free(bytes);
  live_add(LIVE_SERIALIZED, -1);
}

static void before_call(tiny_function function, void *args) {
  for (size_t i = 0; i < 2 && made[function][i].kind; ++i) *(void **)((char *)args + made[function][i].offset) = NULL;
}

static void after_call(tiny_function function, void *args) {
  for (size_t i = 0; i < 2 && made[function][i].kind; ++i) {
    void **place = (void **)((char *)args + made[function][i].offset);
    if (made[function][i].kind == LIVE_EVENT) event_shown(function, (PJRT_Event **)place);
    else if (*place) live_add(made[function][i].kind, 1);
  }
  if (deleters[function] == 0) return;
  *(void (**)(void *))((char *)args + deleters[function]) = delete_bytes;
  live_add(LIVE_SERIALIZED, 1);
}

/* A call that fails has given nothing back, but for one that destroys, and for an alias, whose handle is spent. */
static void count_gone(tiny_function function, const void *handle, const PJRT_Error *error) {
  bool is_spent = error == NULL || function == F_Client_FulfillAliasBuffer;
  if (handle && is_spent) live_add(gone[function].kind, -1);
}

/* ---- what the runtime does not answer, or callers must not do --------------------------------------------------------*/
static bool is_option(const PJRT_NamedValue *option) {
  static const char *const known[] = {"num_devices", "num_processes", "process_index", "bytes_limit", "fail_code",
                                      "platform_name", "kv_exercise", "all_attribute_types"};
  for (size_t i = 0; i < sizeof known / sizeof *known; ++i)
    if (named_value_is(option, known[i])) return true;
  return false;
}

/* Any other option is kept, and told as an attribute. */
static PJRT_Error *tiny_Client_Create(PJRT_Client_Create_Args *args) {
  PJRT_NamedValue *known = new_zeroed(args->num_options, sizeof *known);
  PJRT_Client_Create_Args given = {0};
  memcpy(&given, args, args->struct_size < sizeof given ? args->struct_size : sizeof given);
  given.create_options = known;
  given.num_options = 0;
  for (size_t i = 0; i < args->num_options; ++i)
    if (is_option(&args->create_options[i])) known[given.num_options++] = args->create_options[i];
  PJRT_Error *error = native_Client_Create(&given);
  free(known);
  if (error) return error;
  args->client = given.client;
  driver_keep_options(given.client->driver, args->create_options, args->num_options);
  for (size_t i = 0; i < given.client->num_spaces && fault_legacy_errors(); ++i)
    given.client->space_handles[i]->vtable = (const PJRT_Memory_FunctionTable *)(uintptr_t)0x5;
  return NULL;
}

static PJRT_Error *tiny_Client_Destroy(PJRT_Client_Destroy_Args *args) {
  PJRT_Client *client = args->client;
  if (client == NULL || client->owner != getpid()) return native_Client_Destroy(args);
  if (queue_is_calling())
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "A client cannot be destroyed by one of its own callbacks");
  pthread_mutex_lock(&client->mutex);
  bool owes = client->open_ends != NULL;
  pthread_mutex_unlock(&client->mutex);
  if (owes) violation("the client was destroyed while the caller still owed it the end of a buffer");
  transfers_forget(client);
  driver_drain(client->driver);
  client_ref(client);
  PJRT_Error *error = native_Client_Destroy(args);
  if (atomic_load(&client->refs) > 1) violation("the client was destroyed before things made from it");
  client_unref(client);
  return error;
}

static PJRT_Error *tiny_Client_UpdateGlobalProcessInfo(PJRT_Client_UpdateGlobalProcessInfo_Args *args) {
  bytes text = {0};
  bytes_add(&text, "", 0);
  const PJRT_ProcessInfo *info = args->process_infos;
  for (size_t i = 0; i < args->num_process_infos; ++i, ++info)
    bytes_print(&text, "%s%d:%llu:%d:%d:%.*s", i ? ";" : "", info->task_id, (unsigned long long)info->incarnation_id,
                (int)info->state, info->error_code, (int)info->error_message_size,
                info->error_message ? info->error_message : "");
  driver_keep_process_infos(args->client->driver, text.data);
  free(text.data);
  return NULL;
}

struct PJRT_Device_Attributes {
  named_values list;
};

static void free_attributes(PJRT_Device_Attributes *attributes) {
  named_values_free(&attributes->list);
  free(attributes);
  live_add(LIVE_SERIALIZED, -1);
}

static PJRT_Error *tiny_Device_GetAttributes(PJRT_Device_GetAttributes_Args *args) {
  PJRT_Device_Attributes *attributes = args->device_attributes = new_zeroed(1, sizeof *attributes);
  named_value_add(&attributes->list, "local_id", 8, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kInt64, .int64_value = args->device->local_hardware_id, .value_size = 1});
  driver_tell(args->device->client->driver, &attributes->list);
  args->attributes = attributes->list.values;
  args->num_attributes = attributes->list.count;
  args->attributes_deleter = free_attributes;
  live_add(LIVE_SERIALIZED, 1);
  return NULL;
}

static PJRT_Error *tiny_Buffer_Destroy(PJRT_Buffer_Destroy_Args *args) {
  if (args->buffer && args->buffer->external_references)
    violation("a buffer was destroyed with %lld external references", (long long)args->buffer->external_references);
  return native_Buffer_Destroy(args);
}

static PJRT_Error *tiny_TopologyDescription_Create(PJRT_TopologyDescription_Create_Args *args) {
  tiny_grid grid;
  if (!grid_read(args->topology_name, args->topology_name_size, &grid))
    return error_make(INVALID, "A tiny topology is named \"N\" or \"NxM\", got \"%.*s\"", (int)args->topology_name_size,
                      args->topology_name_size ? args->topology_name : "");
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue *each = &args->create_options[i];
    if (!named_value_is(each, "num_processes")) continue;
    if (each->type != PJRT_NamedValue_kInt64) return error_make(INVALID, "Option num_processes must be a whole number");
    grid.processes = each->int64_value;
  }
  PJRT_Error *error = grid_check(&grid);
  if (error) return error;
  args->topology = grid_make(grid.rows, grid.columns, grid.processes, true, false);
  for (size_t i = 0; i < args->num_options; ++i) {
    char *name = printed("option:%.*s", (int)args->create_options[i].name_size, args->create_options[i].name);
    named_value_add(&args->topology->attributes, name, strlen(name), &args->create_options[i]);
    free(name);
  }
  return NULL;
}

/* A ShapeProto: 2 element type, 3 dimensions, 5 layout {1 minor to major}, 6 whether each dimension is dynamic. */
static PJRT_Error *tiny_TopologyDescription_MakeCanonicalShapeForMemorySpace(
    PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args *args) {
  int kind = args->memory_space_kind_id - shown_kind(0);
  if (kind < 0 || kind >= TINY_NUM_MEMORY_KINDS)
    return error_make(INVALID, "Unknown kind of memory space: %d", args->memory_space_kind_id);
  shape of;
  PJRT_Error *error = shape_init(&of, args->element_type, args->dims, args->num_dims, args->layout);
  if (error) return error;
  bytes out = {0}, layout = {0};
  proto_varint(&out, 2, (uint64_t)element_xla_type(of.type));
  for (size_t i = 0; i < of.rank; ++i) {
    proto_varint(&out, 3, (uint64_t)of.dims[i]);
    proto_varint(&layout, 1, (uint64_t)of.minor_to_major[i]);
  }
  if (kind) proto_varint(&layout, 8, (uint64_t)kind);
  proto_bytes(&out, 5, layout.data, layout.size);
  for (size_t i = 0; i < of.rank; ++i) proto_varint(&out, 6, 0);
  free(layout.data);
  args->serialized_shape = out.data;
  args->serialized_shape_size = out.size;
  return NULL;
}

/* A callback gets an error that is its own. */
typedef struct on_ready {
  PJRT_Event_OnReadyCallback function;
  void *user_arg;
} on_ready;

static void call_on_ready(PJRT_Error *error, void *arg) {
  on_ready each = *(on_ready *)arg;
  free(arg);
  each.function(error_shown(error), each.user_arg);
}

static PJRT_Error *tiny_Event_OnReady(PJRT_Event_OnReady_Args *args) {
  if (args->callback == NULL) return native_Event_OnReady(args);
  on_ready *each = new_zeroed(1, sizeof *each);
  *each = (on_ready){args->callback, args->user_arg};
  PJRT_Event_OnReady_Args given = *args;
  given.callback = call_on_ready;
  given.user_arg = each;
  PJRT_Error *error = native_Event_OnReady(&given);
  if (error) free(each);
  return error;
}

static PJRT_Error *tiny_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args *args) {
  PJRT_Error *error = native_LoadedExecutable_Execute(args);
  for (size_t i = 0; i < args->num_devices && !error; ++i) {
    if (args->device_complete_events) event_shown(F_LoadedExecutable_Execute, &args->device_complete_events[i]);
    live_add(LIVE_BUFFER, (int)args->executable->core->num_outputs);
  }
  return error;
}

static PJRT_Error *tiny_Plugin_Attributes(PJRT_Plugin_Attributes_Args *args) {
  static const int64_t current[] = {1, 17, 0}, minimum[] = {0, 9, 0};
#define HEAD(text) .struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = text, .name_size = sizeof text - 1
  static const PJRT_NamedValue attributes[] = {
      {HEAD("xla_version"), .type = PJRT_NamedValue_kInt64, .int64_value = 2, .value_size = 1},
      {HEAD("stablehlo_current_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = current,
       .value_size = 3},
      {HEAD("stablehlo_minimum_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = minimum,
       .value_size = 3},
      {HEAD("tiny_greeting"), .type = PJRT_NamedValue_kString, .string_value = "hello", .value_size = 5},
  };
  args->attributes = attributes;
  args->num_attributes = sizeof attributes / sizeof attributes[0];
  return NULL;
}

/* ---- every function behind its faults -----------------------------------------------------------------------------*/
/* Destroying happens in spite of a fault, or else the test would leak because of it. */
static bool destroys(const char *name) {
  size_t size = strlen(name);
  return size > 8 && strcmp(name + size - 8, "_Destroy") == 0;
}

typedef PJRT_Error *(*any_function)(void *args);
static any_function functions[F_COUNT]; /* of the runtime, or what stands for them */

static PJRT_Error *call(tiny_function function, void *args) {
  const handle *given = &gone[function];
  const void *handle = given->kind ? *(void **)((char *)args + given->offset) : NULL;
  before_call(function, args);
  PJRT_Error *error = functions[function](args);
  if (error == NULL) after_call(function, args);
  if (given->kind) count_gone(function, handle, error);
  return error;
}

/* As the runtime, for the functions that stand for its own: a handle is what follows the size and the extensions. */
static PJRT_Error *null_error(const char *function, const void *args) {
  if (((void *const *)args)[2]) return NULL;
  return error_make(INVALID, "%s: expected a handle, found a null pointer", function);
}

#define GUARD(name, CHECK)                                                                                                \
  static PJRT_Error *guard_##name(PJRT_##name##_Args *args) {                                                         \
    PJRT_Error *error = pjrt_check_size(args, PJRT_##name##_Args_FIRST_STRUCT_SIZE, "PJRT_" #name "_Args");           \
    if (!error) error = fault_before(F_##name, args->struct_size, PJRT_##name##_Args_STRUCT_SIZE);                    \
    if (error && destroys(#name) && args->struct_size >= PJRT_##name##_Args_FIRST_STRUCT_SIZE)                        \
      pjrt_error_release(call(F_##name, args));                                                                       \
    if (!error) error = CHECK(name, args);                                                                            \
    return error_shown(error ? error : call(F_##name, args));                                                         \
  }
#define NO_CHECK(name, args) NULL
#define CHECK_HANDLE(name, args) null_error("PJRT_" #name, args)
#define GUARD_HANDLE(name) GUARD(name, CHECK_HANDLE)
#define GUARD_OTHER(name) GUARD(name, NO_CHECK)
FUNCTIONS_OF_HANDLES(GUARD_HANDLE)
OTHER_FUNCTIONS(GUARD_OTHER)

static void guard_Error_Destroy(PJRT_Error_Destroy_Args *args) {
  fault_count(F_Error_Destroy);
  if (args->struct_size >= PJRT_Error_Destroy_Args_FIRST_STRUCT_SIZE && error_is_shown(args->error)) live_add(LIVE_ERROR, -1);
  runtime_table()->PJRT_Error_Destroy(args);
}

static void guard_Error_Message(PJRT_Error_Message_Args *args) {
  fault_count(F_Error_Message);
  runtime_table()->PJRT_Error_Message(args);
}

static int init_code;
static PJRT_Error *tiny_Plugin_Initialize(PJRT_Plugin_Initialize_Args *args) {
  (void)args;
  if (init_code) return error_make((PJRT_Error_Code)init_code, "The tiny plugin was asked not to initialize");
  return NULL;
}

static void find_functions(void) {
  void *const *theirs = (void *const *)(const void *)&runtime_table()->PJRT_Error_Destroy;
  for (size_t i = 0; i < F_COUNT; ++i) functions[i] = (any_function)theirs[i];
#define OURS(name) functions[F_##name] = (any_function)tiny_##name;
  OURS(Client_Create) OURS(Client_Destroy) OURS(Client_UpdateGlobalProcessInfo) OURS(Device_GetAttributes)
  OURS(Buffer_Destroy) OURS(TopologyDescription_Create) OURS(TopologyDescription_MakeCanonicalShapeForMemorySpace)
  OURS(Event_OnReady) OURS(LoadedExecutable_Execute) OURS(Plugin_Attributes) OURS(Plugin_Initialize)
}

/* Room for functions of a newer version behind ours. */
enum { EXTRA_FUNCTIONS = 32 };
static struct {
  PJRT_Api api;
  void *extra[EXTRA_FUNCTIONS];
} table;

/* ---- settings -----------------------------------------------------------------------------------------------------*/
static struct {
  bool null_table, garbage_tail, no_extensions;
  int major, minor;
  size_t num_functions, struct_size;
  bool null_slot[F_COUNT];
  uint32_t dropped_extensions, short_extensions;
} settings = {.minor = PJRT_API_MINOR, .num_functions = F_COUNT};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool set_null(const char *name) {
  for (int i = 0; i < F_COUNT; ++i) {
    if (function_name((tiny_function)i) == NULL || strcmp(function_name((tiny_function)i), name) != 0) continue;
    settings.null_slot[i] = true;
    return true;
  }
  return false;
}

static bool apply(const char *key, const char *value) {
  long long number = value ? strtoll(value, NULL, 10) : 1;
  if (strcmp(key, "major") == 0) settings.major = (int)number;
  else if (strcmp(key, "minor") == 0) settings.minor = (int)number;
  else if (strcmp(key, "functions") == 0) settings.num_functions = (size_t)number;
  else if (strcmp(key, "struct_size") == 0) settings.struct_size = (size_t)number;
  else if (strcmp(key, "init_code") == 0) init_code = (int)number;
  else if (strcmp(key, "null_table") == 0) settings.null_table = number != 0;
  else if (strcmp(key, "garbage_tail") == 0) settings.garbage_tail = number != 0;
  else if (strcmp(key, "no_extensions") == 0) settings.no_extensions = number != 0;
  else if (strcmp(key, "drop_extension") == 0) settings.dropped_extensions |= 1u << number;
  else if (strcmp(key, "short_extension") == 0) settings.short_extensions |= 1u << number;
  else if (strcmp(key, "legacy_errors") == 0) fault_set_legacy_errors(number != 0);
  else if (strcmp(key, "strict") == 0) tiny_plugin_set_strict(number != 0);
  else if (strcmp(key, "null") == 0) return value && set_null(value);
  else return false;
  return settings.num_functions <= F_COUNT + EXTRA_FUNCTIONS;
}

int tiny_plugin_configure(const char *text) {
  char *copy = copy_of(text, strlen(text)), *rest = copy, *word;
  bool good = true;
  while ((word = strsep(&rest, ";"))) {
    if (*word == 0) continue;
    char *equals = strchr(word, '=');
    if (equals) *equals++ = 0;
    good &= apply(word, equals);
  }
  free(copy);
  return good ? 0 : -1;
}

static bool wanted(PJRT_Extension_Type type) { return !(settings.dropped_extensions >> type & 1); }

static PJRT_Error *newer_function(void *args) {
  (void)args;
  violation("a function behind the caller's own table was called");
  return error_make(PJRT_Error_Code_INTERNAL, "A function behind the caller's own table was called");
}

static void fill_table(void) {
  const char *from_environment = getenv("TINY_PLUGIN_CONFIGURE");
  find_functions();
  if (from_environment && tiny_plugin_configure(from_environment) != 0)
    fprintf(stderr, "tiny plugin: TINY_PLUGIN_CONFIGURE has an unknown word: %s\n", from_environment);
  PJRT_Api *api = &table.api;
  api->extension_start = settings.no_extensions ? NULL : extensions_chain(wanted);
  for (PJRT_Extension_Base *link = api->extension_start; link; link = link->next) {
    if (settings.short_extensions >> link->type & 1) link->struct_size = sizeof *link;
  }
  api->pjrt_api_version = (PJRT_Api_Version){.struct_size = PJRT_Api_Version_STRUCT_SIZE,
                                             .major_version = settings.major, .minor_version = settings.minor};
  api->PJRT_Error_Destroy = guard_Error_Destroy;
  api->PJRT_Error_Message = guard_Error_Message;
#define FILL(name) api->PJRT_##name = guard_##name;
  FUNCTIONS(FILL)
  void **slots = (void **)(void *)&api->PJRT_Error_Destroy;
  for (size_t i = 0; i < EXTRA_FUNCTIONS; ++i) table.extra[i] = (void *)newer_function;
  for (size_t i = 0; i < F_COUNT; ++i) {
    if (settings.null_slot[i]) slots[i] = NULL;
  }
  /* Behind the end that the table claims lies what must not be read: garbage if asked for, else nothing. */
  for (size_t i = settings.num_functions; i < F_COUNT + EXTRA_FUNCTIONS; ++i)
    slots[i] = settings.garbage_tail ? (void *)(uintptr_t)0xdead0bad0000u : NULL;
  api->struct_size = offsetof(PJRT_Api, PJRT_Error_Destroy) + settings.num_functions * sizeof(void *);
  if (settings.struct_size) api->struct_size = settings.struct_size;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) {
  pthread_once(&once, fill_table);
  return settings.null_table ? NULL : &table.api;
}
