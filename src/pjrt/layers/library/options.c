/* Options of layers: text of the form key=value,key=value, and numbers with units in it. */
#include <stdlib.h>
#include <string.h>

#include "layer.h"

/* Reads up to the next unescaped comma into value, without the backslashes; returns what follows. */
static const char *read_value(const char *text, char *value, size_t size) {
  size_t used = 0;
  for (; *text && *text != ','; text++) {
    if (*text == '\\' && text[1]) text++;
    if (used + 1 < size) value[used++] = *text;
  }
  if (size > 0) value[used] = 0;
  return *text ? text + 1 : text;
}

static size_t key_length(const char *options) { return strcspn(options, "=,"); }

static const char *skip(const char *options) {
  const char *text = options + key_length(options);
  char none[1];
  if (*text == '=') text++;
  return read_value(text, none, sizeof none);
}

bool pjrt_option(const char *options, const char *key, char *value, size_t size) {
  const size_t length = strlen(key);
  for (; options != NULL && *options; options = skip(options)) {
    if (key_length(options) != length || strncmp(options, key, length) != 0) continue;
    const char *text = options + length;
    read_value(*text == '=' ? text + 1 : text, value, size);
    return true;
  }
  return false;
}

bool pjrt_unknown_option(const char *options, const char *const *keys, char *key, size_t size) {
  for (; options != NULL && *options; options = skip(options)) {
    const size_t length = key_length(options);
    bool listed = length == 0 && options[0] == ',';
    for (const char *const *each = keys; *each != NULL && !listed; each++)
      listed = strlen(*each) == length && strncmp(*each, options, length) == 0;
    if (listed) continue;
    const size_t shown = length > 0 ? length : strcspn(options, ","); /* a value without a key is shown itself */
    const size_t kept = shown < size ? shown : size - 1;
    memcpy(key, options, kept);
    key[kept] = 0;
    return true;
  }
  return false;
}

bool pjrt_next_option(const char **options, char *key, size_t key_size, char *value, size_t value_size) {
  while (**options == ',') (*options)++;
  if (**options == 0) return false;
  const size_t length = key_length(*options), kept = length < key_size ? length : key_size - 1;
  memcpy(key, *options, kept);
  key[kept] = 0;
  const char *text = *options + length;
  *options = read_value(*text == '=' ? text + 1 : text, value, value_size);
  return true;
}

typedef struct unit {
  const char *name;
  double factor;
} unit;

static bool read_with_unit(const char *text, const unit *units, uint64_t *value) {
  char *end;
  const double number = strtod(text, &end);
  if (end == text || !(number >= 0) || number > 1e15) return false;
  for (; units->name != NULL; units++) {
    if (strcmp(end, units->name) != 0) continue;
    *value = (uint64_t)(number * units->factor);
    return true;
  }
  return false;
}

bool pjrt_read_size(const char *text, uint64_t *bytes) {
  static const unit units[] = {{"", 1},         {"k", 1024},       {"K", 1024},       {"KiB", 1024},
                               {"m", 1048576},  {"M", 1048576},    {"MiB", 1048576},  {"g", 1073741824},
                               {"G", 1073741824}, {"GiB", 1073741824}, {NULL, 0}};
  return read_with_unit(text, units, bytes);
}

bool pjrt_read_time(const char *text, uint64_t *nanoseconds) {
  static const unit units[] = {{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}, {NULL, 0}};
  return read_with_unit(text, units, nanoseconds);
}
