/* Frames of Python. Python is not linked: its functions are looked for in the process. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include "python_frames.h"

#include <stdatomic.h>
#include <string.h>

#include "json.h"

#include "pjrt_support/system.h"

enum { MOST_PYTHON_FRAMES = 32 };

static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;

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
  const uint64_t *offsets;                   /* Python 3.13: those of _PyRuntime, from which debuggers find the frames */
  int (*get_raw_line)(const void *frame);    /* Python 3.13: reads the line without the GIL */
} python_functions;

/* Places of values in the table of offsets with which _PyRuntime begins in Python 3.13. */
enum {
  COOKIE = 0,
  VERSION = 1,
  FREE_THREADED = 2,
  THREAD_CURRENT_FRAME = 23,
  FRAME_PREVIOUS = 29,
  FRAME_EXECUTABLE = 30,
  FRAME_OWNER = 33,
  CODE_FILENAME = 35,
  CODE_QUALNAME = 37,
  TEXT_STATE = 68,
  TEXT_LENGTH = 69,
  ASCII_TEXT_SIZE = 70
};
enum { OWNED_BY_C_STACK = 3 };

static python_functions python;
static _Atomic int python_state; /* 0: not looked for, 1: there, -1: none */

/* The table is the same in all releases of a minor version; that of Python without the GIL has not been tried. */
static bool has_known_offsets(const uint64_t *offsets) {
  return offsets != NULL && memcmp(&offsets[COOKIE], "xdebugpy", 8) == 0 && offsets[VERSION] >> 16 == 0x030D &&
         !offsets[FREE_THREADED];
}

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
      {&python.offsets, "_PyRuntime", true},
      {&python.get_raw_line, "PyUnstable_InterpreterFrame_GetLine", true},
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
  if (python.get_raw_line == NULL || !has_known_offsets(python.offsets)) python.offsets = NULL;
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

static const void *at(const void *object, int place) {
  const void *value;
  memcpy(&value, (const char *)object + python.offsets[place], sizeof value);
  return value;
}

/* Writes an object of the type str as UTF-8. Its state has three bits for the bytes a character, and one for ASCII. */
static void add_text(pjrt_json *out, const void *text) {
  uint32_t state;
  memcpy(&state, (const char *)text + python.offsets[TEXT_STATE], sizeof state);
  const size_t width = state >> 2 & 7, length = (size_t)at(text, TEXT_LENGTH);
  const char *data = (const char *)text + python.offsets[ASCII_TEXT_SIZE];
  if (state >> 6 & 1) {
    pjrt_json_add(out, data, length);
    return;
  }
  data += 2 * sizeof(void *); /* behind the UTF-8 that Python may keep, and its length */
  for (size_t i = 0; i < length; i++) {
    uint32_t c = 0;
    memcpy(&c, data + i * width, width);
    const int further = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes behind the first */
    const unsigned first[] = {0, 0xC0, 0xE0, 0xF0};
    pjrt_json_print(out, "%c", (int)(first[further] | c >> 6 * further));
    for (int left = further - 1; left >= 0; left--) pjrt_json_print(out, "%c", (int)(0x80 | (c >> 6 * left & 0x3F)));
  }
}

/* As dump_frames, where Python has no such function. The frames own their code, and the code its names. */
static void read_frames(pjrt_json *text, const void *state) {
  const void *frame = at(state, THREAD_CURRENT_FRAME);
  for (int i = 0; frame != NULL && i < MOST_PYTHON_FRAMES; frame = at(frame, FRAME_PREVIOUS)) {
    if (((const char *)frame)[python.offsets[FRAME_OWNER]] == OWNED_BY_C_STACK) continue; /* where C called Python */
    const void *code = at(frame, FRAME_EXECUTABLE);
    add_text(text, at(code, CODE_FILENAME));
    pjrt_json_print(text, ":%d in ", python.get_raw_line(frame));
    add_text(text, at(code, CODE_QUALNAME));
    pjrt_json_write(text, "\n");
    i++;
  }
}

char *pjrt_python_frames(void) {
  if (!has_python()) return NULL;
  pjrt_json text = {0};
  void *own = python.this_thread_state();
  if (own == NULL) return NULL;
  if (python.unchecked_get() == own) {
    walk_frames(&text, own);
  } else if (python.offsets != NULL) {
    read_frames(&text, own);
  } else {
#ifndef _WIN32
    if (python.dump != NULL) dump_frames(&text, own);
#endif
  }
  return text.text;
}
