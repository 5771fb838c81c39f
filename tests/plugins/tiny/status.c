/* Errors: an immutable, counted tiny_status inside, a PJRT_Error as the handle on one outside. */
#include "tiny.h"

typedef struct payload {
  char *key, *value;
  size_t key_size, value_size;
} payload;

struct tiny_status {
  atomic_int refs;
  PJRT_Error_Code code;
  char *message;
  size_t message_size;
  payload *payloads;
  size_t num_payloads;
};

typedef struct tiny_error {
  PJRT_Error base;
  tiny_status *status;
} tiny_error;

tiny_status *status_from_bytes(PJRT_Error_Code code, const char *message, size_t size) {
  if (code == PJRT_Error_Code_OK) return NULL;
  tiny_status *status = tiny_calloc(1, sizeof *status);
  atomic_init(&status->refs, 1);
  status->code = code;
  status->message = tiny_memdup(message, message ? size : 0);
  status->message_size = message ? size : 0;
  return status;
}

static tiny_status *status_vmake(PJRT_Error_Code code, const char *format, va_list list) {
  char *text = NULL;
  int size = vasprintf(&text, format, list);
  tiny_status *status = status_from_bytes(code, text, size < 0 ? 0 : (size_t)size);
  free(text);
  return status;
}

tiny_status *status_make(PJRT_Error_Code code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  tiny_status *status = status_vmake(code, format, list);
  va_end(list);
  return status;
}

tiny_status *status_ref(tiny_status *status) {
  if (status) atomic_fetch_add(&status->refs, 1);
  return status;
}

void status_unref(tiny_status *status) {
  if (status == NULL || atomic_fetch_sub(&status->refs, 1) != 1) return;
  for (size_t i = 0; i < status->num_payloads; ++i) {
    free(status->payloads[i].key);
    free(status->payloads[i].value);
  }
  free(status->payloads);
  free(status->message);
  free(status);
}

PJRT_Error_Code status_code(const tiny_status *status) { return status ? status->code : PJRT_Error_Code_OK; }

const char *status_message(const tiny_status *status, size_t *size) {
  if (size) *size = status ? status->message_size : 0;
  return status ? status->message : "";
}

void status_add_payload(tiny_status *status, const char *key, size_t key_size, const char *value, size_t value_size) {
  payload *payloads = tiny_calloc(status->num_payloads + 1, sizeof *payloads);
  if (status->num_payloads) memcpy(payloads, status->payloads, status->num_payloads * sizeof *payloads);
  free(status->payloads);
  status->payloads = payloads;
  payload *last = &payloads[status->num_payloads++];
  last->key = tiny_memdup(key, key_size);
  last->key_size = key_size;
  last->value = tiny_memdup(value, value_size);
  last->value_size = value_size;
}

void status_add_named_payloads(tiny_status *status, const PJRT_NamedValue *payloads, size_t count) {
  for (size_t i = 0; status && i < count; ++i) {
    if (payloads[i].type == PJRT_NamedValue_kString)
      status_add_payload(status, payloads[i].name, payloads[i].name_size, payloads[i].string_value,
                         payloads[i].value_size);
  }
}

/* ---- the handle ---------------------------------------------------------------------------------------------------*/
static tiny_status *inside(const PJRT_Error *error) { return ((const tiny_error *)error)->status; }

static void table_destroy(PJRT_Error *error) {
  if (error == NULL) return;
  live_add(LIVE_ERROR, -1);
  status_unref(inside(error));
  free(error);
}

static void table_message(const PJRT_Error *error, const char **message, size_t *message_size) {
  *message = status_message(inside(error), message_size);
}

static PJRT_Error_Code table_code(const PJRT_Error *error) { return status_code(inside(error)); }

static void table_for_each_payload(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg) {
  tiny_status *status = inside(error);
  for (size_t i = 0; i < status->num_payloads; ++i) {
    payload *each = &status->payloads[i];
    visitor(each->key, each->key_size, each->value, each->value_size, user_arg);
  }
}

static const PJRT_Error_FunctionTable error_table = {
    .struct_size = PJRT_Error_FunctionTable_STRUCT_SIZE,
    .instance_size = sizeof(PJRT_Error),
    .destroy = table_destroy,
    .message = table_message,
    .get_code = table_code,
    .for_each_payload = table_for_each_payload,
};

PJRT_Error *error_from(tiny_status *owned) {
  if (owned == NULL) return NULL;
  tiny_error *error = tiny_calloc(1, sizeof *error);
  /* Before 0.114 the first word of an error was nobody's business: whoever follows it then is caught by the crash. */
  error->base.vtable = fault_legacy_errors() ? (const PJRT_Error_FunctionTable *)(uintptr_t)0x5 : &error_table;
  error->status = owned;
  live_add(LIVE_ERROR, 1);
  return &error->base;
}

PJRT_Error *error_make(PJRT_Error_Code code, const char *format, ...) {
  va_list list;
  va_start(list, format);
  tiny_status *status = status_vmake(code, format, list);
  va_end(list);
  return error_from(status);
}

tiny_status *status_take(PJRT_Error *error) {
  if (error == NULL) return NULL;
  tiny_status *status = status_ref(inside(error));
  table_destroy(error);
  return status;
}

static PJRT_Error *callback_error(PJRT_Error_Code code, const char *message, size_t message_size) {
  return error_from(status_from_bytes(code, message, message_size));
}
PJRT_CallbackError tiny_callback_error = callback_error;

void tiny_Error_Destroy(PJRT_Error_Destroy_Args *args) { table_destroy(args->error); }

void tiny_Error_Message(PJRT_Error_Message_Args *args) {
  table_message(args->error, &args->message, &args->message_size);
}

PJRT_Error *tiny_Error_GetCode(PJRT_Error_GetCode_Args *args) {
  args->code = table_code(args->error);
  return NULL;
}

PJRT_Error *tiny_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args *args) {
  table_for_each_payload(args->error, args->visitor, args->user_arg);
  return NULL;
}
