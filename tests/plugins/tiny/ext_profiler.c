/* The Profiler extension: counts the executions between start and stop, and tells them as an XSpace with one plane
 * whose name holds the number. */
#include "tiny.h"

struct PLUGIN_Profiler {
  bool running;
  long long first, last;
  tiny_bytes data;
};
struct PLUGIN_Profiler_Error {
  tiny_status *status;
};

atomic_llong executions_started;

static PLUGIN_Profiler_Error *fail(const char *message) {
  PLUGIN_Profiler_Error *error = tiny_calloc(1, sizeof *error);
  error->status = status_make(PJRT_Error_Code_FAILED_PRECONDITION, "%s", message);
  live_add(LIVE_ERROR, 1);
  return error;
}

static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args *args) {
  if (args->error == NULL) return;
  status_unref(args->error->status);
  free(args->error);
  live_add(LIVE_ERROR, -1);
}

static void error_message(PLUGIN_Profiler_Error_Message_Args *args) {
  args->message = status_message(args->error->status, &args->message_size);
}

static PLUGIN_Profiler_Error *error_get_code(PLUGIN_Profiler_Error_GetCode_Args *args) {
  args->code = (int)status_code(args->error->status);
  return NULL;
}

static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *args) {
  args->profiler = tiny_calloc(1, sizeof *args->profiler);
  live_add(LIVE_PROFILER, 1);
  return NULL;
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args) {
  if (args->profiler == NULL) return NULL;
  free(args->profiler->data.data);
  free(args->profiler);
  live_add(LIVE_PROFILER, -1);
  return NULL;
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args) {
  if (args->profiler->running) return fail("The profiler runs already");
  args->profiler->running = true;
  args->profiler->first = atomic_load(&executions_started);
  return NULL;
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args) {
  if (!args->profiler->running) return fail("The profiler does not run");
  args->profiler->running = false;
  args->profiler->last = atomic_load(&executions_started);
  return NULL;
}

static PLUGIN_Profiler_Error *collect(PLUGIN_Profiler_CollectData_Args *args) {
  PLUGIN_Profiler *profiler = args->profiler;
  if (profiler->running) return fail("The profiler still runs");
  if (profiler->data.size == 0) {
    tiny_bytes plane = {0};
    char *name = tiny_printf("/device:TINY executions=%lld", profiler->last - profiler->first);
    proto_varint(&plane, 1, 1);
    proto_bytes(&plane, 2, name, strlen(name));
    proto_bytes(&profiler->data, 1, plane.data, plane.size);
    free(plane.data);
    free(name);
  }
  if (args->buffer) memcpy(args->buffer, profiler->data.data, profiler->data.size);
  args->buffer_size_in_bytes = profiler->data.size;
  return NULL;
}

static PLUGIN_Profiler_Api api = {
    .struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE,
    .error_destroy = error_destroy,
    .error_message = error_message,
    .error_get_code = error_get_code,
    .create = create,
    .destroy = destroy,
    .start = start,
    .stop = stop,
    .collect_data = collect,
};

PJRT_Profiler_Extension profiler_extension = {
    TINY_EXTENSION(PJRT_Profiler_Extension, Profiler),
    .profiler_api = &api,
    .traceme_context_id = -1,
};
