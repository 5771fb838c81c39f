/* The options of the trace layer: key=value,key=value. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

static const char *const KEYS[] = {
    "file", "ring", "keep", "on", "functions", "errors", "slower", "sample", "text", "array", "ready", "ask",
    NULL};

static bool read_count(const char *text, uint64_t *value) {
  char *end;
  *value = strtoull(text, &end, 10);
  return *text >= '0' && *text <= '9' && *end == 0;
}

static bool read_switch(const char *text, bool *value) {
  *value = strcmp(text, "1") == 0;
  return *value || strcmp(text, "0") == 0;
}

/* Returns false, with the problem described, if a pattern is the name of no function. */
static bool name_functions(const char *patterns, char *problem, size_t size) {
  for (const char *pattern = patterns, *end; *pattern; pattern = *end ? end + 1 : end) {
    pattern += *pattern == '!';
    end = pattern + strcspn(pattern, "|");
    bool any = false;
    for (int i = 0; i < PJRT_NUM_FUNCTIONS && !any; i++) any = pjrt_names_function(pattern, end, pjrt_functions[i].name);
    for (int i = 0; i < PJRT_NUM_CALLBACKS && !any; i++) any = pjrt_names_function(pattern, end, pjrt_callbacks[i].name);
    if (any) continue;
    const int used = snprintf(problem, size, "trace: ");
    pjrt_unknown_function(pattern, end, problem + used, size - (size_t)used);
    return false;
  }
  return true;
}

bool trace_read_options(const char *text, struct trace_options *options, char *problem, size_t problem_size) {
  char value[1024];
  char key[64];
  uint64_t number;
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
    REQUIRE(pjrt_read_size(value, &number) && number >= 131072 && number <= 10000000000000, "ring to be a size of at least 128k, such as 64m")
    options->ring = (size_t)number;
  }
  if (pjrt_option(text, "keep", value, sizeof value)) {
    options->keep_first = strcmp(value, "first") == 0;
    REQUIRE(options->keep_first || strcmp(value, "last") == 0, "keep to be first or last")
  }
  if (pjrt_option(text, "on", value, sizeof value)) REQUIRE(read_switch(value, &options->enabled), "on to be 0 or 1")
  if (pjrt_option(text, "functions", value, sizeof value)) {
    memcpy(options->functions, value, sizeof value);
    if (!name_functions(value, problem, problem_size)) return false;
  }
  if (pjrt_option(text, "errors", value, sizeof value))
    REQUIRE(read_switch(value, &options->errors_only), "errors to be 0 or 1")
  if (pjrt_option(text, "ask", value, sizeof value)) REQUIRE(read_switch(value, &options->ask), "ask to be 0 or 1")
  if (pjrt_option(text, "slower", value, sizeof value)) {
    REQUIRE(pjrt_read_time(value, &number), "slower to be a time with a unit, such as 10us")
    options->slower = number;
  }
  if (pjrt_option(text, "sample", value, sizeof value)) {
    REQUIRE(read_count(value, &number) && number >= 1 && number <= 1000000000, "sample to be a number from 1 on")
    options->sample = (uint32_t)number;
  }
  if (pjrt_option(text, "text", value, sizeof value)) {
    REQUIRE(pjrt_read_size(value, &number) && number <= 4096, "text to be a size of at most 4096 bytes")
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
  while (*pattern) {
    const char *end = strchr(pattern, '|');
    if (end == NULL) end = pattern + strlen(pattern);
    const bool excludes = *pattern == '!';
    const char *start = pattern + excludes;
    const bool match = pjrt_names_function(start, end, function);
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
