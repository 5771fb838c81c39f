/* Allocation that never returns null, and growing byte strings. */
#include "tiny.h"

static void *checked(void *pointer) {
  if (pointer == NULL) {
    fputs("tiny plugin: out of memory\n", stderr);
    abort();
  }
  return pointer;
}

void *tiny_calloc(size_t count, size_t size) { return checked(calloc(count ? count : 1, size ? size : 1)); }

void *tiny_memdup(const void *data, size_t size) {
  char *copy = checked(malloc(size + 1));
  if (size) memcpy(copy, data, size);
  copy[size] = 0;
  return copy;
}

char *tiny_printf(const char *format, ...) {
  va_list list;
  va_start(list, format);
  char *text = NULL;
  if (vasprintf(&text, format, list) < 0) text = NULL;
  va_end(list);
  return checked(text);
}

void bytes_add(tiny_bytes *bytes, const void *data, size_t size) {
  if (bytes->size + size + 1 > bytes->capacity) {
    bytes->capacity = (bytes->size + size + 1) * 2;
    bytes->data = checked(realloc(bytes->data, bytes->capacity));
  }
  if (size) memcpy(bytes->data + bytes->size, data, size);
  bytes->size += size;
  bytes->data[bytes->size] = 0;
}

void bytes_print(tiny_bytes *bytes, const char *format, ...) {
  va_list list;
  va_start(list, format);
  char *text = NULL;
  int size = vasprintf(&text, format, list);
  va_end(list);
  checked(size < 0 ? NULL : text);
  bytes_add(bytes, text, (size_t)size);
  free(text);
}
