/* A client that was asked for kv_exercise uses the caller's key-value store once in every way, and reports what came
 * back among the attributes of its devices: kv_put, kv_get, kv_try_get, kv_try_get_missing, kv_get_missing. Each is
 * the value, "OK", or "CODE: message". */
#include "tiny.h"

#define KEY "tiny/greeting"
#define VALUE "hello\0world"
#define MISSING "tiny/nowhere"

static void report_error(tiny_attributes *report, const char *name, PJRT_Error *error) {
  tiny_status *status = status_take(error);
  char *text = tiny_printf("%d: %s", (int)status_code(status), status_message(status, NULL));
  attributes_string(report, name, text);
  free(text);
  status_unref(status);
}

static void report_value(tiny_attributes *report, const char *name, const char *value, size_t size) {
  attributes_add(report, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kString, .string_value = value, .value_size = size});
}

static void put(const PJRT_Client_Create_Args *args, tiny_attributes *report) {
  PJRT_KeyValuePutCallback_Args call = {
      .struct_size = PJRT_KeyValuePutCallback_Args_STRUCT_SIZE, .key = KEY, .key_size = sizeof KEY - 1, .value = VALUE,
      .value_size = sizeof VALUE - 1, .callback_error = &tiny_callback_error, .user_arg = args->kv_put_user_arg};
  PJRT_Error *error = args->kv_put_callback(&call);
  if (error) report_error(report, "kv_put", error);
  else attributes_string(report, "kv_put", "OK");
}

static void get(const PJRT_Client_Create_Args *args, tiny_attributes *report, const char *name, const char *key,
                int timeout_in_ms) {
  PJRT_KeyValueGetCallback_Args call = {
      .struct_size = PJRT_KeyValueGetCallback_Args_STRUCT_SIZE, .key = key, .key_size = strlen(key),
      .timeout_in_ms = timeout_in_ms, .callback_error = &tiny_callback_error, .user_arg = args->kv_get_user_arg};
  PJRT_Error *error = args->kv_get_callback(&call);
  if (error) {
    report_error(report, name, error);
    return;
  }
  report_value(report, name, call.value, call.value_size);
  if (call.value_deleter_callback) call.value_deleter_callback(call.value);
}

static void try_get(const PJRT_Client_Create_Args *args, tiny_attributes *report, const char *name, const char *key) {
  PJRT_KeyValueTryGetCallback_Args call = {
      .struct_size = PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE, .key = key, .key_size = strlen(key),
      .callback_error = &tiny_callback_error, .user_arg = args->kv_try_get_user_arg};
  PJRT_Error *error = args->kv_try_get_callback(&call);
  if (error) {
    report_error(report, name, error);
    return;
  }
  report_value(report, name, call.value, call.value_size);
  if (call.value_deleter_callback) call.value_deleter_callback(call.value);
}

tiny_status *kv_exercise(const PJRT_Client_Create_Args *args, tiny_attributes *report) {
  if (!args->kv_put_callback || !args->kv_get_callback)
    return status_make(PJRT_Error_Code_FAILED_PRECONDITION, "kv_exercise needs a key-value store, and there is none");
  put(args, report);
  get(args, report, "kv_get", KEY, 10000);
  get(args, report, "kv_get_missing", MISSING, 20);
  if (!TINY_HAS(args, PJRT_Client_Create_Args, kv_try_get_user_arg) || !args->kv_try_get_callback) return NULL;
  try_get(args, report, "kv_try_get", KEY);
  try_get(args, report, "kv_try_get_missing", MISSING);
  return NULL;
}
