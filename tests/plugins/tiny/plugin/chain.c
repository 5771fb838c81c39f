/* The chain of extensions: those of the runtime, whose objects are counted here, and those that it does not have. */
#include "tiny.h"

/* ---- Layouts, RawBuffer and FFI: the runtime's, with counts ---------------------------------------------------------------*/
static void free_layout_text(PJRT_Layouts_SerializedLayout *serialized) {
  free(serialized);
  live_add(LIVE_SERIALIZED, -1);
}

static PJRT_Error *layout_made(PJRT_Error *error) {
  if (!error) live_add(LIVE_LAYOUT, 1);
  return error_shown(error);
}

static PJRT_Error *layout_destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args) {
  bool is_one = args->struct_size >= PJRT_Layouts_MemoryLayout_Destroy_Args_FIRST_STRUCT_SIZE && args->layout;
  if (is_one) live_add(LIVE_LAYOUT, -1);
  return error_shown(layouts_extension.PJRT_Layouts_MemoryLayout_Destroy(args));
}

static PJRT_Error *layout_serialize(PJRT_Layouts_MemoryLayout_Serialize_Args *args) {
  PJRT_Error *error = layouts_extension.PJRT_Layouts_MemoryLayout_Serialize(args);
  if (error) return error_shown(error);
  args->serialized_layout_deleter = free_layout_text;
  live_add(LIVE_SERIALIZED, 1);
  return NULL;
}

static PJRT_Error *layout_of_client(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args) {
  return layout_made(layouts_extension.PJRT_Layouts_PJRT_Client_GetDefaultLayout(args));
}

static PJRT_Error *layout_of_topology(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args) {
  return layout_made(layouts_extension.PJRT_Layouts_PJRT_Topology_GetDefaultLayout(args));
}

static PJRT_Error *layout_of_buffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args) {
  return layout_made(layouts_extension.PJRT_Layouts_PJRT_Buffer_MemoryLayout(args));
}

static PJRT_Error *raw_create(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args *args) {
  PJRT_Error *error = raw_buffer_extension.PJRT_RawBuffer_CreateRawAliasOfBuffer(args);
  if (!error) live_add(LIVE_RAW_BUFFER, 1);
  return error_shown(error);
}

static PJRT_Error *raw_destroy(PJRT_RawBuffer_Destroy_Args *args) {
  if (args->struct_size >= PJRT_RawBuffer_Destroy_Args_FIRST_STRUCT_SIZE && args->buffer) live_add(LIVE_RAW_BUFFER, -1);
  return error_shown(raw_buffer_extension.PJRT_RawBuffer_Destroy(args));
}

static PJRT_Error *raw_to_device(PJRT_RawBuffer_CopyRawHostToDevice_Args *args) {
  PJRT_Error *error = raw_buffer_extension.PJRT_RawBuffer_CopyRawHostToDevice(args);
  if (!error) event_shown(F_Buffer_CopyRawToHost, &args->event);
  return error_shown(error);
}

static PJRT_Error *raw_to_host(PJRT_RawBuffer_CopyRawDeviceToHost_Args *args) {
  PJRT_Error *error = raw_buffer_extension.PJRT_RawBuffer_CopyRawDeviceToHost(args);
  if (!error) event_shown(F_Buffer_CopyRawToHost, &args->event);
  return error_shown(error);
}

static PJRT_Error *type_register(PJRT_FFI_Type_Register_Args *args) {
  return error_shown(ffi_extension.type_register(args));
}

static PJRT_Error *user_data_add(PJRT_FFI_UserData_Add_Args *args) {
  return error_shown(ffi_extension.user_data_add(args));
}

static PJRT_Error *register_handler(PJRT_FFI_Register_Handler_Args *args) {
  return error_shown(ffi_extension.register_handler(args));
}

static PJRT_Layouts_Extension counted_layouts;
static PJRT_RawBuffer_Extension counted_raw_buffers;
static PJRT_FFI_Extension counted_ffi;

static void count_extensions(void) {
  counted_layouts = layouts_extension;
  counted_layouts.PJRT_Layouts_MemoryLayout_Destroy = layout_destroy;
  counted_layouts.PJRT_Layouts_MemoryLayout_Serialize = layout_serialize;
  counted_layouts.PJRT_Layouts_PJRT_Client_GetDefaultLayout = layout_of_client;
  counted_layouts.PJRT_Layouts_PJRT_Topology_GetDefaultLayout = layout_of_topology;
  counted_layouts.PJRT_Layouts_PJRT_Buffer_MemoryLayout = layout_of_buffer;
  counted_raw_buffers = raw_buffer_extension;
  counted_raw_buffers.PJRT_RawBuffer_CreateRawAliasOfBuffer = raw_create;
  counted_raw_buffers.PJRT_RawBuffer_Destroy = raw_destroy;
  counted_raw_buffers.PJRT_RawBuffer_CopyRawHostToDevice = raw_to_device;
  counted_raw_buffers.PJRT_RawBuffer_CopyRawDeviceToHost = raw_to_host;
  counted_ffi = ffi_extension;
  counted_ffi.type_register = type_register;
  counted_ffi.user_data_add = user_data_add;
  counted_ffi.register_handler = register_handler;
}

/* ---- Stream: the stream of a device is the device ------------------------------------------------------------------*/
static PJRT_Error *get_stream(PJRT_Get_Stream_For_External_Ready_Events_Args *args) {
  SIZED(PJRT_Get_Stream_For_External_Ready_Events_Args, args);
  if (!args->device->is_addressable) return error_shown(error_make(INVALID, "The device is not addressable by this process"));
  args->stream = (intptr_t)args->device;
  return NULL;
}

static void wait_for(void *arg) {
  completion_wait(arg);
  completion_unref(arg);
}

/* The work of the buffer's own queue comes in order anyway; another queue stands still until the buffer is there. */
static PJRT_Error *wait_stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args *args) {
  SIZED(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args, args);
  PJRT_Device *device = (PJRT_Device *)args->stream;
  if (device != args->buffer->space->device) driver_push(device, wait_for, completion_ref(args->buffer->defined));
  return NULL;
}

static PJRT_Stream_Extension stream_extension = {
    TINY_EXTENSION(PJRT_Stream_Extension, Stream), .get_stream = get_stream, .wait_stream = wait_stream};

/* ---- ExecutableMetadata: {1: fingerprint} -------------------------------------------------------------------------*/
static PJRT_Error *get_metadata(PJRT_ExecutableMetadata_GetExecutableMetadata_Args *args) {
  bytes out = {0};
  const char *fingerprint = args->executable->core->fingerprint;
  proto_bytes(&out, 1, fingerprint, strlen(fingerprint));
  args->metadata = new_zeroed(1, sizeof *args->metadata);
  args->metadata->serialized_metadata = out.data;
  args->metadata->serialized_metadata_size = out.size;
  live_add(LIVE_METADATA, 1);
  return NULL;
}

static void destroy_metadata(PJRT_ExecutableMetadata_DestroySerializedMetadata_Args *args) {
  if (args->metadata == NULL) return;
  free((char *)args->metadata->serialized_metadata);
  free(args->metadata);
  live_add(LIVE_METADATA, -1);
}

static PJRT_ExecutableMetadata_Extension metadata_extension = {
    TINY_EXTENSION(PJRT_ExecutableMetadata_Extension, ExecutableMetadata),
    .get_executable_metadata = get_metadata,
    .destroy_serialized_metadata = destroy_metadata,
};

/* ---- Triton: an "assembly" that tells what was asked for; the texts are malloc'ed and the caller's --------------------*/
static PJRT_Error *triton_compile(PJRT_Triton_Compile_Args *args) {
  SIZED(PJRT_Triton_Compile_Args, args);
  if (args->module_size == 0) return shown_make(INVALID, "The Triton module is empty");
  bytes text = {0};
  bytes_print(&text, "// arch=%.*s warps=%d ctas=%d stages=%d\n", (int)args->arch_name_size, args->arch_name,
              args->num_warps, args->num_ctas, args->num_stages);
  bytes_add(&text, args->module, args->module_size);
  args->out_asm = text.data;
  args->out_asm_size = text.size;
  args->out_smem_bytes = 1024 * (int64_t)args->num_stages;
  args->out_path = copy_of("", 0);
  args->out_path_size = 0;
  return NULL;
}

static PJRT_Triton_Extension triton_extension = {
    TINY_EXTENSION(PJRT_Triton_Extension, Triton), .compile = triton_compile};

/* ---- AbiVersion: both protos are {1: platform id, 2: version}, as varints. */
#define TINY_PLATFORM_ID 0x74696e79u
#define TINY_ABI_VERSION 3

typedef struct abi_version {
  uint64_t platform_id, version;
} abi_version;
struct PJRT_RuntimeAbiVersion {
  abi_version it;
};
struct PJRT_ExecutableAbiVersion {
  abi_version it;
};

static void *version_make(uint64_t platform_id, uint64_t version) {
  abi_version *each = new_zeroed(1, sizeof *each);
  *each = (abi_version){platform_id, version};
  live_add(LIVE_ABI_VERSION, 1);
  return each;
}

static PJRT_Error *version_free(void *each) {
  if (each == NULL) return NULL;
  free(each);
  live_add(LIVE_ABI_VERSION, -1);
  return NULL;
}

static PJRT_Error *compare(const abi_version *runtime, const abi_version *other) {
  if (runtime->platform_id != other->platform_id)
    return shown_make(INVALID, "Platform %llu is not platform %llu", (unsigned long long)other->platform_id,
                      (unsigned long long)runtime->platform_id);
  if (runtime->version != other->version)
    return shown_make(PJRT_Error_Code_FAILED_PRECONDITION, "Version %llu does not fit a runtime of version %llu",
                      (unsigned long long)other->version, (unsigned long long)runtime->version);
  return NULL;
}

static void free_proto(PJRT_AbiVersion_SerializedProto *proto) {
  free(proto);
  live_add(LIVE_SERIALIZED, -1);
}

static char *to_proto(const abi_version *each, size_t *size) {
  bytes out = {0};
  proto_varint(&out, 1, each->platform_id);
  proto_varint(&out, 2, each->version);
  live_add(LIVE_SERIALIZED, 1);
  *size = out.size;
  return out.data;
}

static PJRT_Error *from_proto(const char *data, size_t size, void **out) {
  const char *cursor = data, *end = data + size;
  abi_version each = {0};
  proto_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1) each.platform_id = field.value;
    if (field.number == 2) each.version = field.value;
  }
  if (cursor != end || each.version == 0) return shown_make(INVALID, "These %zu bytes are no ABI version", size);
  *out = version_make(each.platform_id, each.version);
  return NULL;
}

static PJRT_Error *client_version(PJRT_Client_RuntimeAbiVersion_Args *args) {
  SIZED(PJRT_Client_RuntimeAbiVersion_Args, args);
  args->abi_version = version_make(TINY_PLATFORM_ID, TINY_ABI_VERSION);
  return NULL;
}

static PJRT_Error *executable_version(PJRT_Executable_GetAbiVersion_Args *args) {
  SIZED(PJRT_Executable_GetAbiVersion_Args, args);
  args->abi_version = version_make(TINY_PLATFORM_ID, TINY_ABI_VERSION);
  return NULL;
}

static PJRT_Error *runtime_destroy(PJRT_RuntimeAbiVersion_Destroy_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_Destroy_Args, args);
  return version_free(args->abi_version);
}

static PJRT_Error *executable_destroy(PJRT_ExecutableAbiVersion_Destroy_Args *args) {
  SIZED(PJRT_ExecutableAbiVersion_Destroy_Args, args);
  return version_free(args->abi_version);
}

static PJRT_Error *fits_runtime(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args, args);
  return compare(&args->abi_version->it, &args->other_abi_version->it);
}

static PJRT_Error *fits_executable(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args, args);
  return compare(&args->abi_version->it, &args->executable_abi_version->it);
}

static PJRT_Error *runtime_to_proto(PJRT_RuntimeAbiVersion_ToProto_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_ToProto_Args, args);
  args->serialized_proto = to_proto(&args->abi_version->it, &args->serialized_proto_size);
  args->serialized_proto_holder = (PJRT_AbiVersion_SerializedProto *)args->serialized_proto;
  args->serialized_proto_deleter = free_proto;
  return NULL;
}

static PJRT_Error *executable_to_proto(PJRT_ExecutableAbiVersion_ToProto_Args *args) {
  SIZED(PJRT_ExecutableAbiVersion_ToProto_Args, args);
  args->serialized_proto = to_proto(&args->abi_version->it, &args->serialized_proto_size);
  args->serialized_proto_holder = (PJRT_AbiVersion_SerializedProto *)args->serialized_proto;
  args->serialized_proto_deleter = free_proto;
  return NULL;
}

static PJRT_Error *runtime_platform(PJRT_RuntimeAbiVersion_PlatformId_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_PlatformId_Args, args);
  args->platform_id = args->abi_version->it.platform_id;
  return NULL;
}

static PJRT_Error *executable_platform(PJRT_ExecutableAbiVersion_PlatformId_Args *args) {
  SIZED(PJRT_ExecutableAbiVersion_PlatformId_Args, args);
  args->platform_id = args->abi_version->it.platform_id;
  return NULL;
}

static PJRT_Error *runtime_from_proto(PJRT_RuntimeAbiVersion_FromProto_Args *args) {
  SIZED(PJRT_RuntimeAbiVersion_FromProto_Args, args);
  void *out = NULL;
  PJRT_Error *error = from_proto(args->serialized_proto, args->serialized_proto_size, &out);
  args->abi_version = out;
  return error;
}

static PJRT_Error *executable_from_proto(PJRT_ExecutableAbiVersion_FromProto_Args *args) {
  SIZED(PJRT_ExecutableAbiVersion_FromProto_Args, args);
  void *out = NULL;
  PJRT_Error *error = from_proto(args->serialized_proto, args->serialized_proto_size, &out);
  args->abi_version = out;
  return error;
}

static PJRT_AbiVersion_Extension abi_version_extension = {
    TINY_EXTENSION(PJRT_AbiVersion_Extension, AbiVersion),
    .client_runtime_abi_version = client_version,
    .executable_get_abi_version = executable_version,
    .runtime_abi_version_destroy = runtime_destroy,
    .runtime_abi_version_is_compatible_with_runtime = fits_runtime,
    .runtime_abi_version_is_compatible_with_executable = fits_executable,
    .runtime_abi_version_to_proto = runtime_to_proto,
    .runtime_abi_version_platform_id = runtime_platform,
    .executable_abi_version_destroy = executable_destroy,
    .executable_abi_version_to_proto = executable_to_proto,
    .executable_abi_version_platform_id = executable_platform,
    .runtime_abi_version_from_proto = runtime_from_proto,
    .executable_abi_version_from_proto = executable_from_proto,
};

/* ---- PhaseCompile: four phases that write what they were given into parts. "broken" and "nowhere" are phases
 * that are not listed: the first gives what is no part, the second arrays that are not there. */
struct PJRT_PhaseCompiler {
  int unused;
};
static const char *const phases[] = {"parse", "optimize", "lower", "link"};
#define NUM_PHASES (sizeof phases / sizeof phases[0])

typedef struct part {
  char *data;
  size_t size;
} part;
typedef struct parts {
  part *all;
  size_t count;
} parts;

static void parts_add(parts *to, bytes text, const char *producer, const char *consumer, const char *name) {
  bytes out = {0};
  proto_bytes(&out, 1, text.data, text.size);
  proto_bytes(&out, 2, "tiny", 4);
  proto_bytes(&out, 3, producer, strlen(producer));
  if (consumer) proto_bytes(&out, 4, consumer, strlen(consumer));
  proto_bytes(&out, 5, "1", 1);
  proto_bytes(&out, 6, name, strlen(name));
  part *larger = new_zeroed(to->count + 1, sizeof *larger);
  if (to->count) memcpy(larger, to->all, to->count * sizeof *larger);
  free(to->all);
  to->all = larger;
  to->all[to->count++] = (part){out.data, out.size};
  free(text.data);
}

static void parts_free(parts *each) {
  for (size_t i = 0; i < each->count; ++i) free(each->all[i].data);
  free(each->all);
  *each = (parts){0};
}

/* The code of all parts, one a line, behind the name of the phase. */
static bytes gather(const char *phase, const parts *from) {
  bytes text = {0};
  bytes_print(&text, "%s:", phase);
  for (size_t i = 0; i < from->count; ++i) {
    const char *cursor = from->all[i].data, *end = cursor + from->all[i].size;
    proto_field field;
    while (proto_next(&cursor, end, &field)) {
      if (field.number != 1) continue;
      bytes_add(&text, "\n", 1);
      bytes_add(&text, field.data, field.size);
    }
  }
  return text;
}

static PJRT_Error *run_one(const char *phase, const parts *from, const PJRT_PhaseCompile_Run_Phase_Args *args, parts *to) {
  if (from->count == 0) return shown_make(INVALID, "The phase %s was given nothing", phase);
  bytes text = gather(phase, from);
  if (strcmp(phase, "parse") == 0) {
    parts_add(to, text, phase, "optimize", "main");
  } else if (strcmp(phase, "optimize") == 0) {
    parts_add(to, text, phase, "lower", "body");
    bytes facts = {0};
    bytes_print(&facts, "devices=%zu options=%zu", args->topology->facts.num_devices, args->compile_options_size);
    parts_add(to, facts, phase, "link", "facts");
  } else if (strcmp(phase, "lower") == 0) {
    parts_add(to, text, phase, "link", "body");
  } else if (strcmp(phase, "link") == 0) {
    parts_add(to, text, phase, NULL, "executable");
  } else if (strcmp(phase, "broken") == 0) {
    parts_add(to, text, phase, NULL, "broken");
    memset(to->all[0].data, 0xff, to->all[0].size);
  } else {
    free(text.data);
    return shown_make(PJRT_Error_Code_NOT_FOUND, "There is no phase %s", phase);
  }
  return NULL;
}

static PJRT_Error *get_compiler(PJRT_PhaseCompile_Get_Compiler_Args *args) {
  TINY_GUARD(PhaseCompile_Get_Compiler, args);
  args->phase_compiler = new_zeroed(1, sizeof *args->phase_compiler);
  live_add(LIVE_PHASE_COMPILER, 1);
  return NULL;
}

static void destroy_compiler(PJRT_PhaseCompile_Destroy_Compiler_Args *args) {
  if (args->struct_size < PJRT_PhaseCompile_Destroy_Compiler_Args_FIRST_STRUCT_SIZE) return;
  if (args->phase_compiler == NULL) return;
  free((void *)args->phase_compiler);
  live_add(LIVE_PHASE_COMPILER, -1);
}

static PJRT_Error *get_phase_names(PJRT_PhaseCompile_Get_PhaseNames_Args *args) {
  TINY_GUARD(PhaseCompile_Get_PhaseNames, args);
  const char **names = new_zeroed(NUM_PHASES, sizeof *names);
  size_t *sizes = new_zeroed(NUM_PHASES, sizeof *sizes);
  for (size_t i = 0; i < NUM_PHASES; ++i) {
    sizes[i] = strlen(phases[i]);
    names[i] = copy_of(phases[i], sizes[i]);
  }
  args->phase_names = names;
  args->phase_names_sizes = sizes;
  args->num_phase_names = NUM_PHASES;
  live_add(LIVE_PHASE_BUFFERS, 1);
  return NULL;
}

static PJRT_Error *run_phases(PJRT_PhaseCompile_Run_Phase_Args *args) {
  TINY_GUARD(PhaseCompile_Run_Phase, args);
  if (args->phase_compiler == NULL) return shown_make(PJRT_Error_Code_INTERNAL, "There is no phase compiler");
  if (args->num_phases_to_run && strcmp(args->phases_to_run[0], "nowhere") == 0) {
    args->num_output_programs = 3;
    return NULL;
  }
  parts current = {0};
  current.all = new_zeroed(args->num_input_programs, sizeof *current.all);
  for (size_t i = 0; i < args->num_input_programs; ++i)
    current.all[current.count++] = (part){copy_of(args->input_programs[i], args->input_programs_sizes[i]),
                                          args->input_programs_sizes[i]};
  for (size_t i = 0; i < args->num_phases_to_run; ++i) {
    if (strlen(args->phases_to_run[i]) != args->phases_to_run_sizes[i])
      violation("the name of a phase does not end with a zero");
    parts next = {0};
    PJRT_Error *error = run_one(args->phases_to_run[i], &current, args, &next);
    parts_free(&current);
    if (error) return error;
    current = next;
  }
  const char **programs = new_zeroed(current.count, sizeof *programs);
  size_t *sizes = new_zeroed(current.count, sizeof *sizes);
  for (size_t i = 0; i < current.count; ++i) {
    programs[i] = current.all[i].data;
    sizes[i] = current.all[i].size;
  }
  free(current.all);
  args->output_programs = programs;
  args->output_programs_sizes = sizes;
  args->num_output_programs = current.count;
  live_add(LIVE_PHASE_BUFFERS, 1);
  return NULL;
}

static void destroy_buffers(PJRT_PhaseCompile_C_Buffers_Destroy_Args *args) {
  if (args->struct_size < PJRT_PhaseCompile_C_Buffers_Destroy_Args_FIRST_STRUCT_SIZE) return;
  if (args->char_buffers == NULL) return;
  for (size_t i = 0; i < args->num_char_buffers; ++i) free((void *)args->char_buffers[i]);
  free((void *)args->char_buffers);
  free((void *)args->char_buffer_sizes);
  live_add(LIVE_PHASE_BUFFERS, -1);
}

static PJRT_PhaseCompile_Extension phase_compile_extension = {
    TINY_EXTENSION(PJRT_PhaseCompile_Extension, PhaseCompile),
    .phase_compile_get_compiler = get_compiler,
    .phase_compile_destroy_compiler = destroy_compiler,
    .phase_compile_run_phases = run_phases,
    .phase_compile_get_phase_names = get_phase_names,
    .phase_compile_c_buffers_destroy = destroy_buffers,
};

/* ---- Profiler: counts the executions between start and stop, and tells them as an XSpace with one plane
 * whose name holds the number. */
struct PLUGIN_Profiler {
  bool running;
  long long first, last;
  bytes data;
};
struct PLUGIN_Profiler_Error {
  PJRT_Error *error;
};

static PLUGIN_Profiler_Error *fail(const char *message) {
  PLUGIN_Profiler_Error *error = new_zeroed(1, sizeof *error);
  error->error = error_make(PJRT_Error_Code_FAILED_PRECONDITION, "%s", message);
  live_add(LIVE_ERROR, 1);
  return error;
}

static void error_destroy(PLUGIN_Profiler_Error_Destroy_Args *args) {
  if (args->error == NULL) return;
  pjrt_error_release(args->error->error);
  free(args->error);
  live_add(LIVE_ERROR, -1);
}

static void error_message(PLUGIN_Profiler_Error_Message_Args *args) {
  pjrt_error_read(args->error->error, &args->message, &args->message_size);
}

static PLUGIN_Profiler_Error *error_get_code(PLUGIN_Profiler_Error_GetCode_Args *args) {
  args->code = (int)pjrt_error_code(args->error->error);
  return NULL;
}

static PLUGIN_Profiler_Error *create(PLUGIN_Profiler_Create_Args *args) {
  args->profiler = new_zeroed(1, sizeof *args->profiler);
  live_add(LIVE_PROFILER, 1);
  return NULL;
}

static PLUGIN_Profiler_Error *destroy(PLUGIN_Profiler_Destroy_Args *args) {
  if (args->profiler == NULL) return NULL;
  free(args->profiler->data.data);
  free(args->profiler);
  live_add(LIVE_PROFILER, -1);
  return NULL;
}

static PLUGIN_Profiler_Error *start(PLUGIN_Profiler_Start_Args *args) {
  if (args->profiler->running) return fail("The profiler runs already");
  args->profiler->running = true;
  args->profiler->first = atomic_load(&executions_started);
  return NULL;
}

static PLUGIN_Profiler_Error *stop(PLUGIN_Profiler_Stop_Args *args) {
  if (!args->profiler->running) return fail("The profiler does not run");
  args->profiler->running = false;
  args->profiler->last = atomic_load(&executions_started);
  return NULL;
}

static PLUGIN_Profiler_Error *collect(PLUGIN_Profiler_CollectData_Args *args) {
  PLUGIN_Profiler *profiler = args->profiler;
  if (profiler->running) return fail("The profiler still runs");
  if (profiler->data.size == 0) {
    bytes plane = {0};
    char *name = printed("/device:TINY executions=%lld", profiler->last - profiler->first);
    proto_varint(&plane, 1, 1);
    proto_bytes(&plane, 2, name, strlen(name));
    proto_bytes(&profiler->data, 1, plane.data, plane.size);
    free(plane.data);
    free(name);
  }
  if (args->buffer) memcpy(args->buffer, profiler->data.data, profiler->data.size);
  args->buffer_size_in_bytes = profiler->data.size;
  return NULL;
}

static PLUGIN_Profiler_Api api = {
    .struct_size = PLUGIN_Profiler_Api_STRUCT_SIZE,
    .error_destroy = error_destroy,
    .error_message = error_message,
    .error_get_code = error_get_code,
    .create = create,
    .destroy = destroy,
    .start = start,
    .stop = stop,
    .collect_data = collect,
};

static PJRT_Profiler_Extension tiny_profiler_extension = {
    TINY_EXTENSION(PJRT_Profiler_Extension, Profiler),
    .profiler_api = &api,
    .traceme_context_id = -1,
};

/* ---- the chain: an extension that nobody knows comes first --------------------------------------------------------*/
static PJRT_Extension_Base unknown_extension = {sizeof(PJRT_Extension_Base), PJRT_Extension_Type_Unknown, NULL};

PJRT_Extension_Base *extensions_chain(bool (*wanted)(PJRT_Extension_Type type)) {
  PJRT_Extension_Base *all[] = {
      &unknown_extension,          &counted_layouts.base,       &memory_descriptions_extension.base,
      &counted_ffi.base,           &tiny_profiler_extension.base, &stream_extension.base,
      &shardings_extension.base,   &abi_version_extension.base, &metadata_extension.base,
      &counted_raw_buffers.base,   &transfers_extension.base,   &triton_extension.base,
      &phase_compile_extension.base, &tpu_topology_extension.base, &tpu_executable_extension.base,
      &megascale_extension.base,   &multi_slice_extension.base,
  };
  count_extensions();
  PJRT_Extension_Base *first = NULL;
  for (size_t i = sizeof all / sizeof all[0]; i-- > 0;) {
    if (!wanted(all[i]->type)) continue;
    all[i]->next = first;
    first = all[i];
  }
  return first;
}
