/* Callers of other versions, whose structs are shorter or longer than ours. */
#include <stddef.h>

#include "caller.h"

/* As PyTorch/XLA 2.9 calls: the struct of options ends early, with garbage behind it on the stack. */
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

/* The plugin writes only into the caller's struct, wherever it ends. */
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

/* The plugin does not read or write fields of a newer caller behind the end of our struct. */
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
