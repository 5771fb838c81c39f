/* Executables: compiling, loading, serializing, and what they tell about themselves. */
#include "tiny.h"

#define SERIAL_MARK "TINYEXE1"

/* A program of format "tiny" is the text. Under "mlir" the text may also lie inside a larger module, as an attribute
 * of a custom call, so that frameworks that only send MLIR bytecode can run tiny programs too. */
static tiny_status *find_source(const PJRT_Program *program, const char **code, size_t *size) {
  static const char mark[] = "tiny 1\n";
  bool tiny = program->format_size == 4 && memcmp(program->format, "tiny", 4) == 0;
  bool mlir = program->format_size == 4 && memcmp(program->format, "mlir", 4) == 0;
  if (!tiny && !mlir)
    return status_make(INVALID, "The tiny plugin takes programs of format tiny and mlir, got %.*s",
                       (int)program->format_size, program->format);
  *code = tiny ? program->code : memmem(program->code, program->code_size, mark, sizeof mark - 1);
  if (*code == NULL) return status_make(INVALID, "This MLIR module holds no tiny program");
  *size = program->code_size - (size_t)(*code - program->code);
  return NULL;
}

static void fingerprint(tiny_executable *executable) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (const char *c = executable->program->source; *c; ++c) hash = (hash ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
  for (size_t i = 0; i < executable->options_size; ++i)
    hash = (hash ^ (unsigned char)executable->options_bytes[i]) * UINT64_C(0x100000001b3);
  snprintf(executable->fingerprint, sizeof executable->fingerprint, "%016llx", (unsigned long long)hash);
}

static void describe_costs(tiny_executable *executable) {
  const tiny_program *program = executable->program;
  double flops = 0, bytes = 0;
  for (size_t i = 0; i < program->num_ops; ++i) {
    const tiny_op *op = &program->ops[i];
    bool counts = op->code == OP_ADD || op->code == OP_SUB || op->code == OP_MUL || op->code == OP_NEG;
    if (counts) flops += (double)shape_elements(&program->values[op->result].shape);
  }
  for (size_t i = 0; i < program->num_parameters; ++i) bytes += (double)shape_size(&program->values[i].shape);
  for (size_t i = 0; i < program->num_outputs; ++i)
    bytes += (double)shape_size(&program->values[program->outputs[i].value].shape);
  attributes_float(&executable->costs, "flops", (float)flops);
  attributes_float(&executable->costs, "bytes accessed", (float)bytes);
  attributes_int64(&executable->costs, "statements", (int64_t)program->num_ops);
}

static void describe_signature(tiny_executable *executable) {
  const tiny_program *program = executable->program;
  size_t outputs = program->num_outputs;
  executable->output_types = tiny_calloc(outputs, sizeof *executable->output_types);
  executable->output_ranks = tiny_calloc(outputs, sizeof *executable->output_ranks);
  executable->output_dims = tiny_calloc(outputs * TINY_MAX_RANK, sizeof *executable->output_dims);
  executable->output_kinds = tiny_calloc(outputs, sizeof *executable->output_kinds);
  executable->output_kind_sizes = tiny_calloc(outputs, sizeof *executable->output_kind_sizes);
  executable->parameter_kinds = tiny_calloc(program->num_parameters, sizeof *executable->parameter_kinds);
  executable->parameter_kind_sizes = tiny_calloc(program->num_parameters, sizeof *executable->parameter_kind_sizes);
  size_t at = 0;
  for (size_t i = 0; i < outputs; ++i) {
    const tiny_shape *shape = &program->values[program->outputs[i].value].shape;
    executable->output_types[i] = shape->type;
    executable->output_ranks[i] = shape->rank;
    for (size_t j = 0; j < shape->rank; ++j) executable->output_dims[at++] = shape->dims[j];
    executable->output_kinds[i] = tiny_memory_kinds[program->outputs[i].kind];
    executable->output_kind_sizes[i] = strlen(executable->output_kinds[i]);
  }
  for (size_t i = 0; i < program->num_parameters; ++i) {
    executable->parameter_kinds[i] = tiny_memory_kinds[program->parameter_kinds[i]];
    executable->parameter_kind_sizes[i] = strlen(executable->parameter_kinds[i]);
  }
}

tiny_status *executable_make(const PJRT_Program *program, const char *options, size_t options_size,
                             tiny_executable **out) {
  const char *code = NULL;
  size_t size = 0;
  tiny_program *parsed = NULL;
  tiny_compile_options compile_options;
  tiny_status *status = find_source(program, &code, &size);
  if (!status) status = compile_options_parse(options, options_size, &compile_options);
  if (!status) status = program_parse(code, size, &parsed);
  if (status) return status;
  tiny_executable *executable = tiny_calloc(1, sizeof *executable);
  atomic_init(&executable->refs, 1);
  pthread_mutex_init(&executable->mutex, NULL);
  executable->program = parsed;
  executable->options = compile_options;
  executable->options_bytes = tiny_memdup(options, options_size);
  executable->options_size = options_size;
  fingerprint(executable);
  describe_costs(executable);
  describe_signature(executable);
  *out = executable;
  return NULL;
}

tiny_executable *executable_ref(tiny_executable *executable) {
  atomic_fetch_add(&executable->refs, 1);
  return executable;
}

void executable_unref(tiny_executable *executable) {
  if (executable == NULL || atomic_fetch_sub(&executable->refs, 1) != 1) return;
  layouts_free(executable->parameter_layouts, executable->program->num_parameters);
  layouts_free(executable->output_layouts, executable->program->num_outputs);
  pthread_mutex_destroy(&executable->mutex);
  program_free(executable->program);
  attributes_free(&executable->costs);
  free(executable->options_bytes);
  free(executable->output_types);
  free(executable->output_ranks);
  free(executable->output_dims);
  free(executable->output_kinds);
  free(executable->output_kind_sizes);
  free(executable->parameter_kinds);
  free(executable->parameter_kind_sizes);
  free(executable);
}

PJRT_Executable *executable_handle(tiny_executable *owned) {
  PJRT_Executable *handle = tiny_calloc(1, sizeof *handle);
  handle->core = owned;
  live_add(LIVE_EXECUTABLE, 1);
  return handle;
}

/* ---- compiling ----------------------------------------------------------------------------------------------------*/
PJRT_Error *tiny_Compile(PJRT_Compile_Args *args) {
  TINY_SIZED(PJRT_Program, args->program);
  tiny_executable *executable;
  tiny_status *status =
      executable_make(args->program, args->compile_options, args->compile_options_size, &executable);
  if (status) return error_from(status);
  int64_t wanted = executable->options.num_replicas * executable->options.num_partitions;
  if (wanted > (int64_t)args->topology->num_descriptions) {
    executable_unref(executable);
    return error_make(INVALID, "The program wants %lld devices, the topology has %zu", (long long)wanted,
                      args->topology->num_descriptions);
  }
  args->executable = executable_handle(executable);
  return NULL;
}

PJRT_Error *tiny_Executable_Destroy(PJRT_Executable_Destroy_Args *args) {
  if (args->executable == NULL) return NULL;
  executable_unref(args->executable->core);
  free(args->executable);
  live_add(LIVE_EXECUTABLE, -1);
  return NULL;
}

/* ---- serializing --------------------------------------------------------------------------------------------------*/
void executable_serialize(const tiny_executable *executable, tiny_bytes *out) {
  uint64_t sizes[2] = {executable->options_size, strlen(executable->program->source)};
  bytes_add(out, SERIAL_MARK, strlen(SERIAL_MARK));
  bytes_add(out, sizes, sizeof sizes);
  bytes_add(out, executable->options_bytes, executable->options_size);
  bytes_add(out, executable->program->source, (size_t)sizes[1]);
}

static void free_serialized_executable(PJRT_SerializedExecutable *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

static void free_serialized_options(PJRT_SerializedCompileOptions *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

PJRT_Error *tiny_Executable_Serialize(PJRT_Executable_Serialize_Args *args) {
  tiny_bytes out = {0};
  executable_serialize(args->executable->core, &out);
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_executable = (PJRT_SerializedExecutable *)out.data;
  args->serialized_executable_deleter = free_serialized_executable;
  return NULL;
}

PJRT_Error *tiny_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args *args) {
  tiny_executable *executable = args->executable->core;
  char *copy = tiny_memdup(executable->options_bytes, executable->options_size);
  live_add(LIVE_SERIALIZED, 1);
  args->serialized_bytes = copy;
  args->serialized_bytes_size = executable->options_size;
  args->serialized_compile_options = (PJRT_SerializedCompileOptions *)copy;
  args->serialized_compile_options_deleter = free_serialized_options;
  return NULL;
}

PJRT_Error *tiny_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args *args) {
  const char *bytes = args->serialized_executable;
  uint64_t sizes[2];
  size_t head = strlen(SERIAL_MARK) + sizeof sizes, size = args->serialized_executable_size;
  if (size < head || memcmp(bytes, SERIAL_MARK, strlen(SERIAL_MARK)) != 0)
    return error_make(INVALID, "These %zu bytes are no serialized tiny executable", size);
  memcpy(sizes, bytes + strlen(SERIAL_MARK), sizeof sizes);
  if (sizes[0] > size - head || sizes[1] != size - head - sizes[0])
    return error_make(PJRT_Error_Code_DATA_LOSS, "The serialized executable of %zu bytes is cut short or too long", size);
  const char *options = bytes + head;
  PJRT_Program program = {.code = (char *)options + sizes[0], .code_size = (size_t)sizes[1],
                          .format = "tiny", .format_size = 4};
  bool overridden = TINY_HAS(args, PJRT_Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options_size) &&
                    args->overridden_serialized_compile_options_size;
  tiny_executable *executable;
  tiny_status *status = executable_make(
      &program, overridden ? args->overridden_serialized_compile_options : options,
      overridden ? args->overridden_serialized_compile_options_size : (size_t)sizes[0], &executable);
  return error_from(status ? status : executable_load(args->client, executable, &args->loaded_executable));
}

/* ---- what an executable answers -----------------------------------------------------------------------------------*/
PJRT_Error *tiny_Executable_Name(PJRT_Executable_Name_Args *args) {
  args->executable_name = args->executable->core->program->name;
  args->executable_name_size = strlen(args->executable_name);
  return NULL;
}

PJRT_Error *tiny_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args *args) {
  args->num_replicas = (size_t)args->executable->core->options.num_replicas;
  return NULL;
}

PJRT_Error *tiny_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args *args) {
  args->num_partitions = (size_t)args->executable->core->options.num_partitions;
  return NULL;
}

PJRT_Error *tiny_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = args->executable->core->program->num_outputs;
  return NULL;
}

PJRT_Error *tiny_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *args) {
  args->size_in_bytes = (int64_t)strlen(args->executable->core->program->source);
  return NULL;
}

PJRT_Error *tiny_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args *args) {
  args->executable_fingerprint = args->executable->core->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable_fingerprint);
  return NULL;
}

PJRT_Error *tiny_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args *args) {
  args->properties = args->executable->core->costs.values;
  args->num_properties = args->executable->core->costs.count;
  return NULL;
}

PJRT_Error *tiny_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args *args) {
  args->output_types = args->executable->core->output_types;
  args->num_output_types = args->executable->core->program->num_outputs;
  return NULL;
}

PJRT_Error *tiny_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args *args) {
  args->num_outputs = args->executable->core->program->num_outputs;
  args->dims = args->executable->core->output_dims;
  args->dim_sizes = args->executable->core->output_ranks;
  return NULL;
}

PJRT_Error *tiny_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  args->num_outputs = args->executable->core->program->num_outputs;
  args->memory_kinds = args->executable->core->output_kinds;
  args->memory_kind_sizes = args->executable->core->output_kind_sizes;
  return NULL;
}

PJRT_Error *tiny_Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args *args) {
  args->num_parameters = args->executable->core->program->num_parameters;
  args->memory_kinds = args->executable->core->parameter_kinds;
  args->memory_kind_sizes = args->executable->core->parameter_kind_sizes;
  return NULL;
}

PJRT_Error *tiny_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args *args) {
  const tiny_program *program = args->executable->core->program;
  size_t head = offsetof(PJRT_Executable_GetCompiledMemoryStats_Args, generated_code_size_in_bytes);
  memset((char *)args + head, 0, args->struct_size - head);
  args->generated_code_size_in_bytes = (int64_t)strlen(program->source);
  for (size_t i = 0; i < program->num_parameters; ++i) {
    int64_t size = (int64_t)shape_size(&program->values[i].shape);
    *(program->parameter_kinds[i] ? &args->host_argument_size_in_bytes : &args->argument_size_in_bytes) += size;
  }
  for (size_t i = 0; i < program->num_outputs; ++i) {
    int64_t size = (int64_t)shape_size(&program->values[program->outputs[i].value].shape);
    *(program->outputs[i].kind ? &args->host_output_size_in_bytes : &args->output_size_in_bytes) += size;
    if (program->outputs[i].alias >= 0)
      *(program->outputs[i].kind ? &args->host_alias_size_in_bytes : &args->alias_size_in_bytes) += size;
  }
  for (size_t i = program->num_parameters; i < program->num_values; ++i)
    args->temp_size_in_bytes += (int64_t)shape_size(&program->values[i].shape);
  int64_t peak = args->argument_size_in_bytes + args->output_size_in_bytes - args->alias_size_in_bytes +
                 args->temp_size_in_bytes;
  if (TINY_HAS(args, PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes))
    args->peak_memory_in_bytes = peak;
  if (TINY_HAS(args, PJRT_Executable_GetCompiledMemoryStats_Args, total_size_in_bytes))
    args->total_size_in_bytes = peak + args->generated_code_size_in_bytes;
  return NULL;
}

/* The program comes back as it was given. With code null only the size is told; the format always is. */
PJRT_Error *tiny_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args *args) {
  const char *source = args->executable->core->program->source;
  PJRT_Program *program = args->program;
  TINY_SIZED(PJRT_Program, program);
  program->format = "tiny";
  program->format_size = 4;
  if (program->code == NULL) {
    program->code_size = strlen(source);
    return NULL;
  }
  if (program->code_size < strlen(source))
    return error_make(INVALID, "The program has %zu bytes, there is room for %zu", strlen(source), program->code_size);
  memcpy(program->code, source, strlen(source));
  return NULL;
}
