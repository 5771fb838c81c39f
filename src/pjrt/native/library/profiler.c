/* The extension Profiler: sessions that Python records in this process. Its errors are PJRT_Errors under another name. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

/* Does one thing for a session. Returns a status code, and writes a message where it is not 0. What it gives is the
 * number of a new session, or the address and the size of the recording, which stay until the session ends. */
typedef enum verb { CREATE = 1, START, STOP, COLLECT, DESTROY } verb;
typedef int (*profile_function)(int verb, uint64_t session, const char *options, size_t size, uint64_t *out, size_t *out_size,
                                char *message);
static profile_function function;

struct PLUGIN_Profiler {
  uint64_t session;
  const char *recording; /* Python's, the latest; null before */
  size_t size;
};

static PLUGIN_Profiler_Error *do_verb(verb what, uint64_t session, const char *options, size_t size, uint64_t *out,
                                      size_t *out_size) {
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  void *thread = interpreter_release(); /* the function takes the lock itself */
  int code = function(what, session, options, size, out, out_size, message);
  interpreter_take(thread);
  return (PLUGIN_Profiler_Error *)error_from_parts((PJRT_Error_Code)code, message, strlen(message));
}

#define SIZED_HERE(type, args)                                                                    \
  do {                                                                                            \
    PJRT_Error *too_short = pjrt_check_size(args, type##_FIRST_STRUCT_SIZE, #type);               \
    if (too_short) return (PLUGIN_Profiler_Error *)too_short;                                     \
  } while (0)

/* The first two can return no error. */
static void destroy_error(PLUGIN_Profiler_Error_Destroy_Args *args) {
  if (args->struct_size >= PLUGIN_Profiler_Error_Destroy_Args_FIRST_STRUCT_SIZE)
    pjrt_error_release((PJRT_Error *)args->error);
}

static void read_error(PLUGIN_Profiler_Error_Message_Args *args) {
  if (args->struct_size >= PLUGIN_Profiler_Error_Message_Args_FIRST_STRUCT_SIZE)
    pjrt_error_read((const PJRT_Error *)args->error, &args->message, &args->message_size);
}

static PLUGIN_Profiler_Error *code_of_error(PLUGIN_Profiler_Error_GetCode_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_Error_GetCode_Args, args);
  args->code = (int)pjrt_error_code((const PJRT_Error *)args->error);
  return NULL;
}

static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_Create_Args, args);
  uint64_t session = 0;
  size_t ignored;
  PLUGIN_Profiler_Error *error = do_verb(CREATE, 0, args->options, args->options_size, &session, &ignored);
  if (error) return error;
  args->profiler = new_zeroed(1, sizeof *args->profiler);
  args->profiler->session = session;
  return NULL;
}

static PLUGIN_Profiler_Error *do_simple(verb what, PLUGIN_Profiler *profiler) {
  uint64_t ignored;
  size_t ignored_size;
  return do_verb(what, profiler->session, NULL, 0, &ignored, &ignored_size);
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_Destroy_Args, args);
  if (args->profiler == NULL) return NULL;
  PLUGIN_Profiler_Error *error = do_simple(DESTROY, args->profiler);
  free(args->profiler);
  return error;
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_Destroy_Args, args);
  return do_simple(START, args->profiler);
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_Destroy_Args, args);
  return do_simple(STOP, args->profiler);
}

/* Called twice: for the size without memory, which collects anew, then with memory of that size. */
static PLUGIN_Profiler_Error *collect(PLUGIN_Profiler_CollectData_Args *args) {
  SIZED_HERE(PLUGIN_Profiler_CollectData_Args, args);
  PLUGIN_Profiler *profiler = args->profiler;
  if (args->buffer == NULL || profiler->recording == NULL) {
    uint64_t address = 0;
    PLUGIN_Profiler_Error *error = do_verb(COLLECT, profiler->session, NULL, 0, &address, &profiler->size);
    if (error) return error;
    profiler->recording = (const char *)(uintptr_t)address;
  }
  if (args->buffer != NULL) {
    if (args->buffer_size_in_bytes < profiler->size)
      return (PLUGIN_Profiler_Error *)error_make(INVALID, "the profile needs %zu bytes, found %zu", profiler->size,
                                                 args->buffer_size_in_bytes);
    memcpy(args->buffer, profiler->recording, profiler->size);
  }
  args->buffer_size_in_bytes = profiler->size;
  return NULL;
}

static PLUGIN_Profiler_Api api = {
    .struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE,
    .error_destroy = destroy_error, .error_message = read_error, .error_get_code = code_of_error,
    .create = create, .destroy = destroy, .start = start, .stop = stop, .collect_data = collect,
};

static PJRT_Profiler_Extension extension = {
    .base = {.struct_size = PJRT_Profiler_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Profiler},
    .profiler_api = &api, .traceme_context_id = -1,
};

/* Called by Python, once, before anybody has the table. */
__attribute__((visibility("default"))) void pjrt_native_profiler(profile_function profile) {
  function = profile;
  plugin_extend(&extension.base);
}
