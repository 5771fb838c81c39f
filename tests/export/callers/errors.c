/* Errors: codes, messages and payloads. */
#include "caller.h"

static void note_payload(const char *key, size_t key_size, const char *value, size_t value_size, void *count) {
  if (key_size == 4 && memcmp(key, "hint", 4) == 0 && value_size == 5 && memcmp(value, "reset", 5) == 0) ++*(int *)count;
}

/* An error keeps its code, message and payload on its way through a buffer. */
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
  int count = 0;
  START(PJRT_Error_ForEachPayload_Args, each);
  each.error = error;
  each.visitor = note_payload;
  each.user_arg = &count;
  ok(api->PJRT_Error_ForEachPayload(&each));
  MUST(count == 1);
  fails(error, PJRT_Error_Code_ABORTED);
  destroy_buffer(args.buffer);
  PJRT_LoadedExecutable *executable;
  error = try_compile(client, "func.func @main() { stablehlo.nothing }", &executable);
  MUST(error != NULL && says(error, "nothing"));
  free_error(error);
  destroy_client(client);
}

/* A feature that the client lacks is UNIMPLEMENTED, and bytes that are no topology are refused. */
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
