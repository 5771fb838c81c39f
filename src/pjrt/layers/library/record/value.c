#include "value.h"

#include <string.h>

enum { INLINE_SIZE = 64 /* longer texts are written once, as data */ };

static void put_tag(value_writer *writer, value_tag tag) {
  const unsigned char byte = (unsigned char)tag;
  bytes_append(&writer->bytes, &byte, 1);
}

static void put_tagged(value_writer *writer, value_tag tag, uint64_t number) {
  put_tag(writer, tag);
  bytes_varint(&writer->bytes, number);
}

static void put_name(value_writer *writer, const char *name) {
  bytes_varint(&writer->bytes, record_file_name(writer->file, name));
}

void value_put_number(value_writer *writer, int64_t number) {
  if (number >= 0) put_tagged(writer, VALUE_NUMBER, (uint64_t)number);
  else put_tagged(writer, VALUE_NEGATIVE, (uint64_t)(-1 - number));
}

void value_put_text(value_writer *writer, const void *data, size_t size) {
  if (data == NULL) {
    put_tag(writer, VALUE_NULL);
  } else if (size <= INLINE_SIZE) {
    put_tagged(writer, VALUE_TEXT, size);
    bytes_append(&writer->bytes, data, size);
  } else {
    put_tagged(writer, VALUE_BLOB, record_file_blob(writer->file, data, size));
    bytes_varint(&writer->bytes, size);
  }
}

void value_put_data(value_writer *writer, const void *data, size_t size) {
  if (data == NULL) put_tag(writer, VALUE_NULL);
  else if (writer->leave_out) put_tagged(writer, VALUE_LEFT_OUT, size);
  else value_put_text(writer, data, size);
}

static void put_pointer(value_writer *writer, const void *address) {
  if (address == NULL) put_tag(writer, VALUE_NULL);
  else put_tagged(writer, VALUE_POINTER, (uintptr_t)address);
}

static void put_real(value_writer *writer, double real) {
  uint64_t bits;
  unsigned char bytes[8];
  memcpy(&bits, &real, sizeof bits);
  for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(bits >> 8 * i);
  put_tag(writer, VALUE_REAL);
  bytes_append(&writer->bytes, bytes, sizeof bytes);
}

void value_put_handle(value_writer *writer, int kind, const void *handle, bool is_new) {
  if (handle == NULL) {
    put_tag(writer, VALUE_NULL);
    return;
  }
  const record_key key = {handle, NULL, kind};
  const uint64_t number = is_new ? numbers_renew(&writer->handles, key) : numbers_get(&writer->handles, key);
  put_tag(writer, VALUE_HANDLE);
  put_name(writer, pjrt_handles[kind].name);
  bytes_varint(&writer->bytes, number);
}

size_t value_count(const pjrt_struct *type, int16_t count, const void *base) {
  if (count < 0 || !pjrt_has_field(type, &type->fields[count], base)) return 0;
  const pjrt_field *field = &type->fields[count];
  if (field->kind == PJRT_KIND_ARRAY || field->kind == PJRT_KIND_POINTER) return 0;
  const int64_t number = pjrt_integer_at(pjrt_field_at(field, base), field->size, field->kind != PJRT_KIND_UNSIGNED);
  return number < 0 ? 0 : (size_t)number;
}

/* What a function of the plugin is known by when the framework calls it: its user data, which is a token of the stack
 * here, or the handle that it takes. The function itself is behind a stand-in. */
static const void *identity(const pjrt_struct *type, const void *base, int handle) {
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (!pjrt_has_field(type, field, base)) continue;
    if (field->kind == PJRT_KIND_USER_DATA || (field->kind == PJRT_KIND_HANDLE && field->type == handle))
      return pjrt_pointer_in(field, base);
  }
  return NULL;
}

static int first_handle(const pjrt_struct *type) {
  for (int i = 0; i < type->num_fields; i++) {
    if (type->fields[i].kind == PJRT_KIND_HANDLE) return type->fields[i].type;
  }
  return -1;
}

uint64_t value_function_of_plugin(value_writer *writer, const pjrt_frame *frame, const void *args) {
  const pjrt_struct *type = frame->function->args;
  const uintptr_t token = frame->origin->token;
  const void *known = token != 0 ? (const void *)token : identity(type, args, first_handle(type));
  const record_key key = {known, NULL, 1 + frame->index};
  return numbers_get(&writer->callbacks, key);
}

static void put_callback(value_writer *writer, const pjrt_struct *type, const pjrt_field *field, const void *base) {
  const void *target = pjrt_pointer_in(field, base);
  if (target == NULL) {
    put_tag(writer, VALUE_NULL);
    return;
  }
  record_key key = {target, NULL, 0};
  if (field->direction == PJRT_OUT && field->type >= 0) {
    key = (record_key){identity(type, base, first_handle(pjrt_callbacks[field->type].args)), NULL, 1 + field->type};
  } else {
    for (int i = 0; i < type->num_fields; i++) {
      const pjrt_field *each = &type->fields[i];
      if (each->kind == PJRT_KIND_USER_DATA && each->owner >= 0 && &type->fields[each->owner] == field &&
          pjrt_has_field(type, each, base))
        key.second = pjrt_pointer_in(each, base);
    }
  }
  put_tag(writer, VALUE_FUNCTION);
  put_name(writer, field->type >= 0 ? pjrt_callbacks[field->type].name : "function");
  bytes_varint(&writer->bytes, numbers_renew(&writer->callbacks, key));
}

/* One element of an array, or the field itself where it is no array. */
static void put_element(value_writer *writer, pjrt_kind kind, const pjrt_field *field, const void *at, size_t size,
                        size_t count, value_phase phase) {
  switch (kind) {
    case PJRT_KIND_BOOL:
      put_tag(writer, *(const unsigned char *)at ? VALUE_TRUE : VALUE_FALSE);
      return;
    case PJRT_KIND_FLOAT: {
      float narrow;
      double wide;
      if (size == sizeof narrow) {
        memcpy(&narrow, at, sizeof narrow);
        wide = narrow;
      } else {
        memcpy(&wide, at, sizeof wide);
      }
      put_real(writer, wide);
      return;
    }
    case PJRT_KIND_HANDLE:
      value_put_handle(writer, field->type, pjrt_pointer_at(at),
                       writer->is_callback
                           ? field->marks & PJRT_MARK_CONSUMES
                           : phase != PHASE_CALL && field->direction != PJRT_IN && field->marks & PJRT_MARK_CREATES);
      return;
    case PJRT_KIND_TEXT:
    case PJRT_KIND_BYTES: {
      const char *text = pjrt_pointer_at(at);
      if (writer->shallow) {
        put_pointer(writer, text);
        return;
      }
      const size_t length = text == NULL ? 0 : count == SIZE_MAX ? strlen(text) : count;
      if (kind == PJRT_KIND_BYTES && writer->host_data) value_put_data(writer, text, length);
      else value_put_text(writer, text, length);
      return;
    }
    case PJRT_KIND_STRUCT: {
      const void *base = pjrt_pointer_at(at);
      if (base == NULL) put_tag(writer, VALUE_NULL);
      else value_put_struct(writer, &pjrt_structs[field->type], base, PHASE_ALL);
      return;
    }
    case PJRT_KIND_STRUCT_VALUE:
      value_put_struct(writer, &pjrt_structs[field->type], at, PHASE_ALL);
      return;
    case PJRT_KIND_POINTER:
    case PJRT_KIND_USER_DATA:
    case PJRT_KIND_EXTENSIONS:
    case PJRT_KIND_CALLBACK: /* of an array: without user data of its own */
      put_pointer(writer, pjrt_pointer_at(at));
      return;
    case PJRT_KIND_UNSIGNED:
      put_tagged(writer, VALUE_NUMBER, (uint64_t)pjrt_integer_at(at, size, false));
      return;
    default:
      value_put_number(writer, pjrt_integer_at(at, size, true));
  }
}

/* The sizes of texts or lists, one for each: those of an array of size_t; SIZE_MAX where they are unknown. */
static size_t inner_size(const pjrt_struct *type, const pjrt_field *field, const void *base, size_t i) {
  if (field->inner_count < 0) return SIZE_MAX;
  const pjrt_field *sizes = &type->fields[field->inner_count];
  if (!pjrt_has_field(type, sizes, base)) return SIZE_MAX;
  if (sizes->kind != PJRT_KIND_ARRAY) return value_count(type, field->inner_count, base);
  const char *at = pjrt_pointer_in(sizes, base);
  return at == NULL ? 0 : (size_t)pjrt_integer_at(at + i * sizes->element_size, sizes->element_size, true);
}

/* The number of elements of an array or of lists; SIZE_MAX where the struct does not state it. */
static size_t array_size(const value_writer *writer, const pjrt_struct *type, const pjrt_field *field, const void *base) {
  if (field->marks & PJRT_MARK_INLINE) return field->size / field->element_size;
  if (field->count >= 0) return value_count(type, field->count, base);
  if (field->kind == PJRT_KIND_LISTS) return writer->num_devices;
  if (strcmp(type->name, "PJRT_Executable_OutputDimensions_Args") != 0) return SIZE_MAX;
  const PJRT_Executable_OutputDimensions_Args *args = base;
  size_t sum = 0;
  for (size_t i = 0; args->dim_sizes != NULL && i < args->num_outputs; i++) sum += args->dim_sizes[i];
  return sum;
}

static void put_array(value_writer *writer, const pjrt_struct *type, const pjrt_field *field, const void *base,
                      value_phase phase) {
  const char *at = field->marks & PJRT_MARK_INLINE ? pjrt_field_at(field, base) : pjrt_pointer_in(field, base);
  const size_t count = array_size(writer, type, field, base);
  if (at == NULL || count == SIZE_MAX) {
    put_pointer(writer, at);
    return;
  }
  put_tagged(writer, VALUE_LIST, count);
  for (size_t i = 0; i < count; i++) {
    if (field->kind == PJRT_KIND_ARRAY) {
      put_element(writer, field->element, field, at + i * field->element_size, field->element_size,
                  inner_size(type, field, base, i), phase);
      continue;
    }
    const char *list = pjrt_pointer_at(at + i * sizeof(void *));
    size_t length = inner_size(type, field, base, i);
    if (length == SIZE_MAX) length = writer->num_outputs == SIZE_MAX ? 0 : writer->num_outputs;
    if (list == NULL) {
      put_tag(writer, VALUE_NULL);
      continue;
    }
    put_tagged(writer, VALUE_LIST, length);
    for (size_t j = 0; j < length; j++)
      put_element(writer, field->element, field, list + j * field->element_size, field->element_size, SIZE_MAX, phase);
  }
}

static void put_field(value_writer *writer, const pjrt_struct *type, const pjrt_field *field, const void *base,
                      value_phase phase) {
  if (phase == PHASE_CALL && field->marks & PJRT_MARK_FILLS) {
    if (field->kind == PJRT_KIND_STRUCT) { /* its sizes are set, its memory is not */
      writer->shallow = true;
      put_element(writer, PJRT_KIND_STRUCT, field, pjrt_field_at(field, base), field->size, SIZE_MAX, phase);
      writer->shallow = false;
      return;
    }
    put_pointer(writer, pjrt_pointer_in(field, base));
    return;
  }
  if (field->kind == PJRT_KIND_ARRAY || field->kind == PJRT_KIND_LISTS) {
    put_array(writer, type, field, base, phase);
    return;
  }
  if (field->kind == PJRT_KIND_CALLBACK) {
    put_callback(writer, type, field, base);
    return;
  }
  if (field->kind == PJRT_KIND_BYTES && field->count < 0) {
    put_pointer(writer, pjrt_pointer_in(field, base));
    return;
  }
  const size_t count = field->count < 0 ? SIZE_MAX : value_count(type, field->count, base);
  put_element(writer, field->kind, field, pjrt_field_at(field, base), field->size, count, phase);
  if (field->kind == PJRT_KIND_HANDLE && phase == PHASE_CALL && !writer->is_callback &&
      field->marks & PJRT_MARK_DESTROYS) {
    const void *handle = pjrt_pointer_in(field, base);
    if (handle != NULL) {
      writer->removed = (record_key){handle, NULL, field->type};
      writer->removed_number = numbers_remove(&writer->handles, writer->removed);
    }
  }
}

/* ---- structs with a union -----------------------------------------------------------------------------------------*/
static void put_int64s(value_writer *writer, const int64_t *numbers, size_t count) {
  if (numbers == NULL) {
    put_tag(writer, VALUE_NULL);
    return;
  }
  put_tagged(writer, VALUE_LIST, count);
  for (size_t i = 0; i < count; i++) value_put_number(writer, numbers[i]);
}

static void put_named_value(value_writer *writer, const PJRT_NamedValue *value) {
  put_tag(writer, VALUE_STRUCT);
  put_name(writer, "PJRT_NamedValue");
  bytes_varint(&writer->bytes, 3);
  put_name(writer, "name");
  value_put_text(writer, value->name, value->name_size);
  put_name(writer, "type");
  value_put_number(writer, value->type);
  put_name(writer, "value");
  switch (value->type) {
    case PJRT_NamedValue_kString:
      value_put_text(writer, value->string_value, value->value_size);
      break;
    case PJRT_NamedValue_kInt64:
      value_put_number(writer, value->int64_value);
      break;
    case PJRT_NamedValue_kInt64List:
      put_int64s(writer, value->int64_array_value, value->value_size);
      break;
    case PJRT_NamedValue_kFloat:
      put_real(writer, (double)value->float_value);
      break;
    case PJRT_NamedValue_kBool:
      put_tag(writer, value->bool_value ? VALUE_TRUE : VALUE_FALSE);
      break;
    default:
      put_tag(writer, VALUE_NULL);
  }
}

static void put_layout(value_writer *writer, const PJRT_Buffer_MemoryLayout *layout) {
  put_tag(writer, VALUE_STRUCT);
  put_name(writer, "PJRT_Buffer_MemoryLayout");
  const bool tiled = layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled;
  bytes_varint(&writer->bytes, tiled ? 4 : 2);
  put_name(writer, "type");
  value_put_number(writer, layout->type);
  if (!tiled) {
    put_name(writer, "byte_strides");
    put_int64s(writer, layout->strides.byte_strides, layout->strides.num_byte_strides);
    return;
  }
  const PJRT_Buffer_MemoryLayout_Tiled *tiles = &layout->tiled;
  put_name(writer, "minor_to_major");
  put_int64s(writer, tiles->minor_to_major, tiles->minor_to_major_size);
  size_t num_dims = 0;
  put_name(writer, "tile_dim_sizes");
  put_tagged(writer, VALUE_LIST, tiles->tile_dim_sizes == NULL ? 0 : tiles->num_tiles);
  for (size_t i = 0; tiles->tile_dim_sizes != NULL && i < tiles->num_tiles; i++) {
    value_put_number(writer, (int64_t)tiles->tile_dim_sizes[i]);
    num_dims += tiles->tile_dim_sizes[i];
  }
  put_name(writer, "tile_dims");
  put_int64s(writer, tiles->tile_dims, num_dims);
}

void value_put_struct(value_writer *writer, const pjrt_struct *type, const void *base, value_phase phase) {
  if (strcmp(type->name, "PJRT_NamedValue") == 0) {
    put_named_value(writer, base);
    return;
  }
  if (strcmp(type->name, "PJRT_Buffer_MemoryLayout") == 0) {
    put_layout(writer, base);
    return;
  }
  uint64_t count = 0;
  bool chosen[64] = {false};
  const int num_fields = type->num_fields < 64 ? type->num_fields : 64;
  for (int i = 0; i < num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    const bool fills = field->marks & PJRT_MARK_FILLS &&
                       !(phase == PHASE_RESULT && writer->filled_later && field->kind == PJRT_KIND_BYTES);
    chosen[i] = pjrt_has_field(type, field, base) && (phase == PHASE_ALL || (phase == PHASE_CALL
                    ? field->direction != PJRT_OUT || fills : field->direction != PJRT_IN || fills));
    count += chosen[i];
  }
  put_tag(writer, VALUE_STRUCT);
  put_name(writer, type->name);
  bytes_varint(&writer->bytes, count);
  for (int i = 0; i < num_fields; i++) {
    if (!chosen[i]) continue;
    put_name(writer, type->fields[i].name);
    put_field(writer, type, &type->fields[i], base, phase);
  }
}
