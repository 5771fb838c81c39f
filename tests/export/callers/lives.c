/* Whole lives of clients and buffers, on one thread and on many. */
#include <pthread.h>

#include "caller.h"

const PJRT_Api *api;

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
  float values[4];
  fetch(results[0], values);
  MUST(values[3] == 8);
  fetch(results[1], values);
  MUST(values[3] == 16);
  for (int i = 0; i < 2; i++) destroy_buffer(results[i]);
  destroy_buffer(first);
  destroy_buffer(second);
  destroy_executable(executable);
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

void an_executable_for_each_call(void) {
  PJRT_Client *client = new_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  PJRT_Executable *executables[2];
  for (int i = 0; i < 2; i++) {
    START(PJRT_LoadedExecutable_GetExecutable_Args, get);
    get.loaded_executable = loaded;
    ok(api->PJRT_LoadedExecutable_GetExecutable(&get));
    executables[i] = get.executable;
  }
  MUST(executables[0] != executables[1]); /* each is destroyed by itself */
  for (int i = 0; i < 2; i++) {
    START(PJRT_Executable_NumOutputs_Args, outputs);
    outputs.executable = executables[i];
    ok(api->PJRT_Executable_NumOutputs(&outputs));
    MUST(outputs.num_outputs == 1);
    START(PJRT_Executable_Destroy_Args, destroy);
    destroy.executable = executables[i];
    ok(api->PJRT_Executable_Destroy(&destroy));
  }
  destroy_executable(loaded);
  destroy_client(client);
}

void make_client(void) { new_client(); }

/* With one client and one executable for all calls; the first call makes them. */
void lives(int times) {
  static PJRT_Client *client;
  static PJRT_LoadedExecutable *executable;
  if (client == NULL) executable = compile(client = new_client(), DOUBLE);
  for (int i = 0; i < times; i++) live(client, executable, NULL);
}

void use_table(const PJRT_Api *table) { api = table; }
