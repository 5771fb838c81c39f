/* The shared library with GetPjrtApi for a device written in Python.
 *
 * It is compiled once, with this package, and copied for each exported device. The copies differ in the text in
 * `settings`, which `write_library` overwrites in the file. It is linked against no Python. It uses the Python that runs
 * in the process, or else finds, loads and starts one, and leaves it running: that gives a clean exit.
 *
 * Environment: PJRT_PYTHON is the python executable to run as, such as that of a virtual environment; PJRT_LIBPYTHON is
 * the library to load Python from. Both are used only if no Python runs in the process yet. */
#include "pjrt_abi.h"
#include "pjrt_support/system.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#define SETTINGS_SIZE 16384

/* "key=value" lines behind the mark, by which `write_library` finds the place in the file. */
static volatile char settings[SETTINGS_SIZE] = "PJRT-EXPORT-SETTINGS\n";

static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;
static const PJRT_Api *table;

/* The functions of Python that are used here. */
static struct {
  int (*is_initialized)(void);
  void (*initialize)(int);
  void (*set_program_name)(const wchar_t *);
  wchar_t *(*decode_locale)(const char *, size_t *);
  void *(*save_thread)(void);
  int (*gil_ensure)(void);
  void (*gil_release)(int);
  void *(*import_module)(const char *);
  void *(*call_method)(void *, const char *, const char *, ...);
  void *(*as_pointer)(void *);
  void (*err_fetch)(void **, void **, void **);
  void (*err_restore)(void *, void *, void *);
  void (*err_print)(void);
  void *(*as_text)(void *);
  const char *(*as_utf8)(void *);
  void (*dec_ref)(void *);
} python;

/* Why there is no device, for the table that refuses. */
static char reason[4096];

static void complain(const char *what, const char *detail) {
  snprintf(reason, sizeof reason, "this device is written in Python, and %s: %s", what, detail);
}

static const char *setting(const char *key, char *value, size_t size) {
  const size_t length = strlen(key);
  const char *line = (const char *)settings;
  while (line != NULL && *line) {
    const char *end = strchr(line, '\n');
    if (strncmp(line, key, length) == 0 && line[length] == '=') {
      const char *start = line + length + 1;
      const size_t have = end ? (size_t)(end - start) : strlen(start);
      if (have == 0 || have >= size) return NULL;
      memcpy(value, start, have);
      value[have] = 0;
      return value;
    }
    line = end ? end + 1 : NULL;
  }
  return NULL;
}

/* Finds them in a library, or, given null, among those that the process has loaded. */
static bool find_functions(void *library) {
  const struct {
    void *target;
    const char *name;
  } functions[] = {
      {&python.is_initialized, "Py_IsInitialized"}, {&python.initialize, "Py_InitializeEx"},
      {&python.set_program_name, "Py_SetProgramName"}, {&python.decode_locale, "Py_DecodeLocale"},
      {&python.save_thread, "PyEval_SaveThread"}, {&python.gil_ensure, "PyGILState_Ensure"},
      {&python.gil_release, "PyGILState_Release"}, {&python.import_module, "PyImport_ImportModule"},
      {&python.call_method, "PyObject_CallMethod"}, {&python.as_pointer, "PyLong_AsVoidPtr"},
      {&python.err_fetch, "PyErr_Fetch"}, {&python.err_restore, "PyErr_Restore"}, {&python.err_print, "PyErr_Print"},
      {&python.as_text, "PyObject_Str"}, {&python.as_utf8, "PyUnicode_AsUTF8"}, {&python.dec_ref, "Py_DecRef"},
  };
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    void *function = pjrt_find_function(library, functions[i].name);
    if (function == NULL) return false;
    memcpy(functions[i].target, &function, sizeof function);
  }
  return true;
}

/* Finds the Python of this process, or loads one, with its symbols for the whole process, where extension modules look
 * for them. */
static bool find_python(void) {
  char buffer[4096];
  if (find_functions(NULL)) return true;
  const char *path = getenv("PJRT_LIBPYTHON");
  if (path == NULL || !*path) path = setting("libpython", buffer, sizeof buffer);
  if (path == NULL) {
    complain("the library of Python to load is unknown", "set PJRT_LIBPYTHON to the path of a libpython3 shared library");
    return false;
  }
  void *library = pjrt_open_library(path);
  if (library == NULL) {
    complain("its library cannot be loaded; set PJRT_LIBPYTHON to the path of another", pjrt_library_error());
    return false;
  }
  if (find_functions(library)) return true;
  complain("the library that was loaded is no Python; set PJRT_LIBPYTHON to the path of one", path);
  return false;
}

static void start_python(void) {
  char buffer[4096];
  if (python.is_initialized()) return;
  const char *program = getenv("PJRT_PYTHON");
  if (program == NULL || !*program) program = setting("python", buffer, sizeof buffer);
  if (program != NULL) python.set_program_name(python.decode_locale(program, NULL));
  python.initialize(0);
  python.save_thread(); /* other threads, and this one again, take the GIL when they need it */
}

/* Takes over the error of Python's that is set: its text into the reason, and its traceback to the error stream. */
static void complain_of_import(void) {
  void *type = NULL, *value = NULL, *traceback = NULL;
  python.err_fetch(&type, &value, &traceback);
  void *text = value ? python.as_text(value) : NULL;
  const char *detail = text ? python.as_utf8(text) : NULL;
  snprintf(reason, sizeof reason,
           "this device is written in Python, and it cannot be imported: %s; if no Python runs in the process before, "
           "PJRT_PYTHON says which one to run as", detail ? detail : "no reason is given");
  if (text != NULL) python.dec_ref(text);
  if (type == NULL) return;
  python.err_restore(type, value, traceback);
  python.err_print();
}

static const PJRT_Api *make_table(void) {
  const int state = python.gil_ensure();
  void *address = NULL;
  void *module = python.import_module("pjrt.native.exported");
  void *number = module ? python.call_method(module, "table_address", "s", (const char *)settings) : NULL;
  if (number != NULL) address = python.as_pointer(number);
  if (address == NULL) complain_of_import();
  if (number != NULL) python.dec_ref(number);
  if (module != NULL) python.dec_ref(module);
  python.gil_release(state);
  return address;
}

/* The table for a device that cannot be had. Frameworks end over a null table; over this one they report the reason, and
 * go on without the device. */

static void refusal_destroy(PJRT_Error *error) { (void)error; }

static void refusal_message(const PJRT_Error *error, const char **message, size_t *size) {
  (void)error;
  *message = reason;
  *size = strlen(reason);
}

static PJRT_Error_Code refusal_code(const PJRT_Error *error) {
  (void)error;
  return PJRT_Error_Code_FAILED_PRECONDITION;
}

static void refusal_payloads(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg) {
  (void)error, (void)visitor, (void)user_arg;
}

static const PJRT_Error_FunctionTable refusal_functions = {
    sizeof refusal_functions, sizeof(PJRT_Error), NULL,
    refusal_destroy, refusal_message, refusal_code, refusal_payloads,
};
static PJRT_Error refusal = {&refusal_functions};

static void error_destroy(PJRT_Error_Destroy_Args *args) { (void)args; }

static void error_message(PJRT_Error_Message_Args *args) {
  refusal_message(args->error, &args->message, &args->message_size);
}

static PJRT_Error *error_code(PJRT_Error_GetCode_Args *args) {
  args->code = refusal_code(args->error);
  return NULL;
}

static PJRT_Error *error_payloads(PJRT_Error_ForEachPayload_Args *args) {
  (void)args;
  return NULL;
}

static PJRT_Error *refuse(void *args) {
  (void)args;
  return &refusal;
}

static const PJRT_Api *refusing_table(void) {
  static PJRT_Api refusing;
  PJRT_Error *(*function)(void *) = refuse;
  char *const end = (char *)&refusing + sizeof refusing;
  for (char *slot = (char *)&refusing.PJRT_Plugin_Initialize; slot < end; slot += sizeof function)
    memcpy(slot, &function, sizeof function);
  refusing.PJRT_Error_Destroy = error_destroy;
  refusing.PJRT_Error_Message = error_message;
  refusing.PJRT_Error_GetCode = error_code;
  refusing.PJRT_Error_ForEachPayload = error_payloads;
  refusing.pjrt_api_version.struct_size = sizeof refusing.pjrt_api_version;
  refusing.pjrt_api_version.major_version = PJRT_API_MAJOR;
  refusing.pjrt_api_version.minor_version = PJRT_API_MINOR;
  refusing.struct_size = sizeof refusing;
  return &refusing;
}

/* The one symbol that loaders look for. The next call tries again if there is no device now. */
PJRT_EXPORTED const PJRT_Api *GetPjrtApi(void) {
  if (table != NULL) return table;
  /* Python is entered without holding the mutex: another thread may hold the GIL and wait here. */
  pjrt_mutex_lock(&mutex);
  const bool ready = table != NULL || find_python();
  if (ready && table == NULL) start_python();
  pjrt_mutex_unlock(&mutex);
  if (!ready) return refusing_table();
  const PJRT_Api *address = table != NULL ? table : make_table();
  pjrt_mutex_lock(&mutex);
  if (table == NULL) table = address;
  pjrt_mutex_unlock(&mutex);
  return table != NULL ? table : refusing_table();
}

#ifdef _WIN32
/* setuptools takes each library that it builds for a Python module, and has the linker look for this symbol. */
PJRT_EXPORTED void *PyInit__library(void) { return NULL; }
#endif
