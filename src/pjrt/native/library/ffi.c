/* FFI: handlers, which are functions of the framework's process that programs call by name, and their calls.
 *
 * A handler is registered with the library, not with a client. It runs in this process also where the program runs in
 * another one, which asks with a message {1 target, 2 an argument, 3 a result, 4 an attribute, 5 a number}. An argument
 * is {1 type, 2 dimensions, 3 bytes}, and so is a result, whose bytes are those that it has before the call. An
 * attribute is {1 name, 2 kind, 3 type, 4 bytes, 5 elements, 6 an attribute within}. Types and kinds are XLA's numbers. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"
#include "xla_ffi.h"

/* ---- what is registered ---------------------------------------------------------------------------------------------*/
typedef struct handler {
  char *name;
  XLA_FFI_Handler *function;
  int traits;
} handler;

typedef struct type_id {
  char *name;
  int64_t number;
} type_id;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows, which only grows */
static handler *handlers;
static size_t num_handlers;
static type_id *types;
static size_t num_types;

static XLA_FFI_Handler *find_locked(const char *name, size_t size) {
  for (size_t i = 0; i < num_handlers; ++i)
    if (strlen(handlers[i].name) == size && memcmp(handlers[i].name, name, size) == 0) return handlers[i].function;
  return NULL;
}

static XLA_FFI_Handler *find_handler(const char *name, size_t size) {
  pthread_mutex_lock(&mutex);
  XLA_FFI_Handler *found = find_locked(name, size);
  pthread_mutex_unlock(&mutex);
  return found;
}

/* The same one again is nothing new. */
static PJRT_Error *add_handler(const handler *given) {
  size_t size = strlen(given->name);
  pthread_mutex_lock(&mutex);
  XLA_FFI_Handler *before = find_locked(given->name, size);
  if (before == NULL) {
    handler *more = new_zeroed(num_handlers + 1, sizeof *more);
    if (num_handlers) memcpy(more, handlers, num_handlers * sizeof *more);
    free(handlers);
    handlers = more;
    handlers[num_handlers++] = (handler){copy_of(given->name, size), given->function, given->traits};
  }
  pthread_mutex_unlock(&mutex);
  if (before == NULL || before == given->function) return NULL;
  return error_make(PJRT_Error_Code_ALREADY_EXISTS, "the custom call %s has another handler already; use another name",
                    given->name);
}

size_t ffi_add_names(bytes *request, int number, size_t known) {
  pthread_mutex_lock(&mutex);
  for (; known < num_handlers; ++known) {
    proto_bytes(request, number, handlers[known].name, strlen(handlers[known].name));
    proto_varint(request, number + 1, (uint64_t)(uintptr_t)handlers[known].function);
    proto_varint(request, number + 2, (uint64_t)handlers[known].traits);
  }
  pthread_mutex_unlock(&mutex);
  return known;
}

/* ---- what a handler may ask ---------------------------------------------------------------------------------------------*/
struct XLA_FFI_Future {
  completion *of;
};

static XLA_FFI_Error *as_ffi(PJRT_Error *owned) { return (XLA_FFI_Error *)owned; }

static XLA_FFI_Error *create_error(XLA_FFI_Error_Create_Args *args) {
  bool is_code = args->errc > PJRT_Error_Code_OK && args->errc <= PJRT_Error_Code_UNAUTHENTICATED;
  return as_ffi(pjrt_error_of_text(is_code ? (PJRT_Error_Code)args->errc : PJRT_Error_Code_UNKNOWN,
                                   args->message ? args->message : ""));
}

static void get_details(XLA_FFI_Error_GetDetails_Args *args) {
  size_t size;
  pjrt_error_read((PJRT_Error *)args->error, &args->message, &size);
  if (HAS(args, XLA_FFI_Error_GetDetails_Args, errc)) args->errc = (int)pjrt_error_code((PJRT_Error *)args->error);
}

static void destroy_error(XLA_FFI_Error_Destroy_Args *args) { pjrt_error_release((PJRT_Error *)args->error); }

static XLA_FFI_Error *refuse(const char *what) {
  return as_ffi(error_make(PJRT_Error_Code_UNIMPLEMENTED, "a handler that a program of this device calls has no %s", what));
}

#define REFUSE(name, what) static XLA_FFI_Error *name(void *args) { (void)args; return refuse(what); }
REFUSE(no_registration, "way to register another one")
REFUSE(no_stream, "stream: its arrays are in the memory of the host")
REFUSE(no_type, "way to register a type")
REFUSE(no_user_data, "user data")
REFUSE(no_state, "state")
REFUSE(no_device_memory, "memory of the device")
REFUSE(no_threads, "pool of threads")
REFUSE(no_options, "custom options")
REFUSE(no_run_id, "number of its run")
REFUSE(no_device_ordinal, "number of the device")

static XLA_FFI_Error *create_future(XLA_FFI_Future_Create_Args *args) {
  args->future = new_zeroed(1, sizeof *args->future);
  args->future->of = completion_make();
  return NULL;
}

static XLA_FFI_Error *set_available(XLA_FFI_Future_SetAvailable_Args *args) {
  completion_set(args->future->of, NULL);
  return NULL;
}

static XLA_FFI_Error *set_error(XLA_FFI_Future_SetError_Args *args) {
  completion_set(args->future->of, (PJRT_Error *)args->error);
  return NULL;
}

static XLA_FFI_Error *find_extension(XLA_FFI_FindExtension_Args *args) {
  args->extension = NULL;
  return NULL;
}

static const XLA_FFI_Api ffi_api = {
    .struct_size = sizeof(XLA_FFI_Api),
    .api_version = {.struct_size = sizeof(XLA_FFI_Api_Version),
                    .major_version = XLA_FFI_API_MAJOR, .minor_version = XLA_FFI_API_MINOR},
    .Error_Create = create_error,
    .Error_GetDetails = get_details,
    .Error_Destroy = destroy_error,
    .Handler_Register = no_registration,
    .Stream_Get = no_stream,
    .Type_Register = no_type,
    .InvokeContext_Get = no_user_data,
    .State_Set = no_state,
    .State_Get = no_state,
    .DeviceMemory_Allocate = no_device_memory,
    .DeviceMemory_Free = no_device_memory,
    .ThreadPool_Schedule = no_threads,
    .ThreadPool_NumThreads = no_threads,
    .Future_Create = create_future,
    .Future_SetAvailable = set_available,
    .Future_SetError = set_error,
    .RunId_Get = no_run_id,
    .DeviceOrdinal_Get = no_device_ordinal,
    .InvokeContext_FindExtension = find_extension,
    .CustomOptions_Get = no_options,
};

/* ---- a call: the frame that a handler reads, made of a message ------------------------------------------------------------*/
/* Memory that lives as long as a call. */
typedef struct scratch {
  void **parts;
  size_t count, capacity;
} scratch;


static void *take(scratch *from, size_t size) {
  void *memory = NULL;
  if (posix_memalign(&memory, ALIGNMENT, size ? size : 1) != 0) return NULL;
  if (from->count == from->capacity) {
    from->capacity = from->capacity * 2 + 16;
    void **parts = new_zeroed(from->capacity, sizeof *parts);
    if (from->count) memcpy(parts, from->parts, from->count * sizeof *parts);
    free(from->parts);
    from->parts = parts;
  }
  from->parts[from->count++] = memory;
  return memset(memory, 0, size);
}

static void give_back(scratch *from) {
  for (size_t i = 0; i < from->count; ++i) free(from->parts[i]);
  free(from->parts);
}

/* The bits of an element by XLA's number of its type; -1 of a type that no array has. */
static int bits_of(int type) {
  switch (type) {
    case 17: return 0; /* a token */
    case 30: case 31: return 1;
    case 26: case 27: return 2;
    case 21: case 22: case 32: return 4;
    case 1: case 2: case 6: case 19: case 20: case 23: case 24: case 25: case 28: case 29: case 33:
    case 35: case 36: return 8; /* those of six bits have a byte each */
    case 3: case 7: case 10: case 16: return 16;
    case 4: case 8: case 11: return 32;
    case 5: case 9: case 12: case 15: return 64;
    case 18: return 128;
    default: return -1;
  }
}

/* Whether so many elements lie within so many bytes. The other process may have written anything. */
static bool fits(int type, const int64_t *dims, size_t rank, size_t size) {
  size_t bits = (size_t)bits_of(type), elements = 1;
  if (bits_of(type) < 0) return false;
  for (size_t i = 0; i < rank; ++i)
    if (dims[i] < 0 || __builtin_mul_overflow(elements, (size_t)dims[i], &elements)) return false;
  return !__builtin_mul_overflow(elements, bits, &bits) && bits / 8 + (bits % 8 != 0) <= size;
}

static size_t count_fields(const char *data, size_t size, int number) {
  const char *cursor = data, *end = data + size;
  proto_field field;
  size_t count = 0;
  while (proto_next(&cursor, end, &field)) count += field.number == number && field.wire == 2;
  return count;
}

static void *copy_in(scratch *from, const proto_field *field) {
  void *copy = take(from, field->size);
  return copy && field->size ? memcpy(copy, field->data, field->size) : copy;
}

/* An argument or result; the size of its bytes is written, too. */
static XLA_FFI_Buffer *read_buffer(scratch *from, const proto_field *of, size_t *size) {
  XLA_FFI_Buffer *buffer = take(from, sizeof *buffer);
  int64_t dims[MAX_RANK];
  size_t rank = 0;
  const char *cursor = of->data, *end = of->data + of->size;
  proto_field field;
  if (buffer == NULL) return NULL;
  buffer->struct_size = sizeof *buffer;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1) buffer->dtype = (int)field.value;
    if (field.number == 2) rank += proto_int64s(&field, dims + rank, MAX_RANK - rank);
    if (rank > MAX_RANK) return NULL;
    if (field.number == 3 && field.wire == 2 && (buffer->data = copy_in(from, &field))) *size = field.size;
  }
  if (buffer->data == NULL) buffer->data = take(from, 0); /* an array without elements */
  buffer->rank = (int64_t)rank;
  buffer->dims = take(from, rank * sizeof *dims);
  if (cursor != end || buffer->data == NULL || buffer->dims == NULL) return NULL;
  if (!fits(buffer->dtype, dims, rank, *size)) return NULL;
  if (rank) memcpy(buffer->dims, dims, rank * sizeof *dims);
  return buffer;
}

static bool read_values(scratch *from, const char *data, size_t size, int number, XLA_FFI_Values *out, size_t *sizes) {
  size_t count = count_fields(data, size, number);
  *out = (XLA_FFI_Values){.struct_size = sizeof *out, .types = take(from, count * sizeof(int)),
                          .values = take(from, count * sizeof(void *))};
  const char *cursor = data, *end = data + size;
  proto_field field;
  if (out->types == NULL || out->values == NULL) return false;
  while (proto_next(&cursor, end, &field)) {
    if (field.number != number || field.wire != 2) continue;
    size_t bytes = 0;
    out->types[out->size] = XLA_FFI_BUFFER;
    out->values[out->size] = read_buffer(from, &field, &bytes);
    if (out->values[out->size] == NULL) return false;
    if (sizes) sizes[out->size] = bytes;
    ++out->size;
  }
  return true;
}

enum { DEEPEST = 16 };
static bool read_attributes(scratch *from, const char *data, size_t size, int number, int depth, XLA_FFI_Attrs *out);

typedef struct attribute {
  proto_field name, value, whole;
  int kind, type;
  int64_t elements;
} attribute;

static bool read_attribute(const proto_field *of, attribute *out) {
  *out = (attribute){.whole = *of};
  const char *cursor = of->data, *end = of->data + of->size;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 2) out->name = field;
    if (field.number == 2) out->kind = (int)field.value;
    if (field.number == 3) out->type = (int)field.value;
    if (field.number == 4 && field.wire == 2) out->value = field;
    if (field.number == 5) out->elements = (int64_t)field.value;
  }
  return cursor == end && out->name.size;
}

static void *make_attribute(scratch *from, const attribute *of, int depth) {
  if (of->kind == XLA_FFI_DICTIONARY) {
    XLA_FFI_Attrs *made = take(from, sizeof *made);
    return made && depth < DEEPEST && read_attributes(from, of->whole.data, of->whole.size, 6, depth + 1, made)
               ? made : NULL;
  }
  void *value = copy_in(from, &of->value);
  if (value == NULL) return NULL;
  if (of->kind == XLA_FFI_SCALAR) {
    XLA_FFI_Scalar *made = take(from, sizeof *made);
    if (made) *made = (XLA_FFI_Scalar){of->type, value};
    return made && fits(of->type, NULL, 0, of->value.size) ? made : NULL;
  }
  if (of->kind == XLA_FFI_ARRAY) {
    XLA_FFI_Array *made = take(from, sizeof *made);
    if (made) *made = (XLA_FFI_Array){of->type, (size_t)of->elements, value};
    return made && fits(of->type, &of->elements, 1, of->value.size) ? made : NULL;
  }
  if (of->kind != XLA_FFI_STRING) return NULL;
  XLA_FFI_ByteSpan *made = take(from, sizeof *made);
  if (made) *made = (XLA_FFI_ByteSpan){value, of->value.size};
  return made;
}

static bool read_attributes(scratch *from, const char *data, size_t size, int number, int depth, XLA_FFI_Attrs *out) {
  size_t count = count_fields(data, size, number);
  *out = (XLA_FFI_Attrs){.struct_size = sizeof *out, .types = take(from, count * sizeof(int)),
                         .names = take(from, count * sizeof(void *)), .attrs = take(from, count * sizeof(void *))};
  const char *cursor = data, *end = data + size;
  proto_field field;
  if (out->types == NULL || out->names == NULL || out->attrs == NULL) return false;
  while (proto_next(&cursor, end, &field)) {
    if (field.number != number || field.wire != 2) continue;
    attribute each;
    XLA_FFI_ByteSpan *name = take(from, sizeof *name);
    if (name == NULL || !read_attribute(&field, &each)) return false;
    *name = (XLA_FFI_ByteSpan){copy_in(from, &each.name), each.name.size};
    out->types[out->size] = each.kind;
    out->names[out->size] = name;
    out->attrs[out->size] = make_attribute(from, &each, depth);
    if (name->ptr == NULL || out->attrs[out->size] == NULL) return false;
    ++out->size;
  }
  return true;
}

/* The end of a call, also of one whose work went on. */
static PJRT_Error *end_call(XLA_FFI_CallFrame *frame, XLA_FFI_Error *owned) {
  if (owned || frame->future == NULL) return (PJRT_Error *)owned;
  PJRT_Error *error = pjrt_error_share(completion_wait(frame->future->of));
  completion_unref(frame->future->of);
  free(frame->future);
  return error;
}

PJRT_Error *ffi_call(const char *message, size_t size, bytes *results) {
  const char *cursor = message, *end = message + size;
  proto_field field, target = {0};
  while (proto_next(&cursor, end, &field))
    if (field.number == 1 && field.wire == 2) target = field;
  XLA_FFI_Handler *function = find_handler(target.size ? target.data : "", target.size);
  if (function == NULL)
    return error_make(PJRT_Error_Code_NOT_FOUND, "no FFI handler is registered for the custom call %.*s",
                      (int)(target.size < 200 ? target.size : 200), target.size ? target.data : "");
  scratch memory = {0};
  XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CALL_FRAME_SIZE, .api = &ffi_api, .stage = XLA_FFI_EXECUTE};
  size_t *sizes = take(&memory, count_fields(message, size, 3) * sizeof *sizes);
  PJRT_Error *error = NULL;
  if (cursor != end || sizes == NULL || !read_values(&memory, message, size, 2, &frame.args, NULL) ||
      !read_values(&memory, message, size, 3, &frame.rets, sizes) ||
      !read_attributes(&memory, message, size, 4, 0, &frame.attrs))
    error = error_make(PJRT_Error_Code_INTERNAL, "the call of %.*s cannot be read, or is too large for the memory",
                       (int)target.size, target.data);
  if (!error) error = end_call(&frame, function(&frame));
  for (int64_t i = 0; !error && i < frame.rets.size; ++i)
    bytes_add(results, ((XLA_FFI_Buffer *)frame.rets.values[i])->data, sizes[i]);
  give_back(&memory);
  return error;
}

/* ---- the extension ----------------------------------------------------------------------------------------------------------*/
static PJRT_Error *register_type(PJRT_FFI_Type_Register_Args *args) {
  PJRT_Error *error = pjrt_check_size(args, PJRT_FFI_Type_Register_Args_FIRST_STRUCT_SIZE, "PJRT_FFI_Type_Register_Args");
  if (error) return error;
  pthread_mutex_lock(&mutex);
  int64_t largest = 0;
  type_id *known = NULL;
  for (size_t i = 0; i < num_types; ++i) {
    if (types[i].number > largest) largest = types[i].number;
    if (strlen(types[i].name) == args->type_name_size && memcmp(types[i].name, args->type_name, args->type_name_size) == 0)
      known = &types[i];
  }
  if (known == NULL) {
    type_id *more = new_zeroed(num_types + 1, sizeof *more);
    if (num_types) memcpy(more, types, num_types * sizeof *more);
    free(types);
    types = more;
    known = &types[num_types++];
    *known = (type_id){copy_of(args->type_name, args->type_name_size), args->type_id ? args->type_id : largest + 1};
  }
  if (args->type_id && args->type_id != known->number)
    error = error_make(PJRT_Error_Code_ALREADY_EXISTS, "the FFI type %s has the id %lld, found %lld", known->name,
                       (long long)known->number, (long long)args->type_id);
  else
    args->type_id = known->number;
  pthread_mutex_unlock(&mutex);
  return error;
}

/* JAX adds its own to each execution on a platform of the name cpu. Where the program runs in another process, a handler
 * that asks for it hears that it has none. */
static PJRT_Error *add_user_data(PJRT_FFI_UserData_Add_Args *args) {
  PJRT_Error *error = pjrt_check_size(args, PJRT_FFI_UserData_Add_Args_FIRST_STRUCT_SIZE, "PJRT_FFI_UserData_Add_Args");
  return error ? error : context_add(args->context, args->user_data.type_id, args->user_data.data);
}

/* XLA asks every handler which version of the interface it was compiled with. */
static PJRT_Error *check_version(XLA_FFI_Handler *function, const char *name) {
  XLA_FFI_Metadata metadata = {.struct_size = sizeof metadata, .api_version = {.struct_size = sizeof metadata.api_version}};
  XLA_FFI_Metadata_Extension extension = {.struct_size = sizeof extension, .type = XLA_FFI_METADATA,
                                          .metadata = &metadata};
  XLA_FFI_CallFrame frame = {.struct_size = XLA_FFI_CALL_FRAME_SIZE, .extension_start = &extension, .api = &ffi_api,
                             .stage = XLA_FFI_EXECUTE};
  PJRT_Error *error = (PJRT_Error *)function(&frame);
  if (error || metadata.api_version.major_version == XLA_FFI_API_MAJOR) return error;
  return error_make(INVALID, "expected a handler of version %d of XLA's FFI for %s, found version %d", XLA_FFI_API_MAJOR,
                    name, metadata.api_version.major_version);
}

static PJRT_Error *register_handler(PJRT_FFI_Register_Handler_Args *args) {
  PJRT_Error *error =
      pjrt_check_size(args, PJRT_FFI_Register_Handler_Args_FIRST_STRUCT_SIZE, "PJRT_FFI_Register_Handler_Args");
  if (error) return error;
  if (args->target_name == NULL || args->target_name_size == 0 || args->handler == NULL)
    return error_make(INVALID, "PJRT_FFI_Register_Handler: expected a name and the address of a handler, found null");
  handler given = {copy_of(args->target_name, args->target_name_size), (XLA_FFI_Handler *)args->handler, (int)args->traits};
  error = check_version(given.function, given.name);
  if (!error) error = add_handler(&given);
  free(given.name);
  return error;
}

PJRT_FFI_Extension ffi_extension = {
    .base = {.struct_size = PJRT_FFI_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_FFI},
    .type_register = register_type,
    .user_data_add = add_user_data,
    .register_handler = register_handler,
};
