/* A caller that a plugin must survive: each function is a case of its own, called with the table of a plugin.
 * A case that fails says so on the error stream and ends the process. */
#include <pthread.h>
#include <stddef.h>

#include "bad_luck.h"

void every_function_is_there(void) {
  MUST(api->struct_size == PJRT_Api_STRUCT_SIZE);
  void *const *slots = (void *const *)((const char *)api + offsetof(PJRT_Api, PJRT_Error_Destroy));
  const size_t count = (PJRT_Api_STRUCT_SIZE - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void *);
  MUST(count == 138);
  for (size_t i = 0; i < count; i++) MUST(slots[i] != NULL);
}

#define DESTROY_NOTHING(function, member)       \
  do {                                          \
    START(function##_Args, args);               \
    args.member = NULL;                         \
    MUST(api->function(&args) == NULL);         \
  } while (0)

void nothing_is_destroyed(void) {
  free_error(NULL);
  DESTROY_NOTHING(PJRT_Event_Destroy, event);
  DESTROY_NOTHING(PJRT_Client_Destroy, client);
  DESTROY_NOTHING(PJRT_Executable_Destroy, executable);
  DESTROY_NOTHING(PJRT_LoadedExecutable_Destroy, executable);
  DESTROY_NOTHING(PJRT_Buffer_Destroy, buffer);
  DESTROY_NOTHING(PJRT_CopyToDeviceStream_Destroy, stream);
  DESTROY_NOTHING(PJRT_TopologyDescription_Destroy, topology);
  DESTROY_NOTHING(PJRT_ExecuteContext_Destroy, context);
  DESTROY_NOTHING(PJRT_AsyncHostToDeviceTransferManager_Destroy, transfer_manager);
}

/* Everything that may be garbage is, from the first call to the last. */
void garbage_where_it_may_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  START(PJRT_ExecuteOptions, options);
  memset((char *)&options + 2 * sizeof(void *), 0, sizeof options - 2 * sizeof(void *));
  live(client, executable, &options);
  destroy_executable(executable);
  destroy_client(client);
}

#define WRITES(function, handle_member, handle, out)               \
  do {                                                             \
    START(function##_Args, args);                                  \
    args.handle_member = handle;                                   \
    ok(api->function(&args));                                      \
    MUST(!is_garbage(&args.out, sizeof args.out));                 \
  } while (0)

void every_answer_is_written(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *buffer = put(client, INPUT);
  PJRT_Device *device = first_device(client);
  WRITES(PJRT_Client_PlatformName, client, client, platform_name);
  WRITES(PJRT_Client_PlatformName, client, client, platform_name_size);
  WRITES(PJRT_Client_PlatformVersion, client, client, platform_version);
  WRITES(PJRT_Client_ProcessIndex, client, client, process_index);
  WRITES(PJRT_Client_Devices, client, client, devices);
  WRITES(PJRT_Client_Devices, client, client, num_devices);
  WRITES(PJRT_Client_AddressableMemories, client, client, addressable_memories);
  WRITES(PJRT_Client_AddressableMemories, client, client, num_addressable_memories);
  WRITES(PJRT_Device_GetDescription, device, device, device_description);
  WRITES(PJRT_Device_IsAddressable, device, device, is_addressable);
  WRITES(PJRT_Device_LocalHardwareId, device, device, local_hardware_id);
  WRITES(PJRT_Device_DefaultMemory, device, device, memory);
  WRITES(PJRT_Device_AddressableMemories, device, device, memories);
  WRITES(PJRT_Buffer_ElementType, buffer, buffer, type);
  WRITES(PJRT_Buffer_Dimensions, buffer, buffer, dims);
  WRITES(PJRT_Buffer_Dimensions, buffer, buffer, num_dims);
  WRITES(PJRT_Buffer_UnpaddedDimensions, buffer, buffer, num_dims);
  WRITES(PJRT_Buffer_DynamicDimensionIndices, buffer, buffer, num_dynamic_dims);
  WRITES(PJRT_Buffer_GetMemoryLayout, buffer, buffer, layout);
  WRITES(PJRT_Buffer_OnDeviceSizeInBytes, buffer, buffer, on_device_size_in_bytes);
  WRITES(PJRT_Buffer_Device, buffer, buffer, device);
  WRITES(PJRT_Buffer_Memory, buffer, buffer, memory);
  WRITES(PJRT_Buffer_IsOnCpu, buffer, buffer, is_on_cpu);
  WRITES(PJRT_Buffer_IsDeleted, buffer, buffer, is_deleted);
  WRITES(PJRT_LoadedExecutable_AddressableDevices, executable, executable, num_addressable_devices);
  WRITES(PJRT_LoadedExecutable_IsDeleted, executable, executable, is_deleted);
  WRITES(PJRT_LoadedExecutable_GetExecutable, loaded_executable, executable, executable);
  destroy_buffer(buffer);
  destroy_executable(executable);
  destroy_client(client);
}

/* As PyTorch/XLA 2.9 calls: the struct of options ends early, and what is behind it on the stack is garbage. */
void options_of_an_older_caller(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  START(PJRT_ExecuteOptions, options);
  options.struct_size = 80;
  options.send_callbacks = NULL;
  options.recv_callbacks = NULL;
  options.num_send_ops = options.num_recv_ops = 0;
  options.launch_id = 0;
  options.non_donatable_input_indices = NULL;
  options.num_non_donatable_input_indices = 0;
  MUST(offsetof(PJRT_ExecuteOptions, context) + sizeof(void *) <= 80);
  options.context = NULL;
  live(client, executable, &options);
  /* Older still: the struct ends before the contexts. */
  options.struct_size = offsetof(PJRT_ExecuteOptions, context);
  memset(&options.context, GARBAGE, sizeof options.context);
  live(client, executable, &options);
  destroy_executable(executable);
  destroy_client(client);
}

void a_client_for_an_older_caller(void) {
  START(PJRT_Client_Create_Args, args);
  args.struct_size = offsetof(PJRT_Client_Create_Args, kv_try_get_callback);
  args.create_options = NULL;
  args.num_options = 0;
  ok(api->PJRT_Client_Create(&args)); /* the store's callbacks are garbage, as PyTorch/XLA's are */
  MUST(is_garbage(&args.kv_try_get_callback, sizeof(void *)));
  destroy_client(args.client);
}

/* Answers stay within the caller's struct, wherever it ends. */
void statistics_for_older_callers(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  START(PJRT_LoadedExecutable_GetExecutable_Args, get);
  get.loaded_executable = loaded;
  ok(api->PJRT_LoadedExecutable_GetExecutable(&get));
  for (size_t size = offsetof(PJRT_Executable_GetCompiledMemoryStats_Args, host_generated_code_size_in_bytes);
       size <= PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE; size += sizeof(int64_t)) {
    START(PJRT_Executable_GetCompiledMemoryStats_Args, args);
    args.struct_size = size;
    args.executable = get.executable;
    PJRT_Error *error = api->PJRT_Executable_GetCompiledMemoryStats(&args);
    MUST(is_garbage((char *)&args + size, sizeof args - size));
    if (error != NULL) fails(error, PJRT_Error_Code_UNIMPLEMENTED);
    else MUST(!is_garbage((char *)&args + size - sizeof(int64_t), sizeof(int64_t)));
  }
  for (size_t size = offsetof(PJRT_Device_MemoryStats_Args, peak_pool_bytes);
       size <= PJRT_Device_MemoryStats_Args_STRUCT_SIZE; size += 2 * sizeof(int64_t)) {
    START(PJRT_Device_MemoryStats_Args, args);
    args.struct_size = size;
    args.device = first_device(client);
    PJRT_Error *error = api->PJRT_Device_MemoryStats(&args);
    MUST(is_garbage((char *)&args + size, sizeof args - size));
    if (error != NULL) fails(error, PJRT_Error_Code_UNIMPLEMENTED);
    else MUST(!is_garbage(&args.bytes_in_use, sizeof args.bytes_in_use));
  }
  START(PJRT_Executable_Destroy_Args, destroy);
  destroy.executable = get.executable;
  ok(api->PJRT_Executable_Destroy(&destroy));
  destroy_executable(loaded);
  destroy_client(client);
}

/* What a newer caller has behind our struct's end is none of our business. */
void structs_of_a_newer_caller(void) {
  struct {
    PJRT_Client_Create_Args args;
    char more[64];
  } create;
  memset(&create, GARBAGE, sizeof create);
  create.args.struct_size = sizeof create;
  create.args.extension_start = NULL;
  create.args.create_options = NULL;
  create.args.num_options = 0;
  create.args.kv_get_callback = NULL;
  create.args.kv_put_callback = NULL;
  create.args.kv_try_get_callback = NULL;
  ok(api->PJRT_Client_Create(&create.args));
  MUST(is_garbage(create.more, sizeof create.more));
  PJRT_LoadedExecutable *executable = compile(create.args.client, DOUBLE);
  struct {
    PJRT_ExecuteOptions options;
    char more[64];
  } execute;
  memset(&execute, 0, sizeof execute.options);
  memset(execute.more, GARBAGE, sizeof execute.more);
  execute.options.struct_size = sizeof execute;
  live(create.args.client, executable, &execute.options);
  destroy_executable(executable);
  destroy_client(create.args.client);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int calls;
static PJRT_Error_Code last_code;

static void count(PJRT_Error *error, void *expected) {
  MUST(expected == &calls);
  pthread_mutex_lock(&mutex);
  calls++;
  last_code = error == NULL ? PJRT_Error_Code_OK : code_of(error);
  free_error(error);
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&mutex);
}

static void watch(PJRT_Event *event) {
  START(PJRT_Event_OnReady_Args, args);
  args.event = event;
  args.callback = count;
  args.user_arg = &calls;
  ok(api->PJRT_Event_OnReady(&args));
}

static void wait_for_calls(int expected) {
  pthread_mutex_lock(&mutex);
  while (calls < expected) pthread_cond_wait(&changed, &mutex);
  MUST(calls == expected);
  pthread_mutex_unlock(&mutex);
}

/* As JAX does: the event is destroyed right after a callback was hung on it. */
void an_event_destroyed_after_on_ready(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *input = put(client, INPUT);
  for (int i = 0; i < 100; i++) {
    PJRT_Buffer *result = NULL;
    PJRT_Event *complete = NULL;
    ok(try_run(executable, NULL, &input, 1, &result, &complete));
    watch(complete);
    destroy_event(complete);
    destroy_buffer(result);
  }
  wait_for_calls(100);
  MUST(last_code == PJRT_Error_Code_OK);
  destroy_buffer(input);
  destroy_executable(executable);
  destroy_client(client);
}

static PJRT_Event *new_event(void) {
  START(PJRT_Event_Create_Args, args);
  ok(api->PJRT_Event_Create(&args));
  return args.event;
}

static PJRT_Error *set(PJRT_Event *event, PJRT_Error_Code code, const char *message) {
  START(PJRT_Event_Set_Args, args);
  args.event = event;
  args.error_code = code;
  args.error_message = message;
  args.error_message_size = strlen(message);
  return api->PJRT_Event_Set(&args);
}

void events_of_the_caller(void) {
  PJRT_Event *event = new_event();
  START(PJRT_Event_IsReady_Args, ready);
  ready.event = event;
  ok(api->PJRT_Event_IsReady(&ready));
  MUST(!ready.is_ready);
  START(PJRT_Event_Error_Args, early);
  early.event = event;
  fails(api->PJRT_Event_Error(&early), PJRT_Error_Code_FAILED_PRECONDITION);
  watch(event);
  ok(set(event, PJRT_Error_Code_DATA_LOSS, "it is lost"));
  wait_for_calls(1);
  MUST(last_code == PJRT_Error_Code_DATA_LOSS);
  fails(set(event, PJRT_Error_Code_OK, ""), PJRT_Error_Code_FAILED_PRECONDITION);
  PJRT_Error *error = outcome(event);
  MUST(says(error, "it is lost"));
  fails(error, PJRT_Error_Code_DATA_LOSS);

  /* Destroyed before it was set: whoever watches it is told, once. */
  event = new_event();
  watch(event);
  destroy_event(event);
  wait_for_calls(2);
  MUST(last_code == PJRT_Error_Code_CANCELLED);
}

void a_buffer_donated_twice(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DONATING);
  PJRT_Buffer *first = put(client, INPUT), *second = put(client, INPUT);
  PJRT_Buffer *results[2] = {NULL, NULL};
  PJRT_Event *complete = NULL;
  fails(try_run(executable, NULL, (PJRT_Buffer *[]){first, first}, 2, results, &complete),
        PJRT_Error_Code_INVALID_ARGUMENT);
  MUST(complete == NULL && results[0] == NULL && !is_deleted(first));
  ok(try_run(executable, NULL, (PJRT_Buffer *[]){first, second}, 2, results, &complete));
  ok(outcome(complete));
  MUST(is_deleted(first) && is_deleted(second));
  PJRT_Buffer *more[2] = {NULL, NULL};
  complete = NULL;
  PJRT_Error *error = try_run(executable, NULL, (PJRT_Buffer *[]){first, results[0]}, 2, more, &complete);
  MUST(error != NULL && complete == NULL && more[0] == NULL);
  free_error(error);
  float found[4];
  fetch(results[0], found);
  MUST(found[3] == 8);
  fetch(results[1], found);
  MUST(found[3] == 16);
  for (int i = 0; i < 2; i++) destroy_buffer(results[i]);
  destroy_buffer(first);
  destroy_buffer(second);
  destroy_executable(executable);
  destroy_client(client);
}

void null_where_it_may_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
  PJRT_Buffer *input = put(client, INPUT), *result = NULL;
  ok(try_run(executable, NULL, &input, 1, &result, NULL)); /* no options, no events */
  START(PJRT_Buffer_ToHostBuffer_Args, size);
  size.src = result;
  size.host_layout = NULL;
  size.dst = NULL;
  ok(api->PJRT_Buffer_ToHostBuffer(&size)); /* asks how much room it takes */
  MUST(size.dst_size == 4 * sizeof(float));
  const int64_t none[1] = {0};
  START(PJRT_Client_BufferFromHostBuffer_Args, empty);
  memset((char *)&empty + 2 * sizeof(void *), 0, sizeof empty - 2 * sizeof(void *));
  empty.client = client;
  empty.type = PJRT_Buffer_Type_F32;
  empty.dims = none;
  empty.num_dims = 1;
  empty.device = first_device(client);
  ok(api->PJRT_Client_BufferFromHostBuffer(&empty)); /* no elements, no memory */
  ok(outcome(empty.done_with_host_buffer));
  destroy_buffer(empty.buffer);
  destroy_buffer(input);
  destroy_buffer(result);
  destroy_executable(executable);
  destroy_client(client);
}

void null_where_it_must_not_be(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *executable = compile(client, DOUBLE), *made;
  PJRT_Buffer *nothing = NULL, *result = NULL;
  PJRT_Event *complete = NULL;
  fails(try_compile(NULL, DOUBLE, &made), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(NULL, NULL, &nothing, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, &nothing, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, NULL, 0, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  fails(try_run(executable, NULL, NULL, 1, &result, &complete), PJRT_Error_Code_INVALID_ARGUMENT);
  MUST(result == NULL && complete == NULL);
  START(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = NULL;
  fails(api->PJRT_Buffer_ReadyEvent(&ready), PJRT_Error_Code_INVALID_ARGUMENT);
  START(PJRT_Executable_Serialize_Args, serialize);
  serialize.executable = NULL;
  fails(api->PJRT_Executable_Serialize(&serialize), PJRT_Error_Code_INVALID_ARGUMENT);
  destroy_executable(executable);
  destroy_client(client);
}

static void note_payload(const char *key, size_t key_size, const char *value, size_t value_size, void *found) {
  if (key_size == 4 && memcmp(key, "hint", 4) == 0 && value_size == 5 && memcmp(value, "reset", 5) == 0) ++*(int *)found;
}

/* An error goes in with its code, message and payload, and comes out with them. */
void errors_in_and_out(void) {
  PJRT_Client *client = new_client();
  START(PJRT_Device_DefaultMemory_Args, memory);
  memory.device = first_device(client);
  ok(api->PJRT_Device_DefaultMemory(&memory));
  START(PJRT_NamedValue, payload);
  payload.name = "hint";
  payload.name_size = 4;
  payload.type = PJRT_NamedValue_kString;
  payload.string_value = "reset";
  payload.value_size = 5;
  const int64_t dims[1] = {4};
  START(PJRT_Client_CreateErrorBuffer_Args, args);
  args.client = client;
  args.error_code = PJRT_Error_Code_ABORTED;
  args.error_message = "the fan stopped";
  args.error_message_size = strlen(args.error_message);
  args.shape_dims = dims;
  args.shape_num_dims = 1;
  args.shape_element_type = PJRT_Buffer_Type_F32;
  args.shape_layout = NULL;
  args.memory = memory.memory;
  args.payload = &payload;
  args.num_payload = 1;
  ok(api->PJRT_Client_CreateErrorBuffer(&args));
  START(PJRT_Buffer_ReadyEvent_Args, ready);
  ready.buffer = args.buffer;
  ok(api->PJRT_Buffer_ReadyEvent(&ready));
  PJRT_Error *error = outcome(ready.event);
  MUST(error != NULL && says(error, "the fan stopped"));
  int found = 0;
  START(PJRT_Error_ForEachPayload_Args, each);
  each.error = error;
  each.visitor = note_payload;
  each.user_arg = &found;
  ok(api->PJRT_Error_ForEachPayload(&each));
  MUST(found == 1);
  fails(error, PJRT_Error_Code_ABORTED);
  destroy_buffer(args.buffer);
  PJRT_LoadedExecutable *made;
  error = try_compile(client, "func.func @main() { stablehlo.nothing }", &made);
  MUST(error != NULL && says(error, "nothing"));
  free_error(error);
  destroy_client(client);
}

static void *many_lives(void *arg) {
  void **shared = arg;
  for (int i = 0; i < 50; i++) live(shared[0], shared[1], NULL);
  return NULL;
}

void callers_on_many_threads(void) {
  PJRT_Client *client = new_client();
  void *shared[2] = {client, compile(client, DOUBLE)};
  pthread_t threads[8];
  for (int i = 0; i < 8; i++) MUST(pthread_create(&threads[i], NULL, many_lives, shared) == 0);
  for (int i = 0; i < 8; i++) pthread_join(threads[i], NULL);
  destroy_executable(shared[1]);
  destroy_client(client);
}

void clients_come_and_go(void) {
  for (int i = 0; i < 5; i++) {
    PJRT_Client *client = new_client();
    PJRT_LoadedExecutable *executable = compile(client, DOUBLE);
    PJRT_Buffer *left = put(client, INPUT);
    live(client, executable, NULL);
    destroy_client(client); /* before its buffer and its executable */
    destroy_buffer(left);
    destroy_executable(executable);
  }
}

/* What a client lacks answers so, and bytes that are no topology are refused. */
void unimplemented_is_an_answer(void) {
  PJRT_Client *client = new_client();
  START(PJRT_TopologyDescription_Deserialize_Args, topology);
  topology.serialized_topology = "x";
  topology.serialized_topology_size = 1;
  fails(api->PJRT_TopologyDescription_Deserialize(&topology), PJRT_Error_Code_INVALID_ARGUMENT);
  START(PJRT_Device_PoisonExecution_Args, poison);
  memset((char *)&poison + 2 * sizeof(void *), 0, sizeof poison - 2 * sizeof(void *));
  poison.device = first_device(client);
  poison.error_code = PJRT_Error_Code_ABORTED;
  poison.error_message = "stop";
  poison.error_message_size = 4;
  PJRT_Error *error = api->PJRT_Device_PoisonExecution(&poison);
  if (error != NULL) {
    MUST(code_of(error) == PJRT_Error_Code_UNIMPLEMENTED);
    free_error(error);
  }
  destroy_client(client);
}

/* The framework's store, with one key in it. */
static char stored[16] = "nothing";
static int values_freed;

static void free_value(char *value) {
  values_freed++;
  free(value);
}

static PJRT_Error *kv_put(PJRT_KeyValuePutCallback_Args *args) {
  MUST(args->user_arg == stored && args->value_size < sizeof stored);
  memcpy(stored, args->value, args->value_size);
  stored[args->value_size] = 0;
  return NULL;
}

static PJRT_Error *kv_get(PJRT_KeyValueGetCallback_Args *args) {
  if (args->key_size != 3 || memcmp(args->key, "key", 3) != 0)
    return (*args->callback_error)(PJRT_Error_Code_NOT_FOUND, "no such key", 11);
  args->value = strdup(stored);
  args->value_size = strlen(stored);
  args->value_deleter_callback = free_value;
  return NULL;
}

static PJRT_Error *kv_try_get(PJRT_KeyValueTryGetCallback_Args *args) {
  PJRT_KeyValueGetCallback_Args get = {.key = args->key, .key_size = args->key_size, .callback_error = args->callback_error};
  PJRT_Error *error = kv_get(&get);
  args->value = get.value;
  args->value_size = get.value_size;
  args->value_deleter_callback = get.value_deleter_callback;
  return error;
}

/* The factory puts, gets and fails to get; the client is there if all that went well. */
void a_store_of_the_caller(void) {
  START(PJRT_Client_Create_Args, args);
  args.create_options = NULL;
  args.num_options = 0;
  args.kv_get_callback = kv_get;
  args.kv_put_callback = kv_put;
  args.kv_put_user_arg = args.kv_get_user_arg = args.kv_try_get_user_arg = stored;
  args.kv_try_get_callback = kv_try_get;
  ok(api->PJRT_Client_Create(&args));
  MUST(strcmp(stored, "value") == 0);
  MUST(values_freed == 2);
  destroy_client(args.client);
}

/* A framework's wait in native code that looks at no signals; returns the code of the error that ended it. */
int wait_for_ever(void) {
  PJRT_Event *event = new_event();
  PJRT_Error *error = NULL;
  START(PJRT_Event_Await_Args, args);
  args.event = event;
  puts("waiting");
  fflush(stdout);
  error = api->PJRT_Event_Await(&args);
  const int code = error == NULL ? 0 : (int)code_of(error);
  free_error(error);
  destroy_event(event);
  return code;
}

void make_client(void) { new_client(); }

/* With one client and one executable for all calls, which make what they make at the first. */
void lives(int times) {
  static PJRT_Client *client;
  static PJRT_LoadedExecutable *executable;
  if (client == NULL) executable = compile(client = new_client(), DOUBLE);
  for (int i = 0; i < times; i++) live(client, executable, NULL);
}

void use_table(const PJRT_Api *table) { api = table; }
