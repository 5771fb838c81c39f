/* Running the statements of a program on one device. */
#include "tiny.h"

#include <time.h>

typedef struct payload {
  const char *key, *value;
} payload;

typedef struct run {
  tiny_launch *launch;
  const tiny_program *program;
  char **data; /* the bytes of each value */
  payload payloads[16];
  size_t num_payloads;
} run;

static void sleep_for(int64_t milliseconds) {
  struct timespec time = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  while (nanosleep(&time, &time) != 0) continue;
}

static tiny_status *fail(const run *r, const tiny_op *op) {
  tiny_status *status = status_make((PJRT_Error_Code)op->number, "%s", op->text);
  for (size_t i = 0; i < r->num_payloads; ++i) {
    const payload *each = &r->payloads[i];
    status_add_payload(status, each->key, strlen(each->key), each->value, strlen(each->value));
  }
  return status;
}

static void free_chunk(void *data, void *deleter_arg) {
  (void)deleter_arg;
  free(data);
}

static tiny_status *send(const run *r, const tiny_op *op) {
  const tiny_shape *shape = &r->program->values[op->operands[0]].shape;
  const PJRT_SendCallbackInfo *info = NULL;
  for (size_t i = 0; i < r->launch->num_sends; ++i) {
    if (r->launch->sends[i].channel_id == op->number) info = &r->launch->sends[i];
  }
  if (info == NULL)
    return status_make(INVALID, "The program sends to channel %lld, and no callback listens", (long long)op->number);
  size_t total = shape_size(shape), chunks = (size_t)op->real, sent = 0;
  for (size_t i = 0; i < chunks; ++i) {
    size_t elements = (size_t)shape_elements(shape) / chunks * element_size(shape->type);
    size_t size = i + 1 == chunks ? total - sent : elements;
    PJRT_Chunk chunk = {tiny_memdup(r->data[op->operands[0]] + sent, size), size, free_chunk, NULL};
    sent += size;
    PJRT_Error *error = info->send_callback(&chunk, &tiny_callback_error, total, i + 1 == chunks, info->user_arg);
    if (error) return status_take(error);
  }
  return NULL;
}

static tiny_status *receive(const run *r, const tiny_op *op) {
  const tiny_shape *shape = &r->program->values[op->result].shape;
  for (size_t i = 0; i < r->launch->num_recvs; ++i) {
    if (r->launch->recvs[i].channel_id == op->number)
      return stream_receive(&r->launch->recvs[i], r->data[op->result], shape_size(shape), element_size(shape->type));
  }
  return status_make(INVALID, "The program receives from channel %lld, and no callback feeds it", (long long)op->number);
}

static tiny_status *tell_output(const run *r, const tiny_op *op) {
  const tiny_shape *shape = &r->program->values[op->operands[0]].shape;
  for (size_t i = 0; i < r->launch->num_output_callbacks; ++i) {
    const PJRT_HloOutputCallbackInfo *info = &r->launch->output_callbacks[i];
    if (info->callback_id != op->number) continue;
    info->callback(r->launch->replica, r->launch->partition, r->data[op->operands[0]], shape->dims, shape->rank,
                   shape->type, 0, info->user_arg);
    return NULL;
  }
  return status_make(INVALID, "The program tells output %lld, and no callback listens", (long long)op->number);
}

static tiny_status *run_op(run *r, const tiny_op *op) {
  char *out = op->result < 0 ? NULL : r->data[op->result];
  const tiny_shape *shape = op->result < 0 ? NULL : &r->program->values[op->result].shape;
  const char *a = op->num_operands > 0 ? r->data[op->operands[0]] : NULL;
  const char *b = op->num_operands > 1 ? r->data[op->operands[1]] : a;
  switch (op->code) {
    case OP_IDENTITY:
      if (shape_size(shape)) memcpy(out, a, shape_size(shape));
      return NULL;
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_NEG:
      arithmetic(op->code, shape->type, out, a, b, shape_elements(shape));
      return NULL;
    case OP_FILL:
      if (!arithmetic_fill(shape->type, out, op->real, shape_elements(shape)))
        return status_make(PJRT_Error_Code_UNIMPLEMENTED, "No fill of type %s", element_name(shape->type));
      return NULL;
    case OP_ALL_REDUCE:
      if (shape_size(shape)) memcpy(out, a, shape_size(shape));
      return meeting_all_reduce(r->launch->meeting, shape->type, out, shape_elements(shape));
    case OP_EINSUM:
      einsum_run(op, r->program->values, r->data);
      return NULL;
    case OP_REPLICA_ID:
      memcpy(out, &(uint32_t){(uint32_t)r->launch->replica}, sizeof(uint32_t));
      return NULL;
    case OP_PARTITION_ID:
      memcpy(out, &(uint32_t){(uint32_t)r->launch->partition}, sizeof(uint32_t));
      return NULL;
    case OP_CALL:
      return ffi_call(r->launch, op, r->program->values, r->data);
    case OP_RECV:
      return receive(r, op);
    case OP_SEND:
      return send(r, op);
    case OP_OUTPUT:
      return tell_output(r, op);
    case OP_SLEEP:
      sleep_for(op->number);
      return NULL;
    case OP_PAYLOAD:
      if (r->num_payloads < sizeof r->payloads / sizeof r->payloads[0])
        r->payloads[r->num_payloads++] = (payload){op->text, op->text2};
      return NULL;
    case OP_FAIL:
      return fail(r, op);
  }
  return status_make(PJRT_Error_Code_INTERNAL, "An operation without a meaning");
}

/* Values become outputs. Every value is read before any donated parameter is written over. */
static void write_outputs(const run *r) {
  const tiny_program *program = r->program;
  char **ready = tiny_calloc(program->num_outputs, sizeof *ready);
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t i = 0; i < program->num_outputs; ++i) {
      const tiny_output *output = &program->outputs[i];
      size_t size = shape_size(&program->values[output->value].shape);
      char *target = storage_bytes(r->launch->outputs[i]);
      bool is_parameter = (size_t)output->value < program->num_parameters;
      if (pass == 0 && is_parameter) ready[i] = tiny_memdup(r->data[output->value], size);
      if (pass == 1 && size) memcpy(target, ready[i] ? ready[i] : r->data[output->value], size);
    }
  }
  for (size_t i = 0; i < program->num_outputs; ++i) free(ready[i]);
  free(ready);
}

tiny_status *ops_run(tiny_launch *launch) {
  const tiny_program *program = launch->executable->program;
  run r = {.launch = launch, .program = program, .data = tiny_calloc(program->num_values, sizeof(char *))};
  for (size_t i = 0; i < program->num_values; ++i) {
    if (i < program->num_parameters) r.data[i] = storage_bytes(launch->arguments[i]);
    else r.data[i] = tiny_calloc(1, shape_size(&program->values[i].shape) + 16);
  }
  tiny_status *status = NULL;
  for (size_t i = 0; i < program->num_ops && !status; ++i) status = run_op(&r, &program->ops[i]);
  if (!status) write_outputs(&r);
  for (size_t i = program->num_parameters; i < program->num_values; ++i) free(r.data[i]);
  free(r.data);
  return status;
}
