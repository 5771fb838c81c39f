/* A caller of a plugin: structs that hold garbage wherever the ABI allows it, and the calls that all cases need.
 *
 * A case is a function without arguments that is not static. A case that fails writes the reason to the error stream and
 * ends the process. */
#ifndef CALLER_H_
#define CALLER_H_

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

enum { GARBAGE = 0xAA };

/* An argument struct with the two fields that every caller must set, and garbage in all others. */
#define START(type, name)                    \
  type name;                                 \
  memset(&name, GARBAGE, sizeof name);       \
  name.struct_size = type##_STRUCT_SIZE;     \
  name.extension_start = NULL

#define MUST(condition)                                                         \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: must hold: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

/* The table of the plugin; use_table sets it. */
extern const PJRT_Api *api;

static inline bool is_garbage(const void *start, size_t size) {
  for (size_t i = 0; i < size; i++)
    if (((const unsigned char *)start)[i] != GARBAGE) return false;
  return true;
}

static inline PJRT_Error_Code code_of(const PJRT_Error *error) {
  START(PJRT_Error_GetCode_Args, args);
  args.error = error;
  MUST(api->PJRT_Error_GetCode(&args) == NULL);
  return args.code;
}

static inline void free_error(PJRT_Error *error) {
  START(PJRT_Error_Destroy_Args, args);
  args.error = error;
  api->PJRT_Error_Destroy(&args);
}

static inline bool says(const PJRT_Error *error, const char *text) {
  START(PJRT_Error_Message_Args, args);
  args.error = error;
  api->PJRT_Error_Message(&args);
  char *copy = strndup(args.message, args.message_size);
  const bool is_in = strstr(copy, text) != NULL;
  if (!is_in) fprintf(stderr, "expected '%s' in: %s\n", text, copy);
  free(copy);
  return is_in;
}

/* Ends the process with the message if there is an error. */
static inline void ok(PJRT_Error *error) {
  if (error == NULL) return;
  START(PJRT_Error_Message_Args, args);
  args.error = error;
  api->PJRT_Error_Message(&args);
  fprintf(stderr, "error %d: %.*s\n", (int)code_of(error), (int)args.message_size, args.message);
  exit(1);
}

/* Ends the process unless there is an error with that code; frees it. */
static inline void fails(PJRT_Error *error, PJRT_Error_Code code) {
  MUST(error != NULL);
  if (code_of(error) != code) {
    fprintf(stderr, "expected code %d\n", (int)code);
    ok(error);
  }
  free_error(error);
}

static inline void destroy_event(PJRT_Event *event) {
  START(PJRT_Event_Destroy_Args, args);
  args.event = event;
  ok(api->PJRT_Event_Destroy(&args));
}

/* Waits for the event, destroys it and returns its error, which the caller then owns. */
static inline PJRT_Error *outcome(PJRT_Event *event) {
  START(PJRT_Event_Await_Args, args);
  args.event = event;
  PJRT_Error *error = api->PJRT_Event_Await(&args);
  destroy_event(event);
  return error;
}

static inline void destroy_buffer(PJRT_Buffer *buffer) {
  START(PJRT_Buffer_Destroy_Args, args);
  args.buffer = buffer;
  ok(api->PJRT_Buffer_Destroy(&args));
}

static inline void destroy_client(PJRT_Client *client) {
  START(PJRT_Client_Destroy_Args, args);
  args.client = client;
  ok(api->PJRT_Client_Destroy(&args));
}

static inline void destroy_executable(PJRT_LoadedExecutable *executable) {
  START(PJRT_LoadedExecutable_Destroy_Args, args);
  args.executable = executable;
  ok(api->PJRT_LoadedExecutable_Destroy(&args));
}

static inline PJRT_Client *new_client(void) {
  START(PJRT_Client_Create_Args, args);
  args.create_options = NULL;
  args.num_options = 0;
  args.kv_get_callback = NULL;
  args.kv_put_callback = NULL;
  args.kv_try_get_callback = NULL;
  ok(api->PJRT_Client_Create(&args));
  MUST(args.client != NULL);
  return args.client;
}

static inline PJRT_Device *first_device(PJRT_Client *client) {
  START(PJRT_Client_AddressableDevices_Args, args);
  args.client = client;
  ok(api->PJRT_Client_AddressableDevices(&args));
  MUST(args.num_addressable_devices >= 1);
  return args.addressable_devices[0];
}

static inline PJRT_Error *try_compile(PJRT_Client *client, const char *code, PJRT_LoadedExecutable **executable) {
  /* CompileOptionsProto with executable_build_options: one replica, one partition. */
  static const char options[] = {0x1a, 0x04, 0x20, 0x01, 0x28, 0x01};
  START(PJRT_Program, program);
  program.code = (char *)code;
  program.code_size = strlen(code);
  program.format = "mlir";
  program.format_size = 4;
  START(PJRT_Client_Compile_Args, args);
  args.client = client;
  args.program = &program;
  args.compile_options = options;
  args.compile_options_size = sizeof options;
  PJRT_Error *error = api->PJRT_Client_Compile(&args);
  *executable = args.executable;
  return error;
}

static inline PJRT_LoadedExecutable *compile(PJRT_Client *client, const char *code) {
  PJRT_LoadedExecutable *executable;
  ok(try_compile(client, code, &executable));
  return executable;
}

/* A buffer of four floats on the first device. */
static inline PJRT_Buffer *put(PJRT_Client *client, const float *data) {
  const int64_t dims[1] = {4};
  START(PJRT_Client_BufferFromHostBuffer_Args, args);
  args.client = client;
  args.data = data;
  args.type = PJRT_Buffer_Type_F32;
  args.dims = dims;
  args.num_dims = 1;
  args.byte_strides = NULL;
  args.num_byte_strides = 0;
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
  args.device = first_device(client);
  args.memory = NULL;
  args.device_layout = NULL;
  ok(api->PJRT_Client_BufferFromHostBuffer(&args));
  ok(outcome(args.done_with_host_buffer));
  return args.buffer;
}

/* One execution on one device; it writes no result and no event if it fails. */
static inline PJRT_Error *try_run(PJRT_LoadedExecutable *executable, PJRT_ExecuteOptions *options,
                                  PJRT_Buffer *const *arguments, size_t count, PJRT_Buffer **result,
                                  PJRT_Event **complete) {
  PJRT_Buffer *const *const argument_lists[1] = {arguments};
  PJRT_Buffer **const output_lists[1] = {result};
  START(PJRT_LoadedExecutable_Execute_Args, args);
  args.executable = executable;
  args.options = options;
  args.argument_lists = argument_lists;
  args.num_devices = 1;
  args.num_args = count;
  args.output_lists = output_lists;
  args.device_complete_events = complete;
  args.execute_device = NULL;
  return api->PJRT_LoadedExecutable_Execute(&args);
}

static inline void fetch(PJRT_Buffer *buffer, float *result) {
  START(PJRT_Buffer_ToHostBuffer_Args, args);
  args.src = buffer;
  args.host_layout = NULL;
  args.dst = result;
  args.dst_size = 4 * sizeof(float);
  ok(api->PJRT_Buffer_ToHostBuffer(&args));
  ok(outcome(args.event));
}

static inline bool is_deleted(PJRT_Buffer *buffer) {
  START(PJRT_Buffer_IsDeleted_Args, args);
  args.buffer = buffer;
  ok(api->PJRT_Buffer_IsDeleted(&args));
  return args.is_deleted;
}

static const float INPUT[4] = {1, 2, 3, 4};
static const char DOUBLE[] =
    "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {"
    "  %y = stablehlo.add %x, %x : tensor<4xf32>"
    "  return %y : tensor<4xf32> }";
static const char DONATING[] =
    "func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32> {tf.aliasing_output = 1 : i32})"
    "  -> (tensor<4xf32>, tensor<4xf32>) {"
    "  %a = stablehlo.add %x, %y : tensor<4xf32>"
    "  %b = stablehlo.multiply %x, %y : tensor<4xf32>"
    "  return %a, %b : tensor<4xf32>, tensor<4xf32> }";

/* Puts, doubles, fetches, checks. */
static inline void live(PJRT_Client *client, PJRT_LoadedExecutable *executable, PJRT_ExecuteOptions *options) {
  PJRT_Buffer *input = put(client, INPUT), *result = NULL;
  PJRT_Event *complete = NULL;
  ok(try_run(executable, options, &input, 1, &result, &complete));
  ok(outcome(complete));
  float values[4];
  fetch(result, values);
  for (int i = 0; i < 4; i++) MUST(values[i] == 2 * INPUT[i]);
  destroy_buffer(input);
  destroy_buffer(result);
}

#endif /* CALLER_H_ */
