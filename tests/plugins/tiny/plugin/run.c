/* Running the statements of a program on one device. */
#include <time.h>

#include "tiny.h"
#include "xla_ffi.h"

/* ---- elementwise arithmetic -----------------------------------------------------------------------------------------*/
bool arithmetic_supports(PJRT_Buffer_Type type) {
  return (type >= PJRT_Buffer_Type_S8 && type <= PJRT_Buffer_Type_U64) || type == PJRT_Buffer_Type_F32 ||
         type == PJRT_Buffer_Type_F64;
}

/* Integers wrap around: they are added as unsigned numbers of their width. */
#define EACH_TYPE(X)                                                                                                  \
  X(PJRT_Buffer_Type_S8, uint8_t)                                                                                     \
  X(PJRT_Buffer_Type_U8, uint8_t)                                                                                     \
  X(PJRT_Buffer_Type_S16, uint16_t)                                                                                   \
  X(PJRT_Buffer_Type_U16, uint16_t)                                                                                   \
  X(PJRT_Buffer_Type_S32, uint32_t)                                                                                   \
  X(PJRT_Buffer_Type_U32, uint32_t)                                                                                   \
  X(PJRT_Buffer_Type_S64, uint64_t)                                                                                   \
  X(PJRT_Buffer_Type_U64, uint64_t)                                                                                   \
  X(PJRT_Buffer_Type_F32, float)                                                                                      \
  X(PJRT_Buffer_Type_F64, double)

#define DEFINE(tag, type)                                                                                             \
  static void run_##tag(tiny_opcode op, type *out, const type *a, const type *b, int64_t count) {                     \
    for (int64_t i = 0; i < count; ++i) {                                                                             \
      if (op == OP_ADD) out[i] = (type)(a[i] + b[i]);                                                                 \
      else if (op == OP_SUB) out[i] = (type)(a[i] - b[i]);                                                            \
      else if (op == OP_MUL) out[i] = (type)((type)1 * a[i] * b[i]);                                                  \
      else out[i] = (type)(-a[i]);                                                                                    \
    }                                                                                                                 \
  }
EACH_TYPE(DEFINE)

static void arithmetic(tiny_opcode op, PJRT_Buffer_Type type, char *out, const char *a, const char *b, int64_t count) {
  switch (type) {
#define CASE(tag, c_type)                                                                                             \
  case tag:                                                                                                           \
    run_##tag(op, (c_type *)out, (const c_type *)a, (const c_type *)b, count);                                        \
    break;
    EACH_TYPE(CASE)
    default:
      break; /* the parser lets no other type through */
  }
}

static bool arithmetic_fill(PJRT_Buffer_Type type, char *out, double value, int64_t count) {
  switch (type) {
#define FILL(tag, c_type)                                                                                             \
  case tag:                                                                                                           \
    for (int64_t i = 0; i < count; ++i)                                                                               \
      ((c_type *)out)[i] = tag == PJRT_Buffer_Type_F32 || tag == PJRT_Buffer_Type_F64 ? (c_type)value                 \
                                                                                      : (c_type)(int64_t)value;       \
    return true;
    EACH_TYPE(FILL)
    default:
      return false;
  }
}

/* ---- the sum across devices ---------------------------------------------------------------------------------------*/
struct tiny_meeting {
  atomic_int refs;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  size_t participants, arrived;
  uint64_t round;
  char *sum, *result;
  PJRT_Error *failed;
};

tiny_meeting *meeting_make(size_t participants) {
  tiny_meeting *meeting = new_zeroed(1, sizeof *meeting);
  atomic_init(&meeting->refs, 1);
  pthread_mutex_init(&meeting->mutex, NULL);
  pthread_cond_init(&meeting->changed, NULL);
  meeting->participants = participants;
  return meeting;
}

tiny_meeting *meeting_ref(tiny_meeting *meeting) {
  if (meeting) atomic_fetch_add(&meeting->refs, 1);
  return meeting;
}

void meeting_unref(tiny_meeting *meeting) {
  if (meeting == NULL || atomic_fetch_sub(&meeting->refs, 1) != 1) return;
  pjrt_error_release(meeting->failed);
  free(meeting->sum);
  free(meeting->result);
  pthread_cond_destroy(&meeting->changed);
  pthread_mutex_destroy(&meeting->mutex);
  free(meeting);
}

void meeting_fail(tiny_meeting *meeting, PJRT_Error *borrowed) {
  if (meeting == NULL) return;
  pthread_mutex_lock(&meeting->mutex);
  if (meeting->failed == NULL) meeting->failed = pjrt_error_share(borrowed);
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->mutex);
}

static PJRT_Error *meeting_all_reduce(tiny_meeting *meeting, PJRT_Buffer_Type type, char *data, int64_t count) {
  size_t size = (size_t)count * element_bits(type) / 8;
  pthread_mutex_lock(&meeting->mutex);
  uint64_t round = meeting->round;
  if (meeting->sum == NULL) meeting->sum = copy_of(data, size);
  else arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);
  if (++meeting->arrived == meeting->participants) {
    free(meeting->result); /* everybody has read it: they all arrived here again */
    meeting->result = meeting->sum;
    meeting->sum = NULL;
    meeting->arrived = 0;
    ++meeting->round;
    pthread_cond_broadcast(&meeting->changed);
  }
  while (meeting->round == round && meeting->failed == NULL) pthread_cond_wait(&meeting->changed, &meeting->mutex);
  PJRT_Error *error = meeting->round == round ? pjrt_error_share(meeting->failed) : NULL;
  if (error == NULL && size) memcpy(data, meeting->result, size);
  pthread_mutex_unlock(&meeting->mutex);
  return error;
}
/* ---- sums of products -----------------------------------------------------------------------------------------------
 * Sums of products over named dimensions: matrix products, transposes, sums and broadcasts in one operation.
 *
 *   let z = einsum ab,bc->ac f32[2,4] x y     z[a,c] = the sum over b of x[a,b] * y[b,c]
 *
 * A letter of the result that no operand has repeats the value along that dimension. */
enum { MAX_LETTERS = 26 };

typedef struct sum {
  int64_t sizes[MAX_LETTERS];
  int64_t strides[3][MAX_LETTERS]; /* in elements, of the operands and of the result */
  int order[MAX_LETTERS];          /* the letters of the result, then the others */
  int num_letters, num_results;
} sum;

/* Enters the letters of one array, from `spec` on; returns the place behind them, or null where they do not fit. */
static const char *enter(sum *s, const char *spec, const shape *of, int which) {
  int64_t stride = shape_elements(of);
  for (size_t i = 0; i < of->rank; ++i, ++spec) {
    if (*spec < 'a' || *spec > 'z') return NULL;
    int letter = *spec - 'a';
    if (s->sizes[letter] >= 0 && s->sizes[letter] != of->dims[i]) return NULL;
    bool seen = s->sizes[letter] >= 0;
    s->sizes[letter] = of->dims[i];
    stride = of->dims[i] ? stride / of->dims[i] : 0;
    s->strides[which][letter] += stride;
    if (!seen) s->order[s->num_letters++] = letter;
  }
  return spec;
}

static bool make_sum(sum *s, const tiny_op *op, const tiny_value *values, const shape *result) {
  *s = (sum){0};
  for (int i = 0; i < MAX_LETTERS; ++i) s->sizes[i] = -1;
  const char *arrow = strstr(op->text, "->");
  const char *end = arrow ? enter(s, arrow + 2, result, 2) : NULL;
  if (end == NULL || *end) return false;
  s->num_results = s->num_letters;
  const char *at = op->text;
  for (size_t i = 0; i < op->num_operands; ++i) {
    if (i && *at++ != ',') return false;
    at = enter(s, at, &values[op->operands[i]].shape, (int)i);
    if (at == NULL) return false;
  }
  return at == arrow;
}

bool einsum_fits(const tiny_op *op, const tiny_value *values, const shape *result) {
  sum s;
  if (result->type != PJRT_Buffer_Type_F32 || op->num_operands < 1 || op->num_operands > 2) return false;
  for (size_t i = 0; i < op->num_operands; ++i) {
    if (values[op->operands[i]].shape.type != PJRT_Buffer_Type_F32) return false;
  }
  return make_sum(&s, op, values, result);
}

/* Steps to the next element of some dimensions, the last of which is the fastest. False behind the last element. */
static bool step_on(const sum *s, int64_t *index, int64_t offsets[3], int first, int last) {
  for (int i = last - 1; i >= first; --i) {
    int letter = s->order[i];
    for (int k = 0; k < 3; ++k) offsets[k] += s->strides[k][letter];
    if (++index[letter] < s->sizes[letter]) return true;
    for (int k = 0; k < 3; ++k) offsets[k] -= s->strides[k][letter] * s->sizes[letter];
    index[letter] = 0;
  }
  return false;
}

static void einsum_run(const tiny_op *op, const tiny_value *values, char *const *data) {
  sum s;
  make_sum(&s, op, values, &values[op->result].shape);
  const float *a = (const float *)data[op->operands[0]];
  const float *b = op->num_operands > 1 ? (const float *)data[op->operands[1]] : NULL;
  float *out = (float *)data[op->result];
  int64_t index[MAX_LETTERS] = {0}, offsets[3] = {0};
  bool empty = false;
  for (int i = s.num_results; i < s.num_letters; ++i) empty = empty || s.sizes[s.order[i]] == 0;
  if (shape_elements(&values[op->result].shape) == 0) return;
  do {
    double total = 0;
    if (!empty) {
      do total += (double)a[offsets[0]] * (b ? (double)b[offsets[1]] : 1.0);
      while (step_on(&s, index, offsets, s.num_results, s.num_letters));
    }
    out[offsets[2]] = (float)total;
  } while (step_on(&s, index, offsets, 0, s.num_results));
}

/* ---- statements -----------------------------------------------------------------------------------------------------*/
static void sleep_for(int64_t milliseconds) {
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0) continue;
}

/* Those of the statements "payload" before it. */
static PJRT_Error *fail(const tiny_run *run, const tiny_op *op) {
  PJRT_Error *error = error_make((PJRT_Error_Code)op->number, "%s", op->text);
  for (const tiny_op *each = run->program->ops; each < op; ++each) {
    if (each->code == OP_PAYLOAD)
      pjrt_error_add_payload(error, each->text, strlen(each->text), each->text2, strlen(each->text2));
  }
  return error;
}

/* ---- functions of the framework: see execute_options.c of the runtime -------------------------------------------------*/
enum { SEND = 1, RECEIVE = 2, VALUE = 3 };

static PJRT_Error *ask(const tiny_run *run, int kind, const tiny_op *op, const char *data, size_t size, size_t total,
                       bool is_last, const shape *of, bytes *answer) {
  bytes transfer = {0};
  size_t granule = element_bits(of->type) / 8;
  proto_varint(&transfer, 1, run->token);
  proto_varint(&transfer, 2, (uint64_t)kind);
  proto_varint(&transfer, 3, (uint64_t)op->number);
  proto_bytes(&transfer, 4, data, size);
  proto_varint(&transfer, 5, total);
  proto_varint(&transfer, 6, is_last);
  proto_varint(&transfer, 7, granule ? granule : 1);
  proto_varint(&transfer, 8, (uint64_t)run->replica);
  proto_varint(&transfer, 9, (uint64_t)run->partition);
  proto_varint(&transfer, 11, (uint64_t)of->type);
  for (size_t i = 0; i < of->rank; ++i) proto_varint(&transfer, 12, (uint64_t)of->dims[i]);
  PJRT_Error *error = run->token ? run->ask(run->ask_arg, &transfer, answer)
                                 : error_make(INVALID, "The program asks for callback %lld, and the execution has none",
                                              (long long)op->number);
  free(transfer.data);
  return error;
}

static PJRT_Error *send_value(const tiny_run *run, const tiny_op *op) {
  const shape *of = &run->program->values[op->operands[0]].shape;
  size_t total = shape_size(of), chunks = (size_t)op->real, sent = 0;
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < chunks && !error; ++i) {
    size_t size = i + 1 == chunks ? total - sent : (size_t)shape_elements(of) / chunks * element_bits(of->type) / 8;
    bytes ignored = {0};
    error = ask(run, SEND, op, run->data[op->operands[0]] + sent, size, total, i + 1 == chunks, of, &ignored);
    free(ignored.data);
    sent += size;
  }
  return error;
}

static PJRT_Error *receive_value(const tiny_run *run, const tiny_op *op) {
  const shape *of = &run->program->values[op->result].shape;
  bytes given = {0};
  if (run->token) live_add(LIVE_STREAM, 1); /* the caller destroys it */
  PJRT_Error *error = ask(run, RECEIVE, op, "", 0, shape_size(of), true, of, &given);
  if (run->token && error && pjrt_error_code(error) == PJRT_Error_Code_NOT_FOUND) live_add(LIVE_STREAM, -1);
  if (!error && given.size) memcpy(run->data[op->result], given.data, given.size);
  free(given.data);
  return error;
}

static PJRT_Error *tell_value(const tiny_run *run, const tiny_op *op) {
  const shape *of = &run->program->values[op->operands[0]].shape;
  bytes ignored = {0};
  PJRT_Error *error = ask(run, VALUE, op, run->data[op->operands[0]], shape_size(of), shape_size(of), true, of, &ignored);
  free(ignored.data);
  return error;
}

/* ---- handlers: see ffi.c of the runtime ---------------------------------------------------------------------------------*/
static void write_array(bytes *out, int number, const shape *of, const char *data) {
  bytes inner = {0};
  proto_varint(&inner, 1, (uint64_t)element_xla_type(of->type));
  for (size_t i = 0; i < of->rank; ++i) proto_varint(&inner, 2, (uint64_t)of->dims[i]);
  proto_bytes(&inner, 3, data, shape_size(of));
  proto_bytes(out, number, inner.data, inner.size);
  free(inner.data);
}

/* A whole number is s64, another one f64, and all else a text. */
static void write_attribute(bytes *out, const tiny_attr *attr) {
  bytes inner = {0};
  char *end_of_integer, *end;
  long long integer = strtoll(attr->text, &end_of_integer, 10);
  double real = strtod(attr->text, &end);
  bool is_integer = *attr->text && *end_of_integer == 0, is_number = *attr->text && *end == 0;
  const void *value = is_integer ? (const void *)&(int64_t){integer} : is_number ? (const void *)&real : attr->text;
  proto_bytes(&inner, 1, attr->name, strlen(attr->name));
  proto_varint(&inner, 2, is_number ? XLA_FFI_SCALAR : XLA_FFI_STRING);
  proto_varint(&inner, 3, (uint64_t)element_xla_type(is_integer ? PJRT_Buffer_Type_S64 : PJRT_Buffer_Type_F64));
  proto_bytes(&inner, 4, value, is_number ? 8 : strlen(attr->text));
  proto_bytes(out, 4, inner.data, inner.size);
  free(inner.data);
}

static PJRT_Error *call_handler(const tiny_run *run, const tiny_op *op) {
  const tiny_value *values = run->program->values;
  bytes message = {0}, results = {0};
  proto_bytes(&message, 1, op->text, strlen(op->text));
  for (size_t i = 0; i < op->num_operands; ++i)
    write_array(&message, 2, &values[op->operands[i]].shape, run->data[op->operands[i]]);
  write_array(&message, 3, &values[op->result].shape, run->data[op->result]);
  for (size_t i = 0; i < op->num_attrs; ++i) write_attribute(&message, &op->attrs[i]);
  PJRT_Error *error = ffi_call(message.data, message.size, &results);
  if (!error && results.size) memcpy(run->data[op->result], results.data, results.size);
  free(message.data);
  free(results.data);
  return error;
}

static PJRT_Error *run_op(const tiny_run *run, const tiny_op *op) {
  char *out = op->result < 0 ? NULL : run->data[op->result];
  const shape *of = op->result < 0 ? NULL : &run->program->values[op->result].shape;
  const char *a = op->num_operands > 0 ? run->data[op->operands[0]] : NULL;
  const char *b = op->num_operands > 1 ? run->data[op->operands[1]] : a;
  switch (op->code) {
    case OP_IDENTITY:
      if (shape_size(of)) memcpy(out, a, shape_size(of));
      return NULL;
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_NEG:
      arithmetic(op->code, of->type, out, a, b, shape_elements(of));
      return NULL;
    case OP_FILL:
      if (!arithmetic_fill(of->type, out, op->real, shape_elements(of)))
        return error_make(PJRT_Error_Code_UNIMPLEMENTED, "There is no fill of this type");
      return NULL;
    case OP_ALL_REDUCE:
      if (shape_size(of)) memcpy(out, a, shape_size(of));
      return meeting_all_reduce(run->meeting, of->type, out, shape_elements(of));
    case OP_EINSUM:
      einsum_run(op, run->program->values, run->data);
      return NULL;
    case OP_REPLICA_ID:
      memcpy(out, &(uint32_t){(uint32_t)run->replica}, sizeof(uint32_t));
      return NULL;
    case OP_PARTITION_ID:
      memcpy(out, &(uint32_t){(uint32_t)run->partition}, sizeof(uint32_t));
      return NULL;
    case OP_CALL:
      return call_handler(run, op);
    case OP_RECV:
      return receive_value(run, op);
    case OP_SEND:
      return send_value(run, op);
    case OP_OUTPUT:
      return tell_value(run, op);
    case OP_SLEEP:
      sleep_for(op->number);
      return NULL;
    case OP_PAYLOAD:
      return NULL;
    case OP_FAIL:
      return fail(run, op);
  }
  return error_make(PJRT_Error_Code_INTERNAL, "An operation without a meaning");
}

/* Values become outputs. Every value is read before any donated parameter is written over. */
static void write_outputs(const tiny_run *run) {
  const tiny_program *program = run->program;
  char **ready = new_zeroed(program->num_outputs, sizeof *ready);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < program->num_outputs; ++i) {
      int value = program->outputs[i].value;
      size_t size = shape_size(&program->values[value].shape);
      bool is_parameter = (size_t)value < program->num_parameters;
      if (pass == 0 && is_parameter) ready[i] = copy_of(run->data[value], size);
      if (pass == 1 && size) memcpy(run->outputs[i], ready[i] ? ready[i] : run->data[value], size);
    }
  }
  for (size_t i = 0; i < program->num_outputs; ++i) free(ready[i]);
  free(ready);
}

PJRT_Error *program_run(tiny_run *run) {
  const tiny_program *program = run->program;
  for (size_t i = program->num_parameters; i < program->num_values; ++i)
    run->data[i] = new_zeroed(1, shape_size(&program->values[i].shape) + 16);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < program->num_ops && !error; ++i) error = run_op(run, &program->ops[i]);
  if (!error) write_outputs(run);
  for (size_t i = program->num_parameters; i < program->num_values; ++i) free(run->data[i]);
  return error;
}
