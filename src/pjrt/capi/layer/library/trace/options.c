/* The options of the trace layer: key=value,key=value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

static const char *const KEYS[] = {
    "file", "ring", "keep", "on", "functions", "errors", "slower", "sample", "text", "array", "ready", "ask",
    NULL};

static bool read_scaled(const char *text, const char *const units[], const double factors[], double *value) {
  char *end;
  const double number = strtod(text, &end);
  if (end == text || !(number >= 0) || number > 1e15) return false;
  for (int i = 0; units[i] != NULL; i++) {
    if (strcmp(end, units[i]) == 0) {
      *value = number * factors[i];
      return true;
    }
  }
  return false;
}

static bool read_bytes(const char *text, double *value) {
  static const char *const units[] = {"", "k", "K", "KiB", "m", "M", "MiB", "g", "G", "GiB", NULL};
  static const double factors[] = {1, 1024, 1024, 1024, 1048576, 1048576, 1048576, 1073741824, 1073741824, 1073741824};
  return read_scaled(text, units, factors, value);
}

static bool read_time(const char *text, double *value) {
  static const char *const units[] = {"ns", "us", "ms", "s", NULL};
  static const double factors[] = {1, 1e3, 1e6, 1e9};
  return read_scaled(text, units, factors, value);
}

static bool read_count(const char *text, double *value) {
  static const char *const units[] = {"", NULL};
  static const double factors[] = {1};
  return read_scaled(text, units, factors, value);
}

static bool read_switch(const char *text, bool *value) {
  *value = strcmp(text, "1") == 0;
  return *value || strcmp(text, "0") == 0;
}

bool trace_read_options(const char *text, struct trace_options *options, char *problem, size_t problem_size) {
  char value[1024];
  char key[64];
  double number;
  *options = (struct trace_options){
      .file = "pjrt-%p.trace", .ring = 64u << 20, .enabled = true, .ask = true, .sample = 1, .text = 256, .array = 16};
  if (pjrt_unknown_option(text, KEYS, key, sizeof key)) {
    snprintf(problem, problem_size,
             "trace: expected the options file, ring, keep, on, functions, errors, slower, sample, text, array, ready "
             "and ask, found %s",
             key);
    return false;
  }
#define REQUIRE(condition, expectation)                                                                          \
  if (!(condition)) {                                                                                            \
    snprintf(problem, problem_size, "trace: expected " expectation ", found %.200s", value);                     \
    return false;                                                                                                \
  }
  if (pjrt_option(text, "file", value, sizeof value)) {
    REQUIRE(value[0], "file to be a path")
    memcpy(options->file, value, sizeof value);
  }
  if (pjrt_option(text, "ring", value, sizeof value)) {
    REQUIRE(read_bytes(value, &number) && number >= 131072 && number <= 1e13, "ring to be a size of at least 128k, such as 64m")
    options->ring = (size_t)number;
  }
  if (pjrt_option(text, "keep", value, sizeof value)) {
    options->keep_first = strcmp(value, "first") == 0;
    REQUIRE(options->keep_first || strcmp(value, "last") == 0, "keep to be first or last")
  }
  if (pjrt_option(text, "on", value, sizeof value)) REQUIRE(read_switch(value, &options->enabled), "on to be 0 or 1")
  if (pjrt_option(text, "functions", value, sizeof value)) memcpy(options->functions, value, sizeof value);
  if (pjrt_option(text, "errors", value, sizeof value))
    REQUIRE(read_switch(value, &options->errors_only), "errors to be 0 or 1")
  if (pjrt_option(text, "ask", value, sizeof value)) REQUIRE(read_switch(value, &options->ask), "ask to be 0 or 1")
  if (pjrt_option(text, "slower", value, sizeof value)) {
    REQUIRE(read_time(value, &number), "slower to be a time with a unit, such as 10us")
    options->slower = (uint64_t)number;
  }
  if (pjrt_option(text, "sample", value, sizeof value)) {
    REQUIRE(read_count(value, &number) && number >= 1 && number <= 1e9, "sample to be a number from 1 on")
    options->sample = (uint32_t)number;
  }
  if (pjrt_option(text, "text", value, sizeof value)) {
    REQUIRE(read_bytes(value, &number) && number <= 4096, "text to be a size of at most 4096 bytes")
    options->text = (uint32_t)number;
  }
  if (pjrt_option(text, "array", value, sizeof value)) {
    REQUIRE(read_count(value, &number) && number <= 512, "array to be a number of at most 512 elements")
    options->array = (uint32_t)number;
  }
  if (pjrt_option(text, "ready", value, sizeof value)) {
    static const char *const names[] = {"calls", "events", "buffers"};
    int i = 0;
    while (i < 3 && strcmp(value, names[i]) != 0) i++;
    REQUIRE(i < 3, "ready to be calls, events or buffers")
    options->ready = (enum trace_readiness)i;
  }
#undef REQUIRE
  return true;
}

/* A pattern may leave out "PJRT_". With only excluding patterns, everything else is wanted. */
bool trace_wants(const struct trace_options *options, const char *function) {
  const char *pattern = options->functions;
  if (*pattern == 0) return true;
  bool wanted = false, includes = false, excluded = false;
  const char *short_name = strncmp(function, "PJRT_", 5) == 0 ? function + 5 : function;
  while (*pattern) {
    const char *end = strchr(pattern, '|');
    if (end == NULL) end = pattern + strlen(pattern);
    const bool excludes = *pattern == '!';
    const char *start = pattern + excludes;
    const bool match = pjrt_matches(start, end, function) || pjrt_matches(start, end, short_name);
    if (excludes) {
      excluded |= match;
    } else {
      includes = true;
      wanted |= match;
    }
    pattern = *end ? end + 1 : end;
  }
  return !excluded && (wanted || !includes);
}
