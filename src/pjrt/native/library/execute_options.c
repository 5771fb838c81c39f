/* What a framework gives to one execution beside its arguments: an id, the place of the call, data for handlers, and
 * functions that take or give values while the program runs.
 *
 * A worker gets a message {1 token, 2 launch id, 3 place of the call, 4 tasks, 5 their incarnations, 6 channels of sends,
 * 7 channels of receives, 8 callbacks of values, 9 their operands, 10 whether data is in rows, 11 types of the context's
 * data, 12 its addresses, 13 and 14 the code and the text of an error: an argument has it}. It asks for a function with {1 token, 2 kind, 3 channel or callback, 4 data, 5 total bytes, 6
 * whether it is the last piece, 7 granule, 8 replica, 9 partition, 10 operand, 11 type, 12 dimensions}. */
#include "pjrt_support/execute_context.h"
#include "runtime.h"

enum { SEND = 1, RECEIVE = 2, VALUE = 3 };

struct execute_options {
  atomic_int refs;
  uint64_t token;
  PJRT_SendCallbackInfo *sends;
  PJRT_RecvCallbackInfo *receives;
  PJRT_HloOutputCallbackInfo *values;
  size_t num_sends, num_receives, num_values;
  bytes message;
  execute_options *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static execute_options *running;
static uint64_t last_token;

/* ---- contexts -----------------------------------------------------------------------------------------------------------*/
PJRT_Error *native_ExecuteContext_Create(PJRT_ExecuteContext_Create_Args *args) {
  args->context = (PJRT_ExecuteContext *)pjrt_context_new();
  return args->context ? NULL : pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for an execute context");
}

PJRT_Error *native_ExecuteContext_Destroy(PJRT_ExecuteContext_Destroy_Args *args) {
  pjrt_context_free((pjrt_context *)args->context);
  return NULL;
}

PJRT_Error *context_add(PJRT_ExecuteContext *context, int64_t type_id, void *data) {
  if (context == NULL) return error_make(INVALID, "expected an execute context, found null");
  if (pjrt_context_has((pjrt_context *)context, type_id))
    return error_make(PJRT_Error_Code_ALREADY_EXISTS, "the execute context has data of the type %lld already",
                      (long long)type_id);
  if (pjrt_context_add((pjrt_context *)context, type_id, data)) return NULL;
  return pjrt_error_of_text(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for data of an execute context");
}

static void write_context(const PJRT_ExecuteOptions *options, bytes *out) {
  if (!HAS(options, PJRT_ExecuteOptions, context) || options->context == NULL) return;
  const pjrt_context_data *data = pjrt_context_last((pjrt_context *)options->context);
  for (; data; data = data->next) {
    proto_varint(out, 11, (uint64_t)data->type_id);
    proto_varint(out, 12, (uint64_t)(uintptr_t)data->address);
  }
}

/* ---- what an execution was given ------------------------------------------------------------------------------------------*/
/* The id tells the parts of a launch from those of others: JAX gives one to each, also where there is one part. */
static void write_plain(const PJRT_ExecuteOptions *options, const executable *of, bytes *out) {
  if (options->launch_id && of->num_replicas * of->num_partitions > 1) proto_varint(out, 2, (uint64_t)(int64_t)options->launch_id);
  if (HAS(options, PJRT_ExecuteOptions, call_location) && options->call_location && *options->call_location)
    proto_bytes(out, 3, options->call_location, strlen(options->call_location));
  if (HAS(options, PJRT_ExecuteOptions, incarnation_ids) && options->task_ids && options->incarnation_ids) {
    for (size_t i = 0; i < options->num_tasks; ++i) {
      proto_varint(out, 4, (uint64_t)(int64_t)options->task_ids[i]);
      proto_varint(out, 5, (uint64_t)options->incarnation_ids[i]);
    }
  }
}

static void take_functions(const PJRT_ExecuteOptions *options, size_t list, execute_options *out) {
  if (options->num_send_ops && options->send_callbacks) {
    out->num_sends = options->num_send_ops;
    out->sends = copy_of(options->send_callbacks[list], out->num_sends * sizeof *out->sends);
  }
  if (options->num_recv_ops && options->recv_callbacks) {
    out->num_receives = options->num_recv_ops;
    out->receives = copy_of(options->recv_callbacks[list], out->num_receives * sizeof *out->receives);
  }
  if (HAS(options, PJRT_ExecuteOptions, num_hlo_output_callbacks) && options->num_hlo_output_callbacks &&
      options->hlo_output_callbacks) {
    out->num_values = options->num_hlo_output_callbacks;
    out->values = copy_of(options->hlo_output_callbacks, out->num_values * sizeof *out->values);
  }
}

static void write_functions(const PJRT_ExecuteOptions *options, execute_options *of) {
  proto_varint(&of->message, 1, of->token);
  for (size_t i = 0; i < of->num_sends; ++i) proto_varint(&of->message, 6, (uint64_t)of->sends[i].channel_id);
  for (size_t i = 0; i < of->num_receives; ++i) proto_varint(&of->message, 7, (uint64_t)of->receives[i].channel_id);
  for (size_t i = 0; i < of->num_values; ++i) {
    proto_varint(&of->message, 8, (uint64_t)of->values[i].callback_id);
    proto_varint(&of->message, 9, of->values[i].num_operands);
  }
  if (HAS(options, PJRT_ExecuteOptions, use_major_to_minor_data_layout_for_callbacks))
    proto_varint(&of->message, 10, options->use_major_to_minor_data_layout_for_callbacks);
}

execute_options *execute_options_make(const PJRT_ExecuteOptions *options, const executable *of, size_t list,
                                      bool has_contexts) {
  if (options == NULL) return NULL;
  execute_options given = {0};
  write_plain(options, of, &given.message);
  if (has_contexts) write_context(options, &given.message);
  take_functions(options, list, &given);
  bool has_functions = given.num_sends || given.num_receives || given.num_values;
  if (!has_functions && given.message.size == 0) return NULL;
  execute_options *each = new_zeroed(1, sizeof *each);
  *each = given;
  atomic_init(&each->refs, 1);
  if (!has_functions) return each;
  pthread_mutex_lock(&mutex);
  each->token = ++last_token;
  each->next = running;
  running = each;
  pthread_mutex_unlock(&mutex);
  write_functions(options, each);
  return each;
}

execute_options *execute_options_fail(execute_options *owned, PJRT_Error *borrowed) {
  execute_options *each = owned ? owned : new_zeroed(1, sizeof *each);
  const char *text;
  size_t size;
  if (!owned) atomic_init(&each->refs, 1);
  pjrt_error_read(borrowed, &text, &size);
  proto_varint(&each->message, 13, pjrt_error_code(borrowed));
  proto_bytes(&each->message, 14, text, size < PJRT_DRIVER_MESSAGE_SIZE ? size : PJRT_DRIVER_MESSAGE_SIZE);
  return each;
}

const bytes *execute_options_message(const execute_options *each) { return &each->message; }

static void unref(execute_options *each) {
  if (atomic_fetch_sub(&each->refs, 1) != 1) return;
  free(each->sends);
  free(each->receives);
  free(each->values);
  free(each->message.data);
  free(each);
}

/* The execution has ended: nobody finds its functions any more. */
void execute_options_end(execute_options *owned) {
  if (owned == NULL) return;
  pthread_mutex_lock(&mutex);
  execute_options **place = &running;
  while (owned->token && *place && *place != owned) place = &(*place)->next;
  if (owned->token && *place) *place = owned->next;
  pthread_mutex_unlock(&mutex);
  unref(owned);
}

static execute_options *find_running(uint64_t token) {
  pthread_mutex_lock(&mutex);
  execute_options *each = running;
  while (each && each->token != token) each = each->next;
  if (each) atomic_fetch_add(&each->refs, 1);
  pthread_mutex_unlock(&mutex);
  return each;
}

/* ---- streams: what a program receives ---------------------------------------------------------------------------------------*/
struct PJRT_CopyToDeviceStream {
  pthread_mutex_t mutex; /* guards what follows */
  int64_t total, granule;
  bytes data;
  reply *reply; /* null once the program has what it wanted, or the error */
};

PJRT_Error *native_CopyToDeviceStream_AddChunk(PJRT_CopyToDeviceStream_AddChunk_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  PJRT_Chunk *chunk = args->chunk;
  PJRT_Error *error = NULL;
  reply *complete = NULL;
  pthread_mutex_lock(&stream->mutex);
  int64_t missing = stream->total - (int64_t)stream->data.size;
  if (chunk->size % (size_t)stream->granule)
    error = error_make(INVALID, "expected a chunk of a multiple of %lld bytes, found %zu", (long long)stream->granule,
                       chunk->size);
  else if (chunk->size > (size_t)missing)
    error = error_make(INVALID, "expected at most %lld more bytes of %lld, found a chunk of %zu", (long long)missing,
                       (long long)stream->total, chunk->size);
  else
    bytes_add(&stream->data, chunk->data, chunk->size);
  if (!error && (int64_t)stream->data.size == stream->total) {
    complete = stream->reply;
    stream->reply = NULL;
  }
  pthread_mutex_unlock(&stream->mutex);
  if (complete) reply_send(complete, NULL, &stream->data);
  if (chunk->deleter) chunk->deleter(chunk->data, chunk->deleter_arg);
  if (!error) args->transfer_complete = event_make(&completion_done);
  return error;
}

PJRT_Error *native_CopyToDeviceStream_Destroy(PJRT_CopyToDeviceStream_Destroy_Args *args) {
  PJRT_CopyToDeviceStream *stream = args->stream;
  if (stream == NULL) return NULL;
  if (stream->reply)
    reply_send(stream->reply, error_make(PJRT_Error_Code_CANCELLED, "the stream was destroyed after %zu of %lld bytes",
                                         stream->data.size, (long long)stream->total), NULL);
  free(stream->data.data);
  pthread_mutex_destroy(&stream->mutex);
  free(stream);
  return NULL;
}

PJRT_Error *native_CopyToDeviceStream_TotalBytes(PJRT_CopyToDeviceStream_TotalBytes_Args *args) {
  args->total_bytes = args->stream->total;
  return NULL;
}

PJRT_Error *native_CopyToDeviceStream_GranuleSize(PJRT_CopyToDeviceStream_GranuleSize_Args *args) {
  args->granule_size_in_bytes = args->stream->granule;
  return NULL;
}

PJRT_Error *native_CopyToDeviceStream_CurrentBytes(PJRT_CopyToDeviceStream_CurrentBytes_Args *args) {
  pthread_mutex_lock(&args->stream->mutex);
  args->current_bytes = (int64_t)args->stream->data.size;
  pthread_mutex_unlock(&args->stream->mutex);
  return NULL;
}

/* ---- calls of the framework's functions -------------------------------------------------------------------------------------*/
typedef struct transfer {
  uint64_t token;
  int kind, type;
  int64_t channel, total, granule, replica, partition, operand;
  bool is_last;
  proto_field data;
  size_t rank;
  int64_t dims[MAX_RANK];
} transfer;

static bool read_transfer(const proto_field *from, transfer *out) {
  *out = (transfer){.granule = 1};
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    int64_t number = (int64_t)field.value;
    if (field.number == 4 && field.wire == 2) out->data = field;
    if (field.number == 12) out->rank += proto_int64s(&field, out->dims + out->rank, MAX_RANK - out->rank);
    if (out->rank > MAX_RANK) return false;
    if (field.wire != 0) continue;
    if (field.number == 1) out->token = field.value;
    if (field.number == 2) out->kind = (int)number;
    if (field.number == 3) out->channel = number;
    if (field.number == 5) out->total = number;
    if (field.number == 6) out->is_last = number != 0;
    if (field.number == 7) out->granule = number;
    if (field.number == 8) out->replica = number;
    if (field.number == 9) out->partition = number;
    if (field.number == 10) out->operand = number;
    if (field.number == 11) out->type = (int)number;
  }
  return cursor == end && out->total >= 0 && out->granule > 0;
}

static void free_chunk(void *data, void *arg) {
  (void)arg;
  free(data);
}

static PJRT_Error *send_value(const PJRT_SendCallbackInfo *to, const transfer *of) {
  PJRT_Chunk chunk = {.data = copy_of(of->data.data, of->data.size), .size = of->data.size, .deleter = free_chunk};
  PJRT_CallbackError make_error = pjrt_error_new;
  return to->send_callback(&chunk, &make_error, (size_t)of->total, of->is_last, to->user_arg);
}

static void receive_value(const PJRT_RecvCallbackInfo *from, const transfer *of, reply *owned) {
  PJRT_CopyToDeviceStream *stream = new_zeroed(1, sizeof *stream);
  pthread_mutex_init(&stream->mutex, NULL);
  stream->total = of->total;
  stream->granule = of->granule;
  stream->reply = owned;
  from->recv_callback(stream, from->user_arg);
}

static PJRT_Error *tell_value(const PJRT_HloOutputCallbackInfo *to, const transfer *of) {
  shape whole;
  PJRT_Error *error = shape_init(&whole, (PJRT_Buffer_Type)of->type, of->dims, of->rank, NULL);
  if (!error && shape_size(&whole) != of->data.size)
    error = error_make(PJRT_Error_Code_INTERNAL, "expected a value of %zu bytes, found %zu", shape_size(&whole), of->data.size);
  if (error) return error;
  char *data = copy_of(of->data.data, of->data.size); /* aligned */
  to->callback(of->replica, of->partition, data, whole.dims, of->rank, whole.type, of->operand, to->user_arg);
  free(data);
  return NULL;
}

void execute_options_call(const proto_field *question, reply *owned) {
  transfer of;
  execute_options *each = read_transfer(question, &of) ? find_running(of.token) : NULL;
  PJRT_Error *error =
      error_make(PJRT_Error_Code_NOT_FOUND, "the execution has no callback %lld of this kind", (long long)of.channel);
  for (size_t i = 0; each && of.kind == SEND && i < each->num_sends; ++i) {
    if (each->sends[i].channel_id != of.channel) continue;
    pjrt_error_release(error);
    error = send_value(&each->sends[i], &of);
    break;
  }
  for (size_t i = 0; each && of.kind == VALUE && i < each->num_values; ++i) {
    if (each->values[i].callback_id != of.channel) continue;
    pjrt_error_release(error);
    error = tell_value(&each->values[i], &of);
    break;
  }
  for (size_t i = 0; each && of.kind == RECEIVE && owned && i < each->num_receives; ++i) {
    if (each->receives[i].channel_id != of.channel) continue;
    receive_value(&each->receives[i], &of, owned);
    owned = NULL;
  }
  if (each) unref(each);
  if (owned) reply_send(owned, error, NULL);
  else pjrt_error_release(error);
}
