/* The values behind the pointers of a call: texts, arrays, structs. They become records of their own, each with the path
 * of fields and elements that leads to it. */
#include <string.h>

#include "trace.h"

#define MAX_LISTS 64 /* devices of an execution, whose lists are recorded */

void trace_write_data(struct trace *trace, struct trace_writer *writer, const uint16_t path[TRACE_PATH], const void *data,
                      size_t total, size_t element_size, size_t limit) {
  const size_t kept = total < limit ? total : limit;
  const size_t bytes = kept * element_size;
  const size_t size = sizeof(struct trace_data) + ((bytes + 7) & ~(size_t)7);
  struct trace_data *record = trace_reserve(trace->file, writer, size);
  if (record == NULL) return;
  record->size = (uint32_t)size;
  record->kind = TRACE_DATA;
  record->flags = 0;
  record->element_size = (uint16_t)element_size;
  record->number = writer->parent;
  record->total = total > UINT32_MAX ? UINT32_MAX : (uint32_t)total;
  record->kept = (uint32_t)kept;
  memcpy(record->path, path, sizeof record->path);
  memcpy(record + 1, data, bytes);
  trace_commit(writer, size);
}

void trace_error_text(struct trace *trace, struct trace_writer *writer, const PJRT_Error *error) {
  uint16_t path[TRACE_PATH];
  memset(path, 0xff, sizeof path);
  path[0] = TRACE_ERROR_FIELD;
  size_t size = 0;
  const char *text = pjrt_error_message(trace->stack, error, &size);
  if (text != NULL) trace_write_data(trace, writer, path, text, size, 1, trace->options.text);
}

static size_t count_at(const pjrt_field *field, const void *args) {
  return (size_t)pjrt_integer_at(pjrt_field_at(field, args), field->size, false);
}

/* A value that is there after the call: the function sets it, or fills the caller's memory. */
bool trace_is_output(const pjrt_field *field) {
  return field->direction != PJRT_IN || (field->marks & PJRT_MARK_FILLS);
}

/* Whether there is something behind the field that the struct itself does not have. */
bool trace_has_values(const pjrt_field *field) {
  if (field->marks & PJRT_MARK_INLINE) return false;
  switch (field->kind) {
    case PJRT_KIND_TEXT:
    case PJRT_KIND_STRUCT:
    case PJRT_KIND_STRUCT_VALUE:
    case PJRT_KIND_ARRAY:
    case PJRT_KIND_LISTS:
      return true;
    default:
      return false;
  }
}


enum which { INPUTS, OUTPUTS, EVERYTHING };

static void write_struct(struct trace *trace, struct trace_writer *writer, const pjrt_struct *type, const void *args,
                         const uint16_t outer[TRACE_PATH], int depth, enum which which);

/* How many elements of an array are recorded. Handles are all recorded, as far as a quarter of a chunk goes: which buffers
 * live at a time follows from them. */
size_t trace_limit(const struct trace *trace, int element, size_t element_size) {
  if (element == PJRT_KIND_HANDLE && trace->options.array > 0)
    return trace->file->header->chunk_size / 4 / sizeof(void *);
  return element == PJRT_KIND_TEXT || element_size == 1 ? trace->options.text : trace->options.array;
}

static void write_elements(struct trace *trace, struct trace_writer *writer, const pjrt_struct *type,
                           const pjrt_field *field, const void *args, uint16_t path[TRACE_PATH], int depth) {
  const char *elements = pjrt_pointer_in(field, args);
  const size_t count = field->count < 0 ? 1 : count_at(&type->fields[field->count], args);
  if (count > 1u << 28) return; /* not a count: the caller's mistake, which is none of ours */
  if (field->element == PJRT_KIND_BYTES || field->element_size == 0) return;
  const size_t limit = trace_limit(trace, field->element, field->element_size);
  const size_t kept = count < limit ? count : limit;
  if (field->kind == PJRT_KIND_LISTS || field->element == PJRT_KIND_ARRAY || field->element == PJRT_KIND_TEXT) {
    if (depth + 1 >= TRACE_PATH) return;
    const pjrt_field *inner = field->inner_count < 0 ? NULL : &type->fields[field->inner_count];
    if (inner == NULL && field->element != PJRT_KIND_TEXT) return;
    const size_t *sizes = inner != NULL && inner->kind == PJRT_KIND_ARRAY ? pjrt_pointer_in(inner, args) : NULL;
    /* Frameworks leave the pointer to lists without elements as it happens to be. */
    if (inner != NULL && sizes == NULL && count_at(inner, args) == 0) return;
    for (size_t i = 0; i < count && i < MAX_LISTS; i++) {
      const void *list = ((void *const *)elements)[i];
      if (list == NULL) continue;
      size_t size = sizes != NULL ? sizes[i] : inner != NULL ? count_at(inner, args) : strlen(list);
      if (size > 1u << 28) continue;
      path[depth + 1] = (uint16_t)i;
      trace_write_data(trace, writer, path, list, size, field->element == PJRT_KIND_TEXT ? 1 : field->element_size, limit);
    }
    path[depth + 1] = TRACE_NO_STEP;
    return;
  }
  trace_write_data(trace, writer, path, elements, count, field->element_size, limit);
  if (field->element != PJRT_KIND_STRUCT_VALUE || field->type < 0 || depth + 2 >= TRACE_PATH) return;
  for (size_t i = 0; i < kept; i++) {
    path[depth + 1] = (uint16_t)i;
    write_struct(trace, writer, &pjrt_structs[field->type], elements + i * field->element_size, path, depth + 2, EVERYTHING);
  }
  path[depth + 1] = TRACE_NO_STEP;
}

/* Whether a member of a union is the one that counts: the enum of the struct selects it. */
static bool is_selected(const pjrt_struct *type, const pjrt_field *field, const void *args) {
  if (field->variant < 0) return true;
  for (uint16_t i = 0; i < type->num_fields; i++) {
    if (type->fields[i].kind == PJRT_KIND_ENUM)
      return *(const int *)pjrt_field_at(&type->fields[i], args) == field->variant;
  }
  return false;
}

static void write_struct(struct trace *trace, struct trace_writer *writer, const pjrt_struct *type, const void *args,
                         const uint16_t outer[TRACE_PATH], int depth, enum which which) {
  for (uint16_t i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (!trace_has_values(field) || !pjrt_has_field(type, field, args) || !is_selected(type, field, args)) continue;
    if (which != EVERYTHING && trace_is_output(field) != (which == OUTPUTS)) continue;
    uint16_t path[TRACE_PATH];
    memcpy(path, outer, sizeof path);
    path[depth] = i;
    if (field->kind == PJRT_KIND_STRUCT_VALUE) {
      if (field->type < 0 || depth + 2 >= TRACE_PATH) continue;
      path[depth + 1] = 0;
      write_struct(trace, writer, &pjrt_structs[field->type], pjrt_field_at(field, args), path, depth + 2, EVERYTHING);
      continue;
    }
    const void *pointer = pjrt_pointer_in(field, args);
    if (pointer == NULL) continue;
    if (field->kind == PJRT_KIND_TEXT) {
      const size_t length = field->count < 0 ? strlen(pointer) : count_at(&type->fields[field->count], args);
      trace_write_data(trace, writer, path, pointer, length, 1, trace->options.text);
    } else if (field->kind == PJRT_KIND_STRUCT) {
      if (field->type < 0) continue;
      const pjrt_struct *inner = &pjrt_structs[field->type];
      size_t size = inner->size;
      if (inner->sized && *(const size_t *)pointer < size) size = *(const size_t *)pointer;
      /* A struct is one value: the options for arrays and texts do not cut it. */
      const size_t bytes = sizeof(struct trace_data) + ((size + 7) & ~(size_t)7);
      struct trace_data *record = trace_reserve(trace->file, writer, bytes);
      if (record != NULL) {
        *record = (struct trace_data){
            .size = (uint32_t)bytes, .kind = TRACE_DATA, .element_size = 1, .number = writer->parent,
            .total = (uint32_t)size, .kept = (uint32_t)size};
        memcpy(record->path, path, sizeof record->path);
        memcpy(record + 1, pointer, size);
        trace_commit(writer, bytes);
      }
      if (depth + 2 >= TRACE_PATH) continue;
      path[depth + 1] = 0;
      write_struct(trace, writer, inner, pointer, path, depth + 2, EVERYTHING);
    } else {
      write_elements(trace, writer, type, field, args, path, depth);
    }
  }
}

void trace_values(struct trace *trace, struct trace_writer *writer, const pjrt_struct *type, const void *args,
                  bool outputs) {
  uint16_t nowhere[TRACE_PATH];
  memset(nowhere, 0xff, sizeof nowhere); /* TRACE_NO_STEP in each place */
  write_struct(trace, writer, type, args, nowhere, 0, outputs ? OUTPUTS : INPUTS);
}
