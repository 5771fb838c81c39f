/* Executables: what the compiler wrote, read and checked; and loaded executables, which have devices.
 *
 * The form is that of protocol buffers, so that a later version may add fields:
 *   1 mark and version, 2 name, 3 a parameter, 4 an output, 5 the code, 6 bytes of scratch, 7 the compile options,
 *   8 the program, 9 its format, 13 and 14 the same after optimizations, 10 a cost {1 name, 2 a double}, 11 a parameter that is donated without an alias,
 *   15 bytes that are equal for equal executables; by default all of them, 16 whether
 *   arguments may be in other memory than the parameters state,
 *   17 a value between steps, 18 a step (see steps.c; then there is no code), 19 whether it has collectives,
 *   20 the bytes that a run needs, in the order of PJRT_Executable_GetCompiledMemoryStats_Args, by default counted from
 *   the types, 21 whether results are divided,
 *   12 the CRC-32 of all before it, the last field: fields alone look whole where the end is missing.
 * A parameter or output is {1 element type, 2 dimensions, 3 kind of memory, 4 one more than the parameter whose memory
 * the output may take over, 5 how it is divided among devices: an OpSharding, 6 the order of its dimensions in memory,
 * the most minor first, 8 the layout that the framework asks for, where that has tiles}; a value between steps too, with 7
 * whether it stays on the host. */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

static const char MARK[] = "PJRT-NATIVE-1";

/* ---- compile options ----------------------------------------------------------------------------------------------------*/
/* DeviceAssignmentProto: one ComputationDevice for each partition, with a device for each replica. */
static PJRT_Error *read_assignment(const char *data, size_t size, executable *out) {
  const char *cursor = data, *end = data + size;
  proto_field field;
  int64_t partition = 0, replicas = 0, partitions = 0, by_partition[MAX_DEVICES] = {0};
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1) replicas = (int64_t)field.value;
    if (field.number == 2) partitions = (int64_t)field.value;
    if (field.number != 3 || field.wire != 2) continue;
    if (replicas < 1 || replicas > MAX_DEVICES) break;
    const char *inner = field.data, *inner_end = field.data + field.size;
    proto_field ids;
    int64_t seen = 0;
    while (proto_next(&inner, inner_end, &ids)) {
      int64_t at = partition * replicas + seen;
      if (ids.number == 1 && at < MAX_DEVICES)
        seen += (int64_t)proto_int64s(&ids, by_partition + at, (size_t)(MAX_DEVICES - at));
    }
    if (seen != replicas) break;
    ++partition;
  }
  if (cursor != end || partition < 1 || partition != partitions || replicas < 1 || replicas * partitions > MAX_DEVICES)
    return error_make(INVALID, "the device assignment is damaged, or has more than %d devices", MAX_DEVICES);
  out->num_replicas = replicas;
  out->num_partitions = partitions;
  out->has_assignment = true;
  for (int64_t r = 0; r < replicas; ++r) {
    for (int64_t p = 0; p < partitions; ++p) out->assignment[r * partitions + p] = by_partition[p * replicas + r];
  }
  return NULL;
}

static PJRT_Error *read_build_options(const char *data, size_t size, executable *out) {
  const char *cursor = data, *end = data + size;
  proto_field field;
  int64_t replicas = 0, partitions = 0;
  PJRT_Error *error = NULL;
  while (error == NULL && proto_next(&cursor, end, &field)) {
    if (field.number == 1) out->device_ordinal = (int64_t)field.value;
    if (field.number == 4) replicas = (int64_t)field.value;
    if (field.number == 5) partitions = (int64_t)field.value;
    if (field.number == 9 && field.wire == 2) error = read_assignment(field.data, field.size, out);
  }
  if (error) return error;
  if (cursor != end) return error_make(INVALID, "the build options of the executable are damaged");
  if (out->has_assignment) return NULL;
  out->num_replicas = replicas ? replicas : 1;
  out->num_partitions = partitions ? partitions : 1;
  if (out->num_replicas < 1 || out->num_partitions < 1 || out->num_replicas > MAX_DEVICES ||
      out->num_partitions > MAX_DEVICES || out->num_replicas * out->num_partitions > MAX_DEVICES)
    return error_make(INVALID, "expected replicas x partitions from 1 to %d, found %lld x %lld", MAX_DEVICES,
                      (long long)out->num_replicas, (long long)out->num_partitions);
  return NULL;
}

static PJRT_Error *read_options(const char *data, size_t size, executable *out) {
  out->num_replicas = out->num_partitions = 1;
  out->device_ordinal = -1;
  const char *cursor = data, *end = data + size;
  proto_field field;
  PJRT_Error *error = NULL;
  while (error == NULL && proto_next(&cursor, end, &field)) {
    if (field.number == 3 && field.wire == 2) error = read_build_options(field.data, field.size, out);
    if (field.number == 4 && field.wire == 0) out->is_portable = field.value != 0;
  }
  if (error == NULL && cursor != end) error = error_make(INVALID, "the compile options are no CompileOptionsProto");
  return error;
}

static void write_assignment(const PJRT_LoadedExecutable *loaded, bytes *out) {
  const executable *core = loaded->core;
  proto_varint(out, 1, (uint64_t)core->num_replicas);
  proto_varint(out, 2, (uint64_t)core->num_partitions);
  for (int64_t p = 0; p < core->num_partitions; ++p) {
    bytes computation = {0};
    for (int64_t r = 0; r < core->num_replicas; ++r)
      proto_varint(&computation, 1, (uint64_t)loaded->assignment[r * core->num_partitions + p]);
    proto_bytes(out, 3, computation.data, computation.size);
    free(computation.data);
  }
}

/* ---- reading what the compiler wrote ----------------------------------------------------------------------------------------*/
static PJRT_Error *damaged(const char *what) {
  return error_make(PJRT_Error_Code_DATA_LOSS, "the executable is damaged: %s", what);
}

static PJRT_Error *read_value(const proto_field *from, const char *const *kinds, size_t num_kinds, shape *of,
                              size_t *kind, int64_t *alias) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  int type = 0;
  size_t rank = 0, num_minor = 0;
  int64_t dims[MAX_RANK], minor_to_major[MAX_RANK];
  *kind = 0;
  *alias = -1;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 0) type = (int)field.value;
    if (field.number == 2) {
      rank = proto_int64s(&field, dims, MAX_RANK);
      if (rank > MAX_RANK) return damaged("an array has too many dimensions");
    }
    if (field.number == 3 && field.wire == 2 && field.size) {
      while (*kind < num_kinds && (strlen(kinds[*kind]) != field.size || memcmp(kinds[*kind], field.data, field.size)))
        ++*kind;
      if (*kind == num_kinds)
        return error_make(INVALID, "the executable wants memory of kind %.*s, which the device does not have",
                          (int)(field.size < 100 ? field.size : 100), field.data);
    }
    if (field.number == 4 && field.wire == 0) *alias = (int64_t)field.value - 1;
    if (field.number == 6) num_minor = proto_int64s(&field, minor_to_major, MAX_RANK);
  }
  if (cursor != end || num_minor > MAX_RANK) return damaged("a parameter or a result cannot be read");
  PJRT_Buffer_MemoryLayout layout = {.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                     .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
                                     .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                               .minor_to_major = minor_to_major, .minor_to_major_size = num_minor}};
  return shape_init(of, (PJRT_Buffer_Type)type, dims, rank, num_minor ? &layout : NULL);
}

/* How a value is divided, where that is said: the lists are made for the first one that says it. */
static void read_sharding(const proto_field *from, size_t number, size_t count, const char ***shardings, size_t **sizes) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number != 5 || field.wire != 2) continue;
    if (*shardings == NULL) {
      *shardings = new_zeroed(count, sizeof **shardings);
      *sizes = new_zeroed(count, sizeof **sizes);
      for (size_t i = 0; i < count; ++i) (*shardings)[i] = "";
    }
    (*shardings)[number] = field.data;
    (*sizes)[number] = field.size;
  }
}

static void read_donated(const proto_field *from, executable *out) {
  int64_t *numbers = new_zeroed(out->num_parameters, sizeof *numbers);
  size_t count = proto_int64s(from, numbers, out->num_parameters);
  for (size_t i = 0; i < count && i < out->num_parameters; ++i)
    if (numbers[i] >= 0 && (uint64_t)numbers[i] < out->num_parameters) out->donated[numbers[i]] = true;
  free(numbers);
}

/* Whether a value between steps stays on the host. */
static bool is_on_host(const proto_field *from) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 7 && field.wire == 0 && field.value) return true;
  }
  return false;
}

/* The text of the layout that the framework asks for, where it has tiles. */
static proto_field asked_layout(const proto_field *from) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 8 && field.wire == 2) return field;
  }
  return (proto_field){0};
}

static void read_cost(const proto_field *from, executable *out) {
  const char *cursor = from->data, *end = from->data + from->size;
  proto_field field;
  char *name = NULL;
  double value = 0;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1 && field.wire == 2 && name == NULL) name = copy_of(field.data, field.size);
    if (field.number == 2 && field.wire == 1) memcpy(&value, field.data, sizeof value);
  }
  if (name) named_float_add(&out->costs, name, (float)value);
  free(name);
}

static void describe(executable *each, const char *const *kinds) {
  size_t outputs = each->num_outputs, at = 0;
  each->output_types = new_zeroed(outputs, sizeof *each->output_types);
  each->output_ranks = new_zeroed(outputs, sizeof *each->output_ranks);
  each->output_dims = new_zeroed(outputs * MAX_RANK, sizeof *each->output_dims);
  each->output_kinds = new_zeroed(outputs, sizeof *each->output_kinds);
  each->output_kind_sizes = new_zeroed(outputs, sizeof *each->output_kind_sizes);
  each->parameter_kinds = new_zeroed(each->num_parameters, sizeof *each->parameter_kinds);
  each->parameter_kind_sizes = new_zeroed(each->num_parameters, sizeof *each->parameter_kind_sizes);
  for (size_t i = 0; i < outputs; ++i) {
    const shape *of = &each->outputs[i].shape;
    atomic_init(&each->outputs[i].size, shape_size(of));
    each->output_types[i] = of->type;
    each->output_ranks[i] = of->rank;
    for (size_t j = 0; j < of->rank; ++j) each->output_dims[at++] = of->dims[j];
    each->output_kinds[i] = copy_of(kinds[each->outputs[i].kind], strlen(kinds[each->outputs[i].kind]));
    each->output_kind_sizes[i] = strlen(each->output_kinds[i]);
  }
  for (size_t i = 0; i < each->num_values; ++i) atomic_init(&each->values[i].size, shape_size(&each->values[i].shape));
  for (size_t i = 0; i < each->num_parameters; ++i) {
    atomic_init(&each->parameters[i].size, shape_size(&each->parameters[i].shape));
    each->parameter_kinds[i] = copy_of(kinds[each->parameters[i].kind], strlen(kinds[each->parameters[i].kind]));
    each->parameter_kind_sizes[i] = strlen(each->parameter_kinds[i]);
  }
  snprintf(each->fingerprint, sizeof each->fingerprint, "%016llx",
           (unsigned long long)(each->identity ? fingerprint_of(0, each->identity, each->identity_size)
                                               : fingerprint_of(0, each->serialized, each->serialized_size)));
}

/* As zlib computes it, half a byte at a time. */
static uint32_t crc32_of(const char *data, size_t size) {
  static const uint32_t steps[16] = {
      0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
      0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
  uint32_t crc = UINT32_MAX;
  for (size_t i = 0; i < size; ++i) {
    crc ^= (unsigned char)data[i];
    crc = crc >> 4 ^ steps[crc & 15];
    crc = crc >> 4 ^ steps[crc & 15];
  }
  return ~crc;
}

/* The first pass counts, so that arrays have their size. */
static PJRT_Error *count_fields(executable *each) {
  const char *cursor = each->serialized, *end = cursor + each->serialized_size, *begin = cursor;
  proto_field field;
  bool is_marked = false, is_whole = false;
  for (; proto_next(&cursor, end, &field); begin = cursor) {
    if (field.number == 12 && field.wire == 5 && cursor == end) {
      uint32_t stated;
      memcpy(&stated, field.data, sizeof stated);
      is_whole = stated == crc32_of(each->serialized, (size_t)(begin - each->serialized));
    }
    if (field.number == 1 && field.wire == 2)
      is_marked = field.size == sizeof MARK - 1 && memcmp(field.data, MARK, field.size) == 0;
    if (field.number == 3 && field.wire == 2) ++each->num_parameters;
    if (field.number == 4 && field.wire == 2) ++each->num_outputs;
    if (field.number == 17 && field.wire == 2) ++each->num_values;
    if (field.number == 18 && field.wire == 2) ++each->num_steps;
  }
  if (!is_marked)
    return error_make(INVALID, "these %zu bytes are no executable of this version of the runtime (%s)",
                      each->serialized_size, MARK);
  return is_whole ? NULL : damaged("it is cut short, or its checksum is another");
}

static PJRT_Error *read_fields(executable *each, const char *const *kinds, size_t num_kinds) {
  const char *cursor = each->serialized, *end = cursor + each->serialized_size;
  proto_field field;
  PJRT_Error *error = NULL;
  size_t parameter_number = 0, output_number = 0, value_number = 0;
  int64_t ignored;
  while (!error && proto_next(&cursor, end, &field)) {
    bool is_bytes = field.wire == 2;
    if (field.number == 2 && is_bytes && each->name == NULL) each->name = copy_of(field.data, field.size);
    if (field.number == 3 && is_bytes) {
      read_sharding(&field, parameter_number, each->num_parameters, &each->parameter_shardings,
                    &each->parameter_sharding_sizes);
      each->asked_layouts[parameter_number] = asked_layout(&field);
      parameter *it = &each->parameters[parameter_number++];
      error = read_value(&field, kinds, num_kinds, &it->shape, &it->kind, &ignored);
    }
    if (field.number == 4 && is_bytes) {
      read_sharding(&field, output_number, each->num_outputs, &each->output_shardings, &each->output_sharding_sizes);
      each->asked_layouts[each->num_parameters + output_number] = asked_layout(&field);
      output *it = &each->outputs[output_number++];
      error = read_value(&field, kinds, num_kinds, &it->shape, &it->kind, &it->alias);
      if (!error && it->alias >= (int64_t)each->num_parameters) error = damaged("a result names no parameter as its memory");
    }
    if (field.number == 17 && is_bytes) {
      value *it = &each->values[value_number++];
      it->is_on_host = is_on_host(&field);
      error = read_value(&field, kinds, num_kinds, &it->shape, &it->kind, &ignored);
    }
    if (field.number == 5 && is_bytes) each->code = field.data, each->code_size = field.size;
    if (field.number == 6 && field.wire == 0) each->scratch = (size_t)field.value;
    if (field.number == 7 && is_bytes) each->options = field.data, each->options_size = field.size;
    if (field.number == 8 && is_bytes) each->program = field.data, each->program_size = field.size;
    if (field.number == 9 && is_bytes && each->format == NULL) each->format = copy_of(field.data, field.size);
    if (field.number == 13 && is_bytes) each->optimized = field.data, each->optimized_size = field.size;
    if (field.number == 14 && is_bytes && each->optimized_format == NULL)
      each->optimized_format = copy_of(field.data, field.size);
    if (field.number == 20) each->num_memory += proto_int64s(&field, each->memory + each->num_memory, 16 - each->num_memory);
    if (each->num_memory > 16) error = damaged("it has too many facts about memory");
    if (field.number == 21 && field.wire == 0) each->is_sharded = field.value != 0;
    if (field.number == 16 && field.wire == 0) each->takes_any_memory = field.value != 0;
    if (field.number == 19 && field.wire == 0) each->has_collectives = field.value != 0;
    if (field.number == 15 && is_bytes) each->identity = field.data, each->identity_size = field.size;
    if (field.number == 10 && is_bytes) read_cost(&field, each);
    if (field.number == 11) read_donated(&field, each);
  }
  if (error) return error;
  for (size_t i = 0; i < each->num_outputs; ++i) {
    int64_t alias = each->outputs[i].alias;
    if (alias < 0) continue;
    if (each->donated[alias]) return damaged("two results take over the memory of one parameter");
    each->donated[alias] = true;
  }
  error = steps_read(each);
  if (error) return error;
  return read_options(each->options, each->options_size, each);
}

PJRT_Error *executable_read(const char *data, size_t size, const char *const *kinds, size_t num_kinds,
                            executable **out) {
  executable *each = new_zeroed(1, sizeof *each);
  atomic_init(&each->refs, 1);
  each->serialized = copy_of(data, size);
  each->serialized_size = size;
  PJRT_Error *error = count_fields(each);
  if (!error) {
    each->parameters = new_zeroed(each->num_parameters, sizeof *each->parameters);
    each->outputs = new_zeroed(each->num_outputs, sizeof *each->outputs);
    each->values = new_zeroed(each->num_values, sizeof *each->values);
    each->steps = new_zeroed(each->num_steps, sizeof *each->steps);
    each->donated = new_zeroed(each->num_parameters, sizeof *each->donated);
    each->asked_layouts = new_zeroed(each->num_parameters + each->num_outputs, sizeof *each->asked_layouts);
    error = read_fields(each, kinds, num_kinds);
  }
  if (error) {
    each->num_outputs = each->num_parameters = 0; /* nothing was described */
    executable_unref(each);
    return error;
  }
  if (each->name == NULL) each->name = copy_of("main", 4);
  if (each->format == NULL) each->format = copy_of("mlir", 4);
  describe(each, kinds);
  *out = each;
  return NULL;
}

executable *executable_ref(executable *each) {
  atomic_fetch_add_explicit(&each->refs, 1, memory_order_relaxed);
  return each;
}

void executable_unref(executable *each) {
  if (each == NULL || atomic_fetch_sub(&each->refs, 1) != 1) return;
  layouts_free(each->parameter_layouts, each->num_parameters);
  layouts_free(each->output_layouts, each->num_outputs);
  for (size_t i = 0; i < each->num_outputs; ++i) free((char *)each->output_kinds[i]);
  for (size_t i = 0; i < each->num_parameters; ++i) free((char *)each->parameter_kinds[i]);
  named_values_free(&each->costs);
  steps_free(each);
  free(each->values);
  free(each->serialized);
  free(each->name);
  free(each->format);
  free(each->optimized_format);
  free(each->parameters);
  free(each->outputs);
  free(each->donated);
  free(each->output_types);
  free(each->output_dims);
  free(each->output_ranks);
  free(each->output_kinds);
  free(each->output_kind_sizes);
  free(each->parameter_kinds);
  free(each->parameter_kind_sizes);
  free(each->output_shardings);
  free(each->output_sharding_sizes);
  free(each->parameter_shardings);
  free(each->parameter_sharding_sizes);
  free(each->asked_layouts);
  free(each);
}

PJRT_Executable *executable_handle(executable *owned) {
  PJRT_Executable *handle = new_zeroed(1, sizeof *handle);
  handle->core = owned;
  return handle;
}

/* ---- compiling ----------------------------------------------------------------------------------------------------------*/
static size_t kinds_of(PJRT_Client *client, const char **kinds) {
  size_t number = 0;
  while (number + 1 < client->num_devices && client->devices[number].description->num_memories == 0) ++number;
  const PJRT_DeviceDescription *description = client->devices[number].description;
  for (size_t i = 0; i < description->num_memories; ++i) kinds[i] = description->memories[i].kind;
  return description->num_memories;
}

static bool is_text(const char *text, size_t size, const char *expected) {
  return size == strlen(expected) && memcmp(text, expected, size) == 0;
}

/* A client in Python says itself which formats it takes. */
static PJRT_Error *check_program(const PJRT_Client *client, const PJRT_Program *program) {
  PJRT_Error *error = pjrt_check_size(program, PJRT_Program_FIRST_STRUCT_SIZE, "PJRT_Program");
  if (error || is_python(client)) return error;
  const char *format = program->format;
  size_t size = program->format_size;
  if (is_text(format, size, "mlir") || is_text(format, size, "hlo") || is_text(format, size, "hlo_with_config"))
    return NULL;
  return error_make(INVALID, "expected a program in the format mlir, hlo or hlo_with_config, found %.*s",
                    (int)(size < 100 ? size : 100), format);
}

static PJRT_Error *compile(PJRT_Client *client, const PJRT_Program *program, const char *options, size_t options_size,
                           executable **out) {
  PJRT_Error *error = check_program(client, program);
  if (error) return error;
  bytes request = {0};
  proto_bytes(&request, 1, "compile", 7);
  proto_bytes(&request, 2, program->format, program->format_size);
  proto_bytes(&request, 3, program->code, program->code_size);
  proto_bytes(&request, 4, options, options_size);
  if (DRIVER_HAS(client->table, layout)) proto_varint(&request, 5, 1);
  answer compiled;
  int64_t begun = recording_now();
  error = is_python(client) ? client->python->ask(client->driver, &request, &compiled)
                            : process_ask(client->compiler, &request, &compiled);
  free(request.data);
  if (error) return error;
  const char *kinds[MAX_KINDS];
  error = executable_read(compiled.data, compiled.data_size, kinds, kinds_of(client, kinds), out);
  answer_free(&compiled);
  if (!error) recording_host(client, "compilations", (*out)->name, begun);
  return error;
}

PJRT_Error *native_Client_Compile(PJRT_Client_Compile_Args *args) {
  executable *core;
  PJRT_Error *error = compile(args->client, args->program, args->compile_options, args->compile_options_size, &core);
  return error ? error : executable_load(args->client, core, &args->executable);
}

static PJRT_Error *measure(executable *core, const PJRT_Device *device);

PJRT_Error *native_Compile(PJRT_Compile_Args *args) {
  const PJRT_TopologyDescription *topology = args->topology;
  PJRT_Client *client = NULL;
  PJRT_Error *error = NULL;
  /* For devices that need not be here another client's process is of no use. */
  if (args->client && topology->facts.topology == NULL) client = client_ref(args->client);
  else error = topology_compiler(topology, &client);
  if (error) return error;
  executable *core;
  error = compile(client, args->program, args->compile_options, args->compile_options_size, &core);
  if (!error && core->num_replicas * core->num_partitions > (int64_t)topology->facts.num_devices) {
    error = error_make(INVALID, "the program runs on %lld devices, the topology has %zu",
                       (long long)(core->num_replicas * core->num_partitions), topology->facts.num_devices);
    executable_unref(core);
  }
  if (!error && client->num_addressable) {
    error = measure(core, client->addressable_handles[0]);
    if (error) executable_unref(core);
  }
  if (!error) args->executable = executable_handle(core);
  client_unref(client);
  return error;
}

/* The executable stays the caller's. With options given it is read again under them. */
PJRT_Error *native_Client_Load(PJRT_Client_Load_Args *args) {
  executable *core = args->executable->core;
  if (args->compile_options_size == 0)
    return executable_load(args->client, executable_ref(core), &args->loaded_executable);
  PJRT_Program program = {.struct_size = PJRT_Program_STRUCT_SIZE, .code = (char *)core->program,
                          .code_size = core->program_size, .format = core->format, .format_size = strlen(core->format)};
  executable *again;
  PJRT_Error *error = compile(args->client, &program, args->compile_options, args->compile_options_size, &again);
  return error ? error : executable_load(args->client, again, &args->loaded_executable);
}

PJRT_Error *native_Executable_DeserializeAndLoad(PJRT_Executable_DeserializeAndLoad_Args *args) {
  const char *kinds[MAX_KINDS];
  executable *core;
  PJRT_Error *error = executable_read(args->serialized_executable, args->serialized_executable_size, kinds,
                                      kinds_of(args->client, kinds), &core);
  if (error) return error;
  if (HAS(args, PJRT_Executable_DeserializeAndLoad_Args, overridden_serialized_compile_options_size) &&
      args->overridden_serialized_compile_options_size) {
    core->has_assignment = core->is_portable = false;
    error = read_options(args->overridden_serialized_compile_options, args->overridden_serialized_compile_options_size,
                         core);
    if (error) {
      executable_unref(core);
      return error;
    }
  }
  return executable_load(args->client, core, &args->loaded_executable);
}

PJRT_Error *native_Executable_Destroy(PJRT_Executable_Destroy_Args *args) {
  if (args->executable == NULL) return NULL;
  executable_unref(args->executable->core);
  free(args->executable);
  return NULL;
}

/* ---- what an executable answers -----------------------------------------------------------------------------------------*/
static void free_serialized(PJRT_SerializedExecutable *serialized) { free(serialized); }
static void free_options(PJRT_SerializedCompileOptions *serialized) { free(serialized); }

PJRT_Error *native_Executable_Serialize(PJRT_Executable_Serialize_Args *args) {
  const executable *core = args->executable->core;
  char *copy = copy_of(core->serialized, core->serialized_size);
  args->serialized_bytes = copy;
  args->serialized_bytes_size = core->serialized_size;
  args->serialized_executable = (PJRT_SerializedExecutable *)copy;
  args->serialized_executable_deleter = free_serialized;
  return NULL;
}

PJRT_Error *native_Executable_GetCompileOptions(PJRT_Executable_GetCompileOptions_Args *args) {
  const executable *core = args->executable->core;
  char *copy = copy_of(core->options, core->options_size);
  args->serialized_bytes = copy;
  args->serialized_bytes_size = core->options_size;
  args->serialized_compile_options = (PJRT_SerializedCompileOptions *)copy;
  args->serialized_compile_options_deleter = free_options;
  return NULL;
}

PJRT_Error *native_Executable_Name(PJRT_Executable_Name_Args *args) {
  args->executable_name = args->executable->core->name;
  args->executable_name_size = strlen(args->executable_name);
  return NULL;
}

PJRT_Error *native_Executable_NumReplicas(PJRT_Executable_NumReplicas_Args *args) {
  args->num_replicas = (size_t)args->executable->core->num_replicas;
  return NULL;
}

PJRT_Error *native_Executable_NumPartitions(PJRT_Executable_NumPartitions_Args *args) {
  args->num_partitions = (size_t)args->executable->core->num_partitions;
  return NULL;
}

PJRT_Error *native_Executable_NumOutputs(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = args->executable->core->num_outputs;
  return NULL;
}

PJRT_Error *native_Executable_SizeOfGeneratedCodeInBytes(PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *args) {
  const executable *core = args->executable->core;
  args->size_in_bytes = core->num_memory ? core->memory[0] : (int64_t)core->code_size;
  return NULL;
}

PJRT_Error *native_Executable_Fingerprint(PJRT_Executable_Fingerprint_Args *args) {
  args->executable_fingerprint = args->executable->core->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable_fingerprint);
  return NULL;
}

PJRT_Error *native_Executable_GetCostAnalysis(PJRT_Executable_GetCostAnalysis_Args *args) {
  args->properties = args->executable->core->costs.values;
  args->num_properties = args->executable->core->costs.count;
  return NULL;
}

PJRT_Error *native_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args *args) {
  args->output_types = args->executable->core->output_types;
  args->num_output_types = args->executable->core->num_outputs;
  return NULL;
}

PJRT_Error *native_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args *args) {
  args->num_outputs = args->executable->core->num_outputs;
  args->dims = args->executable->core->output_dims;
  args->dim_sizes = args->executable->core->output_ranks;
  return NULL;
}

PJRT_Error *native_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args *args) {
  args->num_outputs = args->executable->core->num_outputs;
  args->memory_kinds = args->executable->core->output_kinds;
  args->memory_kind_sizes = args->executable->core->output_kind_sizes;
  return NULL;
}

PJRT_Error *native_Executable_ParameterMemoryKinds(PJRT_Executable_ParameterMemoryKinds_Args *args) {
  args->num_parameters = args->executable->core->num_parameters;
  args->memory_kinds = args->executable->core->parameter_kinds;
  args->memory_kind_sizes = args->executable->core->parameter_kind_sizes;
  return NULL;
}

PJRT_Error *native_Executable_GetCompiledMemoryStats(PJRT_Executable_GetCompiledMemoryStats_Args *args) {
  const executable *core = args->executable->core;
  size_t head = offsetof(PJRT_Executable_GetCompiledMemoryStats_Args, generated_code_size_in_bytes);
  memset((char *)args + head, 0, args->struct_size - head);
  if (core->num_memory) { /* an older caller's struct ends earlier */
    size_t room = (args->struct_size - head) / sizeof(int64_t);
    memcpy((char *)args + head, core->memory, (room < core->num_memory ? room : core->num_memory) * sizeof(int64_t));
    return NULL;
  }
  args->generated_code_size_in_bytes = (int64_t)core->code_size;
  for (size_t i = 0; i < core->num_parameters; ++i)
    args->argument_size_in_bytes += (int64_t)core->parameters[i].size;
  for (size_t i = 0; i < core->num_outputs; ++i) {
    int64_t size = (int64_t)core->outputs[i].size;
    args->output_size_in_bytes += size;
    if (core->outputs[i].alias >= 0) args->alias_size_in_bytes += size;
  }
  args->temp_size_in_bytes = (int64_t)core->scratch;
  for (size_t i = 0; i < core->num_values; ++i) {
    if (!core->values[i].is_on_host) args->temp_size_in_bytes += (int64_t)core->values[i].size;
  }
  int64_t peak = args->argument_size_in_bytes + args->output_size_in_bytes - args->alias_size_in_bytes +
                 args->temp_size_in_bytes;
  if (HAS(args, PJRT_Executable_GetCompiledMemoryStats_Args, peak_memory_in_bytes)) args->peak_memory_in_bytes = peak;
  if (HAS(args, PJRT_Executable_GetCompiledMemoryStats_Args, total_size_in_bytes))
    args->total_size_in_bytes = peak + args->generated_code_size_in_bytes;
  return NULL;
}

/* With code null only the size is told; the format always is. */
PJRT_Error *native_Executable_OptimizedProgram(PJRT_Executable_OptimizedProgram_Args *args) {
  const executable *core = args->executable->core;
  PJRT_Program *program = args->program;
  const char *code = core->optimized_format ? core->optimized : core->program;
  size_t size = core->optimized_format ? core->optimized_size : core->program_size;
  program->format = core->optimized_format ? core->optimized_format : core->format;
  program->format_size = strlen(program->format);
  if (program->code == NULL) {
    program->code_size = size;
    return NULL;
  }
  if (program->code_size < size)
    return error_make(INVALID, "expected room for a program of %zu bytes, found room for %zu", size, program->code_size);
  if (size) memcpy(program->code, code, size);
  return NULL;
}

/* ---- loaded executables -----------------------------------------------------------------------------------------------------*/
static PJRT_Device *default_device(PJRT_Client *client) {
  return client->num_addressable ? client->addressable_handles[0] : &client->devices[0];
}

/* A portable executable has no devices, but an assignment: XLA's wrapper of a client ends the process without one. */
static PJRT_Error *assign(PJRT_Client *client, PJRT_LoadedExecutable *loaded) {
  const executable *core = loaded->core;
  int64_t count = core->num_replicas * core->num_partitions;
  if (!core->has_assignment && count > (int64_t)client->num_devices)
    return error_make(INVALID, "the program runs on %lld devices, the client has %zu", (long long)count,
                      client->num_devices);
  for (int64_t i = 0; i < count; ++i) {
    PJRT_Device *device = core->has_assignment                           ? client_device(client, core->assignment[i])
                          : count == 1 && core->device_ordinal >= 0 ? client_device(client, core->device_ordinal)
                          : count == 1                                   ? default_device(client)
                                                                         : &client->devices[i];
    if (device == NULL)
      return error_make(INVALID, "expected ids of devices of the client in the device assignment, found %lld",
                        (long long)(core->has_assignment ? core->assignment[i] : core->device_ordinal));
    loaded->assignment[i] = device->description->id;
    loaded->participants[i] = device->number;
    if (core->is_portable || !device->is_addressable) continue;
    for (size_t j = 0; j < loaded->num_local; ++j) {
      if (loaded->devices[j] == device)
        return error_make(INVALID, "the device assignment names device %d twice", device->description->id);
    }
    loaded->devices[loaded->num_local] = device;
    loaded->ids[loaded->num_local++] =
        (PJRT_LogicalDeviceIds){(int)(i / core->num_partitions), (int)(i % core->num_partitions)};
  }
  loaded->num_participants = count > 1 && loaded->num_local == (size_t)count ? (size_t)count : 0;
  return NULL;
}

static void free_loaded(PJRT_LoadedExecutable *loaded) {
  PJRT_Client *client = loaded->client;
  for (size_t i = 0; i < client->num_devices; ++i) {
    if (loaded->core->num_steps == 0 && loaded->loaded[i]) client->table->unload(client->driver, i, loaded->loaded[i]);
    for (size_t j = 0; loaded->kernels[i] && j < loaded->core->num_steps; ++j) {
      if (loaded->kernels[i][j]) client->table->unload(client->driver, i, loaded->kernels[i][j]);
    }
    free(loaded->kernels[i]);
  }
  executable_unref(loaded->core);
  pthread_mutex_destroy(&loaded->mutex);
  free(loaded);
  client_unref(client);
}

void loaded_unref(PJRT_LoadedExecutable *loaded) {
  if (atomic_fetch_sub(&loaded->refs, 1) == 1) free_loaded(loaded);
}

static PJRT_Error *load_code(const PJRT_Device *device, const char *code, size_t size, uint64_t *out) {
  PJRT_Client *client = device->client;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  PJRT_Error *error =
      error_of_driver("load", client->table->load(client->driver, device->number, code, size, out, message), message);
  if (!error && *out == 0)
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function load gave 0, which stands for no executable");
  return error;
}

/* The kernels of a program in steps; what was loaded before an error is unloaded with the executable. */
static PJRT_Error *load_kernels(PJRT_LoadedExecutable *loaded, const PJRT_Device *device) {
  const executable *core = loaded->core;
  uint64_t **kernels = &loaded->kernels[device->number];
  if (*kernels == NULL) *kernels = new_zeroed(core->num_steps, sizeof **kernels);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < core->num_steps && !error; ++i) {
    if (core->steps[i].code && !(*kernels)[i])
      error = load_code(device, core->steps[i].code, core->steps[i].size, &(*kernels)[i]);
  }
  return error;
}

PJRT_Error *loaded_on(PJRT_LoadedExecutable *loaded, PJRT_Device *device, uint64_t *out) {
  *out = atomic_load_explicit(&loaded->loaded[device->number], memory_order_acquire);
  if (*out) return NULL;
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&loaded->mutex);
  *out = atomic_load(&loaded->loaded[device->number]);
  if (*out == 0) {
    *out = 1; /* of a program in steps only that it is there */
    error = loaded->core->num_steps ? load_kernels(loaded, device)
                                    : load_code(device, loaded->core->code, loaded->core->code_size, out);
    if (!error) atomic_store_explicit(&loaded->loaded[device->number], *out, memory_order_release);
  }
  pthread_mutex_unlock(&loaded->mutex);
  return error;
}

/* The device has the array, in the layout that the framework asks for, if it asks for tiles. */
static PJRT_Error *measure_one(const PJRT_Device *device, size_t kind, const shape *of, const proto_field *asked,
                               atomic_size_t *out) {
  pjrt_driver_layout own;
  PJRT_Error *error = storage_layout(&device->spaces[kind], of, &own);
  if (error) return error;
  atomic_store(out, own.bytes);
  if (asked == NULL || asked->size == 0) return NULL;
  own.element_bits = 0; /* frameworks may ask for them or not: there is one way to have the elements */
  char *text = layout_text(of, &own);
  if (!is_text(asked->data, asked->size, text))
    error = error_make(PJRT_Error_Code_UNIMPLEMENTED, "expected an array in the device's layout %s, found the layout %.*s",
                       text, (int)(asked->size < 100 ? asked->size : 100), asked->data);
  free(text);
  return error;
}

/* What the device has no memory for is no program of the device; what it has takes as many bytes as it says. */
static PJRT_Error *measure(executable *core, const PJRT_Device *device) {
  PJRT_Error *error = NULL;
  const proto_field *asked = core->asked_layouts;
  for (size_t i = 0; i < core->num_parameters && !error; ++i)
    error = measure_one(device, core->parameters[i].kind, &core->parameters[i].shape, &asked[i], &core->parameters[i].size);
  asked += core->num_parameters;
  for (size_t i = 0; i < core->num_outputs && !error; ++i)
    error = measure_one(device, core->outputs[i].kind, &core->outputs[i].shape, &asked[i], &core->outputs[i].size);
  for (size_t i = 0; i < core->num_values && !error; ++i) {
    if (!core->values[i].is_on_host)
      error = measure_one(device, core->values[i].kind, &core->values[i].shape, NULL, &core->values[i].size);
  }
  if (!error) layouts_note(core, device);
  return error;
}

PJRT_Error *executable_load(PJRT_Client *client, executable *owned, PJRT_LoadedExecutable **out) {
  PJRT_LoadedExecutable *loaded = new_zeroed(1, sizeof *loaded);
  atomic_init(&loaded->refs, 1);
  loaded->core = owned;
  loaded->client = client_ref(client);
  pthread_mutex_init(&loaded->mutex, NULL);
  PJRT_Error *error = assign(client, loaded);
  uint64_t ignored;
  const PJRT_Device *first = loaded->num_local ? loaded->devices[0] : default_device(client);
  if (!error && first->is_addressable) error = measure(owned, first);
  for (size_t i = 0; i < loaded->num_local && !error; ++i) error = loaded_on(loaded, loaded->devices[i], &ignored);
  if (error) loaded_unref(loaded);
  else *out = loaded;
  return error;
}

PJRT_Error *native_LoadedExecutable_Destroy(PJRT_LoadedExecutable_Destroy_Args *args) {
  if (args->executable) loaded_unref(args->executable);
  return NULL;
}

PJRT_Error *native_LoadedExecutable_GetExecutable(PJRT_LoadedExecutable_GetExecutable_Args *args) {
  args->executable = executable_handle(executable_ref(args->loaded_executable->core));
  return NULL;
}

PJRT_Error *native_LoadedExecutable_AddressableDevices(PJRT_LoadedExecutable_AddressableDevices_Args *args) {
  args->addressable_devices = args->executable->devices;
  args->num_addressable_devices = args->executable->num_local;
  return NULL;
}

PJRT_Error *native_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args *args) {
  args->addressable_device_logical_ids = args->executable->ids;
  args->num_addressable_device_logical_ids = args->executable->num_local;
  return NULL;
}

static void free_assignment(PJRT_DeviceAssignmentSerialized *serialized) { free(serialized); }

PJRT_Error *native_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args *args) {
  bytes out = {0};
  write_assignment(args->executable, &out);
  args->serialized_bytes = out.data;
  args->serialized_bytes_size = out.size;
  args->serialized_device_assignment = (PJRT_DeviceAssignmentSerialized *)out.data;
  args->serialized_device_assignment_deleter = free_assignment;
  return NULL;
}

PJRT_Error *native_LoadedExecutable_Delete(PJRT_LoadedExecutable_Delete_Args *args) {
  atomic_store(&args->executable->is_deleted, true);
  return NULL;
}

PJRT_Error *native_LoadedExecutable_IsDeleted(PJRT_LoadedExecutable_IsDeleted_Args *args) {
  args->is_deleted = atomic_load(&args->executable->is_deleted);
  return NULL;
}

PJRT_Error *native_LoadedExecutable_Fingerprint(PJRT_LoadedExecutable_Fingerprint_Args *args) {
  args->executable_fingerprint = args->executable->core->fingerprint;
  args->executable_fingerprint_size = strlen(args->executable_fingerprint);
  return NULL;
}
