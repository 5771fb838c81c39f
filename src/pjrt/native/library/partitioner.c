/* Custom partitioners: functions of the framework's process that say how custom calls are divided among devices.
 *
 * They are registered with the library, not with a client. XLA divides programs in a Python process of ours, which asks
 * with a message {1 name, 2 function, 3 an operand, 4 the result, 5 configuration of the call}; an operand and the result
 * are {1 shape, 2 sharding}. The answer is {1 module, 2 sharding of an operand, 3 sharding of the result}. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

typedef JAX_CustomCallPartitioner_Callbacks callbacks;
typedef JAX_CustomCallPartitioner_aval aval;
typedef JAX_CustomCallPartitioner_string string;

/* ---- what is registered ---------------------------------------------------------------------------------------------*/
enum { MAY_BE_REPLICATED = 1, IN_BATCHES = 2 }; /* traits, as a process of ours knows them */

typedef struct partitioner {
  char *name;
  size_t name_size;
  int traits;
  uint64_t number;      /* of its registration */
  callbacks *functions; /* null for calls in batches, which XLA divides by itself */
  size_t users;         /* calls that run */
  bool is_replaced;
  struct partitioner *next;
} partitioner;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static partitioner *partitioners;
static uint64_t last_number;

static bool has_name(const partitioner *each, const char *name, size_t size) {
  return !each->is_replaced && each->name_size == size && memcmp(each->name, name, size) == 0;
}

/* Takes those out that nobody needs any more. */
static partitioner *take_replaced_locked(void) {
  partitioner *taken = NULL;
  for (partitioner **place = &partitioners; *place;) {
    partitioner *each = *place;
    if (!each->is_replaced || each->users) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    each->next = taken;
    taken = each;
  }
  return taken;
}

/* The functions before are given back here, or at the next registration where they are running: whoever registers holds
 * the lock of his interpreter, which he may need to free them. */
static void add(const char *name, size_t size, int traits, callbacks *functions) {
  partitioner *made = new_zeroed(1, sizeof *made);
  *made = (partitioner){.name = copy_of(name, size), .name_size = size, .traits = traits, .functions = functions};
  pthread_mutex_lock(&mutex);
  for (partitioner *each = partitioners; each; each = each->next)
    if (has_name(each, name, size)) each->is_replaced = true;
  made->number = ++last_number;
  made->next = partitioners;
  partitioners = made;
  partitioner *replaced = take_replaced_locked();
  pthread_mutex_unlock(&mutex);
  while (replaced) {
    partitioner *each = replaced;
    replaced = each->next;
    if (each->functions) each->functions->dtor(each->functions);
    free(each->name);
    free(each);
  }
}

uint64_t partitioner_add_names(bytes *request, int number, uint64_t known) {
  pthread_mutex_lock(&mutex);
  for (const partitioner *each = partitioners; each && each->number > known; each = each->next) { /* the latest first */
    if (each->is_replaced) continue;
    proto_bytes(request, number, each->name, each->name_size);
    proto_varint(request, number + 1, (uint64_t)each->traits);
  }
  uint64_t latest = last_number;
  pthread_mutex_unlock(&mutex);
  return latest;
}

/* ---- a call -----------------------------------------------------------------------------------------------------------*/
enum { DIVIDE = 1, INFER = 2, PROPAGATE = 3 };

typedef struct question {
  string name, config;
  uint64_t function;
  size_t num_operands;
  aval *operands;
  aval result;
} question;

static string string_of(const proto_field *field) { return (string){field->data, field->size}; }

/* A sharding may be empty: that of a value that all devices have. */
static bool read_aval(const proto_field *of, aval *out) {
  const char *cursor = of->data, *end = of->data + of->size;
  proto_field field;
  *out = (aval){.shape = {"", 0}, .sharding = {"", 0}};
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 2) out->shape = string_of(&field);
    if (field.number == 2 && field.wire == 2) out->sharding = string_of(&field), out->has_sharding = true;
  }
  return cursor == end;
}

/* The operands are the caller's to free, also of a message that cannot be read. */
static bool read_question(const char *message, size_t size, question *out) {
  const char *cursor = message, *end = message + size;
  proto_field field;
  bool is_right = true;
  *out = (question){.name = {"", 0}, .config = {"", 0}};
  while (proto_next(&cursor, end, &field)) out->num_operands += field.number == 3 && field.wire == 2;
  out->operands = new_zeroed(out->num_operands, sizeof *out->operands);
  size_t next = 0;
  for (cursor = message; proto_next(&cursor, end, &field);) {
    if (field.number == 1 && field.wire == 2) out->name = string_of(&field);
    if (field.number == 2 && field.wire == 0) out->function = field.value;
    if (field.number == 3 && field.wire == 2 && !read_aval(&field, &out->operands[next++])) is_right = false;
    if (field.number == 4 && field.wire == 2 && !read_aval(&field, &out->result)) is_right = false;
    if (field.number == 5 && field.wire == 2) out->config = string_of(&field);
  }
  return is_right && cursor == end;
}

static void add_string(bytes *out, int number, string of) { proto_bytes(out, number, of.data, of.size); }

static PJRT_Error *error_of(const JAX_CustomCallPartitioner_version_and_error *header) {
  if (!header->has_error) return NULL;
  PJRT_Error_Code code = header->code ? header->code : PJRT_Error_Code_UNKNOWN;
  return pjrt_error_new(code, header->error_msg.data, header->error_msg.size);
}

static void clean_up(const JAX_CustomCallPartitioner_version_and_error *header) {
  if (header->cleanup_fn) header->cleanup_fn(header->data);
}

static PJRT_Error *divide(callbacks *functions, const question *of, bytes *results) {
  JAX_CustomCallPartitioner_Partition_Args args = {.num_args = of->num_operands, .op_args = of->operands,
                                                   .op_result = of->result, .backend_config = of->config};
  functions->partition(functions, &args);
  PJRT_Error *error = error_of(&args.header);
  if (!error) {
    add_string(results, 1, args.mlir_module);
    for (size_t i = 0; i < of->num_operands; ++i) add_string(results, 2, args.args_sharding[i]);
    add_string(results, 3, args.result_sharding);
  }
  clean_up(&args.header);
  return error;
}

static PJRT_Error *infer(callbacks *functions, const question *of, bytes *results) {
  JAX_CustomCallPartitioner_InferShardingFromOperands_Args args = {
      .num_args = of->num_operands, .op_args = of->operands, .result_shape = of->result.shape,
      .backend_config = of->config};
  functions->infer_sharding(functions, &args);
  PJRT_Error *error = error_of(&args.header);
  if (!error && args.has_result_sharding) add_string(results, 3, args.result_sharding);
  clean_up(&args.header);
  return error;
}

static PJRT_Error *propagate(callbacks *functions, const question *of, bytes *results) {
  JAX_CustomCallPartitioner_PropagateUserSharding_Args args = {.backend_config = of->config,
                                                               .result_shape = of->result.shape,
                                                               .result_sharding = of->result.sharding};
  functions->propagate_user_sharding(functions, &args);
  PJRT_Error *error = error_of(&args.header);
  if (!error) add_string(results, 3, args.result_sharding);
  clean_up(&args.header);
  return error;
}

static PJRT_Error *call(partitioner *of, const question *asked, bytes *results) {
  switch (asked->function) {
    case DIVIDE: return divide(of->functions, asked, results);
    case INFER: return infer(of->functions, asked, results);
    case PROPAGATE: return propagate(of->functions, asked, results);
    default: return error_make(PJRT_Error_Code_INTERNAL, "a partitioner has no function %llu",
                               (unsigned long long)asked->function);
  }
}

/* Finds the functions of a name, which stay until `let_go`. */
static partitioner *hold(string name) {
  pthread_mutex_lock(&mutex);
  partitioner *each = partitioners;
  while (each && !(each->functions && has_name(each, name.data, name.size))) each = each->next;
  if (each) ++each->users;
  pthread_mutex_unlock(&mutex);
  return each;
}

static void let_go(partitioner *each) {
  pthread_mutex_lock(&mutex);
  --each->users;
  pthread_mutex_unlock(&mutex);
}

PJRT_Error *partitioner_call(const char *message, size_t size, bytes *results) {
  question asked;
  PJRT_Error *error = NULL;
  if (!read_question(message, size, &asked)) {
    error = error_make(PJRT_Error_Code_INTERNAL, "a question to a partitioner cannot be read");
  } else {
    partitioner *found = hold(asked.name);
    if (found) {
      error = call(found, &asked, results);
      let_go(found);
    } else {
      error = error_make(PJRT_Error_Code_NOT_FOUND, "nobody registered how calls of %.*s are divided",
                         (int)asked.name.size, asked.name.data);
    }
  }
  free(asked.operands);
  return error;
}

/* ---- the extension ----------------------------------------------------------------------------------------------------------*/
static PJRT_Error *check_name(const char *name, size_t size, const char *function) {
  return name && size ? NULL : error_make(INVALID, "%s: expected the name of a custom call, found none", function);
}

static PJRT_Error *register_partitioner(PJRT_Register_Custom_Partitioner_Args *args) {
  SIZED(PJRT_Register_Custom_Partitioner_Args, args);
  callbacks *given = args->callbacks;
  PJRT_Error *error = check_name(args->name, args->name_size, "PJRT_Register_Custom_Partitioner");
  if (error) return error;
  if (given == NULL || given->version != 0 || !given->dtor || !given->partition || !given->infer_sharding ||
      !given->propagate_user_sharding)
    return error_make(INVALID, "PJRT_Register_Custom_Partitioner: expected four functions of version 0 for %.*s",
                      (int)args->name_size, args->name);
  add(args->name, args->name_size, given->can_side_effecting_have_replicated_sharding ? MAY_BE_REPLICATED : 0, given);
  return NULL;
}

static PJRT_Error *register_batches(PJRT_Register_Batch_Partitionable_Args *args) {
  SIZED(PJRT_Register_Batch_Partitionable_Args, args);
  PJRT_Error *error = check_name(args->name, args->name_size, "PJRT_Register_Batch_Partitionable");
  if (!error) add(args->name, args->name_size, IN_BATCHES, NULL);
  return error;
}

PJRT_Custom_Partitioner_Extension partitioner_extension = {
    .base = {.struct_size = PJRT_Custom_Partitioner_Extension_STRUCT_SIZE,
             .type = PJRT_Extension_Type_Custom_Partitioner},
    .register_custom_partitioner = register_partitioner,
    .register_batch_partitionable = register_batches,
};
