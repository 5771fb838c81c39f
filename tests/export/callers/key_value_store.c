/* A key-value store of the caller. */
#include "caller.h"

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

/* The factory puts, gets and fails to get; it makes a client only if all of that went well. */
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
