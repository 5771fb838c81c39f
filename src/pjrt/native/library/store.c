/* The key-value store of a framework's job, as a driver sees it. */
#include "runtime.h"

struct store {
  pjrt_driver_store shown;
  PJRT_KeyValueGetCallback get;
  PJRT_KeyValueTryGetCallback try_get;
  PJRT_KeyValuePutCallback put;
  void *get_arg, *try_get_arg, *put_arg;
};

static int give(PJRT_Error *owned, char *message) {
  if (owned == NULL) return 0;
  const char *text;
  size_t size;
  pjrt_error_read(owned, &text, &size);
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "%.*s", (int)size, text);
  int code = (int)pjrt_error_code(owned);
  pjrt_error_release(owned);
  return code;
}

/* The framework's value becomes one of ours, which is given back with free. */
static void take_value(char *theirs, size_t size, void (*deleter)(char *), char **value, size_t *value_size) {
  *value = copy_of(theirs, size);
  *value_size = size;
  if (deleter) deleter(theirs);
}

static int get(void *arg, const char *key, size_t key_size, int64_t milliseconds, char **value, size_t *size,
               char *message) {
  store *each = arg;
  PJRT_CallbackError make_error = pjrt_error_new;
  if (milliseconds > 0 || each->try_get == NULL) {
    PJRT_KeyValueGetCallback_Args args = {
        .struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE, .key = key, .key_size = key_size,
        .timeout_in_ms = (int)(milliseconds < INT32_MAX ? milliseconds : INT32_MAX), .callback_error = &make_error,
        .user_arg = each->get_arg};
    int code = give(each->get(&args), message);
    if (!code) take_value(args.value, args.value_size, args.value_deleter_callback, value, size);
    return code;
  }
  PJRT_KeyValueTryGetCallback_Args args = {.struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE, .key = key,
                                           .key_size = key_size, .callback_error = &make_error,
                                           .user_arg = each->try_get_arg};
  int code = give(each->try_get(&args), message);
  if (!code) take_value(args.value, args.value_size, args.value_deleter_callback, value, size);
  return code;
}

static int put(void *arg, const char *key, size_t key_size, const char *value, size_t size, char *message) {
  store *each = arg;
  PJRT_CallbackError make_error = pjrt_error_new;
  PJRT_KeyValuePutCallback_Args args = {.struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE, .key = key,
                                        .key_size = key_size, .value = value, .value_size = size,
                                        .callback_error = &make_error, .user_arg = each->put_arg};
  return give(each->put(&args), message);
}

store *store_make(const PJRT_Client_Create_Args *args) {
  if (args->kv_get_callback == NULL || args->kv_put_callback == NULL) return NULL;
  store *each = new_zeroed(1, sizeof *each);
  *each = (store){.shown = {.struct_size = sizeof each->shown, .arg = each, .get = get, .put = put},
                  .get = args->kv_get_callback, .get_arg = args->kv_get_user_arg,
                  .put = args->kv_put_callback, .put_arg = args->kv_put_user_arg};
  if (HAS(args, PJRT_Client_Create_Args, kv_try_get_user_arg)) {
    each->try_get = args->kv_try_get_callback;
    each->try_get_arg = args->kv_try_get_user_arg;
  }
  return each;
}

const pjrt_driver_store *store_of(const store *each) { return each ? &each->shown : NULL; }
