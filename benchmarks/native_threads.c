/* Executions per second of one thread, and of two threads with a device each, without Python.
 * Usage: native_threads PLUGIN SECONDS EXECUTABLE EXECUTABLE: serialized, for devices 0 and 1; f32[8] -> f32[8]. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "pjrt_abi.h"

#define START(type) {.struct_size = type##_STRUCT_SIZE}

static const PJRT_Api *api;
static PJRT_Client *client;
static PJRT_LoadedExecutable *executables[2];
static PJRT_Buffer *arguments[2];
static atomic_bool is_over;

static void check(PJRT_Error *error) {
  if (error == NULL) return;
  PJRT_Error_Message_Args message = START(PJRT_Error_Message_Args);
  message.error = error;
  api->PJRT_Error_Message(&message);
  fprintf(stderr, "error: %.*s\n", (int)message.message_size, message.message);
  exit(1);
}

static void prepare(int device, const char *path) {
  static char data[1 << 20];
  FILE *file = fopen(path, "rb");
  if (file == NULL) exit(2);
  PJRT_Executable_DeserializeAndLoad_Args load = START(PJRT_Executable_DeserializeAndLoad_Args);
  load.client = client;
  load.serialized_executable = data;
  load.serialized_executable_size = fread(data, 1, sizeof data, file);
  fclose(file);
  check(api->PJRT_Executable_DeserializeAndLoad(&load));
  executables[device] = load.loaded_executable;
  PJRT_Client_AddressableDevices_Args devices = START(PJRT_Client_AddressableDevices_Args);
  devices.client = client;
  check(api->PJRT_Client_AddressableDevices(&devices));
  static const float values[8] = {0};
  static const int64_t dims[1] = {8};
  PJRT_Client_BufferFromHostBuffer_Args put = START(PJRT_Client_BufferFromHostBuffer_Args);
  put.client = client;
  put.data = values;
  put.type = PJRT_Buffer_Type_F32;
  put.dims = dims;
  put.num_dims = 1;
  put.device = devices.addressable_devices[device];
  check(api->PJRT_Client_BufferFromHostBuffer(&put));
  PJRT_Event_Destroy_Args end = START(PJRT_Event_Destroy_Args);
  end.event = put.done_with_host_buffer;
  check(api->PJRT_Event_Destroy(&end));
  arguments[device] = put.buffer;
}

static void *execute(void *arg) {
  const int device = *(const int *)arg;
  long count = 0;
  for (; !atomic_load_explicit(&is_over, memory_order_relaxed); ++count) {
    PJRT_Buffer *const *const lists[1] = {&arguments[device]};
    PJRT_Buffer *output = NULL, **const outputs[1] = {&output};
    PJRT_ExecuteOptions options = START(PJRT_ExecuteOptions);
    PJRT_LoadedExecutable_Execute_Args args = START(PJRT_LoadedExecutable_Execute_Args);
    args.executable = executables[device];
    args.options = &options;
    args.argument_lists = lists;
    args.num_devices = 1;
    args.num_args = 1;
    args.output_lists = outputs;
    check(api->PJRT_LoadedExecutable_Execute(&args));
    PJRT_Buffer_Destroy_Args destroy = START(PJRT_Buffer_Destroy_Args);
    destroy.buffer = output;
    check(api->PJRT_Buffer_Destroy(&destroy));
  }
  return (void *)count;
}

static double per_second(int threads, double seconds) {
  static const int numbers[2] = {0, 1};
  pthread_t running[2];
  struct timespec time = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  atomic_store(&is_over, 0);
  for (int i = 0; i < threads; ++i) pthread_create(&running[i], NULL, execute, (void *)&numbers[i]);
  nanosleep(&time, NULL);
  atomic_store(&is_over, 1);
  long sum = 0;
  for (int i = 0; i < threads; ++i) {
    void *count;
    pthread_join(running[i], &count);
    sum += (long)count;
  }
  return (double)sum / seconds;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return 2;
  const PJRT_Api *(*get)(void) = (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  api = get();
  PJRT_NamedValue devices = START(PJRT_NamedValue);
  devices.name = "num_devices";
  devices.name_size = 11;
  devices.type = PJRT_NamedValue_kInt64;
  devices.int64_value = 2;
  devices.value_size = 1;
  PJRT_Client_Create_Args create = START(PJRT_Client_Create_Args);
  create.create_options = &devices;
  create.num_options = 1;
  check(api->PJRT_Client_Create(&create));
  client = create.client;
  for (int i = 0; i < 2; ++i) prepare(i, argv[3 + i]);
  double seconds = atof(argv[2]), best[2] = {0, 0};
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 2; ++i) {
      double found = per_second(i + 1, seconds);
      if (found > best[i]) best[i] = found;
    }
  }
  printf("%.0f %.0f\n", best[0], best[1]);
  return 0;
}
