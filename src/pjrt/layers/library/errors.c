/* Errors that layers make, in memory of fixed places: whether an error is one of them shows its address alone, without a
 * look at what it points to, which may be freed. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "errors.h"

enum { NUM_ERRORS = 1024 };

typedef struct layer_error {
  PJRT_Error base;
  _Atomic int used;
  PJRT_Error_Code code;
  size_t size;
  char message[1000];
} layer_error;

static layer_error errors[NUM_ERRORS];
static _Atomic unsigned next_error;

static void destroy(PJRT_Error *error) { atomic_store(&((layer_error *)error)->used, 0); }

static void get_message(const PJRT_Error *error, const char **message, size_t *size) {
  *message = ((const layer_error *)error)->message;
  *size = ((const layer_error *)error)->size;
}

static PJRT_Error_Code get_code(const PJRT_Error *error) { return ((const layer_error *)error)->code; }

static void for_each_payload(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg) {
  (void)error, (void)visitor, (void)user_arg; /* a layer's error has none */
}

static const PJRT_Error_FunctionTable functions = {
    PJRT_Error_FunctionTable_STRUCT_SIZE, sizeof(layer_error), NULL, destroy, get_message, get_code, for_each_payload};

PJRT_Error *pjrt_make_error(PJRT_Error_Code code, const char *format, ...) {
  for (int tries = 0; tries < NUM_ERRORS; tries++) {
    layer_error *error = &errors[atomic_fetch_add_explicit(&next_error, 1, memory_order_relaxed) % NUM_ERRORS];
    int unused = 0;
    if (!atomic_compare_exchange_strong(&error->used, &unused, 1)) continue;
    va_list values;
    va_start(values, format);
    const int size = vsnprintf(error->message, sizeof error->message, format, values);
    va_end(values);
    error->base.vtable = &functions;
    error->code = code;
    error->size = size < 0 ? 0 : (size_t)size < sizeof error->message ? (size_t)size : sizeof error->message - 1;
    return &error->base;
  }
  return NULL;
}

bool pjrt_is_layer_error(const PJRT_Error *error) {
  return (uintptr_t)error >= (uintptr_t)errors && (uintptr_t)error < (uintptr_t)(errors + NUM_ERRORS);
}

void *pjrt_call_layer_error(int function, void *args) {
  if (function == PJRT_FUNCTION_Error_Destroy) {
    destroy(((PJRT_Error_Destroy_Args *)args)->error);
  } else if (function == PJRT_FUNCTION_Error_Message) {
    PJRT_Error_Message_Args *message = args;
    get_message(message->error, &message->message, &message->message_size);
  } else if (function == PJRT_FUNCTION_Error_GetCode) {
    ((PJRT_Error_GetCode_Args *)args)->code = get_code(((PJRT_Error_GetCode_Args *)args)->error);
  }
  return NULL;
}

void pjrt_clear_outputs(const pjrt_struct *type, void *args) {
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->direction == PJRT_OUT && field->variant < 0 && pjrt_has_field(type, field, args))
      memset((char *)args + field->offset, 0, field->size);
  }
}

PJRT_Error_Code pjrt_error_code(pjrt_stack *stack, const PJRT_Error *error) {
  if (pjrt_is_layer_error(error)) return get_code(error);
  PJRT_Error_GetCode_Args args = {PJRT_Error_GetCode_Args_STRUCT_SIZE, NULL, error, PJRT_Error_Code_UNKNOWN};
  void *problem = NULL;
  if (!pjrt_call_below(stack, PJRT_FUNCTION_Error_GetCode, &args, &problem) || problem == NULL) return args.code;
  PJRT_Error_Destroy_Args destroy_args = {PJRT_Error_Destroy_Args_STRUCT_SIZE, NULL, problem};
  pjrt_call_below(stack, PJRT_FUNCTION_Error_Destroy, &destroy_args, &problem);
  return PJRT_Error_Code_UNKNOWN;
}

const char *pjrt_error_message(pjrt_stack *stack, const PJRT_Error *error, size_t *size) {
  PJRT_Error_Message_Args args = {PJRT_Error_Message_Args_STRUCT_SIZE, NULL, error, NULL, 0};
  void *nothing;
  if (pjrt_is_layer_error(error)) {
    get_message(error, &args.message, &args.message_size);
  } else {
    pjrt_call_below(stack, PJRT_FUNCTION_Error_Message, &args, &nothing);
  }
  *size = args.message != NULL ? args.message_size : 0;
  return args.message != NULL ? args.message : "";
}
