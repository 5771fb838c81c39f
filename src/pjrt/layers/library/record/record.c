/* The layer "record": all calls with their inputs and results, into one file that `pjrt replay` runs again.
 *
 * What a call takes in is written before the plugin is called, so that a process that the plugin ends leaves a file
 * whose last record is that call. One mutex orders the calls of all threads; it is never held during a call. */
#include "pjrt_support/system.h"

#include <stdlib.h>
#include <string.h>

#include "value.h"
#include "view.h"

/* Host memory that the plugin fills until an event is ready. */
typedef struct pending_read {
  const void *event, *data;
  size_t size;
  uint64_t call;
} pending_read;

typedef struct recorder {
  pjrt_mutex mutex;
  pjrt_stack *stack;
  value_writer writer;
  record_bytes record; /* the record being put together */
  record_numbers outputs; /* how many outputs each loaded executable has, by its handle */
  uint64_t num_calls, num_callbacks;
  double start;
  pending_read *reads;
  size_t num_reads, max_reads;
} recorder;

static _Atomic uint32_t num_threads;
static _Thread_local uint32_t thread_number;

static uint32_t this_thread(void) {
  if (thread_number == 0) thread_number = atomic_fetch_add(&num_threads, 1) + 1;
  return thread_number;
}

static uint64_t nanoseconds_since(double start) { return (uint64_t)((pjrt_seconds() - start) * 1e9); }

/* ---- options ------------------------------------------------------------------------------------------------------*/
static void write_header(recorder *r, bool data) {
  char text[1024], name[512];
  size_t length = 0;
  for (const char *at = r->stack->name; *at && length + 2 < sizeof name; at++) {
    if (*at == '"' || *at == '\\') name[length++] = '\\';
    name[length++] = (unsigned char)*at < ' ' ? ' ' : *at;
  }
  name[length] = 0;
  const PJRT_Api *api = r->stack->plugin;
  snprintf(text, sizeof text,
           "{\"format\": 1, \"plugin\": \"%s\", \"api\": [%d, %d], \"table_size\": %zu, \"pointer_size\": %zu, "
           "\"data\": \"%s\"}",
           name, api->pjrt_api_version.major_version, api->pjrt_api_version.minor_version, api->struct_size,
           sizeof(void *), data ? "all" : "none");
  record_file_write(r->writer.file, RECORD_HEADER, text, strlen(text));
}

static void *record_open(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  static const char *const keys[] = {"file", "data", NULL};
  char key[64], path[4096] = "pjrt.rec", file[4128], data[16] = "all";
  if (pjrt_unknown_option(options, keys, key, sizeof key)) {
    snprintf(problem, problem_size, "record: expected the options file and data, found %s", key);
    return NULL;
  }
  pjrt_option(options, "file", path, sizeof path);
  pjrt_option(options, "data", data, sizeof data);
  if (strcmp(data, "all") != 0 && strcmp(data, "none") != 0) {
    snprintf(problem, problem_size, "record: expected data=all, or data=none to record host data without its contents, found %s",
             data);
    return NULL;
  }
  recorder *r = calloc(1, sizeof *r);
  if (r == NULL || !record_file_path(path, file, sizeof file)) {
    free(r);
    snprintf(problem, problem_size, "record: no memory is left");
    return NULL;
  }
  pjrt_mutex_init(&r->mutex);
  r->stack = stack;
  r->start = pjrt_seconds();
  r->writer.file = record_file_open(file, problem, problem_size);
  if (r->writer.file == NULL) {
    free(r);
    return NULL;
  }
  r->writer.leave_out = strcmp(data, "none") == 0;
  r->writer.num_outputs = SIZE_MAX;
  write_header(r, !r->writer.leave_out);
  return r;
}

/* ---- records ------------------------------------------------------------------------------------------------------*/
static void begin_record(recorder *r) {
  r->record.size = 0;
  r->writer.bytes.size = 0;
}

static void put_name(recorder *r, const char *name) {
  bytes_varint(&r->record, record_file_name(r->writer.file, name));
}

static void end_record(recorder *r, record_kind kind) {
  bytes_append(&r->record, r->writer.bytes.data, r->writer.bytes.size);
  if (!r->record.failed && !r->writer.bytes.failed)
    record_file_write(r->writer.file, kind, r->record.data, r->record.size);
}

/* ---- memory that is filled later ----------------------------------------------------------------------------------*/
/* The field with the memory that a call fills until the event of the same call is ready; null where there is none. */
static const pjrt_field *filled_later(const pjrt_function *function, const void *args, const pjrt_field **event) {
  const pjrt_struct *type = function->args;
  const pjrt_field *memory = NULL;
  *event = NULL;
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (!pjrt_has_field(type, field, args)) continue;
    if (field->kind == PJRT_KIND_BYTES && field->marks & PJRT_MARK_FILLS) memory = field;
    if (field->kind == PJRT_KIND_HANDLE && field->direction == PJRT_OUT && field->type == PJRT_HANDLE_Event)
      *event = field;
  }
  return *event != NULL ? memory : NULL;
}

static void remember_read(recorder *r, const void *event, const void *data, size_t size, uint64_t call) {
  if (r->num_reads == r->max_reads) {
    const size_t larger = r->max_reads ? r->max_reads * 2 : 16;
    pending_read *reads = realloc(r->reads, larger * sizeof *reads);
    if (reads == NULL) return;
    r->reads = reads;
    r->max_reads = larger;
  }
  r->reads[r->num_reads++] = (pending_read){event, data, size, call};
}

/* Records the memory, now that the event is ready and before the framework hears of it: after that the framework may
 * free the memory. With `ok` false the memory is not looked at. */
static void finish_read(recorder *r, const void *event, bool ok) {
  for (size_t i = 0; i < r->num_reads; i++) {
    if (r->reads[i].event != event) continue;
    const pending_read read = r->reads[i];
    r->reads[i] = r->reads[--r->num_reads];
    if (!ok) return;
    begin_record(r);
    bytes_varint(&r->record, read.call);
    value_put_data(&r->writer, read.data, read.size);
    end_record(r, RECORD_DATA);
    return;
  }
}

/* ---- buffers that are read in place -------------------------------------------------------------------------------*/
/* The buffer of a call after which the framework may read it in place, or before which it has done so. */
static PJRT_Buffer *viewed_buffer(const pjrt_frame *frame, const void *args, bool before) {
  if (before && frame->index == PJRT_FUNCTION_Buffer_DecreaseExternalReferenceCount)
    return ((const PJRT_Buffer_DecreaseExternalReferenceCount_Args *)args)->buffer;
  if (!before && frame->index == PJRT_FUNCTION_Buffer_OpaqueDeviceMemoryDataPointer)
    return ((const PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *)args)->buffer;
  return NULL;
}

/* Records the contents of a buffer, once, for the call that asked for its address: at that call if the contents are
 * there, otherwise when the framework gives the buffer back, which it does after it has read it. */
static void read_view(recorder *r, PJRT_Buffer *buffer, uint64_t asking_call) {
  const void *data;
  size_t size;
  const bool readable = record_view(r->stack, buffer, &data, &size);
  pjrt_mutex_lock(&r->mutex);
  struct record_number *entry =
      numbers_find(&r->writer.handles, (record_key){buffer, NULL, PJRT_HANDLE_Buffer});
  if (entry != NULL && asking_call != 0 && entry->value == 0) entry->value = asking_call;
  if (entry != NULL && readable && entry->value != 0 && entry->value != UINT64_MAX) {
    begin_record(r);
    bytes_varint(&r->record, entry->value);
    value_put_data(&r->writer, data, size);
    end_record(r, RECORD_DATA);
    entry->value = UINT64_MAX;
  }
  pjrt_mutex_unlock(&r->mutex);
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
static uint64_t begin_call(recorder *r, const pjrt_frame *frame, const void *args) {
  const uint16_t index = frame->index;
  value_writer *writer = &r->writer;
  begin_record(r);
  const uint64_t call = ++r->num_calls;
  bytes_varint(&r->record, call);
  bytes_varint(&r->record, this_thread());
  bytes_varint(&r->record, nanoseconds_since(r->start));
  put_name(r, frame->function->name);
  writer->host_data = index == PJRT_FUNCTION_AsyncHostToDeviceTransferManager_TransferData ||
                      index == PJRT_FUNCTION_CopyToDeviceStream_AddChunk ||
                      index == PJRT_FUNCTION_RawBuffer_CopyRawHostToDevice;
  writer->num_devices = index == PJRT_FUNCTION_LoadedExecutable_Execute
                            ? ((const PJRT_LoadedExecutable_Execute_Args *)args)->num_devices : 0;
  writer->shallow = index == PJRT_FUNCTION_Client_DmaMap; /* memory that is only registered */
  value_put_struct(writer, frame->function->args, args, PHASE_CALL);
  writer->host_data = writer->shallow = false;
  if (index == PJRT_FUNCTION_Client_BufferFromHostBuffer)
    value_put_host_buffer(writer, args);
  else if (index == PJRT_FUNCTION_AsyncHostToDeviceTransferManager_TransferLiteral)
    value_put_literal(writer, args);
  else
    value_put_text(writer, NULL, 0);
  end_record(r, RECORD_CALL);
  if (index == PJRT_FUNCTION_Event_Destroy) finish_read(r, ((const PJRT_Event_Destroy_Args *)args)->event, false);
  return call;
}

static void put_error(recorder *r, int error_kind, const PJRT_Error *error, bool is_new) {
  value_writer *writer = &r->writer;
  size_t size = 0;
  const char *message = pjrt_error_message(r->stack, error, &size);
  const PJRT_Error_Code code = pjrt_error_code(r->stack, error);
  const unsigned char tag = VALUE_LIST;
  bytes_append(&writer->bytes, &tag, 1);
  bytes_varint(&writer->bytes, 3);
  value_put_handle(writer, error_kind, error, is_new);
  value_put_number(writer, code);
  value_put_text(writer, message != NULL ? message : "", message != NULL ? size : 0);
}

static void end_call(recorder *r, const pjrt_frame *frame, const void *args, uint64_t call, uint64_t duration,
                     const void *result, size_t num_outputs, record_key removed, uint64_t removed_number,
                     bool succeeded) {
  const pjrt_function *function = frame->function;
  value_writer *writer = &r->writer;
  if (frame->index == PJRT_FUNCTION_Event_Await)
    finish_read(r, ((const PJRT_Event_Await_Args *)args)->event, result == NULL);
  if (frame->index == PJRT_FUNCTION_Event_IsReady && result == NULL &&
      ((const PJRT_Event_IsReady_Args *)args)->is_ready)
    finish_read(r, ((const PJRT_Event_IsReady_Args *)args)->event, succeeded);
  begin_record(r);
  bytes_varint(&r->record, call);
  bytes_varint(&r->record, duration);
  const pjrt_field *event;
  const pjrt_field *memory = filled_later(function, args, &event);
  if (result != NULL && function->result == PJRT_RESULT_ERROR) {
    put_error(r, PJRT_HANDLE_Error, result, true);
    value_put_text(writer, NULL, 0);
    if (removed_number != 0) numbers_restore(&writer->handles, removed, removed_number);
  } else {
    value_put_text(writer, NULL, 0);
    writer->num_outputs = num_outputs;
    writer->filled_later = memory != NULL;
    value_put_struct(writer, function->args, args, PHASE_RESULT);
    writer->filled_later = false;
    const void *data = memory != NULL ? pjrt_pointer_in(memory, args) : NULL,
               *ready = data ? pjrt_pointer_in(event, args) : NULL;
    if (ready != NULL) remember_read(r, ready, data, value_count(function->args, memory->count, args), call);
  }
  end_record(r, RECORD_RETURN);
}

/* How many outputs the executable has: the call itself does not state it. SIZE_MAX where the plugin does not answer. */
static size_t ask_num_outputs(pjrt_stack *stack, PJRT_LoadedExecutable *loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args get = {.struct_size = sizeof get, .loaded_executable = loaded};
  void *error = NULL;
  size_t count = SIZE_MAX;
  if (!pjrt_call_below(stack, PJRT_FUNCTION_LoadedExecutable_GetExecutable, &get, &error)) return count;
  if (error == NULL) {
    PJRT_Executable_NumOutputs_Args outputs = {.struct_size = sizeof outputs, .executable = get.executable};
    if (pjrt_call_below(stack, PJRT_FUNCTION_Executable_NumOutputs, &outputs, &error) && error == NULL)
      count = outputs.num_outputs;
    void *ignored = NULL;
    PJRT_Executable_Destroy_Args destroy = {.struct_size = sizeof destroy, .executable = get.executable};
    pjrt_call_below(stack, PJRT_FUNCTION_Executable_Destroy, &destroy, &ignored);
  }
  if (error != NULL) {
    void *ignored = NULL;
    PJRT_Error_Destroy_Args destroy = {.struct_size = sizeof destroy, .error = error};
    pjrt_call_below(stack, PJRT_FUNCTION_Error_Destroy, &destroy, &ignored);
  }
  return count;
}

static size_t num_outputs_of(recorder *r, const pjrt_frame *frame, const void *args) {
  if (frame->index != PJRT_FUNCTION_LoadedExecutable_Execute) return SIZE_MAX;
  PJRT_LoadedExecutable *loaded = ((const PJRT_LoadedExecutable_Execute_Args *)args)->executable;
  if (loaded == NULL) return SIZE_MAX;
  const record_key key = {loaded, NULL, PJRT_HANDLE_LoadedExecutable};
  pjrt_mutex_lock(&r->mutex);
  numbers_get(&r->writer.handles, key);
  const struct record_number *entry = numbers_find(&r->writer.handles, key);
  const uint64_t count = entry != NULL ? entry->value : 0;
  pjrt_mutex_unlock(&r->mutex);
  if (count != 0) return (size_t)count - 1;
  const size_t answer = ask_num_outputs(r->stack, loaded);
  pjrt_mutex_lock(&r->mutex);
  struct record_number *place = numbers_find(&r->writer.handles, key);
  if (place != NULL && answer != SIZE_MAX) place->value = answer + 1;
  pjrt_mutex_unlock(&r->mutex);
  return answer;
}

static void *record_call(void *state, pjrt_frame *frame, void *args) {
  recorder *r = state;
  if (!record_file_is_open(r->writer.file) || args == NULL) return pjrt_next(frame, args);
  const size_t num_outputs = num_outputs_of(r, frame, args);
  PJRT_Buffer *viewed = viewed_buffer(frame, args, true);
  if (viewed != NULL) read_view(r, viewed, 0);
  pjrt_mutex_lock(&r->mutex);
  r->writer.removed_number = 0;
  const uint64_t call = begin_call(r, frame, args);
  const record_key removed = r->writer.removed;
  const uint64_t removed_number = r->writer.removed_number;
  pjrt_mutex_unlock(&r->mutex);
  const double start = pjrt_seconds();
  void *result = pjrt_next(frame, args);
  const uint64_t duration = nanoseconds_since(start);
  const PJRT_Event_IsReady_Args *ready = args;
  const bool succeeded = frame->index == PJRT_FUNCTION_Event_IsReady && result == NULL && ready->is_ready &&
                         record_event_succeeded(r->stack, ready->event);
  pjrt_mutex_lock(&r->mutex);
  end_call(r, frame, args, call, duration, result, num_outputs, removed, removed_number, succeeded);
  pjrt_mutex_unlock(&r->mutex);
  viewed = result == NULL ? viewed_buffer(frame, args, false) : NULL;
  if (viewed != NULL) read_view(r, viewed, call);
  return result;
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------*/
/* The error that a callback is given, which it may destroy; null where there is none. */
static void put_callback_error(recorder *r, const pjrt_struct *type, const void *args) {
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->kind != PJRT_KIND_HANDLE || field->type != PJRT_HANDLE_Error || field->direction == PJRT_OUT) continue;
    const PJRT_Error *error = pjrt_pointer_in(field, args);
    if (error == NULL) continue;
    put_error(r, PJRT_HANDLE_Error, error, false);
    return;
  }
  value_put_text(&r->writer, NULL, 0);
}

static void *record_callback(void *state, pjrt_frame *frame, void *args) {
  recorder *r = state;
  if (!record_file_is_open(r->writer.file) || frame->origin == NULL) return pjrt_next_callback(frame, args);
  const pjrt_callback_origin *origin = frame->origin;
  value_writer *writer = &r->writer;
  pjrt_mutex_lock(&r->mutex);
  if (origin->function == PJRT_FUNCTION_Event_OnReady)
    finish_read(r, origin->handle, *(PJRT_Error *const *)args == NULL);
  begin_record(r);
  const uint64_t callback = ++r->num_callbacks;
  bytes_varint(&r->record, callback);
  void *target;
  memcpy(&target, &origin->target, sizeof target);
  const record_key key = {target, origin->user_arg, 0};
  const uint64_t number = frame->up ? numbers_get(&writer->callbacks, key)
                                    : value_function_of_plugin(writer, frame, args);
  /* It is called once: without this, the table would grow with each event. */
  if (frame->index == PJRT_CALLBACK_Event_OnReadyCallback) numbers_remove(&writer->callbacks, key);
  bytes_varint(&r->record, number);
  bytes_varint(&r->record, this_thread());
  put_name(r, frame->function->name);
  writer->is_callback = true;
  writer->host_data = origin->function == PJRT_FUNCTION_LoadedExecutable_Execute;
  value_put_struct(writer, frame->function->args, args, PHASE_CALL);
  writer->host_data = writer->is_callback = false;
  put_callback_error(r, frame->function->args, args);
  end_record(r, RECORD_CALLBACK);
  pjrt_mutex_unlock(&r->mutex);
  void *result = pjrt_next_callback(frame, args);
  pjrt_mutex_lock(&r->mutex);
  begin_record(r);
  bytes_varint(&r->record, callback);
  value_put_struct(writer, frame->function->args, args, PHASE_RESULT);
  end_record(r, RECORD_CALLBACK_RETURN);
  pjrt_mutex_unlock(&r->mutex);
  return result;
}

static void record_close(void *state) {
  recorder *r = state;
  if (!record_file_is_open(r->writer.file)) return;
  pjrt_mutex_lock(&r->mutex);
  begin_record(r);
  bytes_varint(&r->record, r->num_calls);
  end_record(r, RECORD_END);
  record_file_close(r->writer.file);
  pjrt_mutex_unlock(&r->mutex);
}

const pjrt_layer pjrt_layer_record = {"record", record_open, record_call, record_callback, NULL, record_close};
