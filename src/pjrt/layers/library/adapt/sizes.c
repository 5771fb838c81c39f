/* Structs of other sizes than the plugin's. Each version of the API may add fields at the end of a struct. A plugin may
 * refuse a struct that is shorter than its own, or one that is longer, although it needs nothing behind its end. */
#include <stdio.h>

#include "adapt.h"

enum { MAX_STRUCT = 512, MAX_TRIES = 24 };

typedef union copied {
  size_t size;
  char bytes[MAX_STRUCT];
} copied;

static const pjrt_struct *options_type(const adapt *adapt, const pjrt_frame *frame) {
  return adapt->nested_field[frame->index] < 0 ? NULL : &pjrt_structs[adapt_field(frame, adapt->nested_field)->type];
}

/* The next smaller size that a version of the struct had; 0 if it had none. */
static size_t smaller_size(const pjrt_struct *type, size_t size) {
  bool later = false;
  size_t found = 0;
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    later |= (field->marks & PJRT_MARK_LATER) != 0;
    if (later && field->offset < size && i > 0) found = type->fields[i - 1].offset + type->fields[i - 1].size;
  }
  return found < size ? found : 0;
}

/* Whether an error says that a struct has a wrong size. Plugins have no code for it, but the texts are much alike. */
static bool refuses_size(adapt *adapt, const PJRT_Error *error, const pjrt_struct *named) {
  size_t size;
  const char *message = pjrt_error_message(adapt->stack, error, &size);
  char text[1024];
  const size_t length = size < sizeof text - 1 ? size : sizeof text - 1;
  memcpy(text, message, length);
  text[length] = 0;
  if (strstr(text, "struct_size") == NULL && strstr(text, "size: expected") == NULL) return false;
  return named == NULL || strstr(text, named->name) != NULL;
}

/* A copy of a struct with a size; fields that the caller does not have are zero. */
static void copy_sized(copied *copy, const void *from, size_t size) {
  const size_t given = *(const size_t *)from;
  memset(copy, 0, sizeof *copy);
  memcpy(copy, from, given < size ? given : size);
  copy->size = size;
}

/* An older plugin leaves what it does not know as it is: the framework would read what lay there by chance. */
static void clear_later_outputs(const pjrt_struct *type, void *args) {
  bool later = false;
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    later |= (field->marks & PJRT_MARK_LATER) != 0;
    if (later && field->direction == PJRT_OUT && pjrt_has_field(type, field, args))
      memset((char *)args + field->offset, 0, field->size);
  }
}

static void copy_outputs(const pjrt_struct *type, void *args, const void *from) {
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->direction != PJRT_IN && pjrt_has_field(type, field, args) && pjrt_has_field(type, field, from))
      memcpy((char *)args + field->offset, (const char *)from + field->offset, field->size);
  }
}

/* One try of a call, with these sizes. */
static void *call_with(adapt *adapt, pjrt_frame *frame, void *args, size_t size, size_t options_size) {
  const pjrt_struct *type = frame->function->args;
  copied own, own_options;
  void *given = args, *options = NULL;
  if (adapt->nested_field[frame->index] >= 0) options = pjrt_pointer_in(adapt_field(frame, adapt->nested_field), args);
  const bool copies_options = options != NULL && *(size_t *)options != options_size;
  if (*(size_t *)args != size || copies_options) {
    copy_sized(&own, args, size);
    given = &own;
  }
  if (copies_options) {
    copy_sized(&own_options, options, options_size);
    options = &own_options;
    memcpy((char *)given + adapt_field(frame, adapt->nested_field)->offset, &options, sizeof options);
  }
  void *result = pjrt_next(frame, given);
  if (given != args) copy_outputs(type, args, given);
  return result;
}

void *adapt_call_resized(adapt *adapt, pjrt_frame *frame, void *args) {
  const pjrt_struct *type = frame->function->args, *options_of = options_type(adapt, frame);
  const int index = frame->index;
  const void *options = options_of != NULL ? pjrt_pointer_in(adapt_field(frame, adapt->nested_field), args) : NULL;
  size_t size = atomic_load(&adapt->accepted[index]), options_size = atomic_load(&adapt->accepted_options[index]);
  /* What is longer than this package knows passes as it is: the plugin may know it. */
  if (size == 0) size = *(size_t *)args > type->size ? *(size_t *)args : type->size;
  if (options != NULL && options_size == 0)
    options_size = *(const size_t *)options > options_of->size ? *(const size_t *)options : options_of->size;
  if (type->size > MAX_STRUCT || size > MAX_STRUCT || options_size > MAX_STRUCT) return pjrt_next(frame, args);
  clear_later_outputs(type, args);
  for (int tries = 0;; tries++) {
    void *error = call_with(adapt, frame, args, size, options_size);
    const bool refused = error != NULL && tries < MAX_TRIES && refuses_size(adapt, error, NULL);
    if (!refused) {
      if (tries > 0) {
        atomic_store(&adapt->accepted[index], size);
        atomic_store(&adapt->accepted_options[index], options_size);
      }
      return error;
    }
    const bool of_options = options != NULL && (refuses_size(adapt, error, options_of) || smaller_size(type, size) == 0);
    const size_t next = of_options ? smaller_size(options_of, options_size) : smaller_size(type, size);
    if (next == 0) return error;
    adapt_destroy_error(adapt, error);
    if (of_options) options_size = next;
    else size = next;
  }
}
