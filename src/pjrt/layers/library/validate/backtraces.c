/* Call stacks of C and Python. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include "backtraces.h"

#include <string.h>

#include "python_frames.h"

#include "pjrt_support/system.h"

enum { MOST_C_FRAMES = 48, OWN_FRAMES = 1, BUCKETS = 4096, MOST_BACKTRACES = 1 << 20 };

typedef struct backtrace_entry {
  struct backtrace_entry *next; /* of the bucket */
  uint64_t hash;
  uint32_t number;
  uint16_t num_c;
  char *python; /* one line a frame, "FILE:LINE in FUNCTION"; null where there is none */
  void *c[];
} backtrace_entry;

static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;
static backtrace_entry *buckets[BUCKETS];
static backtrace_entry **by_number; /* grows; index 0 is not used */
static uint32_t num_backtraces, capacity;

/* ---- keeping ------------------------------------------------------------------------------------------------------*/
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size) {
  const unsigned char *bytes = (const unsigned char *)data;
  for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * UINT64_C(0x100000001B3);
  return hash;
}

static bool same(const backtrace_entry *entry, void *const *c, size_t num_c, const char *lines) {
  if (entry->num_c != num_c || (entry->python == NULL) != (lines == NULL)) return false;
  return memcmp(entry->c, c, num_c * sizeof *c) == 0 && (lines == NULL || strcmp(entry->python, lines) == 0);
}

/* The number of a new entry, which takes the lines over; 0 without memory. */
static uint32_t add_entry(uint64_t hash, void *const *c, size_t num_c, char *lines) {
  if (num_backtraces + 1 >= capacity) {
    const uint32_t larger = capacity ? capacity * 2 : 1024;
    backtrace_entry **grown = larger > MOST_BACKTRACES ? NULL : realloc(by_number, larger * sizeof *grown);
    if (grown == NULL) return 0;
    by_number = grown;
    capacity = larger;
  }
  backtrace_entry *entry = malloc(sizeof *entry + num_c * sizeof *c);
  if (entry == NULL) return 0;
  entry->hash = hash;
  entry->num_c = (uint16_t)num_c;
  entry->python = lines;
  memcpy(entry->c, c, num_c * sizeof *c);
  entry->number = ++num_backtraces;
  entry->next = buckets[hash % BUCKETS];
  buckets[hash % BUCKETS] = entry;
  by_number[entry->number] = entry;
  return entry->number;
}

uint32_t pjrt_backtrace_take(void) {
  void *addresses[MOST_C_FRAMES + OWN_FRAMES];
  size_t count = pjrt_call_stack(addresses, MOST_C_FRAMES + OWN_FRAMES);
  void *const *c = addresses + (count > OWN_FRAMES ? OWN_FRAMES : count);
  count = count > OWN_FRAMES ? count - OWN_FRAMES : 0;
  char *lines = pjrt_python_frames();
  if (count == 0 && lines == NULL) return 0;
  uint64_t hash = hash_bytes(UINT64_C(0xCBF29CE484222325), c, count * sizeof *c);
  if (lines != NULL) hash = hash_bytes(hash, lines, strlen(lines));
  pjrt_mutex_lock(&mutex);
  backtrace_entry *entry = buckets[hash % BUCKETS];
  while (entry != NULL && (entry->hash != hash || !same(entry, c, count, lines))) entry = entry->next;
  const uint32_t number = entry != NULL ? entry->number : add_entry(hash, c, count, lines);
  pjrt_mutex_unlock(&mutex);
  if (entry != NULL || number == 0) free(lines);
  return number;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/
/* Entries are never freed, so one is read without the lock. */
static const backtrace_entry *entry_of(uint32_t number) {
  pjrt_mutex_lock(&mutex);
  const backtrace_entry *entry = number != 0 && number <= num_backtraces ? by_number[number] : NULL;
  pjrt_mutex_unlock(&mutex);
  return entry;
}

static void describe_address(char *text, size_t size, void *address) {
  /* The address behind a call may already belong to the next function. */
  const pjrt_symbol_place place = pjrt_symbol((char *)address - 1);
  const char *library = place.library != NULL ? place.library : "?";
  const char *slash = strrchr(library, '/');
  library = slash != NULL ? slash + 1 : library;
  if (place.function != NULL)
    snprintf(text, size, "%s+0x%zx (%s)", place.function, place.offset + 1, library);
  else if (place.library != NULL)
    snprintf(text, size, "%s+0x%zx", library, place.offset + 1);
  else
    snprintf(text, size, "%p", address);
}

typedef void (*frame_writer)(pjrt_json *out, const char *frame, const char *indent);

static void write_frames(pjrt_json *out, uint32_t number, frame_writer writer, const char *indent) {
  char frame[1024];
  const backtrace_entry *entry = entry_of(number);
  if (entry == NULL) return;
  for (const char *line = entry->python; line != NULL && *line;) {
    const char *end = strchr(line, '\n');
    const size_t size = end != NULL ? (size_t)(end - line) : strlen(line);
    snprintf(frame, sizeof frame, "%.*s", (int)(size < sizeof frame ? size : sizeof frame - 1), line);
    writer(out, frame, indent);
    line = end != NULL ? end + 1 : NULL;
  }
  /* The first frames are those of this library: how the call came here. */
  void *own;
  uint32_t (*here)(void) = pjrt_backtrace_take;
  memcpy(&own, &here, sizeof own);
  const char *library = pjrt_symbol(own).library;
  size_t first = 0;
  while (first < entry->num_c && library != NULL && pjrt_symbol((char *)entry->c[first] - 1).library == library) first++;
  for (size_t i = first; i < entry->num_c; i++) {
    describe_address(frame, sizeof frame, entry->c[i]);
    writer(out, frame, indent);
  }
}

static void write_element(pjrt_json *out, const char *frame, const char *indent) {
  (void)indent;
  if (out->size && out->text[out->size - 1] != '[') pjrt_json_write(out, ", ");
  pjrt_json_string(out, frame);
}

static void print_line(pjrt_json *out, const char *frame, const char *indent) {
  pjrt_json_write(out, indent);
  pjrt_json_write(out, frame);
  pjrt_json_write(out, "\n");
}

void pjrt_backtrace_write(pjrt_json *json, uint32_t number) {
  pjrt_json_write(json, "[");
  write_frames(json, number, write_element, "");
  pjrt_json_write(json, "]");
}

void pjrt_backtrace_print(pjrt_json *text, uint32_t number, const char *indent) {
  write_frames(text, number, print_line, indent);
}
