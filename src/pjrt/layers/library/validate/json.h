/* Text that grows, and JSON in it. Without memory the text stays as it is, and `failed` is set. */
#ifndef PJRT_LAYER_VALIDATE_JSON_H_
#define PJRT_LAYER_VALIDATE_JSON_H_

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pjrt_json {
  char *text; /* ends with a zero; null while it is empty */
  size_t size, capacity;
  bool failed;
} pjrt_json;

static inline void pjrt_json_add(pjrt_json *json, const char *text, size_t size) {
  if (json->size + size + 1 > json->capacity) {
    const size_t capacity = (json->size + size + 1) * 2;
    char *larger = (char *)realloc(json->text, capacity);
    json->failed |= larger == NULL;
    if (larger == NULL) return;
    json->text = larger;
    json->capacity = capacity;
  }
  memcpy(json->text + json->size, text, size);
  json->size += size;
  json->text[json->size] = 0;
}

static inline void pjrt_json_write(pjrt_json *json, const char *text) { pjrt_json_add(json, text, strlen(text)); }

static inline void pjrt_json_print(pjrt_json *json, const char *format, ...) {
  char buffer[512];
  va_list list;
  va_start(list, format);
  const int size = vsnprintf(buffer, sizeof buffer, format, list);
  va_end(list);
  if (size > 0) pjrt_json_add(json, buffer, (size_t)size < sizeof buffer ? (size_t)size : sizeof buffer - 1);
}

/* A JSON string. Bytes that are not ASCII are kept: names of files and functions are UTF-8. */
static inline void pjrt_json_string(pjrt_json *json, const char *text) {
  pjrt_json_write(json, "\"");
  for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
    if (*at == '"' || *at == '\\') {
      const char escaped[2] = {'\\', (char)*at};
      pjrt_json_add(json, escaped, 2);
    } else if (*at < 0x20) {
      pjrt_json_print(json, "\\u%04x", *at);
    } else {
      pjrt_json_add(json, (const char *)at, 1);
    }
  }
  pjrt_json_write(json, "\"");
}

/* A member of a JSON object, and a comma before it unless it is the first. */
static inline void pjrt_json_key(pjrt_json *json, const char *key) {
  const char last = json->size ? json->text[json->size - 1] : '{';
  if (last != '{') pjrt_json_write(json, ", ");
  pjrt_json_string(json, key);
  pjrt_json_write(json, ": ");
}

static inline void pjrt_json_member(pjrt_json *json, const char *key, const char *value) {
  pjrt_json_key(json, key);
  pjrt_json_string(json, value);
}

#endif /* PJRT_LAYER_VALIDATE_JSON_H_ */
