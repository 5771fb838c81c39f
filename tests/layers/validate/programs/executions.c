/* Rules about executions. */
#include "program.h"

static void end(PJRT_Error *error, PJRT_Buffer *output) {
  const bool success = error == NULL;
  broken(error);
  if (!success) return;
  await_buffer(output);
  destroy_buffer(output);
}

static void argument_count(void) {
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  PJRT_Buffer *buffer = make_buffer(client), *output, *arguments[] = {buffer, buffer};
  end(execute(loaded, arguments, 2, &output), output);
  destroy_buffer(buffer);
  destroy_loaded(loaded);
  destroy_client(client);
}

static void device_count(void) {
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = compile(client, DOUBLE);
  PJRT_Buffer *buffer = make_buffer(client), *first[1], *second[1];
  PJRT_Buffer *const *lists[] = {&buffer, &buffer};
  PJRT_Buffer **outputs[] = {first, second};
  PJRT_ExecuteOptions options = {.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE};
  BREAK(LoadedExecutable_Execute, call, .executable = loaded, .options = &options, .argument_lists = lists,
        .num_devices = 2, .num_args = 1, .output_lists = outputs);
  destroy_buffer(buffer);
  destroy_loaded(loaded);
  destroy_client(client);
}

/* An execution with other buffers first: it shows which argument the program takes. */
static PJRT_LoadedExecutable *run_once(PJRT_Client *client, const char *text, size_t number) {
  PJRT_LoadedExecutable *loaded = compile(client, text);
  PJRT_Buffer *arguments[2] = {make_buffer(client), make_buffer(client)}, *output;
  check(execute(loaded, arguments, number, &output), __FILE__, __LINE__, "execute");
  await_buffer(output);
  destroy_buffer(output);
  destroy_buffer(arguments[0]);
  destroy_buffer(arguments[1]);
  return loaded;
}

static void donated_twice(void) {
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = run_once(client, DONATE_OF_TWO, 2);
  PJRT_Buffer *buffer = make_buffer(client), *output, *arguments[] = {buffer, buffer};
  end(execute(loaded, arguments, 2, &output), output);
  destroy_buffer(buffer);
  destroy_loaded(loaded);
  destroy_client(client);
}

static void donated_with_references(void) {
  PJRT_Client *client = make_client();
  PJRT_LoadedExecutable *loaded = run_once(client, DONATE, 1);
  PJRT_Buffer *buffer = make_buffer(client), *output;
  CALL(Buffer_IncreaseExternalReferenceCount, increase, .buffer = buffer);
  end(execute(loaded, &buffer, 1, &output), output);
  CALL(Buffer_DecreaseExternalReferenceCount, decrease, .buffer = buffer);
  destroy_buffer(buffer);
  destroy_loaded(loaded);
  destroy_client(client);
}

const rule_case execution_cases[] = {
    {"argument-count", argument_count, false},
    {"device-count", device_count, false},
    {"donated-twice", donated_twice, false},
    {"donated-with-references", donated_with_references, false},
    {NULL, NULL, false},
};
