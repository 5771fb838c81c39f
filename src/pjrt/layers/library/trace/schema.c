/* The schema as text at the beginning of a trace file: the file explains itself, to readers of any version.
 *
 * A line has fields separated by tabs; the first is a letter. K: the names of the kinds, in order. E: an enum, with its
 * names and values. H: a handle. S: a struct, with its size; A: a field of the struct before it. F: a function, C: a
 * callback: extension, result, field of the handle, struct. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "trace.h"

static const char *const KINDS[PJRT_KIND_NUM_KINDS] = {
    [PJRT_KIND_STRUCT_SIZE] = "struct_size", [PJRT_KIND_EXTENSIONS] = "extensions", [PJRT_KIND_COUNT] = "count",
    [PJRT_KIND_SIGNED] = "signed", [PJRT_KIND_UNSIGNED] = "unsigned", [PJRT_KIND_BOOL] = "bool",
    [PJRT_KIND_FLOAT] = "float", [PJRT_KIND_ENUM] = "enum", [PJRT_KIND_HANDLE] = "handle", [PJRT_KIND_TEXT] = "text",
    [PJRT_KIND_BYTES] = "bytes", [PJRT_KIND_POINTER] = "pointer", [PJRT_KIND_STRUCT] = "struct",
    [PJRT_KIND_STRUCT_VALUE] = "struct_value", [PJRT_KIND_CALLBACK] = "callback",
    [PJRT_KIND_USER_DATA] = "user_data", [PJRT_KIND_ARRAY] = "array", [PJRT_KIND_LISTS] = "lists",
};

struct text {
  char *start;
  size_t length;
  size_t room;
};

static void append(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(struct text *text, const char *format, ...) {
  va_list values;
  if (text->start == NULL) return;
  if (text->room - text->length < 1024) {
    char *larger = realloc(text->start, 2 * text->room);
    if (larger == NULL) {
      free(text->start);
      text->start = NULL;
      return;
    }
    text->start = larger;
    text->room *= 2;
  }
  va_start(values, format);
  const int length = vsnprintf(text->start + text->length, text->room - text->length, format, values);
  va_end(values);
  if (length > 0) text->length += (size_t)length;
}

static void append_function(struct text *text, char letter, const pjrt_function *function) {
  append(text, "%c\t%s\t%d\t%d\t%d\t%d\n", letter, function->name, function->extension, function->result,
         function->handle, function->args == NULL ? -1 : (int)(function->args - pjrt_structs));
}

char *trace_schema_text(void) {
  struct text text = {malloc(1 << 16), 0, 1 << 16};
  append(&text, "K");
  for (size_t i = 0; i < PJRT_KIND_NUM_KINDS; i++) append(&text, "\t%s", KINDS[i]);
  append(&text, "\n");
  for (size_t i = 0; i < PJRT_NUM_ENUMS; i++) {
    append(&text, "E\t%s", pjrt_enums[i].name);
    for (size_t k = 0; k < pjrt_enums[i].num_names; k++)
      append(&text, "\t%s=%d", pjrt_enums[i].names[k].name, pjrt_enums[i].names[k].value);
    append(&text, "\n");
  }
  for (size_t i = 0; i < PJRT_NUM_HANDLES; i++) append(&text, "H\t%s\n", pjrt_handles[i].name);
  for (size_t i = 0; i < PJRT_NUM_STRUCTS; i++) {
    const pjrt_struct *type = &pjrt_structs[i];
    append(&text, "S\t%s\t%u\t%d\n", type->name, type->size, type->sized);
    for (size_t k = 0; k < type->num_fields; k++) {
      const pjrt_field *field = &type->fields[k];
      append(&text, "A\t%s\t%u\t%u\t%u\t%u\t%u\t%u\t%d\t%d\t%d\t%d\t%u\n", field->name, field->offset, field->size,
             field->kind, field->direction, field->element, field->element_size, field->type, field->count,
             field->inner_count, field->variant, field->marks);
    }
  }
  for (size_t i = 0; i < PJRT_NUM_FUNCTIONS; i++) append_function(&text, 'F', &pjrt_functions[i]);
  for (size_t i = 0; i < PJRT_NUM_CALLBACKS; i++) append_function(&text, 'C', &pjrt_callbacks[i]);
  return text.start;
}
