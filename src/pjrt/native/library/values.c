/* Memory, text, errors, named values, and the little of protocol buffers that is needed. */
#include <time.h>

#include "runtime.h"

static void *checked(void *pointer) {
  if (pointer == NULL) {
    fputs("pjrt: the process has no memory left\n", stderr);
    abort();
  }
  return pointer;
}

void *new_zeroed(size_t count, size_t size) { return checked(calloc(count ? count : 1, size ? size : 1)); }

int64_t monotonic_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

void *copy_of(const void *data, size_t size) {
  char *copy = checked(malloc(size + 1));
  if (size) memcpy(copy, data, size);
  copy[size] = 0;
  return copy;
}

PJRT_Error *staging_make(size_t size, char **out) {
  *out = malloc(size ? size : 1);
  if (*out) return NULL;
  return error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the host has no %zu bytes left for a copy", size);
}

char *printed(const char *format, ...) {
  va_list values;
  va_start(values, format);
  char *text = NULL;
  if (vasprintf(&text, format, values) < 0) text = NULL;
  va_end(values);
  return checked(text);
}

void bytes_add(bytes *out, const void *data, size_t size) {
  if (out->size + size + 1 > out->capacity) {
    out->capacity = (out->size + size + 1) * 2;
    out->data = checked(realloc(out->data, out->capacity));
  }
  if (size) memcpy(out->data + out->size, data, size);
  out->size += size;
  out->data[out->size] = 0;
}

/* ---- errors ---------------------------------------------------------------------------------------------------------*/
PJRT_Error *error_make(PJRT_Error_Code code, const char *format, ...) {
  va_list values;
  va_start(values, format);
  char *text = NULL;
  int size = vasprintf(&text, format, values);
  va_end(values);
  if (size < 0) return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for an error's message");
  PJRT_Error *error = pjrt_error_new(code, text, (size_t)size);
  free(text);
  return error;
}

PJRT_Error *error_from_parts(PJRT_Error_Code code, const char *message, size_t size) {
  return code == PJRT_Error_Code_OK ? NULL : pjrt_error_new(code, message ? message : "", message ? size : 0);
}

void error_add_payloads(PJRT_Error *error, const PJRT_NamedValue *values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const PJRT_NamedValue *each = &values[i];
    if (each->type == PJRT_NamedValue_kString)
      pjrt_error_add_payload(error, each->name, each->name_size, each->string_value, each->value_size);
  }
}

int error_say(PJRT_Error *borrowed, char *message) {
  const char *text;
  size_t size;
  pjrt_error_read(borrowed, &text, &size);
  if (size >= PJRT_DRIVER_MESSAGE_SIZE) size = PJRT_DRIVER_MESSAGE_SIZE - 1;
  memcpy(message, text, size);
  message[size] = 0;
  return (int)pjrt_error_code(borrowed);
}

int error_give(PJRT_Error *owned, char *message) {
  if (owned == NULL) return 0;
  int code = error_say(owned, message);
  pjrt_error_release(owned);
  return code;
}

int payload_at(const bytes *from, size_t index, const char **name, const char **value, size_t *size) {
  for (size_t at = 0, left = from->size; left >= 8; --index) {
    uint32_t sizes[2];
    memcpy(sizes, from->data + at, sizeof sizes);
    size_t both = (size_t)sizes[0] + 1 + sizes[1];
    if (both > left - 8 || from->data[at + 8 + sizes[0]] != 0) return 0;
    *name = from->data + at + 8;
    *value = *name + sizes[0] + 1;
    *size = sizes[1];
    if (index == 0) return 1;
    both = 8 + (both + 7) / 8 * 8;
    if (both > left) return 0;
    at += both;
    left -= both;
  }
  return 0;
}

PJRT_Error *error_of_driver(const char *function, int code, const char *message) {
  if (code == 0) return NULL;
  size_t size = strnlen(message, PJRT_DRIVER_MESSAGE_SIZE);
  if (code < 0 || code > PJRT_Error_Code_UNAUTHENTICATED)
    return error_make(PJRT_Error_Code_INTERNAL,
                      "the driver's function %s returned %d, expected 0 or the number of a status code (1 to 16); it "
                      "said: %.*s", function, code, (int)size, message);
  if (size == 0)
    return error_make((PJRT_Error_Code)code, "the driver's function %s failed and gave no message", function);
  return pjrt_error_new((PJRT_Error_Code)code, message, size);
}

PJRT_Error *native_Error_GetCode(PJRT_Error_GetCode_Args *args) {
  args->code = pjrt_error_code(args->error);
  return NULL;
}

PJRT_Error *native_Error_ForEachPayload(PJRT_Error_ForEachPayload_Args *args) {
  pjrt_error_visit(args->error, args->visitor, args->user_arg);
  return NULL;
}

/* ---- named values -----------------------------------------------------------------------------------------------------*/
void named_value_add(named_values *list, const char *name, size_t name_size, const PJRT_NamedValue *value) {
  list->values = checked(realloc(list->values, (list->count + 1) * sizeof *list->values));
  PJRT_NamedValue *last = &list->values[list->count++];
  *last = *value;
  last->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  last->extension_start = NULL;
  last->name = copy_of(name, name_size);
  last->name_size = name_size;
  if (value->type == PJRT_NamedValue_kString) last->string_value = copy_of(value->string_value, value->value_size);
  if (value->type == PJRT_NamedValue_kInt64List)
    last->int64_array_value = copy_of(value->int64_array_value, value->value_size * sizeof(int64_t));
}

void named_float_add(named_values *list, const char *name, float value) {
  named_value_add(list, name, strlen(name), &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kFloat, .float_value = value, .value_size = 1});
}

bool named_value_is(const PJRT_NamedValue *value, const char *name) {
  return value->name_size == strlen(name) && memcmp(value->name, name, value->name_size) == 0;
}

void named_values_free(named_values *list) {
  for (size_t i = 0; i < list->count; ++i) {
    PJRT_NamedValue *value = &list->values[i];
    free((char *)value->name);
    if (value->type == PJRT_NamedValue_kString) free((char *)value->string_value);
    if (value->type == PJRT_NamedValue_kInt64List) free((int64_t *)value->int64_array_value);
  }
  free(list->values);
}

/* ---- protocol buffers -------------------------------------------------------------------------------------------------*/
static bool read_varint(const char **cursor, const char *end, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *cursor < end; shift += 7) {
    unsigned char byte = (unsigned char)*(*cursor)++;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return true;
  }
  return false;
}

static bool read_field(const char **cursor, const char *end, proto_field *field) {
  uint64_t tag, size = 0;
  if (*cursor >= end || !read_varint(cursor, end, &tag)) return false;
  memset(field, 0, sizeof *field);
  field->number = (int)(tag >> 3 & 0x1fffffff);
  field->wire = (int)(tag & 7);
  switch (field->wire) {
    case 0: return read_varint(cursor, end, &field->value);
    case 1: size = 8; break;
    case 2:
      if (!read_varint(cursor, end, &size)) return false;
      break;
    case 5: size = 4; break;
    default: return false;
  }
  if (size > (uint64_t)(end - *cursor)) return false;
  field->data = *cursor;
  field->size = (size_t)size;
  *cursor += size;
  return true;
}

/* The cursor stays before a field that is none, so that the caller sees that the end was not reached. */
bool proto_next(const char **cursor, const char *end, proto_field *field) {
  const char *begin = *cursor;
  if (read_field(cursor, end, field)) return true;
  *cursor = begin;
  return false;
}

static void write_varint(bytes *out, uint64_t value) {
  do {
    char byte = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    bytes_add(out, &byte, 1);
    value >>= 7;
  } while (value);
}

void proto_varint(bytes *out, int number, uint64_t value) {
  write_varint(out, (uint64_t)number << 3);
  write_varint(out, value);
}

void proto_bytes(bytes *out, int number, const void *data, size_t size) {
  write_varint(out, (uint64_t)number << 3 | 2);
  write_varint(out, size);
  bytes_add(out, data, size);
}

size_t proto_int64s(const proto_field *field, int64_t *out, size_t capacity) {
  if (field->wire == 0) {
    if (capacity) out[0] = (int64_t)field->value;
    return 1;
  }
  size_t count = 0;
  uint64_t value;
  const char *cursor = field->data, *end = field->wire == 2 ? field->data + field->size : field->data;
  while (cursor < end && read_varint(&cursor, end, &value)) {
    if (count < capacity) out[count] = (int64_t)value;
    ++count;
  }
  return count;
}
