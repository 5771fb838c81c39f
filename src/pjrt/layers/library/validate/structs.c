/* Argument structs, and the structs that they point to: sizes, pointers, arrays, enums. Nothing is read before it is known
 * to be readable. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include <inttypes.h>

#include "validate.h"

enum { PATH_SIZE = 192, MOST_DEPTH = 4, HEAD_ONLY = -1, MOST_LINKS = 64, MOST_ELEMENTS = 1 << 24, FAR_TOO_LONG = 4096 };

#define READ(type, address) (*(const type *)(address))

static void path_to(char *path, const char *parent, const char *name) {
  snprintf(path, PATH_SIZE, "%s%s%s", parent, *parent ? "." : "", name);
}

/* JAX (jaxlib 0.10) leaves the heads of layouts as it finds them: struct_size and extension_start are any number. Plugins
 * that JAX runs on do not read them. */
static bool has_unset_head(const pjrt_struct *type) {
  return type == &pjrt_structs[PJRT_STRUCT_Buffer_MemoryLayout] ||
         type == &pjrt_structs[PJRT_STRUCT_Buffer_MemoryLayout_Tiled] ||
         type == &pjrt_structs[PJRT_STRUCT_Buffer_MemoryLayout_Strides];
}

static bool has_field(const pjrt_struct *type, const pjrt_field *field, const void *args) {
  return has_unset_head(type) || pjrt_has_field(type, field, args);
}

int64_t pjrt_count_of(const pjrt_struct *type, const pjrt_field *field, int16_t count, const void *args) {
  if (field->marks & PJRT_MARK_INLINE) return field->element_size ? field->size / field->element_size : 0;
  if (count < 0) return -1;
  const pjrt_field *counter = &type->fields[count];
  if (!has_field(type, counter, args)) return 0;
  const void *at = pjrt_field_at(counter, args);
  switch (counter->size) {
    case 4: return READ(int32_t, at);
    case 8: return READ(int64_t, at);
    default: return -1;
  }
}

/* ---- reading safely -----------------------------------------------------------------------------------------------*/
bool pjrt_check_readable(pjrt_check *check, const char *path, const void *start, uint64_t size) {
  const pjrt_memory_range range = {start, (size_t)size};
  if (size == 0 || pjrt_readable(&range, 1)) return true;
  check->unreadable |= *path == 0;
  pjrt_found(check, PJRT_RULE_UNREADABLE_MEMORY, *path ? path : NULL, NULL, "%" PRIu64 " bytes at 0x%" PRIxPTR " cannot be read", size,
             (uintptr_t)start);
  return false;
}

/* ---- the head -----------------------------------------------------------------------------------------------------*/
/* Fields that later versions added, so that a caller of an older version stamps a size that ends before them. */
static size_t least_size(const pjrt_struct *type) {
  size_t size = 0;
  for (uint16_t i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->marks & PJRT_MARK_LATER) break;
    if (field->offset + field->size > size) size = (size_t)field->offset + field->size;
  }
  return size;
}

static bool ends_inside_a_field(const pjrt_struct *type, size_t size) {
  for (uint16_t i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->variant >= 0) continue;
    if (size > field->offset && size < (size_t)field->offset + field->size) return true;
  }
  return false;
}

static bool check_size(pjrt_check *check, const pjrt_struct *type, size_t size, const char *path) {
  if (size >= type->size && size <= (size_t)type->size + FAR_TOO_LONG) return true;
  char name[PATH_SIZE];
  path_to(name, path, "struct_size");
  if (size == 0) {
    pjrt_found(check, PJRT_RULE_STRUCT_SIZE_ZERO, name, NULL, "the struct_size of %s is 0, expected %u", type->name,
               (unsigned)type->size);
    return false;
  }
  if (size < least_size(type) || (size < type->size && ends_inside_a_field(type, size))) {
    pjrt_found(check, PJRT_RULE_STRUCT_SIZE_SHORT, name, NULL, "the struct_size of %s is %zu, expected at least %zu",
               type->name, size, least_size(type));
    return false;
  }
  if (size > type->size)
    pjrt_found(check, PJRT_RULE_STRUCT_SIZE_LONG, name, NULL, "the struct_size of %s is %zu, expected about %u",
               type->name, size, (unsigned)type->size);
  return true;
}

static void check_chain(pjrt_check *check, const PJRT_Extension_Base *link, const char *path) {
  for (int links = 0; link != NULL; links++) {
    const pjrt_memory_range range = {link, PJRT_Extension_Base_STRUCT_SIZE};
    if (links == MOST_LINKS) {
      pjrt_found(check, PJRT_RULE_EXTENSION_CHAIN, path, NULL, "the chain does not end after %d links", MOST_LINKS);
      return;
    }
    if ((uintptr_t)link % sizeof(void *) != 0 || !pjrt_readable(&range, 1)) {
      pjrt_found(check, PJRT_RULE_EXTENSION_CHAIN, path, NULL, "link %d at 0x%" PRIxPTR " cannot be read", links,
                 (uintptr_t)link);
      return;
    }
    if (link->struct_size < PJRT_Extension_Base_STRUCT_SIZE) {
      pjrt_found(check, PJRT_RULE_EXTENSION_CHAIN, path, NULL, "link %d has %zu bytes, expected at least %d", links,
                 link->struct_size, (int)PJRT_Extension_Base_STRUCT_SIZE);
      return;
    }
    link = link->next;
  }
}

/* ---- fields -------------------------------------------------------------------------------------------------------*/
static bool is_size(const pjrt_field *field) {
  const char *name = field->name;
  return strcmp(name, "offset") == 0 || strcmp(name, "transfer_size") == 0 || strcmp(name, "dims") == 0 ||
         strcmp(name, "shape_dims") == 0;
}

static void check_enum(pjrt_check *check, const pjrt_field *field, int value, const char *path) {
  const pjrt_enum *type = &pjrt_enums[field->type];
  /* A plugin of a later version knows more values. */
  const bool later = check->validate->stack->plugin->pjrt_api_version.minor_version > PJRT_API_MINOR;
  int most = 0;
  if (strstr(type->name, "Bits") != NULL) return; /* its values are combined */
  for (uint16_t i = 0; i < type->num_names; i++) {
    if (type->names[i].value == value) return;
    if (type->names[i].value > most) most = type->names[i].value;
  }
  if (later && value > most && value < most + 64) return;
  pjrt_found(check, PJRT_RULE_ENUM_OUT_OF_RANGE, path, NULL, "%d is no value of %s", value, type->name);
}

static void check_number(pjrt_check *check, const pjrt_field *field, const void *at, const char *path) {
  const int64_t value = field->size == 8 ? READ(int64_t, at) : field->size == 4 ? READ(int32_t, at) : 0;
  if (value < 0 && is_size(field))
    pjrt_found(check, PJRT_RULE_NEGATIVE_SIZE, path, NULL, "%s is %" PRId64, field->name, value);
}

/* The value of the enum after a union, which decides what member of the union counts. */
static bool is_active(const pjrt_struct *type, const pjrt_field *field, const void *args) {
  if (field->variant < 0) return true;
  for (const pjrt_field *each = type->fields; each < type->fields + type->num_fields; each++) {
    if (each->kind == PJRT_KIND_ENUM && strcmp(each->name, "type") == 0)
      return has_field(type, each, args) && READ(int, pjrt_field_at(each, args)) == field->variant;
  }
  return false;
}

static void check_struct_at(pjrt_check *check, const pjrt_struct *type, const void *args, const char *path, int depth);

static void check_element(pjrt_check *check, const pjrt_field *field, const void *at, const char *path, int depth) {
  switch (field->element) {
    case PJRT_KIND_HANDLE: pjrt_check_handle(check, field, path, (void *)READ(uintptr_t, at)); break;
    case PJRT_KIND_ENUM: check_enum(check, field, READ(int, at), path); break;
    case PJRT_KIND_STRUCT_VALUE: check_struct_at(check, &pjrt_structs[field->type], at, path, depth + 1); break;
    case PJRT_KIND_STRUCT:
      if (READ(uintptr_t, at) != 0)
        check_struct_at(check, &pjrt_structs[field->type], (void *)READ(uintptr_t, at), path, depth + 1);
      break;
    case PJRT_KIND_SIGNED:
      if (field->element_size == 8 && is_size(field) && READ(int64_t, at) < 0)
        pjrt_found(check, PJRT_RULE_NEGATIVE_SIZE, path, NULL, "it is %" PRId64, READ(int64_t, at));
      break;
    default: break;
  }
}

static void check_elements(pjrt_check *check, const pjrt_field *field, const char *start, int64_t count,
                           const char *path, int depth) {
  char name[PATH_SIZE];
  const bool wanted = field->element == PJRT_KIND_HANDLE || field->element == PJRT_KIND_ENUM ||
                      field->element == PJRT_KIND_STRUCT_VALUE || field->element == PJRT_KIND_STRUCT || is_size(field);
  if (!wanted || (field->marks & PJRT_MARK_FILLS)) return;
  for (int64_t i = 0; i < count && !check->refused; i++) {
    name[0] = 0;
    if (field->element != PJRT_KIND_HANDLE) snprintf(name, sizeof name, "%.160s[%" PRId64 "]", path, i);
    else check->element = i;
    check_element(check, field, start + i * field->element_size, name[0] ? name : path, depth);
  }
  check->element = -1;
}

/* Returns whether there are elements to look at. */
static bool check_array(pjrt_check *check, const pjrt_field *field, const void *start, int64_t count, size_t element,
                        const char *path) {
  if (count < 0) {
    pjrt_found(check, PJRT_RULE_NEGATIVE_SIZE, path, NULL, "its count is %" PRId64, count);
    return false;
  }
  if (count == 0) return false;
  if (start == NULL) {
    if (!(field->marks & PJRT_MARK_NULLABLE))
      pjrt_found(check, PJRT_RULE_NULL_ARRAY, path, NULL, "it is null, and its count is %" PRId64, count);
    return false;
  }
  const bool absurd = (uint64_t)count > (uint64_t)1 << 40;
  return pjrt_check_readable(check, path, start, absurd ? UINT64_MAX >> 1 : (uint64_t)count * element) && count <= MOST_ELEMENTS;
}

static void check_lists(pjrt_check *check, const pjrt_struct *type, const pjrt_field *field, const void *args,
                        const char *path, int depth) {
  const char *const *lists = READ(const char *const *, pjrt_field_at(field, args));
  const int64_t count = pjrt_count_of(type, field, field->count, args);
  char name[PATH_SIZE];
  if (type == &pjrt_structs[PJRT_STRUCT_LoadedExecutable_Execute_Args]) return; /* validate/programs.c checks them */
  if (count < 0 && field->count < 0) return; /* as many as devices: the executions know */
  if (!check_array(check, field, lists, count, sizeof *lists, path)) return;
  const int64_t inner = field->inner_count >= 0 ? pjrt_count_of(type, field, field->inner_count, args) : -1;
  if (inner < 0 || type->fields[field->inner_count].kind != PJRT_KIND_COUNT) return;
  for (int64_t i = 0; i < count && !check->refused; i++) {
    snprintf(name, sizeof name, "%.160s[%" PRId64 "]", path, i);
    if (check_array(check, field, lists[i], inner, field->element_size, name))
      check_elements(check, field, lists[i], inner, name, depth);
  }
}

static void check_named_value(pjrt_check *check, const PJRT_NamedValue *value, const char *path) {
  const bool counted = value->type == PJRT_NamedValue_kString || value->type == PJRT_NamedValue_kInt64List;
  if (value->name == NULL || value->name_size == 0)
    pjrt_found(check, PJRT_RULE_NAMED_VALUE, path, NULL, "it has no name");
  else if (!counted && value->value_size != 1)
    pjrt_found(check, PJRT_RULE_NAMED_VALUE, path, NULL, "value_size is %zu, expected 1", value->value_size);
}

static void check_field(pjrt_check *check, const pjrt_struct *type, const pjrt_field *field, const void *args,
                        const char *path, int depth) {
  const void *at = pjrt_field_at(field, args);
  const void *pointer = field->size == sizeof(void *) ? (const void *)READ(uintptr_t, at) : NULL;
  const bool nullable = field->marks & PJRT_MARK_NULLABLE;
  switch (field->kind) {
    case PJRT_KIND_HANDLE: pjrt_check_handle(check, field, path, (void *)(uintptr_t)pointer); break;
    case PJRT_KIND_ENUM: check_enum(check, field, READ(int, at), path); break;
    case PJRT_KIND_SIGNED: check_number(check, field, at, path); break;
    case PJRT_KIND_CALLBACK:
      if (pointer == NULL && !nullable) pjrt_found(check, PJRT_RULE_NULL_CALLBACK, path, NULL, "it is null");
      break;
    case PJRT_KIND_STRUCT:
      /* What the function fills may have anything in it but its size. */
      if (pointer != NULL)
        check_struct_at(check, &pjrt_structs[field->type], pointer, path,
                        field->marks & PJRT_MARK_FILLS ? HEAD_ONLY : depth + 1);
      else if (!nullable) pjrt_found(check, PJRT_RULE_NULL_POINTER, path, NULL, "it is null");
      break;
    case PJRT_KIND_STRUCT_VALUE: check_struct_at(check, &pjrt_structs[field->type], at, path, depth + 1); break;
    case PJRT_KIND_ARRAY: {
      const void *start = field->marks & PJRT_MARK_INLINE ? at : pointer;
      const int64_t count = pjrt_count_of(type, field, field->count, args);
      if (count < 0 && field->count < 0) break;
      if (check_array(check, field, start, count, field->element_size, path))
        check_elements(check, field, (const char *)start, count, path, depth);
      break;
    }
    case PJRT_KIND_LISTS: check_lists(check, type, field, args, path, depth); break;
    case PJRT_KIND_TEXT:
    case PJRT_KIND_BYTES:
      if (field->count >= 0)
        check_array(check, field, pointer, pjrt_count_of(type, field, field->count, args), 1, path);
      break;
    default: break; /* an address of unknown size, a number without limits */
  }
}

/* Whether a field can break no rule, so that its name is not needed: most fields of options are unset. */
static bool is_harmless(const pjrt_field *field, const void *args) {
  switch (field->kind) {
    case PJRT_KIND_BOOL:
    case PJRT_KIND_FLOAT:
    case PJRT_KIND_UNSIGNED:
    case PJRT_KIND_POINTER:
    case PJRT_KIND_USER_DATA: return true;
    case PJRT_KIND_SIGNED: return !is_size(field);
    case PJRT_KIND_STRUCT_VALUE:
    case PJRT_KIND_ENUM: return false;
    default:
      return (field->marks & PJRT_MARK_NULLABLE) && field->size == sizeof(void *) &&
             READ(uintptr_t, pjrt_field_at(field, args)) == 0;
  }
}

static void check_struct_at(pjrt_check *check, const pjrt_struct *type, const void *args, const char *path, int depth) {
  char name[PATH_SIZE];
  if (depth > MOST_DEPTH) return;
  const bool headed = type->sized && !has_unset_head(type);
  if (!pjrt_on_own_stack(args, type->size)) {
    if (!pjrt_check_readable(check, path, args, headed ? sizeof(size_t) : type->size)) return;
    const size_t stated = headed ? READ(size_t, args) : type->size;
    if (!pjrt_check_readable(check, path, args, stated < type->size ? stated : type->size)) return;
  }
  if (headed && !check_size(check, type, READ(size_t, args), path)) return;
  if (depth == HEAD_ONLY) return;
  for (uint16_t i = 0; i < type->num_fields && !check->refused; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->direction == PJRT_OUT || field->kind == PJRT_KIND_STRUCT_SIZE || field->kind == PJRT_KIND_COUNT) continue;
    if (!has_field(type, field, args)) break;
    if (!is_active(type, field, args) || is_harmless(field, args)) continue;
    const char *full = field->name;
    if (*path) {
      path_to(name, path, field->name);
      full = name;
    }
    if (field->kind == PJRT_KIND_EXTENSIONS) {
      const PJRT_Extension_Base *chain =
          headed ? READ(const PJRT_Extension_Base *, pjrt_field_at(field, args)) : NULL;
      if (chain != NULL) check_chain(check, chain, full);
    } else {
      check_field(check, type, field, args, full, depth);
    }
  }
  if (type == &pjrt_structs[PJRT_STRUCT_NamedValue] && !check->refused) check_named_value(check, args, path);
}

void pjrt_check_struct(pjrt_check *check, const pjrt_struct *type, const void *args, const char *path) {
  check->element = -1;
  check->unreadable = args == NULL;
  if (args != NULL)
    check_struct_at(check, type, args, path, 0);
  else
    pjrt_found(check, PJRT_RULE_NULL_ARGUMENTS, NULL, NULL, "the argument struct is null");
}
