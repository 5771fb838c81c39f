/* Handlers that programs call: the registry, the functions a handler may use, and the call. */
#include <strings.h>

#include "ffi_abi.h"
#include "tiny.h"

struct XLA_FFI_Error {
  tiny_status *status;
};
struct XLA_FFI_Future {
  tiny_promise *promise;
};
struct XLA_FFI_ExecutionContext {
  tiny_launch *launch;
};

typedef struct handler {
  char *name;
  XLA_FFI_Handler function;
  struct handler *next;
} handler;

typedef struct type {
  char *name;
  int64_t id;
  struct type *next;
} type;

static pthread_mutex_t registry_mutex = PTHREAD_MUTEX_INITIALIZER;
static handler *handlers;
static type *types;

/* ---- what a handler may use ---------------------------------------------------------------------------------------*/
static XLA_FFI_Error *ffi_error(tiny_status *owned) {
  if (owned == NULL) return NULL;
  XLA_FFI_Error *error = tiny_calloc(1, sizeof *error);
  error->status = owned;
  return error;
}

static tiny_status *ffi_error_take(XLA_FFI_Error *error) {
  if (error == NULL) return NULL;
  tiny_status *status = error->status;
  free(error);
  return status;
}

static XLA_FFI_Error *error_create(XLA_FFI_Error_Create_Args *args) {
  return ffi_error(status_make((PJRT_Error_Code)args->errc, "%s", args->message));
}

static void error_get_message(XLA_FFI_Error_GetMessage_Args *args) {
  args->message = status_message(args->error->status, NULL);
}

static void error_destroy(XLA_FFI_Error_Destroy_Args *args) { status_unref(ffi_error_take(args->error)); }

static XLA_FFI_Error *unimplemented(void *args) {
  (void)args;
  return ffi_error(status_make(PJRT_Error_Code_UNIMPLEMENTED, "The tiny plugin does not offer this to FFI handlers"));
}

static XLA_FFI_Error *stream_get(XLA_FFI_Stream_Get_Args *args) {
  args->stream = NULL; /* a host platform has none */
  return NULL;
}

static XLA_FFI_Error *type_register(XLA_FFI_Type_Register_Args *args) {
  return ffi_error(ffi_register_type(args->name.ptr, args->name.len, &args->type_id->type_id));
}

static XLA_FFI_Error *context_get(XLA_FFI_ExecutionContext_Get_Args *args) {
  PJRT_ExecuteContext *context = args->ctx->launch->context;
  args->data = NULL;
  if (context) {
    pthread_mutex_lock(&context->mutex);
    for (size_t i = 0; i < context->num_entries; ++i) {
      if (context->entries[i].type_id == args->type_id->type_id) args->data = context->entries[i].data;
    }
    pthread_mutex_unlock(&context->mutex);
  }
  if (args->data) return NULL;
  return ffi_error(status_make(PJRT_Error_Code_NOT_FOUND, "The execute context holds nothing of type %lld",
                               (long long)args->type_id->type_id));
}

static XLA_FFI_Error *memory_allocate(XLA_FFI_DeviceMemory_Allocate_Args *args) {
  if (posix_memalign(&args->data, args->alignment < 64 ? 64 : args->alignment, args->size ? args->size : 1) == 0)
    return NULL;
  return ffi_error(status_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "No %zu bytes left", args->size));
}

static XLA_FFI_Error *memory_free(XLA_FFI_DeviceMemory_Free_Args *args) {
  free(args->data);
  return NULL;
}

static XLA_FFI_Error *schedule(XLA_FFI_ThreadPool_Schedule_Args *args) {
  args->task(args->data);
  return NULL;
}

static XLA_FFI_Error *num_threads(XLA_FFI_ThreadPool_NumThreads_Args *args) {
  *args->num_threads = 1;
  return NULL;
}

static XLA_FFI_Error *future_create(XLA_FFI_Future_Args *args) {
  args->future = tiny_calloc(1, sizeof *args->future);
  args->future->promise = promise_make();
  return NULL;
}

static XLA_FFI_Error *future_set_available(XLA_FFI_Future_Args *args) {
  promise_set(args->future->promise, NULL);
  return NULL;
}

static XLA_FFI_Error *future_set_error(XLA_FFI_Future_SetError_Args *args) {
  promise_set(args->future->promise, ffi_error_take(args->error));
  return NULL;
}

static XLA_FFI_Error *run_id_get(XLA_FFI_RunId_Get_Args *args) {
  args->run_id = args->ctx->launch->run_id;
  return NULL;
}

static XLA_FFI_Error *device_ordinal_get(XLA_FFI_DeviceOrdinal_Get_Args *args) {
  args->device_ordinal = args->ctx->launch->device->local_id;
  return NULL;
}

static const XLA_FFI_Api api = {
    .struct_size = sizeof(XLA_FFI_Api),
    .api_version = {.struct_size = sizeof(XLA_FFI_Api_Version), .major_version = 0, .minor_version = 3},
    .Error_Create = error_create,
    .Error_GetMessage = error_get_message,
    .Error_Destroy = error_destroy,
    .Handler_Register = unimplemented,
    .Stream_Get = stream_get,
    .Type_Register = type_register,
    .ExecutionContext_Get = context_get,
    .State_Set = unimplemented,
    .State_Get = unimplemented,
    .DeviceMemory_Allocate = memory_allocate,
    .DeviceMemory_Free = memory_free,
    .ThreadPool_Schedule = schedule,
    .ThreadPool_NumThreads = num_threads,
    .Future_Create = future_create,
    .Future_SetAvailable = future_set_available,
    .Future_SetError = future_set_error,
    .RunId_Get = run_id_get,
    .DeviceOrdinal_Get = device_ordinal_get,
};

/* ---- the registry -------------------------------------------------------------------------------------------------*/
tiny_status *ffi_register_type(const char *name, size_t name_size, int64_t *inout_id) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&registry_mutex);
  int64_t next = 1;
  type *found = NULL;
  for (type *each = types; each; each = each->next) {
    if (strlen(each->name) == name_size && memcmp(each->name, name, name_size) == 0) found = each;
    if (each->id >= next) next = each->id + 1;
  }
  if (found && *inout_id && *inout_id != found->id) {
    status = status_make(INVALID, "Type %s has id %lld already", found->name, (long long)found->id);
  } else if (!found) {
    found = tiny_calloc(1, sizeof *found);
    *found = (type){tiny_memdup(name, name_size), *inout_id ? *inout_id : next, types};
    types = found;
  }
  if (!status) *inout_id = found->id;
  pthread_mutex_unlock(&registry_mutex);
  return status;
}

static tiny_status *ask_version(XLA_FFI_Handler function) {
  XLA_FFI_Metadata metadata = {.struct_size = sizeof metadata,
                               .api_version = {.struct_size = sizeof(XLA_FFI_Api_Version), .major_version = -1}};
  XLA_FFI_Metadata_Extension extension = {.base = {sizeof extension, 1, NULL}, .metadata = &metadata};
  XLA_FFI_CallFrame frame = {.struct_size = sizeof frame, .extension_start = &extension.base, .api = &api,
                             .stage = XLA_FFI_STAGE_EXECUTE};
  tiny_status *status = ffi_error_take(function(&frame));
  if (!status && (metadata.api_version.major_version != 0 || metadata.api_version.minor_version > 3))
    status = status_make(INVALID, "The handler speaks FFI %d.%d, the tiny plugin 0.3",
                         metadata.api_version.major_version, metadata.api_version.minor_version);
  return status;
}

static bool our_platform(const char *platform, size_t size) {
  static const char *const names[] = {TINY_PLATFORM_NAME, "host"};
  for (size_t i = 0; i < 2; ++i) {
    if (strlen(names[i]) == size && strncasecmp(names[i], platform, size) == 0) return true;
  }
  return false;
}

tiny_status *ffi_register(const char *name, size_t name_size, const char *platform, size_t platform_size,
                          void *function) {
  if (function == NULL) return status_make(INVALID, "A handler is needed, got null");
  if (!our_platform(platform, platform_size)) return NULL; /* a handler for somebody else's platform: never called */
  tiny_status *status = ask_version((XLA_FFI_Handler)function);
  if (status) return status;
  pthread_mutex_lock(&registry_mutex);
  handler *found = handlers;
  while (found && !(strlen(found->name) == name_size && memcmp(found->name, name, name_size) == 0)) found = found->next;
  if (found && found->function != (XLA_FFI_Handler)function) {
    status = status_make(PJRT_Error_Code_ALREADY_EXISTS, "Another handler is registered as %s", found->name);
  } else if (!found) {
    found = tiny_calloc(1, sizeof *found);
    *found = (handler){tiny_memdup(name, name_size), (XLA_FFI_Handler)function, handlers};
    handlers = found;
  }
  pthread_mutex_unlock(&registry_mutex);
  return status;
}

/* ---- the call -----------------------------------------------------------------------------------------------------*/
typedef struct attribute {
  XLA_FFI_ByteSpan name, text;
  XLA_FFI_Scalar scalar;
  int64_t integer;
  double real;
} attribute;

/* A whole number is an s64, another number an f64, all else a string. */
static void set_attribute(attribute *out, const tiny_attr *attr, int *kind, void **value) {
  char *end;
  out->name = (XLA_FFI_ByteSpan){attr->name, strlen(attr->name)};
  out->text = (XLA_FFI_ByteSpan){attr->text, strlen(attr->text)};
  out->integer = strtoll(attr->text, &end, 10);
  *kind = XLA_FFI_ATTR_SCALAR;
  *value = &out->scalar;
  out->scalar = (XLA_FFI_Scalar){element_xla_type(PJRT_Buffer_Type_S64), &out->integer};
  if (*attr->text && *end == 0) return;
  out->real = strtod(attr->text, &end);
  out->scalar = (XLA_FFI_Scalar){element_xla_type(PJRT_Buffer_Type_F64), &out->real};
  if (*attr->text && *end == 0) return;
  *kind = XLA_FFI_ATTR_STRING;
  *value = &out->text;
}

static void set_buffer(XLA_FFI_Buffer *out, const tiny_shape *shape, char *data) {
  *out = (XLA_FFI_Buffer){.struct_size = sizeof *out, .dtype = element_xla_type(shape->type), .data = data,
                          .rank = (int64_t)shape->rank, .dims = (int64_t *)shape->dims};
}

static tiny_status *call(XLA_FFI_Handler function, tiny_launch *launch, const tiny_op *op, const tiny_value *values,
                         char *const *data) {
  XLA_FFI_ExecutionContext context = {launch};
  XLA_FFI_Buffer arguments[8], result;
  void *argument_values[8], *result_value = &result;
  int argument_types[8], result_type = XLA_FFI_BUFFER;
  for (size_t i = 0; i < op->num_operands; ++i) {
    set_buffer(&arguments[i], &values[op->operands[i]].shape, data[op->operands[i]]);
    argument_values[i] = &arguments[i];
    argument_types[i] = XLA_FFI_BUFFER;
  }
  set_buffer(&result, &values[op->result].shape, data[op->result]);
  attribute *attributes = tiny_calloc(op->num_attrs, sizeof *attributes);
  int *attr_types = tiny_calloc(op->num_attrs, sizeof *attr_types);
  void **attr_values = tiny_calloc(op->num_attrs, sizeof *attr_values);
  XLA_FFI_ByteSpan **attr_names = tiny_calloc(op->num_attrs, sizeof *attr_names);
  for (size_t i = 0; i < op->num_attrs; ++i) {
    set_attribute(&attributes[i], &op->attrs[i], &attr_types[i], &attr_values[i]);
    attr_names[i] = &attributes[i].name;
  }
  XLA_FFI_CallFrame frame = {
      .struct_size = sizeof frame, .api = &api, .ctx = &context, .stage = XLA_FFI_STAGE_EXECUTE,
      .args = {.struct_size = sizeof(XLA_FFI_Values), .size = (int64_t)op->num_operands, .types = argument_types,
               .values = argument_values},
      .rets = {.struct_size = sizeof(XLA_FFI_Values), .size = 1, .types = &result_type, .values = &result_value},
      .attrs = {.struct_size = sizeof(XLA_FFI_Attrs), .size = (int64_t)op->num_attrs, .types = attr_types,
                .names = attr_names, .attrs = attr_values}};
  tiny_status *status = ffi_error_take(function(&frame));
  if (frame.future) {
    if (!status) status = status_ref(promise_wait(frame.future->promise));
    promise_unref(frame.future->promise);
    free(frame.future);
  }
  free(attributes);
  free(attr_types);
  free(attr_values);
  free(attr_names);
  return status;
}

tiny_status *ffi_call(tiny_launch *launch, const tiny_op *op, const tiny_value *values, char *const *data) {
  pthread_mutex_lock(&registry_mutex);
  handler *found = handlers;
  while (found && strcmp(found->name, op->text) != 0) found = found->next;
  pthread_mutex_unlock(&registry_mutex);
  if (found == NULL)
    return status_make(PJRT_Error_Code_NOT_FOUND, "No FFI handler is registered as %s on platform %s", op->text,
                       TINY_PLATFORM_NAME);
  return call(found->function, launch, op, values, data);
}
