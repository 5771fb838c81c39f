/* The program format "tiny": text, one statement a line. README.md beside this folder tells it to users.
 *
 *   tiny 1                                    the first line
 *   name NAME
 *   in NAME SHAPE [memory=KIND] [sharding=HEX]
 *   let NAME = identity A | neg A | add A B | sub A B | mul A B | fill SHAPE NUMBER | all_reduce A
 *            | einsum SPEC SHAPE A [B] | replica_id | partition_id | recv CHANNEL SHAPE | call TARGET SHAPE A… key=value…
 *   do sleep MILLISECONDS | payload KEY VALUE | fail CODE MESSAGE… | send CHANNEL A [CHUNKS] | output ID A
 *   out NAME [memory=KIND] [alias=PARAMETER] [sharding=HEX]
 *
 * SHAPE is like f32[2,3]. Statements run in order; a line that starts with # is a comment. */
#include "tiny.h"

const char *const tiny_memory_kinds[TINY_NUM_MEMORY_KINDS] = {"device", "pinned_host", "unpinned_host"};

#define MAX_WORDS 24

typedef struct parser {
  tiny_program *program;
  char *words[MAX_WORDS];
  size_t num_words;
  int line;
} parser;

static PJRT_Error *complain(const parser *p, const char *what, const char *word) {
  return error_make(INVALID, "Line %d of the tiny program: %s%s%s", p->line, what, word ? ": " : "", word ? word : "");
}

static int find_value(const tiny_program *program, const char *name) {
  for (size_t i = 0; i < program->num_values; ++i) {
    if (strcmp(program->values[i].name, name) == 0) return (int)i;
  }
  return -1;
}

static int find_kind(const char *name) {
  for (int i = 0; i < TINY_NUM_MEMORY_KINDS; ++i) {
    if (strcmp(tiny_memory_kinds[i], name) == 0) return i;
  }
  return -1;
}

/* The runtime writes a scalar as f32[]. */
static PJRT_Buffer_Type element_from_name(const char *name, size_t size) {
  PJRT_Buffer_Type found = PJRT_Buffer_Type_INVALID;
  for (int type = 1; type < 64 && !found; ++type) {
    char *text = shape_text(&(shape){.type = (PJRT_Buffer_Type)type});
    if (element_is_known((PJRT_Buffer_Type)type) && strlen(text) == size + 2 && memcmp(text, name, size) == 0)
      found = (PJRT_Buffer_Type)type;
    free(text);
  }
  return found;
}

static void *grow(void *array, size_t count, size_t size) {
  char *larger = new_zeroed(count + 1, size);
  if (count) memcpy(larger, array, count * size);
  free(array);
  return larger;
}

static PJRT_Error *parse_shape(const parser *p, const char *word, shape *out) {
  const char *open = strchr(word, '[');
  if (open == NULL) return complain(p, "a shape is like f32[2,3], not", word);
  PJRT_Buffer_Type type = element_from_name(word, (size_t)(open - word));
  int64_t dims[MAX_RANK];
  size_t rank = 0;
  const char *cursor = open + 1;
  while (*cursor && *cursor != ']') {
    char *end;
    long long dim = strtoll(cursor, &end, 10);
    if (end == cursor || rank == MAX_RANK) return complain(p, "a shape is like f32[2,3], not", word);
    dims[rank++] = dim;
    cursor = *end == ',' ? end + 1 : end;
  }
  if (strcmp(cursor, "]") != 0) return complain(p, "a shape is like f32[2,3], not", word);
  PJRT_Error *error = shape_init(out, type, dims, rank, NULL);
  if (error == NULL) return NULL;
  pjrt_error_release(error);
  return complain(p, "no such shape", word);
}

static PJRT_Error *add_value(parser *p, const char *name, const shape *of, int *out) {
  tiny_program *program = p->program;
  if (find_value(program, name) >= 0) return complain(p, "the name is taken", name);
  program->values = grow(program->values, program->num_values, sizeof *program->values);
  program->values[program->num_values].name = copy_of(name, strlen(name));
  program->values[program->num_values].shape = *of;
  *out = (int)program->num_values++;
  return NULL;
}

/* ---- in and out ---------------------------------------------------------------------------------------------------*/
static bool decode_hex(const char *text, bytes *out) {
  for (bytes_add(out, "", 0); text[0] && text[1]; text += 2) {
    unsigned byte;
    if (sscanf(text, "%2x", &byte) != 1) return false;
    bytes_add(out, &(char){(char)byte}, 1);
  }
  return *text == 0;
}

static PJRT_Error *parse_place(parser *p, size_t first, tiny_place *out) {
  *out = (tiny_place){.alias = -1};
  for (size_t i = first; i < p->num_words; ++i) {
    const char *word = p->words[i];
    if (strncmp(word, "memory=", 7) == 0) {
      int kind = find_kind(word + 7);
      if (kind < 0) return complain(p, "no such memory kind", word + 7);
      out->kind = kind;
    } else if (strncmp(word, "alias=", 6) == 0) {
      out->alias = find_value(p->program, word + 6);
      if (out->alias < 0 || (size_t)out->alias >= p->program->num_parameters)
        return complain(p, "alias names no parameter", word + 6);
    } else if (strncmp(word, "sharding=", 9) == 0 && !out->has_sharding) {
      out->has_sharding = true;
      if (!decode_hex(word + 9, &out->sharding)) return complain(p, "no hexadecimal bytes", word);
    } else {
      return complain(p, "unknown word", word);
    }
  }
  return NULL;
}

static PJRT_Error *parse_in(parser *p) {
  tiny_program *program = p->program;
  if (p->num_words < 3) return complain(p, "in NAME SHAPE", NULL);
  if (program->num_ops) return complain(p, "parameters come before statements", p->words[1]);
  shape of;
  int value;
  PJRT_Error *error = parse_shape(p, p->words[2], &of);
  if (!error) error = add_value(p, p->words[1], &of, &value);
  if (error) return error;
  program->parameters = grow(program->parameters, program->num_parameters, sizeof *program->parameters);
  tiny_place *place = &program->parameters[program->num_parameters++];
  error = parse_place(p, 3, place);
  return error || place->alias < 0 ? error : complain(p, "only an output has an alias", NULL);
}

static PJRT_Error *parse_out(parser *p) {
  tiny_program *program = p->program;
  if (p->num_words < 2) return complain(p, "out NAME", NULL);
  size_t at = program->num_outputs++;
  program->outputs = grow(program->outputs, at, sizeof *program->outputs);
  tiny_output *output = &program->outputs[at];
  output->value = find_value(program, p->words[1]);
  PJRT_Error *error = parse_place(p, 2, &output->place);
  int alias = output->place.alias;
  if (error) return error;
  if (output->value < 0) return complain(p, "no such value", p->words[1]);
  for (size_t i = 0; alias >= 0 && i < at; ++i) {
    if (program->outputs[i].place.alias == alias) return complain(p, "two outputs alias one parameter", NULL);
  }
  if (alias >= 0 && shape_size(&program->values[alias].shape) != shape_size(&program->values[output->value].shape))
    return complain(p, "an output and the parameter it aliases differ in size", p->words[1]);
  return NULL;
}

/* ---- statements ---------------------------------------------------------------------------------------------------*/
typedef struct form {
  const char *name;
  tiny_opcode code;
  bool result;
  size_t operands;
  bool arithmetic;
} form;

static const form forms[] = {
    {"identity", OP_IDENTITY, true, 1, false}, {"neg", OP_NEG, true, 1, true},
    {"add", OP_ADD, true, 2, true},            {"sub", OP_SUB, true, 2, true},
    {"mul", OP_MUL, true, 2, true},            {"all_reduce", OP_ALL_REDUCE, true, 1, true},
    {"fill", OP_FILL, true, 0, false},         {"recv", OP_RECV, true, 0, false},
    {"einsum", OP_EINSUM, true, 0, false},
    {"call", OP_CALL, true, 0, false},         {"replica_id", OP_REPLICA_ID, true, 0, false},
    {"partition_id", OP_PARTITION_ID, true, 0, false},
    {"sleep", OP_SLEEP, false, 0, false},      {"payload", OP_PAYLOAD, false, 0, false},
    {"fail", OP_FAIL, false, 0, false},        {"send", OP_SEND, false, 0, false},
    {"output", OP_OUTPUT, false, 0, false},
};

static PJRT_Error *add_operand(parser *p, tiny_op *op, const char *name) {
  int value = find_value(p->program, name);
  if (value < 0) return complain(p, "no such value", name);
  if (op->num_operands == sizeof op->operands / sizeof op->operands[0]) return complain(p, "too many operands", name);
  op->operands[op->num_operands++] = value;
  return NULL;
}

static PJRT_Error *parse_elementwise(parser *p, const form *form, size_t at, tiny_op *op, shape *out) {
  if (p->num_words - at != form->operands) return complain(p, "wrong number of operands of", form->name);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < form->operands && !error; ++i) error = add_operand(p, op, p->words[at + i]);
  if (error) return error;
  *out = p->program->values[op->operands[0]].shape;
  for (size_t i = 1; i < form->operands; ++i) {
    if (!shape_same(out, &p->program->values[op->operands[i]].shape))
      return complain(p, "operands differ in shape", form->name);
  }
  if (form->arithmetic && !arithmetic_supports(out->type))
    return complain(p, "no arithmetic on the elements of operation", form->name);
  return NULL;
}

static PJRT_Error *parse_call(parser *p, size_t at, tiny_op *op, shape *out) {
  if (p->num_words < at + 2) return complain(p, "call TARGET SHAPE …", NULL);
  op->text = copy_of(p->words[at], strlen(p->words[at]));
  PJRT_Error *error = parse_shape(p, p->words[at + 1], out);
  for (size_t i = at + 2; i < p->num_words && !error; ++i) {
    char *equals = strchr(p->words[i], '=');
    if (equals == NULL) {
      error = add_operand(p, op, p->words[i]);
      continue;
    }
    op->attrs = grow(op->attrs, op->num_attrs, sizeof *op->attrs);
    size_t place = op->num_attrs++;
    tiny_attr attr = {copy_of(p->words[i], (size_t)(equals - p->words[i])), copy_of(equals + 1, strlen(equals + 1))};
    while (place > 0 && strcmp(op->attrs[place - 1].name, attr.name) > 0) { /* handlers expect them sorted */
      op->attrs[place] = op->attrs[place - 1];
      --place;
    }
    op->attrs[place] = attr;
  }
  return error;
}

static char *join_words(const parser *p, size_t first) {
  bytes out = {0};
  bytes_add(&out, "", 0);
  for (size_t i = first; i < p->num_words; ++i) bytes_print(&out, "%s%s", i > first ? " " : "", p->words[i]);
  return out.data;
}

static PJRT_Error *parse_arguments(parser *p, const form *form, size_t at, tiny_op *op, shape *out) {
  size_t left = p->num_words - at;
  switch (form->code) {
    case OP_FILL:
      if (left != 2) return complain(p, "fill SHAPE NUMBER", NULL);
      op->real = strtod(p->words[at + 1], NULL);
      return parse_shape(p, p->words[at], out);
    case OP_RECV:
      if (left != 2) return complain(p, "recv CHANNEL SHAPE", NULL);
      op->number = strtoll(p->words[at], NULL, 10);
      return parse_shape(p, p->words[at + 1], out);
    case OP_EINSUM: {
      if (left < 3) return complain(p, "einsum SPEC SHAPE A [B]", NULL);
      op->text = copy_of(p->words[at], strlen(p->words[at]));
      PJRT_Error *error = parse_shape(p, p->words[at + 1], out);
      for (size_t i = at + 2; i < p->num_words && !error; ++i) error = add_operand(p, op, p->words[i]);
      if (error || einsum_fits(op, p->program->values, out)) return error;
      return complain(p, "einsum takes one or two operands of f32 with dimensions as in the letters", op->text);
    }
    case OP_CALL:
      return parse_call(p, at, op, out);
    case OP_REPLICA_ID:
    case OP_PARTITION_ID:
      return shape_init(out, PJRT_Buffer_Type_U32, NULL, 0, NULL);
    case OP_SLEEP:
      if (left != 1) return complain(p, "sleep MILLISECONDS", NULL);
      op->number = strtoll(p->words[at], NULL, 10);
      return NULL;
    case OP_FAIL:
      if (left < 1) return complain(p, "fail CODE MESSAGE", NULL);
      op->number = strtoll(p->words[at], NULL, 10);
      if (op->number < 1 || op->number > 16) return complain(p, "no error code", p->words[at]);
      op->text = join_words(p, at + 1);
      return NULL;
    case OP_PAYLOAD:
      if (left < 2) return complain(p, "payload KEY VALUE", NULL);
      op->text = copy_of(p->words[at], strlen(p->words[at]));
      op->text2 = join_words(p, at + 1);
      return NULL;
    case OP_SEND:
    case OP_OUTPUT:
      if (left < 2 || left > 3) return complain(p, "send CHANNEL VALUE [CHUNKS]", NULL);
      op->number = strtoll(p->words[at], NULL, 10);
      op->real = left == 3 ? strtod(p->words[at + 2], NULL) : 1;
      if (op->real < 1) return complain(p, "no number of chunks", p->words[at + 2]);
      return add_operand(p, op, p->words[at + 1]);
    default:
      return parse_elementwise(p, form, at, op, out);
  }
}

static PJRT_Error *parse_statement(parser *p, bool result) {
  size_t at = result ? 3 : 1;
  if (p->num_words <= at || (result && strcmp(p->words[2], "=") != 0))
    return complain(p, result ? "let NAME = OPERATION …" : "do OPERATION …", NULL);
  const form *form = NULL;
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    if (forms[i].result == result && strcmp(forms[i].name, p->words[at]) == 0) form = &forms[i];
  }
  if (form == NULL) return complain(p, "unknown operation", p->words[at]);
  tiny_program *program = p->program;
  program->ops = grow(program->ops, program->num_ops, sizeof *program->ops);
  tiny_op *op = &program->ops[program->num_ops++];
  op->code = form->code;
  op->result = -1;
  shape of;
  PJRT_Error *error = parse_arguments(p, form, at + 1, op, &of);
  if (!error && result) error = add_value(p, p->words[1], &of, &program->ops[program->num_ops - 1].result);
  return error;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------*/
static PJRT_Error *parse_line(parser *p) {
  if (p->num_words == 0 || p->words[0][0] == '#') return NULL;
  const char *first = p->words[0];
  if (p->line == 1) {
    if (strcmp(first, "tiny") == 0 && p->num_words == 2 && strcmp(p->words[1], "1") == 0) return NULL;
    return complain(p, "a tiny program starts with \"tiny 1\", not", first);
  }
  if (strcmp(first, "name") == 0 && p->num_words == 2) {
    free(p->program->name);
    p->program->name = copy_of(p->words[1], strlen(p->words[1]));
    return NULL;
  }
  if (strcmp(first, "in") == 0) return parse_in(p);
  if (strcmp(first, "out") == 0) return parse_out(p);
  if (strcmp(first, "let") == 0) return parse_statement(p, true);
  if (strcmp(first, "do") == 0) return parse_statement(p, false);
  return complain(p, "unknown statement", first);
}

PJRT_Error *program_parse(const char *code, size_t size, tiny_program **out) {
  parser p = {.program = new_zeroed(1, sizeof(tiny_program))};
  p.program->source = copy_of(code, strnlen(code, size));
  p.program->name = copy_of("tiny", 4);
  char *text = copy_of(p.program->source, strlen(p.program->source)), *rest = text, *line;
  PJRT_Error *error = NULL;
  while (!error && (line = strsep(&rest, "\n"))) {
    ++p.line;
    p.num_words = 0;
    char *word, *state = NULL;
    for (word = strtok_r(line, " \t\r", &state); word && !error; word = strtok_r(NULL, " \t\r", &state)) {
      if (p.num_words == MAX_WORDS) error = complain(&p, "too many words", NULL);
      else p.words[p.num_words++] = word;
    }
    if (!error) error = parse_line(&p);
  }
  free(text);
  if (!error && strncmp(p.program->source, "tiny 1", 6) != 0)
    error = error_make(INVALID, "A tiny program starts with the line \"tiny 1\", got %zu bytes without it", size);
  if (error) {
    program_free(p.program);
    return error;
  }
  *out = p.program;
  return NULL;
}

void program_free(tiny_program *program) {
  if (program == NULL) return;
  for (size_t i = 0; i < program->num_values; ++i) free(program->values[i].name);
  for (size_t i = 0; i < program->num_ops; ++i) {
    tiny_op *op = &program->ops[i];
    for (size_t j = 0; j < op->num_attrs; ++j) {
      free(op->attrs[j].name);
      free(op->attrs[j].text);
    }
    free(op->attrs);
    free(op->text);
    free(op->text2);
  }
  for (size_t i = 0; i < program->num_parameters; ++i) free(program->parameters[i].sharding.data);
  for (size_t i = 0; i < program->num_outputs; ++i) free(program->outputs[i].place.sharding.data);
  free(program->parameters);
  free(program->values);
  free(program->ops);
  free(program->outputs);
  free(program->source);
  free(program->name);
  free(program);
}

/* ---- compiling: the message that executable.c of the runtime reads --------------------------------------------------*/
/* A program of format "tiny" is the text. Under "mlir" the text may also lie inside a larger module, as an attribute
 * of a custom call, so that frameworks that only send MLIR bytecode can run tiny programs too. */
static PJRT_Error *find_source(const proto_field *format, const proto_field *code, const char **out, size_t *size) {
  static const char mark[] = "tiny 1\n";
  bool tiny = format->size == 4 && memcmp(format->data, "tiny", 4) == 0;
  bool mlir = format->size == 4 && memcmp(format->data, "mlir", 4) == 0;
  if (!tiny && !mlir)
    return error_make(INVALID, "The tiny plugin takes programs of format tiny and mlir, got %.*s", (int)format->size,
                      format->size ? format->data : "");
  *out = tiny ? code->data : memmem(code->data, code->size, mark, sizeof mark - 1);
  if (*out == NULL) return error_make(INVALID, "This MLIR module holds no tiny program");
  *size = code->size - (size_t)(*out - code->data);
  return NULL;
}

/* A list of numbers is one field, packed. */
static void write_dims(bytes *out, int number, const shape *of) {
  bytes packed = {0};
  for (size_t i = 0; i < of->rank; ++i) {
    uint64_t left = (uint64_t)of->dims[i];
    for (; left > 0x7f; left >>= 7) bytes_add(&packed, &(char){(char)(left | 0x80)}, 1);
    bytes_add(&packed, &(char){(char)left}, 1);
  }
  proto_bytes(out, number, packed.data, packed.size);
  free(packed.data);
}

static void write_value(bytes *out, int number, const shape *of, const tiny_place *place) {
  bytes inner = {0};
  proto_varint(&inner, 1, (uint64_t)of->type);
  if (of->rank) write_dims(&inner, 2, of);
  proto_bytes(&inner, 3, tiny_memory_kinds[place->kind], strlen(tiny_memory_kinds[place->kind]));
  if (place->alias >= 0) proto_varint(&inner, 4, (uint64_t)place->alias + 1);
  if (place->has_sharding) proto_bytes(&inner, 5, place->sharding.data, place->sharding.size);
  proto_bytes(out, number, inner.data, inner.size);
  free(inner.data);
}

static void write_cost(bytes *out, const char *name, double value) {
  bytes inner = {0};
  proto_bytes(&inner, 1, name, strlen(name));
  bytes_add(&inner, &(char){2 << 3 | 1}, 1);
  bytes_add(&inner, &value, sizeof value);
  proto_bytes(out, 10, inner.data, inner.size);
  free(inner.data);
}

static void write_costs(bytes *out, const tiny_program *program) {
  double flops = 0, moved = 0;
  for (size_t i = 0; i < program->num_ops; ++i) {
    const tiny_op *op = &program->ops[i];
    bool counts = op->code == OP_ADD || op->code == OP_SUB || op->code == OP_MUL || op->code == OP_NEG;
    if (counts) flops += (double)shape_elements(&program->values[op->result].shape);
  }
  for (size_t i = 0; i < program->num_parameters; ++i) moved += (double)shape_size(&program->values[i].shape);
  for (size_t i = 0; i < program->num_outputs; ++i)
    moved += (double)shape_size(&program->values[program->outputs[i].value].shape);
  write_cost(out, "flops", flops);
  write_cost(out, "bytes accessed", moved);
  write_cost(out, "statements", (double)program->num_ops);
}

/* The facts of PJRT_Executable_GetCompiledMemoryStats, up to the total, in their order. */
static void write_memory(bytes *out, const tiny_program *program) {
  int64_t of_device[5] = {(int64_t)strlen(program->source)}, of_host[5] = {0};
  for (size_t i = 0; i < program->num_parameters; ++i)
    (program->parameters[i].kind ? of_host : of_device)[1] += (int64_t)shape_size(&program->values[i].shape);
  for (size_t i = 0; i < program->num_outputs; ++i) {
    const tiny_output *output = &program->outputs[i];
    int64_t size = (int64_t)shape_size(&program->values[output->value].shape);
    int64_t *where = output->place.kind ? of_host : of_device;
    where[2] += size;
    if (output->place.alias >= 0) where[3] += size;
  }
  for (size_t i = program->num_parameters; i < program->num_values; ++i)
    of_device[4] += (int64_t)shape_size(&program->values[i].shape);
  int64_t peak = of_device[1] + of_device[2] - of_device[3] + of_device[4];
  for (size_t i = 0; i < 5; ++i) proto_varint(out, 20, (uint64_t)of_device[i]);
  for (size_t i = 0; i < 5; ++i) proto_varint(out, 20, (uint64_t)of_host[i]);
  proto_varint(out, 20, (uint64_t)peak);
  proto_varint(out, 20, (uint64_t)(peak + of_device[0]));
}

static void write_checksum(bytes *out) {
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < out->size; ++i) {
    crc ^= (unsigned char)out->data[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
  }
  crc = ~crc;
  bytes_add(out, &(char){12 << 3 | 5}, 1);
  bytes_add(out, &crc, sizeof crc);
}

PJRT_Error *program_compile(const bytes *request, bytes *out) {
  static const char mark[] = "PJRT-NATIVE-1";
  const char *cursor = request->data, *code;
  proto_field field, fields[5] = {{0}};
  while (proto_next(&cursor, request->data + request->size, &field))
    if (field.number > 0 && field.number < 5 && field.wire == 2) fields[field.number] = field;
  size_t size = 0;
  tiny_program *program = NULL;
  PJRT_Error *error = find_source(&fields[2], &fields[3], &code, &size);
  if (!error) error = program_parse(code, size, &program);
  if (error) return error;
  bool has_collectives = false, is_sharded = false;
  for (size_t i = 0; i < program->num_ops; ++i) has_collectives |= program->ops[i].code == OP_ALL_REDUCE;
  proto_bytes(out, 1, mark, sizeof mark - 1);
  proto_bytes(out, 2, program->name, strlen(program->name));
  for (size_t i = 0; i < program->num_parameters; ++i)
    write_value(out, 3, &program->values[i].shape, &program->parameters[i]);
  for (size_t i = 0; i < program->num_outputs; ++i) {
    write_value(out, 4, &program->values[program->outputs[i].value].shape, &program->outputs[i].place);
    is_sharded |= program->outputs[i].place.has_sharding;
  }
  proto_bytes(out, 5, program->source, strlen(program->source));
  proto_bytes(out, 7, fields[4].data, fields[4].size);
  proto_bytes(out, 8, program->source, strlen(program->source));
  proto_bytes(out, 9, "tiny", 4);
  write_costs(out, program);
  if (has_collectives) proto_varint(out, 19, 1);
  write_memory(out, program);
  if (is_sharded) proto_varint(out, 21, 1);
  write_checksum(out);
  program_free(program);
  return NULL;
}

int element_xla_type(PJRT_Buffer_Type type) {
  static const unsigned char numbers[] = {
      [PJRT_Buffer_Type_PRED] = 1, [PJRT_Buffer_Type_S8] = 2, [PJRT_Buffer_Type_S16] = 3, [PJRT_Buffer_Type_S32] = 4,
      [PJRT_Buffer_Type_S64] = 5, [PJRT_Buffer_Type_U8] = 6, [PJRT_Buffer_Type_U16] = 7, [PJRT_Buffer_Type_U32] = 8,
      [PJRT_Buffer_Type_U64] = 9, [PJRT_Buffer_Type_F16] = 10, [PJRT_Buffer_Type_F32] = 11, [PJRT_Buffer_Type_F64] = 12,
      [PJRT_Buffer_Type_BF16] = 16, [PJRT_Buffer_Type_C64] = 15, [PJRT_Buffer_Type_C128] = 18,
      [PJRT_Buffer_Type_F8E5M2] = 19, [PJRT_Buffer_Type_F8E4M3FN] = 20, [PJRT_Buffer_Type_F8E4M3B11FNUZ] = 23,
      [PJRT_Buffer_Type_F8E5M2FNUZ] = 24, [PJRT_Buffer_Type_F8E4M3FNUZ] = 25, [PJRT_Buffer_Type_S4] = 21,
      [PJRT_Buffer_Type_U4] = 22, [PJRT_Buffer_Type_TOKEN] = 17, [PJRT_Buffer_Type_S2] = 26, [PJRT_Buffer_Type_U2] = 27,
      [PJRT_Buffer_Type_F8E4M3] = 28, [PJRT_Buffer_Type_F8E3M4] = 29, [PJRT_Buffer_Type_F8E8M0FNU] = 33,
      [PJRT_Buffer_Type_F4E2M1FN] = 32, [PJRT_Buffer_Type_S1] = 30, [PJRT_Buffer_Type_U1] = 31,
      [PJRT_Buffer_Type_F6E2M3FN] = 34, [PJRT_Buffer_Type_F6E3M2FN] = 35};
  return type > 0 && (size_t)type < sizeof numbers ? numbers[type] : 0;
}
