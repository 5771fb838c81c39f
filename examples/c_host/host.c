/* A host that is not Python: loads a plugin, compiles a program, runs it on threads, prints the results.
 *
 *     pjrt export reference -o libreference.so
 *     cc -I "$(python -c 'import pathlib, pjrt; print(pathlib.Path(pjrt.__file__).parent / "abi")')" host.c -o host \
 *        -ldl -lpthread
 *     ./host ./libreference.so program.mlir 4
 *
 * The program takes and returns f32[4]. Each call of the C API is a struct with its size, its arguments and its results. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

#define START(type) {.struct_size = type##_STRUCT_SIZE}

static const PJRT_Api *api;
static PJRT_Client *client;
static PJRT_LoadedExecutable *executable;

static void check(PJRT_Error *error) {
  if (error == NULL) return;
  PJRT_Error_Message_Args message = START(PJRT_Error_Message_Args);
  message.error = error;
  api->PJRT_Error_Message(&message);
  fprintf(stderr, "error: %.*s\n", (int)message.message_size, message.message);
  exit(1);
}

static void await(PJRT_Event *event) {
  if (event == NULL) return;
  PJRT_Event_Await_Args wait = START(PJRT_Event_Await_Args);
  wait.event = event;
  check(api->PJRT_Event_Await(&wait));
  PJRT_Event_Destroy_Args destroy = START(PJRT_Event_Destroy_Args);
  destroy.event = event;
  check(api->PJRT_Event_Destroy(&destroy));
}

static char *read_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(2);
  }
  char *data = malloc(1 << 20);
  *size = fread(data, 1, 1 << 20, file);
  fclose(file);
  return data;
}

static void compile(const char *path) {
  PJRT_Program program = START(PJRT_Program);
  program.code = read_file(path, &program.code_size);
  program.format = "mlir";
  program.format_size = 4;
  /* CompileOptionsProto with executable_build_options: one replica, one partition. */
  static const char options[] = {0x1a, 0x04, 0x20, 0x01, 0x28, 0x01};
  PJRT_Client_Compile_Args args = START(PJRT_Client_Compile_Args);
  args.client = client;
  args.program = &program;
  args.compile_options = options;
  args.compile_options_size = sizeof options;
  check(api->PJRT_Client_Compile(&args));
  executable = args.executable;
  free(program.code);
}

static void *run(void *result) {
  float input[4] = {0, 1, 2, 3};
  const int64_t dims[1] = {4};
  PJRT_Client_AddressableDevices_Args devices = START(PJRT_Client_AddressableDevices_Args);
  devices.client = client;
  check(api->PJRT_Client_AddressableDevices(&devices));
  PJRT_Client_BufferFromHostBuffer_Args put = START(PJRT_Client_BufferFromHostBuffer_Args);
  put.client = client;
  put.data = input;
  put.type = PJRT_Buffer_Type_F32;
  put.dims = dims;
  put.num_dims = 1;
  put.device = devices.addressable_devices[0];
  check(api->PJRT_Client_BufferFromHostBuffer(&put));
  await(put.done_with_host_buffer);

  PJRT_Buffer *const arguments[1] = {put.buffer};
  PJRT_Buffer *const *const argument_lists[1] = {arguments};
  PJRT_Buffer *outputs[1] = {NULL};
  PJRT_Buffer **const output_lists[1] = {outputs};
  PJRT_Event *complete[1] = {NULL};
  PJRT_ExecuteOptions options = START(PJRT_ExecuteOptions);
  PJRT_LoadedExecutable_Execute_Args execute = START(PJRT_LoadedExecutable_Execute_Args);
  execute.executable = executable;
  execute.options = &options;
  execute.argument_lists = argument_lists;
  execute.num_devices = 1;
  execute.num_args = 1;
  execute.output_lists = output_lists;
  execute.device_complete_events = complete;
  check(api->PJRT_LoadedExecutable_Execute(&execute));
  await(complete[0]);

  PJRT_Buffer_ToHostBuffer_Args fetch = START(PJRT_Buffer_ToHostBuffer_Args);
  fetch.src = outputs[0];
  fetch.dst = result;
  fetch.dst_size = 4 * sizeof(float);
  check(api->PJRT_Buffer_ToHostBuffer(&fetch));
  await(fetch.event);
  for (int i = 0; i < 2; i++) {
    PJRT_Buffer_Destroy_Args destroy = START(PJRT_Buffer_Destroy_Args);
    destroy.buffer = i ? outputs[0] : put.buffer;
    check(api->PJRT_Buffer_Destroy(&destroy));
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s PLUGIN PROGRAM THREADS\n", argv[0]);
    return 2;
  }
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  api = get();
  if (api == NULL) return 1;
  PJRT_Plugin_Initialize_Args initialize = START(PJRT_Plugin_Initialize_Args);
  check(api->PJRT_Plugin_Initialize(&initialize));
  PJRT_Client_Create_Args create = START(PJRT_Client_Create_Args);
  check(api->PJRT_Client_Create(&create));
  client = create.client;
  compile(argv[2]);
  enum { MOST = 16 };
  const int threads = atoi(argv[3]) < MOST ? atoi(argv[3]) : MOST;
  float results[MOST][4];
  pthread_t thread[MOST];
  for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, run, results[i]);
  for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
  for (int i = 0; i < threads; i++)
    printf("%.4f %.4f %.4f %.4f\n", results[i][0], results[i][1], results[i][2], results[i][3]);
  PJRT_LoadedExecutable_Destroy_Args destroy = START(PJRT_LoadedExecutable_Destroy_Args);
  destroy.executable = executable;
  check(api->PJRT_LoadedExecutable_Destroy(&destroy));
  PJRT_Client_Destroy_Args end = START(PJRT_Client_Destroy_Args);
  end.client = client;
  check(api->PJRT_Client_Destroy(&end));
  return 0;
}
