/* The sizes that callers stamp into argument structs. A struct that ends before the fields that all of its versions
 * have is refused, because what lies behind it is not the function's to read or write. */
#ifndef PJRT_SUPPORT_STRUCT_SIZE_H_
#define PJRT_SUPPORT_STRUCT_SIZE_H_

#include <stdio.h>

#include "error.h"

static PJRT_Error *pjrt_refuse_size(const char *name, size_t expected, size_t size) {
  char text[256];
  snprintf(text, sizeof text, "expected at least %zu bytes of %s, found struct_size %zu", expected, name, size);
  return pjrt_error_of_text(PJRT_Error_Code_INVALID_ARGUMENT, text);
}

/* Null if the struct, whose first member is its size, is long enough. */
static inline PJRT_Error *pjrt_check_size(const void *args, size_t expected, const char *name) {
  size_t size = *(const size_t *)args;
  return size >= expected ? NULL : pjrt_refuse_size(name, expected, size);
}

#endif /* PJRT_SUPPORT_STRUCT_SIZE_H_ */
