/* Call stacks of C and Python. Python is not linked: its functions are looked for in the process. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include "backtraces.h"

#include <stdatomic.h>
#include <string.h>

#include "pjrt_support/system.h"

enum { MOST_C_FRAMES = 48, MOST_PYTHON_FRAMES = 32, OWN_FRAMES = 1, BUCKETS = 4096, MOST_BACKTRACES = 1 << 20 };

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

/* ---- Python -------------------------------------------------------------------------------------------------------*/
typedef struct python_functions {
  int (*is_initialized)(void);
  void *(*unchecked_get)(void);
  void *(*this_thread_state)(void);
  void *(*get_frame)(void *state);
  void *(*get_back)(void *frame);
  void *(*get_code)(void *frame);
  int (*get_line)(void *frame);
  void *(*get_attribute)(void *object, const char *name);
  const char *(*as_utf8)(void *text);
  void (*dec_ref)(void *object);
  void (*dump)(int descriptor, void *state); /* Python 3.11 and 3.12: reads the frames without the GIL */
} python_functions;

static python_functions python;
static _Atomic int python_state; /* 0: not looked for, 1: there, -1: none */

static bool find_python(void) {
  const struct {
    void *target;
    const char *name;
    bool optional;
  } functions[] = {
      {&python.is_initialized, "Py_IsInitialized", false},
      {&python.this_thread_state, "PyGILState_GetThisThreadState", false},
      {&python.get_frame, "PyThreadState_GetFrame", false},
      {&python.get_back, "PyFrame_GetBack", false},
      {&python.get_code, "PyFrame_GetCode", false},
      {&python.get_line, "PyFrame_GetLineNumber", false},
      {&python.get_attribute, "PyObject_GetAttrString", false},
      {&python.as_utf8, "PyUnicode_AsUTF8", false},
      {&python.dec_ref, "Py_DecRef", false},
      {&python.dump, "_Py_DumpTraceback", true},
  };
  bool complete = true;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *function = pjrt_find_function(NULL, functions[i].name);
    memcpy(functions[i].target, &function, sizeof function);
    complete &= function != NULL || functions[i].optional;
  }
  void *get = pjrt_find_function(NULL, "PyThreadState_GetUnchecked");
  if (get == NULL) get = pjrt_find_function(NULL, "_PyThreadState_UncheckedGet");
  memcpy(&python.unchecked_get, &get, sizeof get);
  return complete && get != NULL;
}

/* Looked for once; again while there is none, because Python may be started later. */
static bool has_python(void) {
  if (atomic_load_explicit(&python_state, memory_order_acquire) != 1) {
    pjrt_mutex_lock(&mutex);
    if (python_state != 1) atomic_store_explicit(&python_state, find_python() ? 1 : -1, memory_order_release);
    pjrt_mutex_unlock(&mutex);
  }
  return python_state == 1 && python.is_initialized();
}

static void add_attribute(pjrt_json *text, void *code, const char *name) {
  void *value = python.get_attribute(code, name);
  const char *utf8 = value != NULL ? python.as_utf8(value) : NULL;
  pjrt_json_write(text, utf8 != NULL ? utf8 : "?");
  if (value != NULL) python.dec_ref(value);
}

/* The thread holds the GIL. An exception that is on its way stays as it is: attributes of code objects raise nothing. */
static void walk_frames(pjrt_json *text, void *state) {
  void *frame = python.get_frame(state);
  for (int i = 0; frame != NULL && i < MOST_PYTHON_FRAMES; i++) {
    void *code = python.get_code(frame);
    add_attribute(text, code, "co_filename");
    pjrt_json_print(text, ":%d in ", python.get_line(frame));
    add_attribute(text, code, "co_qualname");
    pjrt_json_write(text, "\n");
    python.dec_ref(code);
    void *back = python.get_back(frame);
    python.dec_ref(frame);
    frame = back;
  }
  if (frame != NULL) python.dec_ref(frame);
}

#ifndef _WIN32
/* The thread has released the GIL, as frameworks do around their calls. Its frames stand still meanwhile, because it is
 * here, and Python can write them down without counting references. The lines look like '  File "x.py", line 3 in f'. */
static void dump_frames(pjrt_json *text, void *state) {
  char dumped[8192];
  size_t size = 0;
  int ends[2];
  if (pipe(ends) != 0) return;
  fcntl(ends[1], F_SETFL, O_NONBLOCK); /* more than the pipe holds is lost, and nothing waits */
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  python.dump(ends[1], state);
  close(ends[1]);
  ssize_t count;
  while (size < sizeof dumped - 1 && (count = read(ends[0], dumped + size, sizeof dumped - 1 - size)) > 0)
    size += (size_t)count;
  close(ends[0]);
  dumped[size] = 0;
  char *rest = dumped, *line;
  for (int i = 0; i < MOST_PYTHON_FRAMES && (line = strsep(&rest, "\n")) != NULL; i++) {
    char *file = strstr(line, "File \""), *number = strstr(line, "\", line ");
    char *function = number ? strstr(number, " in ") : NULL;
    if (file == NULL || function == NULL) continue;
    *number = *function = 0;
    pjrt_json_print(text, "%s:%s in %s\n", file + 6, number + 8, function + 4);
  }
}
#endif

static char *take_python(void) {
  if (!has_python()) return NULL;
  pjrt_json text = {0};
  void *own = python.this_thread_state();
  if (own == NULL) return NULL;
  if (python.unchecked_get() == own) {
    walk_frames(&text, own);
  } else {
#ifndef _WIN32
    if (python.dump != NULL) dump_frames(&text, own);
#endif
  }
  return text.text;
}

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
  char *lines = take_python();
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
