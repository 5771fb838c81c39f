/* Drives the tiny plugin through its table, as a caller in C would: for valgrind and the sanitizers, and to know that
 * the plugin is right before anything else is tested with it. Prints "ok" and returns 0, or says what went wrong. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "faults.h"
#include "pjrt_abi.h"

static const PJRT_Api *api;
static int64_t (*live)(const char *);
static void (*hold)(bool);

static void fail_at(int line, const char *what) {
  fprintf(stderr, "driver.c:%d: %s\n", line, what);
  exit(1);
}
#define EXPECT(condition) \
  do { if (!(condition)) fail_at(__LINE__, #condition); } while (0)

static PJRT_Error_Code take(PJRT_Error *error, char *text, size_t room) {
  if (error == NULL) return PJRT_Error_Code_OK;
  PJRT_Error_GetCode_Args code = {.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE, .error = error};
  EXPECT(api->PJRT_Error_GetCode(&code) == NULL);
  PJRT_Error_Message_Args message = {.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Message(&message);
  if (text) snprintf(text, room, "%.*s", (int)message.message_size, message.message);
  PJRT_Error_Destroy_Args destroy = {.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE, .error = error};
  api->PJRT_Error_Destroy(&destroy);
  return code.code;
}

static void check(PJRT_Error *error, int line, const char *what) {
  char text[256] = "";
  if (take(error, text, sizeof text) == PJRT_Error_Code_OK) return;
  fprintf(stderr, "%s: %s\n", what, text);
  fail_at(line, what);
}

/* CALL(Client_Devices, d, .client = client): declares d, calls, and expects success. TRY gives the code instead. */
#define ARGS(name, variable, ...) \
  PJRT_##name##_Args variable = {.struct_size = PJRT_##name##_Args_STRUCT_SIZE, __VA_ARGS__}
#define CALL(name, variable, ...) \
  ARGS(name, variable, __VA_ARGS__); \
  check(api->PJRT_##name(&variable), __LINE__, #name)
#define TRY(name, ...) \
  take(api->PJRT_##name(&(PJRT_##name##_Args){.struct_size = PJRT_##name##_Args_STRUCT_SIZE, __VA_ARGS__}), NULL, 0)

static PJRT_Error_Code await_event(PJRT_Event *event) {
  PJRT_Error_Code code = TRY(Event_Await, .event = event);
  CALL(Event_Destroy, destroy, .event = event);
  return code;
}

static PJRT_Client *make_client(int64_t devices, int64_t limit) {
  PJRT_NamedValue options[2] = {
      {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "num_devices", .name_size = 11,
       .type = PJRT_NamedValue_kInt64, .int64_value = devices, .value_size = 1},
      {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "bytes_limit", .name_size = 11,
       .type = PJRT_NamedValue_kInt64, .int64_value = limit, .value_size = 1}};
  CALL(Client_Create, create, .create_options = options, .num_options = 2);
  return create.client;
}

static PJRT_Device *device(PJRT_Client *client, int id) {
  CALL(Client_LookupDevice, lookup, .client = client, .id = id);
  return lookup.device;
}

static PJRT_Memory *memory(PJRT_Device *device, size_t kind) {
  CALL(Device_AddressableMemories, memories, .device = device);
  EXPECT(kind < memories.num_memories);
  return memories.memories[kind];
}

static PJRT_Buffer *upload(PJRT_Client *client, PJRT_Device *where, const float *data, int64_t size,
                           PJRT_HostBufferSemantics semantics) {
  CALL(Client_BufferFromHostBuffer, put, .client = client, .data = data, .type = PJRT_Buffer_Type_F32, .dims = &size,
       .num_dims = 1, .host_buffer_semantics = semantics, .device = where);
  CALL(Event_Destroy, destroy, .event = put.done_with_host_buffer);
  return put.buffer;
}

static PJRT_Error_Code download(PJRT_Buffer *buffer, float *data, size_t count) {
  CALL(Buffer_ToHostBuffer, get, .src = buffer, .dst = data, .dst_size = count * sizeof *data);
  return await_event(get.event);
}

static void destroy_buffer(PJRT_Buffer *buffer) { CALL(Buffer_Destroy, destroy, .buffer = buffer); }

static PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *text, const char *options, size_t size) {
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE, .code = (char *)text, .code_size = strlen(text),
                          .format = "tiny", .format_size = 4};
  CALL(Client_Compile, compile, .client = client, .program = &program, .compile_options = options,
       .compile_options_size = size);
  return compile.executable;
}

static void destroy_loaded(PJRT_LoadedExecutable *loaded) { CALL(LoadedExecutable_Destroy, destroy, .executable = loaded); }

static PJRT_Error_Code execute(PJRT_LoadedExecutable *loaded, PJRT_Buffer *const *arguments, size_t num_arguments,
                               PJRT_Buffer **outputs) {
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  return TRY(LoadedExecutable_Execute, .executable = loaded, .options = &options, .argument_lists = &arguments,
             .num_devices = 1, .num_args = num_arguments, .output_lists = &outputs);
}

/* ---- the tests ----------------------------------------------------------------------------------------------------*/
static void test_add(PJRT_Client *client) {
  const float a[] = {1, 2, 3, 4}, b[] = {10, 20, 30, 40};
  float c[4] = {0};
  PJRT_Buffer *arguments[2] = {
      upload(client, device(client, 0), a, 4, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall),
      upload(client, device(client, 0), b, 4, PJRT_HostBufferSemantics_kImmutableZeroCopy)};
  PJRT_LoadedExecutable *loaded =
      compile(client, "tiny 1\nin x f32[4]\nin y f32[4]\nlet z = add x y\nout z\nout x\n", NULL, 0);
  PJRT_Buffer *outputs[2];
  for (int i = 0; i < 100; ++i) {
    EXPECT(execute(loaded, arguments, 2, outputs) == PJRT_Error_Code_OK);
    EXPECT(download(outputs[0], c, 4) == PJRT_Error_Code_OK && c[0] == 11 && c[3] == 44);
    EXPECT(download(outputs[1], c, 4) == PJRT_Error_Code_OK && c[0] == 1 && c[3] == 4);
    destroy_buffer(outputs[0]);
    destroy_buffer(outputs[1]);
  }
  EXPECT(execute(loaded, arguments, 1, outputs) == PJRT_Error_Code_INVALID_ARGUMENT);
  destroy_loaded(loaded);
  destroy_buffer(arguments[0]);
  destroy_buffer(arguments[1]);
}

static void test_donation(PJRT_Client *client) {
  const float a[] = {1, 2};
  float c[2];
  PJRT_Buffer *x = upload(client, device(client, 0), a, 2, PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes);
  PJRT_LoadedExecutable *loaded = compile(client, "tiny 1\nin x f32[2]\nlet z = add x x\nout z alias=x\n", NULL, 0);
  PJRT_Buffer *z;
  CALL(Buffer_IncreaseExternalReferenceCount, increase, .buffer = x);
  EXPECT(execute(loaded, &x, 1, &z) == PJRT_Error_Code_INVALID_ARGUMENT);
  CALL(Buffer_DecreaseExternalReferenceCount, decrease, .buffer = x);
  EXPECT(execute(loaded, &x, 1, &z) == PJRT_Error_Code_OK);
  CALL(Buffer_IsDeleted, deleted, .buffer = x);
  EXPECT(deleted.is_deleted);
  EXPECT(execute(loaded, &x, 1, &z) == PJRT_Error_Code_INVALID_ARGUMENT);
  EXPECT(download(z, c, 2) == PJRT_Error_Code_OK && c[0] == 2 && c[1] == 4);
  /* The memory of a result that nobody has looked at becomes that of the next one. */
  PJRT_Buffer *w;
  EXPECT(execute(loaded, &z, 1, &w) == PJRT_Error_Code_OK);
  CALL(Buffer_UnsafePointer, before, .buffer = w);
  PJRT_Buffer *v;
  EXPECT(execute(loaded, &w, 1, &v) == PJRT_Error_Code_OK);
  CALL(Buffer_UnsafePointer, after, .buffer = v);
  EXPECT(before.buffer_pointer == after.buffer_pointer);
  EXPECT(download(v, c, 2) == PJRT_Error_Code_OK && c[0] == 8 && c[1] == 16);
  destroy_buffer(x);
  destroy_buffer(z);
  destroy_buffer(w);
  destroy_buffer(v);
  destroy_loaded(loaded);
}

static void test_failure(PJRT_Client *client) {
  PJRT_LoadedExecutable *loaded = compile(
      client, "tiny 1\nlet z = fill f32[2] 1.5\ndo payload key some value\ndo fail 8 no room\nout z\n", NULL, 0);
  PJRT_LoadedExecutable *next = compile(client, "tiny 1\nin x f32[2]\nlet z = add x x\nout z\n", NULL, 0);
  PJRT_Buffer *z, *y;
  float c[2];
  EXPECT(execute(loaded, NULL, 0, &z) == PJRT_Error_Code_OK);
  EXPECT(execute(next, &z, 1, &y) == PJRT_Error_Code_OK);
  EXPECT(download(y, c, 2) == PJRT_Error_Code_RESOURCE_EXHAUSTED);
  destroy_buffer(z);
  destroy_buffer(y);
  destroy_loaded(loaded);
  destroy_loaded(next);
}

static void test_all_reduce(PJRT_Client *client) {
  /* Build options (field 3): num_replicas (4) = 2. */
  static const char options[] = {0x1a, 0x02, 0x20, 0x02};
  PJRT_LoadedExecutable *loaded =
      compile(client, "tiny 1\nin x f32[3]\nlet z = all_reduce x\nout z\n", options, sizeof options);
  const float a[] = {1, 2, 3}, b[] = {10, 20, 30};
  float c[3];
  PJRT_Buffer *x[2] = {upload(client, device(client, 0), a, 3, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall),
                       upload(client, device(client, 1), b, 3, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall)};
  PJRT_Buffer *const lists[2][1] = {{x[0]}, {x[1]}};
  PJRT_Buffer *const *arguments[2] = {lists[0], lists[1]};
  PJRT_Buffer *outputs[2][1], **output_lists[2] = {outputs[0], outputs[1]};
  PJRT_Event *events[2];
  PJRT_ExecuteOptions execute_options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  for (int i = 0; i < 20; ++i) {
    CALL(LoadedExecutable_Execute, run, .executable = loaded, .options = &execute_options, .argument_lists = arguments,
         .num_devices = 2, .num_args = 1, .output_lists = output_lists, .device_complete_events = events);
    for (int j = 0; j < 2; ++j) {
      EXPECT(await_event(events[j]) == PJRT_Error_Code_OK);
      EXPECT(download(outputs[j][0], c, 3) == PJRT_Error_Code_OK && c[0] == 11 && c[2] == 33);
      destroy_buffer(outputs[j][0]);
    }
  }
  destroy_buffer(x[0]);
  destroy_buffer(x[1]);
  destroy_loaded(loaded);
}

static void test_special_buffers(PJRT_Client *client) {
  const int64_t two = 2;
  const float a[] = {5, 6};
  float c[2];
  PJRT_Memory *where = memory(device(client, 0), 0);
  CALL(Client_CreateAliasBuffer, alias, .client = client, .memory = where, .shape_dims = &two, .shape_num_dims = 1,
       .shape_element_type = PJRT_Buffer_Type_F32);
  PJRT_LoadedExecutable *loaded = compile(client, "tiny 1\nin x f32[2]\nlet z = neg x\nout z\n", NULL, 0);
  PJRT_Buffer *z;
  EXPECT(execute(loaded, &alias.alias_buffer, 1, &z) == PJRT_Error_Code_OK);
  PJRT_Buffer *real = upload(client, device(client, 0), a, 2, PJRT_HostBufferSemantics_kMutableZeroCopy);
  CALL(Client_FulfillAliasBuffer, fulfill, .client = client, .buffer = real,
       .fulfill_alias_buffer_cb = alias.fulfill_alias_buffer_cb);
  destroy_buffer(real);
  EXPECT(download(z, c, 2) == PJRT_Error_Code_OK && c[0] == -5 && c[1] == -6);
  destroy_buffer(alias.alias_buffer);
  destroy_buffer(z);
  destroy_loaded(loaded);

  CALL(Client_CreateErrorBuffer, broken, .client = client, .error_code = PJRT_Error_Code_DATA_LOSS,
       .error_message = "lost", .error_message_size = 4, .shape_dims = &two, .shape_num_dims = 1,
       .shape_element_type = PJRT_Buffer_Type_F32, .memory = where);
  EXPECT(download(broken.buffer, c, 2) == PJRT_Error_Code_DATA_LOSS);
  destroy_buffer(broken.buffer);
}

static void test_transfers(PJRT_Client *client) {
  const int64_t four = 4;
  const float a[] = {1, 2, 3, 4};
  float c[4];
  PJRT_ShapeSpec spec = {.struct_size = PJRT_ShapeSpec_STRUCT_SIZE, .dims = &four, .num_dims = 1,
                         .element_type = PJRT_Buffer_Type_F32};
  CALL(Client_CreateBuffersForAsyncHostToDevice, make, .client = client, .shape_specs = &spec, .num_shape_specs = 1,
       .memory = memory(device(client, 0), 1));
  PJRT_AsyncHostToDeviceTransferManager *manager = make.transfer_manager;
  CALL(AsyncHostToDeviceTransferManager_RetrieveBuffer, retrieve, .transfer_manager = manager);
  CALL(AsyncHostToDeviceTransferManager_TransferData, first, .transfer_manager = manager, .data = a,
       .transfer_size = 8);
  CALL(AsyncHostToDeviceTransferManager_TransferData, second, .transfer_manager = manager, .data = a + 2, .offset = 8,
       .transfer_size = 8, .is_last_transfer = true);
  EXPECT(TRY(AsyncHostToDeviceTransferManager_TransferData, .transfer_manager = manager, .data = a,
             .transfer_size = 8) == PJRT_Error_Code_FAILED_PRECONDITION);
  EXPECT(await_event(first.done_with_h2d_transfer) == PJRT_Error_Code_OK);
  EXPECT(await_event(second.done_with_h2d_transfer) == PJRT_Error_Code_OK);
  EXPECT(download(retrieve.buffer_out, c, 4) == PJRT_Error_Code_OK && memcmp(a, c, sizeof a) == 0);
  CALL(AsyncHostToDeviceTransferManager_Destroy, destroy, .transfer_manager = manager);
  CALL(Buffer_CopyToDevice, copy, .buffer = retrieve.buffer_out, .dst_device = device(client, 1));
  destroy_buffer(retrieve.buffer_out);
  EXPECT(download(copy.dst_buffer, c, 4) == PJRT_Error_Code_OK && memcmp(a, c, sizeof a) == 0);
  destroy_buffer(copy.dst_buffer);
}

static atomic_int seen; /* 1 + the code that the callback got; set on a queue's thread, read when that has ended */

static void on_ready(PJRT_Error *error, void *user_arg) {
  atomic_store((atomic_int *)user_arg, 1 + (int)take(error, NULL, 0));
}

static void test_held_events(PJRT_Client *client) {
  const float a[] = {1};
  hold(true);
  PJRT_Buffer *x = upload(client, device(client, 0), a, 1, PJRT_HostBufferSemantics_kImmutableOnlyDuringCall);
  CALL(Buffer_ReadyEvent, ready, .buffer = x);
  CALL(Event_IsReady, is_ready, .event = ready.event);
  EXPECT(!is_ready.is_ready);
  EXPECT(TRY(Event_Error, .event = ready.event) == PJRT_Error_Code_FAILED_PRECONDITION);
  CALL(Event_OnReady, then, .event = ready.event, .callback = on_ready, .user_arg = &seen);
  hold(false);
  EXPECT(await_event(ready.event) == PJRT_Error_Code_OK);
  destroy_buffer(x);
  CALL(Client_AddressableDevices, all, .client = client);
  EXPECT(all.num_addressable_devices == 2);
}

static void test_limit(void) {
  static float big[300];
  PJRT_Client *client = make_client(1, 1024);
  const int64_t size = 300;
  ARGS(Client_BufferFromHostBuffer, put, .client = client, .data = big, .type = PJRT_Buffer_Type_F32, .dims = &size,
       .num_dims = 1, .device = device(client, 0));
  EXPECT(take(api->PJRT_Client_BufferFromHostBuffer(&put), NULL, 0) == PJRT_Error_Code_RESOURCE_EXHAUSTED);
  CALL(Device_MemoryStats, stats, .device = device(client, 0));
  EXPECT(stats.bytes_limit_is_set && stats.bytes_limit == 1024 && stats.bytes_in_use == 0);
  CALL(Client_Destroy, destroy, .client = client);
}

static void test_topology(void) {
  CALL(TopologyDescription_Create, make, .topology_name = "2x3", .topology_name_size = 3);
  CALL(TopologyDescription_GetDeviceDescriptions, list, .topology = make.topology);
  EXPECT(list.num_descriptions == 6);
  CALL(TopologyDescription_Serialize, serialize, .topology = make.topology);
  CALL(TopologyDescription_Deserialize, again, .serialized_topology = serialize.serialized_bytes,
       .serialized_topology_size = serialize.serialized_bytes_size);
  serialize.serialized_topology_deleter(serialize.serialized_topology);
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE, .code = "tiny 1\nlet z = fill f32[2,2] 1\nout z\n",
                          .code_size = 36, .format = "tiny", .format_size = 4};
  CALL(Compile, compile, .topology = again.topology, .program = &program);
  CALL(Executable_Serialize, bytes, .executable = compile.executable);
  PJRT_Client *client = make_client(1, 0);
  CALL(Executable_DeserializeAndLoad, load, .client = client, .serialized_executable = bytes.serialized_bytes,
       .serialized_executable_size = bytes.serialized_bytes_size);
  bytes.serialized_executable_deleter(bytes.serialized_executable);
  destroy_loaded(load.loaded_executable);
  CALL(Executable_Destroy, destroy_executable, .executable = compile.executable);
  CALL(Client_Destroy, destroy_client, .client = client);
  CALL(TopologyDescription_Destroy, destroy_a, .topology = make.topology);
  CALL(TopologyDescription_Destroy, destroy_b, .topology = again.topology);
  EXPECT(TRY(TopologyDescription_Create, .topology_name = "what", .topology_name_size = 4) ==
         PJRT_Error_Code_INVALID_ARGUMENT);
}

int main(int argc, char **argv) {
  EXPECT(argc == 2);
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) fail_at(__LINE__, dlerror());
  const PJRT_Api *(*get)(void);
  *(void **)&get = dlsym(library, "GetPjrtApi");
  *(void **)&live = dlsym(library, "tiny_plugin_live");
  *(void **)&hold = dlsym(library, "tiny_plugin_hold");
  const char *(*kind)(int);
  *(void **)&kind = dlsym(library, "tiny_plugin_live_kind");
  int64_t (*violations)(void);
  *(void **)&violations = dlsym(library, "tiny_plugin_violations");
  api = get();
  EXPECT(api->struct_size == PJRT_Api_STRUCT_SIZE && api->pjrt_api_version.minor_version == PJRT_API_MINOR);
  for (size_t i = 0; i < 138; ++i) EXPECT(((void **)(void *)&api->PJRT_Error_Destroy)[i] != NULL);
  CALL(Plugin_Initialize, initialize, .extension_start = NULL);
  PJRT_Client *client = make_client(2, 0);
  test_add(client);
  test_donation(client);
  test_failure(client);
  test_all_reduce(client);
  test_special_buffers(client);
  test_transfers(client);
  test_held_events(client);
  CALL(Client_Destroy, destroy, .client = client);
  EXPECT(atomic_load(&seen) == 1);
  test_limit();
  test_topology();
  for (int i = 0; kind(i); ++i) {
    if (live(kind(i)) == 0) continue;
    fprintf(stderr, "%lld alive of kind %s\n", (long long)live(kind(i)), kind(i));
    return 1;
  }
  EXPECT(violations() == 0);
  puts("ok");
  return 0;
}
