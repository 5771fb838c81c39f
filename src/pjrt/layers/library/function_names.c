/* Names of functions in the options of layers: patterns, and the nearest names to a wrong one. */
#include <stdio.h>
#include <string.h>

#include "layer.h"

static bool matches(const char *pattern, const char *end, const char *name) {
  if (pattern == end) return *name == 0;
  if (*pattern == '*') {
    for (;; name++) {
      if (matches(pattern + 1, end, name)) return true;
      if (*name == 0) return false;
    }
  }
  return *name != 0 && (*pattern == '?' || *pattern == *name) && matches(pattern + 1, end, name + 1);
}

static const char *short_name(const char *function) {
  return strncmp(function, "PJRT_", 5) == 0 ? function + 5 : function;
}

bool pjrt_names_function(const char *pattern, const char *end, const char *function) {
  return matches(pattern, end, function) || matches(pattern, end, short_name(function));
}

static int smallest(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

/* The number of letters to change, add and leave out until one name is the other. */
static int distance(const char *a, const char *b) {
  enum { LONGEST = 96 };
  int row[LONGEST + 1];
  const int size = (int)strlen(b);
  if (size > LONGEST) return LONGEST;
  for (int j = 0; j <= size; j++) row[j] = j;
  for (int i = 1; *a; a++, i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= size; j++) {
      const int above = row[j];
      row[j] = smallest(above + 1, row[j - 1] + 1, diagonal + ((*a | 32) != (b[j - 1] | 32)));
      diagonal = above;
    }
  }
  return row[size];
}

void pjrt_unknown_function(const char *pattern, const char *end, char *problem, size_t size) {
  const char *nearest[3] = {NULL};
  int distances[3] = {1 << 16, 1 << 16, 1 << 16};
  char name[128];
  snprintf(name, sizeof name, "%.*s", (int)(end - pattern), pattern);
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const char *candidate = short_name(pjrt_functions[i].name);
    int away = distance(short_name(name), candidate);
    const char *method = strchr(candidate, '_');
    if (method != NULL && strcmp(method + 1, short_name(name)) == 0) away = 1; /* without its class */
    int place = 3;
    while (place > 0 && away < distances[place - 1]) place--;
    for (int k = 2; k > place; k--) nearest[k] = nearest[k - 1], distances[k] = distances[k - 1];
    if (place < 3) nearest[place] = candidate, distances[place] = away;
  }
  snprintf(problem, size,
           "there is no function %s; near are %s, %s and %s. Patterns are possible, such as Buffer_* or *_Create", name,
           nearest[0], nearest[1], nearest[2]);
}
