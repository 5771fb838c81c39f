/* The extension Profiler: sessions that the Python of devices records, in this process or in those of workers; or that the
 * runtime records, of a driver in C. Its errors are PJRT_Errors under another name. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

/* A session of one process, or of one client. */
typedef struct part {
  PJRT_Client *client; /* a reference: its worker records, or the runtime; null for the Python of this process */
  recording *own;      /* the runtime's; null for Python */
  uint64_t number;
} part;

struct PLUGIN_Profiler {
  part *parts;
  size_t num_parts;
  bool is_recorded;
  bytes recording; /* the latest: all fields of an XSpace are lists, and those of several processes follow one another */
};

static PJRT_Error *ask(const part *of, const char *verb, const PLUGIN_Profiler_Create_Args *given, answer *out) {
  const char *place = setting("profiler");
  bytes request = {0};
  proto_bytes(&request, 1, "profile", strlen("profile"));
  proto_bytes(&request, 2, verb, strlen(verb));
  if (given) proto_bytes(&request, 4, given->options, given->options_size);
  proto_varint(&request, 5, of->number);
  if (place) proto_bytes(&request, 6, place, strlen(place));
  void *thread = interpreter_release(); /* Python takes the lock itself */
  PJRT_Error *error = of->client ? of->client->python->ask(of->client->driver, &request, out) : here_profile(&request, out);
  interpreter_take(thread);
  free(request.data);
  return error;
}

static PJRT_Error *record(part *of, const char *verb, bytes *recorded) {
  if (strcmp(verb, "collect") == 0) recording_write(of->own, recorded);
  else if (strcmp(verb, "destroy") == 0) recording_free(of->own);
  else return recording_switch(of->own, strcmp(verb, "start") == 0);
  return NULL;
}

/* Does it in all processes, and returns the first error. */
static PLUGIN_Profiler_Error *do_all(PLUGIN_Profiler *profiler, const char *verb) {
  PJRT_Error *first = NULL;
  for (size_t i = 0; i < profiler->num_parts; ++i) {
    part *each = &profiler->parts[i];
    answer given;
    PJRT_Error *error = each->own ? record(each, verb, &profiler->recording) : ask(each, verb, NULL, &given);
    if (!error && !each->own) {
      bytes_add(&profiler->recording, given.data, given.data_size);
      answer_free(&given);
    } else if (first || !error) {
      pjrt_error_release(error);
    } else {
      first = error;
    }
  }
  return (PLUGIN_Profiler_Error *)first;
}

static void free_profiler(PLUGIN_Profiler *profiler) {
  for (size_t i = 0; i < profiler->num_parts; ++i) {
    if (profiler->parts[i].client) client_unref(profiler->parts[i].client);
  }
  free(profiler->parts);
  free(profiler->recording.data);
  free(profiler);
}

/* XLA's caller leaves the sizes of these structs as they are on its stack, and no version of them was shorter: only those of
 * errors are looked at. The first two can return no error. */
static void destroy_error(PLUGIN_Profiler_Error_Destroy_Args *args) {
  if (args->struct_size >= PLUGIN_Profiler_Error_Destroy_Args_FIRST_STRUCT_SIZE)
    pjrt_error_release((PJRT_Error *)args->error);
}

static void read_error(PLUGIN_Profiler_Error_Message_Args *args) {
  if (args->struct_size >= PLUGIN_Profiler_Error_Message_Args_FIRST_STRUCT_SIZE)
    pjrt_error_read((const PJRT_Error *)args->error, &args->message, &args->message_size);
}

static PLUGIN_Profiler_Error *code_of_error(PLUGIN_Profiler_Error_GetCode_Args *args) {
  PJRT_Error *too_short = pjrt_check_size(args, PLUGIN_Profiler_Error_GetCode_Args_FIRST_STRUCT_SIZE,
                                          "PLUGIN_Profiler_Error_GetCode_Args");
  if (too_short) return (PLUGIN_Profiler_Error *)too_short;
  args->code = (int)pjrt_error_code((const PJRT_Error *)args->error);
  return NULL;
}

/* A session of all clients that there are. */
static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *args) {
  PLUGIN_Profiler *profiler = new_zeroed(1, sizeof *profiler);
  size_t count = 1;
  PJRT_Client **clients = here_has_profiler() ? NULL : clients_of_process(&count);
  profiler->parts = new_zeroed(count, sizeof *profiler->parts);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < count; ++i) {
    part each = {.client = clients ? clients[i] : NULL};
    answer given = {0};
    if (!error && driver_is_in_c()) each.own = recording_make(each.client);
    else if (!error) error = ask(&each, "create", args, &given);
    if (!error) {
      each.number = given.number;
      profiler->parts[profiler->num_parts++] = each;
      answer_free(&given);
    } else if (each.client) {
      client_unref(each.client);
    }
  }
  free(clients);
  if (!error) {
    args->profiler = profiler;
    return NULL;
  }
  pjrt_error_release((PJRT_Error *)do_all(profiler, "destroy"));
  free_profiler(profiler);
  return (PLUGIN_Profiler_Error *)error;
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args) {
  if (args->profiler == NULL) return NULL;
  PLUGIN_Profiler_Error *error = do_all(args->profiler, "destroy");
  free_profiler(args->profiler);
  return error;
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args) {
  return do_all(args->profiler, "start");
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args) {
  return do_all(args->profiler, "stop");
}

/* Called without memory, which collects anew and gives memory of the profiler's, which XLA's caller reads; or twice: for the
 * size, then with memory of that size. */
static PLUGIN_Profiler_Error *collect(PLUGIN_Profiler_CollectData_Args *args) {
  PLUGIN_Profiler *profiler = args->profiler;
  if (args->buffer == NULL || !profiler->is_recorded) {
    profiler->recording.size = 0;
    PLUGIN_Profiler_Error *error = do_all(profiler, "collect");
    if (error) return error;
    profiler->is_recorded = true;
  }
  size_t size = profiler->recording.size;
  if (args->buffer != NULL) {
    if (args->buffer_size_in_bytes < size)
      return (PLUGIN_Profiler_Error *)error_make(INVALID, "the profile needs %zu bytes, found %zu", size,
                                                 args->buffer_size_in_bytes);
    if (size) memcpy(args->buffer, profiler->recording.data, size);
  } else {
    args->buffer = (uint8_t *)profiler->recording.data;
  }
  args->buffer_size_in_bytes = size;
  return NULL;
}

static PLUGIN_Profiler_Api api = {
    .struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE,
    .error_destroy = destroy_error, .error_message = read_error, .error_get_code = code_of_error,
    .create = create, .destroy = destroy, .start = start, .stop = stop, .collect_data = collect,
};

PJRT_Profiler_Extension profiler_extension = {
    .base = {.struct_size = PJRT_Profiler_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Profiler},
    .profiler_api = &api, .traceme_context_id = -1,
};
