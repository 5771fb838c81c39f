/* Named values: reading them, and lists that own theirs. */
#include "tiny.h"

const PJRT_NamedValue *option_find(const PJRT_NamedValue *options, size_t count, const char *name) {
  for (size_t i = 0; i < count; ++i) {
    if (options[i].name_size == strlen(name) && memcmp(options[i].name, name, options[i].name_size) == 0)
      return &options[i];
  }
  return NULL;
}

tiny_status *option_int64(const PJRT_NamedValue *options, size_t count, const char *name, int64_t *inout) {
  const PJRT_NamedValue *option = option_find(options, count, name);
  if (option == NULL) return NULL;
  if (option->type != PJRT_NamedValue_kInt64)
    return status_make(INVALID, "Option %s must be an int64, got a value of type %d", name, (int)option->type);
  *inout = option->int64_value;
  return NULL;
}

tiny_status *option_bool(const PJRT_NamedValue *options, size_t count, const char *name, bool *inout) {
  const PJRT_NamedValue *option = option_find(options, count, name);
  if (option == NULL) return NULL;
  if (option->type != PJRT_NamedValue_kBool)
    return status_make(INVALID, "Option %s must be a bool, got a value of type %d", name, (int)option->type);
  *inout = option->bool_value;
  return NULL;
}

void attributes_add(tiny_attributes *list, const char *name, const PJRT_NamedValue *value) {
  PJRT_NamedValue *values = tiny_calloc(list->count + 1, sizeof *values);
  if (list->count) memcpy(values, list->values, list->count * sizeof *values);
  free(list->values);
  list->values = values;
  PJRT_NamedValue *last = &values[list->count++];
  *last = *value;
  last->struct_size = PJRT_NamedValue_STRUCT_SIZE;
  last->extension_start = NULL;
  last->name = tiny_memdup(name, strlen(name));
  last->name_size = strlen(name);
  if (value->type == PJRT_NamedValue_kString) last->string_value = tiny_memdup(value->string_value, value->value_size);
  if (value->type == PJRT_NamedValue_kInt64List)
    last->int64_array_value = tiny_memdup(value->int64_array_value, value->value_size * sizeof(int64_t));
}

void attributes_string(tiny_attributes *list, const char *name, const char *value) {
  attributes_add(list, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kString, .string_value = value, .value_size = strlen(value)});
}

void attributes_int64(tiny_attributes *list, const char *name, int64_t value) {
  attributes_add(list, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kInt64, .int64_value = value, .value_size = 1});
}

void attributes_int64_list(tiny_attributes *list, const char *name, const int64_t *values, size_t count) {
  attributes_add(list, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kInt64List, .int64_array_value = values, .value_size = count});
}

void attributes_float(tiny_attributes *list, const char *name, float value) {
  attributes_add(list, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kFloat, .float_value = value, .value_size = 1});
}

void attributes_bool(tiny_attributes *list, const char *name, bool value) {
  attributes_add(list, name, &(PJRT_NamedValue){
      .type = PJRT_NamedValue_kBool, .bool_value = value, .value_size = 1});
}

void attributes_free(tiny_attributes *list) {
  for (size_t i = 0; i < list->count; ++i) {
    free((char *)list->values[i].name);
    if (list->values[i].type == PJRT_NamedValue_kString) free((char *)list->values[i].string_value);
    if (list->values[i].type == PJRT_NamedValue_kInt64List) free((int64_t *)list->values[i].int64_array_value);
  }
  free(list->values);
  list->values = NULL;
  list->count = 0;
}
