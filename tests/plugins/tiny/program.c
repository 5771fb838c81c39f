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

#define MAX_WORDS 24

typedef struct parser {
  tiny_program *program;
  char *words[MAX_WORDS];
  size_t num_words;
  int line;
} parser;

static tiny_status *complain(const parser *p, const char *what, const char *word) {
  return status_make(INVALID, "Line %d of the tiny program: %s%s%s", p->line, what, word ? ": " : "", word ? word : "");
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

static void *grow(void *array, size_t count, size_t size) {
  char *larger = tiny_calloc(count + 1, size);
  if (count) memcpy(larger, array, count * size);
  free(array);
  return larger;
}

static tiny_status *parse_shape(const parser *p, const char *word, tiny_shape *out) {
  const char *open = strchr(word, '[');
  if (open == NULL) return complain(p, "a shape is like f32[2,3], not", word);
  PJRT_Buffer_Type type = element_from_name(word, (size_t)(open - word));
  int64_t dims[TINY_MAX_RANK];
  size_t rank = 0;
  const char *cursor = open + 1;
  while (*cursor && *cursor != ']') {
    char *end;
    long long dim = strtoll(cursor, &end, 10);
    if (end == cursor || rank == TINY_MAX_RANK) return complain(p, "a shape is like f32[2,3], not", word);
    dims[rank++] = dim;
    cursor = *end == ',' ? end + 1 : end;
  }
  if (strcmp(cursor, "]") != 0) return complain(p, "a shape is like f32[2,3], not", word);
  tiny_status *status = shape_init(out, type, dims, rank, NULL);
  if (status == NULL) return NULL;
  status_unref(status);
  return complain(p, "no such shape", word);
}

static tiny_status *add_value(parser *p, const char *name, const tiny_shape *shape, int *out) {
  tiny_program *program = p->program;
  if (find_value(program, name) >= 0) return complain(p, "the name is taken", name);
  program->values = grow(program->values, program->num_values, sizeof *program->values);
  program->values[program->num_values].name = tiny_memdup(name, strlen(name));
  program->values[program->num_values].shape = *shape;
  *out = (int)program->num_values++;
  return NULL;
}

/* ---- in and out ---------------------------------------------------------------------------------------------------*/
static bool decode_hex(const char *text, char **out, size_t *size) {
  size_t length = strlen(text);
  if (length % 2) return false;
  *out = tiny_calloc(length / 2 + 1, 1);
  *size = length / 2;
  for (size_t i = 0; i < *size; ++i) {
    unsigned byte;
    if (sscanf(text + 2 * i, "%2x", &byte) != 1) return false;
    (*out)[i] = (char)byte;
  }
  return true;
}

typedef struct place {
  int kind, alias;
  char *sharding;
  size_t sharding_size;
} place;

static tiny_status *parse_place(parser *p, size_t first, place *out) {
  *out = (place){.alias = -1};
  for (size_t i = first; i < p->num_words; ++i) {
    const char *word = p->words[i];
    if (strncmp(word, "memory=", 7) == 0) {
      out->kind = find_kind(word + 7);
      if (out->kind < 0) return complain(p, "no such memory kind", word + 7);
    } else if (strncmp(word, "alias=", 6) == 0) {
      out->alias = find_value(p->program, word + 6);
      if (out->alias < 0 || (size_t)out->alias >= p->program->num_parameters)
        return complain(p, "alias names no parameter", word + 6);
    } else if (strncmp(word, "sharding=", 9) == 0) {
      free(out->sharding);
      if (!decode_hex(word + 9, &out->sharding, &out->sharding_size)) return complain(p, "no hexadecimal bytes", word);
      p->program->has_shardings = true;
    } else {
      return complain(p, "unknown word", word);
    }
  }
  return NULL;
}

static tiny_status *parse_in(parser *p) {
  tiny_program *program = p->program;
  if (p->num_words < 3) return complain(p, "in NAME SHAPE", NULL);
  if (program->num_ops) return complain(p, "parameters come before statements", p->words[1]);
  tiny_shape shape;
  place place;
  int value;
  tiny_status *status = parse_shape(p, p->words[2], &shape);
  if (!status) status = add_value(p, p->words[1], &shape, &value);
  if (status) return status;
  status = parse_place(p, 3, &place);
  size_t at = program->num_parameters++;
  program->parameter_kinds = grow(program->parameter_kinds, at, sizeof *program->parameter_kinds);
  program->parameter_kinds[at] = place.kind < 0 ? 0 : place.kind;
  program->parameter_shardings = grow(program->parameter_shardings, at, sizeof *program->parameter_shardings);
  program->parameter_shardings[at] = place.sharding;
  program->parameter_sharding_sizes = grow(program->parameter_sharding_sizes, at, sizeof(size_t));
  program->parameter_sharding_sizes[at] = place.sharding_size;
  if (!status && place.alias >= 0) status = complain(p, "only an output has an alias", NULL);
  return status;
}

static tiny_status *parse_out(parser *p) {
  tiny_program *program = p->program;
  if (p->num_words < 2) return complain(p, "out NAME", NULL);
  place place;
  tiny_status *status = parse_place(p, 2, &place);
  size_t at = program->num_outputs++;
  program->outputs = grow(program->outputs, at, sizeof *program->outputs);
  tiny_output *output = &program->outputs[at];
  *output = (tiny_output){find_value(program, p->words[1]), place.kind < 0 ? 0 : place.kind, place.alias};
  program->output_shardings = grow(program->output_shardings, at, sizeof *program->output_shardings);
  program->output_shardings[at] = place.sharding;
  program->output_sharding_sizes = grow(program->output_sharding_sizes, at, sizeof(size_t));
  program->output_sharding_sizes[at] = place.sharding_size;
  if (status) return status;
  if (output->value < 0) return complain(p, "no such value", p->words[1]);
  for (size_t i = 0; output->alias >= 0 && i < at; ++i) {
    if (program->outputs[i].alias == output->alias) return complain(p, "two outputs alias one parameter", NULL);
  }
  if (output->alias >= 0 && shape_size(&program->values[output->alias].shape) !=
                                shape_size(&program->values[output->value].shape))
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

static tiny_status *add_operand(parser *p, tiny_op *op, const char *name) {
  int value = find_value(p->program, name);
  if (value < 0) return complain(p, "no such value", name);
  if (op->num_operands == sizeof op->operands / sizeof op->operands[0]) return complain(p, "too many operands", name);
  op->operands[op->num_operands++] = value;
  return NULL;
}

static tiny_status *parse_elementwise(parser *p, const form *form, size_t at, tiny_op *op, tiny_shape *shape) {
  if (p->num_words - at != form->operands) return complain(p, "wrong number of operands of", form->name);
  tiny_status *status = NULL;
  for (size_t i = 0; i < form->operands && !status; ++i) status = add_operand(p, op, p->words[at + i]);
  if (status) return status;
  *shape = p->program->values[op->operands[0]].shape;
  for (size_t i = 1; i < form->operands; ++i) {
    if (!shape_same_dims(shape, &p->program->values[op->operands[i]].shape))
      return complain(p, "operands differ in shape", form->name);
  }
  if (form->arithmetic && !arithmetic_supports(shape->type))
    return complain(p, "no arithmetic on elements of type", element_name(shape->type));
  return NULL;
}

static tiny_status *parse_call(parser *p, size_t at, tiny_op *op, tiny_shape *shape) {
  if (p->num_words < at + 2) return complain(p, "call TARGET SHAPE …", NULL);
  op->text = tiny_memdup(p->words[at], strlen(p->words[at]));
  tiny_status *status = parse_shape(p, p->words[at + 1], shape);
  for (size_t i = at + 2; i < p->num_words && !status; ++i) {
    char *equals = strchr(p->words[i], '=');
    if (equals == NULL) {
      status = add_operand(p, op, p->words[i]);
      continue;
    }
    op->attrs = grow(op->attrs, op->num_attrs, sizeof *op->attrs);
    size_t place = op->num_attrs++;
    tiny_attr attr = {tiny_memdup(p->words[i], (size_t)(equals - p->words[i])), tiny_memdup(equals + 1, strlen(equals + 1))};
    while (place > 0 && strcmp(op->attrs[place - 1].name, attr.name) > 0) { /* handlers expect them sorted */
      op->attrs[place] = op->attrs[place - 1];
      --place;
    }
    op->attrs[place] = attr;
  }
  return status;
}

static char *join_words(const parser *p, size_t first) {
  tiny_bytes out = {0};
  bytes_add(&out, "", 0);
  for (size_t i = first; i < p->num_words; ++i) bytes_print(&out, "%s%s", i > first ? " " : "", p->words[i]);
  return out.data;
}

static tiny_status *parse_arguments(parser *p, const form *form, size_t at, tiny_op *op, tiny_shape *shape) {
  size_t left = p->num_words - at;
  switch (form->code) {
    case OP_FILL:
      if (left != 2) return complain(p, "fill SHAPE NUMBER", NULL);
      op->real = strtod(p->words[at + 1], NULL);
      return parse_shape(p, p->words[at], shape);
    case OP_RECV:
      if (left != 2) return complain(p, "recv CHANNEL SHAPE", NULL);
      op->number = strtoll(p->words[at], NULL, 10);
      return parse_shape(p, p->words[at + 1], shape);
    case OP_EINSUM: {
      if (left < 3) return complain(p, "einsum SPEC SHAPE A [B]", NULL);
      op->text = tiny_memdup(p->words[at], strlen(p->words[at]));
      tiny_status *status = parse_shape(p, p->words[at + 1], shape);
      for (size_t i = at + 2; i < p->num_words && !status; ++i) status = add_operand(p, op, p->words[i]);
      if (status || einsum_fits(op, p->program->values, shape)) return status;
      return complain(p, "einsum takes one or two operands of f32 with dimensions as in the letters", op->text);
    }
    case OP_CALL:
      return parse_call(p, at, op, shape);
    case OP_REPLICA_ID:
    case OP_PARTITION_ID:
      return shape_init(shape, PJRT_Buffer_Type_U32, NULL, 0, NULL);
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
      op->text = tiny_memdup(p->words[at], strlen(p->words[at]));
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
      return parse_elementwise(p, form, at, op, shape);
  }
}

static tiny_status *parse_statement(parser *p, bool result) {
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
  tiny_shape shape;
  tiny_status *status = parse_arguments(p, form, at + 1, op, &shape);
  if (!status && result) status = add_value(p, p->words[1], &shape, &op->result);
  return status;
}

/* ---- the whole ----------------------------------------------------------------------------------------------------*/
static tiny_status *parse_line(parser *p) {
  if (p->num_words == 0 || p->words[0][0] == '#') return NULL;
  const char *first = p->words[0];
  if (p->line == 1) {
    if (strcmp(first, "tiny") == 0 && p->num_words == 2 && strcmp(p->words[1], "1") == 0) return NULL;
    return complain(p, "a tiny program starts with \"tiny 1\", not", first);
  }
  if (strcmp(first, "name") == 0 && p->num_words == 2) {
    free(p->program->name);
    p->program->name = tiny_memdup(p->words[1], strlen(p->words[1]));
    return NULL;
  }
  if (strcmp(first, "in") == 0) return parse_in(p);
  if (strcmp(first, "out") == 0) return parse_out(p);
  if (strcmp(first, "let") == 0) return parse_statement(p, true);
  if (strcmp(first, "do") == 0) return parse_statement(p, false);
  return complain(p, "unknown statement", first);
}

tiny_status *program_parse(const char *code, size_t size, tiny_program **out) {
  parser p = {.program = tiny_calloc(1, sizeof(tiny_program))};
  p.program->source = tiny_memdup(code, strnlen(code, size));
  p.program->name = tiny_memdup("tiny", 4);
  char *text = tiny_memdup(p.program->source, strlen(p.program->source)), *rest = text, *line;
  tiny_status *status = NULL;
  while (!status && (line = strsep(&rest, "\n"))) {
    ++p.line;
    p.num_words = 0;
    char *word, *state = NULL;
    for (word = strtok_r(line, " \t\r", &state); word && !status; word = strtok_r(NULL, " \t\r", &state)) {
      if (p.num_words == MAX_WORDS) status = complain(&p, "too many words", NULL);
      else p.words[p.num_words++] = word;
    }
    if (!status) status = parse_line(&p);
  }
  free(text);
  if (!status && strncmp(p.program->source, "tiny 1", 6) != 0)
    status = status_make(INVALID, "A tiny program starts with the line \"tiny 1\", got %zu bytes without it", size);
  if (status) {
    program_free(p.program);
    return status;
  }
  *out = p.program;
  return NULL;
}

static void free_strings(char **strings, size_t count) {
  for (size_t i = 0; strings && i < count; ++i) free(strings[i]);
  free(strings);
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
  free_strings(program->parameter_shardings, program->num_parameters);
  free_strings(program->output_shardings, program->num_outputs);
  free(program->parameter_sharding_sizes);
  free(program->output_sharding_sizes);
  free(program->parameter_kinds);
  free(program->values);
  free(program->ops);
  free(program->outputs);
  free(program->source);
  free(program->name);
  free(program);
}
