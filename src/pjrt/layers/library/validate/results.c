/* What the plugin returns: handles, arrays, enums, counts, errors. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include <inttypes.h>

#include "validate.h"

enum { MOST_ELEMENTS = 1 << 20 };

#define READ(type, address) (*(const type *)(address))

/* Sets the handles that the call returns to null, so that one that the plugin does not set is not taken for one. */
void pjrt_clear_results(pjrt_check *check) {
  const pjrt_struct *type = check->frame->function->args;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->direction != PJRT_OUT || field->kind != PJRT_KIND_HANDLE) continue;
    if (pjrt_has_field(type, field, check->args)) *(void **)((char *)check->args + field->offset) = NULL;
  }
}

static bool may_be_null(const pjrt_check *check, const pjrt_field *field) {
  if (field->marks & PJRT_MARK_NULLABLE) return true;
  /* What a deleter frees may be nothing, where the plugin returned nothing that needs freeing. */
  if ((field->marks & PJRT_MARK_CREATES) && pjrt_handles[field->type].destroyed_by < 0) return true;
  /* Without a destination the function only returns a size. */
  return check->frame->index == PJRT_FUNCTION_Buffer_ToHostBuffer &&
         ((PJRT_Buffer_ToHostBuffer_Args *)check->args)->dst == NULL;
}

static void check_handle(pjrt_check *check, const pjrt_field *field, const char *name, void *handle) {
  if (handle != NULL)
    pjrt_note_handle(check, field, name, handle);
  else if (!may_be_null(check, field))
    pjrt_found(check, PJRT_RULE_NULL_RESULT, name, NULL, "it is null, and there is no error");
}

static bool is_value(const pjrt_check *check, const pjrt_field *field, int value) {
  const pjrt_enum *type = &pjrt_enums[field->type];
  if (check->validate->stack->plugin->pjrt_api_version.minor_version > PJRT_API_MINOR) return true;
  if (check->frame->index == PJRT_FUNCTION_Error_GetCode) return true; /* checked where the error was returned */
  for (uint16_t i = 0; i < type->num_names; i++) {
    if (type->names[i].value == value) return true;
  }
  return false;
}

static void check_value(pjrt_check *check, const pjrt_field *field, int value, const char *name) {
  if (!is_value(check, field, value))
    pjrt_found(check, PJRT_RULE_RESULT_OUT_OF_RANGE, name, NULL, "%d is no value of %s", value,
               pjrt_enums[field->type].name);
}

static bool has_dimensions(const pjrt_field *field) { return strstr(field->name, "dims") != NULL; }

static void check_element(pjrt_check *check, const pjrt_field *field, const char *at, int64_t index) {
  char name[128];
  const bool is_handle = field->element == PJRT_KIND_HANDLE;
  if (is_handle && READ(uintptr_t, at) != 0) {
    pjrt_note_handle(check, field, field->name, (void *)READ(uintptr_t, at));
    return;
  }
  const bool is_dimension = field->element == PJRT_KIND_SIGNED && field->element_size == 8 && has_dimensions(field);
  if (!is_handle && field->element != PJRT_KIND_ENUM && !is_dimension) return;
  if (is_dimension && READ(int64_t, at) >= 0) return;
  if (field->element == PJRT_KIND_ENUM && is_value(check, field, READ(int, at))) return;
  snprintf(name, sizeof name, "%s[%" PRId64 "]", field->name, index);
  if (is_handle)
    pjrt_found(check, PJRT_RULE_NULL_RESULT_ARRAY, name, NULL, "it is null");
  else if (field->element == PJRT_KIND_ENUM)
    check_value(check, field, READ(int, at), name);
  else if (READ(int64_t, at) < 0)
    pjrt_found(check, PJRT_RULE_NEGATIVE_RESULT, name, NULL, "it is %" PRId64, READ(int64_t, at));
}

/* Plugins return the same arrays again and again: an array that was readable for this thread is not probed twice. Handles in
 * it that end with their owner, as devices do, are known until a client or a topology ends. */
enum { MOST_KNOWN = 16 };

typedef struct known_facts {
  const pjrt_handle_table *table; /* where the handles are known; null: nowhere */
  uint32_t owners_ended;
  int16_t kind;
  size_t size;
} known_facts;

typedef struct known_array {
  pjrt_memory_range range;
  known_facts facts;
  void *handles[MOST_KNOWN];
} known_array;

static known_array *known_at(const void *start) {
  static _Thread_local known_array known[64];
  return &known[(uintptr_t)start / 16 % 64];
}

static bool was_readable(known_array *known, const pjrt_memory_range *range) {
  if (known->range.start == range->start && known->range.size >= range->size) return true;
  if (!pjrt_readable(range, 1)) return false;
  known->range = *range;
  known->facts.table = NULL;
  return true;
}

static bool is_known(const known_array *known, known_facts now, const void *start) {
  return known->facts.table == now.table && known->facts.owners_ended == now.owners_ended &&
         known->facts.kind == now.kind && known->facts.size == now.size && memcmp(known->handles, start, now.size) == 0;
}

static void know(known_array *known, known_facts now, const char *start) {
  known->facts = now;
  memcpy(known->handles, start, now.size);
  for (size_t i = 0; i < now.size / sizeof(void *); i++)
    if (known->handles[i] == NULL) known->facts.table = NULL; /* which is found each time */
}

static void check_array(pjrt_check *check, const pjrt_struct *type, const pjrt_field *field, const void *args) {
  const int64_t count = pjrt_count_of(type, field, field->count, args);
  const char *start = READ(const char *, pjrt_field_at(field, args));
  if (count <= 0) return;
  if (start == NULL) {
    if (!(field->marks & PJRT_MARK_NULLABLE))
      pjrt_found(check, PJRT_RULE_NULL_RESULT_ARRAY, field->name, NULL, "it is null, and its count is %" PRId64, count);
    return;
  }
  const bool wanted = field->element == PJRT_KIND_HANDLE || field->element == PJRT_KIND_ENUM || has_dimensions(field);
  if (!wanted || count > MOST_ELEMENTS) return;
  const pjrt_memory_range range = {start, (size_t)count * field->element_size};
  known_array *known = known_at(start);
  if (!was_readable(known, &range)) {
    pjrt_found(check, PJRT_RULE_UNREADABLE_RESULT, field->name, NULL, "%zu bytes at 0x%" PRIxPTR " cannot be read",
               range.size, (uintptr_t)start);
    return;
  }
  const pjrt_handle_table *table = &check->validate->handles;
  const bool lasts = field->element == PJRT_KIND_HANDLE && (field->marks & PJRT_MARK_BORROWS) && count <= MOST_KNOWN &&
                     pjrt_handles[field->type].destroyed_by < 0;
  const known_facts now = {table, atomic_load(&table->owners_ended), field->type, range.size};
  if (lasts && is_known(known, now, start)) return;
  for (int64_t i = 0; i < count; i++) check_element(check, field, start + i * field->element_size, i);
  if (lasts) know(known, now, start);
}

/* An object that a deleter frees comes with its deleter. */
static void check_deleter(pjrt_check *check, const pjrt_struct *type, const pjrt_field *deleter, const void *args) {
  if (deleter == type->fields || READ(uintptr_t, pjrt_field_at(deleter, args)) != 0) return;
  const pjrt_field *object = deleter - 1;
  if (object->size == sizeof(void *) && READ(uintptr_t, pjrt_field_at(object, args)) != 0)
    pjrt_found(check, PJRT_RULE_MISSING_DELETER, deleter->name, NULL, "it is null, but %s is not", object->name);
}

void pjrt_check_results(pjrt_check *check, const pjrt_struct *type, const void *args) {
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    const bool filled = field->direction == PJRT_IN && (field->marks & PJRT_MARK_FILLS) &&
                        field->element == PJRT_KIND_HANDLE && field->kind == PJRT_KIND_ARRAY;
    if (field->direction != PJRT_OUT && !filled) continue;
    if (!pjrt_has_field(type, field, args)) break;
    switch (field->kind) {
      case PJRT_KIND_HANDLE:
        check_handle(check, field, field->name, (void *)READ(uintptr_t, pjrt_field_at(field, args)));
        break;
      case PJRT_KIND_ENUM: check_value(check, field, READ(int, pjrt_field_at(field, args)), field->name); break;
      case PJRT_KIND_ARRAY: check_array(check, type, field, args); break;
      case PJRT_KIND_CALLBACK: check_deleter(check, type, field, args); break;
      case PJRT_KIND_TEXT:
      case PJRT_KIND_BYTES: check_array(check, type, field, args); break;
      default: break;
    }
  }
}

void pjrt_check_error(pjrt_check *check, PJRT_Error *error) {
  static const pjrt_field returned = {.name = "the result", .kind = PJRT_KIND_HANDLE, .type = PJRT_HANDLE_Error,
                                      .marks = PJRT_MARK_CREATES, .count = -1, .inner_count = -1, .owner = -1,
                                      .variant = -1};
  if (pjrt_is_layer_error(error)) return;
  pjrt_note_handle(check, &returned, "the result", error);
  size_t size = 0;
  const char *message = pjrt_error_message(check->validate->stack, error, &size);
  const int code = (int)pjrt_error_code(check->validate->stack, error);
  if (message == NULL || size == 0)
    pjrt_found(check, PJRT_RULE_ERROR_WITHOUT_MESSAGE, NULL, NULL, "an error with code %d has no message", code);
  if (code <= PJRT_Error_Code_OK || code > PJRT_Error_Code_UNAUTHENTICATED)
    pjrt_found(check, PJRT_RULE_ERROR_CODE, NULL, NULL, "the code is %d", code);
}
