/* The chain of extensions, and those of them that are short: Stream, Shardings, MemoryDescriptions, FFI,
 * ExecutableMetadata, Triton. */
#include "tiny.h"

/* ---- Stream: the stream of a device is its queue ------------------------------------------------------------------*/
static PJRT_Error *get_stream(PJRT_Get_Stream_For_External_Ready_Events_Args *args) {
  TINY_SIZED(PJRT_Get_Stream_For_External_Ready_Events_Args, args);
  if (args->device->queue == NULL) return error_make(INVALID, "The device is not addressable by this process");
  args->stream = (intptr_t)args->device->queue;
  return NULL;
}

static void wait_for(void *arg) {
  promise_wait(arg);
  promise_unref(arg);
}

/* The work of the buffer's own queue comes in order anyway; another queue stands still until the buffer is there. */
static PJRT_Error *wait_stream(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args *args) {
  TINY_SIZED(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args, args);
  tiny_queue *queue = (tiny_queue *)args->stream;
  if (queue != args->buffer->memory->device->queue) queue_push(queue, wait_for, promise_ref(args->buffer->defined));
  return NULL;
}

static PJRT_Stream_Extension stream_extension = {
    TINY_EXTENSION(PJRT_Stream_Extension, Stream), .get_stream = get_stream, .wait_stream = wait_stream};

/* ---- Shardings: those that the program gives; none where it gives none ----------------------------------------------*/
static PJRT_Error *parameter_shardings(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *args) {
  TINY_SIZED(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args, args);
  const tiny_program *program = args->executable->core->program;
  args->num_parameters = program->num_parameters;
  args->shardings = program->has_shardings ? (const char *const *)program->parameter_shardings : NULL;
  args->sharding_sizes = program->has_shardings ? program->parameter_sharding_sizes : NULL;
  return NULL;
}

static PJRT_Error *output_shardings(PJRT_Shardings_PJRT_Executable_OutputShardings_Args *args) {
  TINY_SIZED(PJRT_Shardings_PJRT_Executable_OutputShardings_Args, args);
  const tiny_program *program = args->executable->core->program;
  args->num_outputs = program->num_outputs;
  args->shardings = program->has_shardings ? (const char *const *)program->output_shardings : NULL;
  args->sharding_sizes = program->has_shardings ? program->output_sharding_sizes : NULL;
  return NULL;
}

static PJRT_Shardings_Extension shardings_extension = {
    TINY_EXTENSION(PJRT_Shardings_Extension, Shardings),
    .PJRT_Shardings_PJRT_Executable_ParameterShardings = parameter_shardings,
    .PJRT_Shardings_PJRT_Executable_OutputShardings = output_shardings,
};

/* ---- MemoryDescriptions -------------------------------------------------------------------------------------------*/
struct PJRT_MemoryDescription {
  int kind_id;
};
static const PJRT_MemoryDescription memory_descriptions[TINY_NUM_MEMORY_KINDS] = {{0}, {1}, {2}};
static const PJRT_MemoryDescription *const memory_description_handles[TINY_NUM_MEMORY_KINDS] = {
    &memory_descriptions[0], &memory_descriptions[1], &memory_descriptions[2]};

static PJRT_Error *describe_memories(PJRT_DeviceDescription_MemoryDescriptions_Args *args) {
  TINY_SIZED(PJRT_DeviceDescription_MemoryDescriptions_Args, args);
  args->memory_descriptions = memory_description_handles;
  args->num_memory_descriptions = TINY_NUM_MEMORY_KINDS;
  args->default_memory_index = 0;
  return NULL;
}

static PJRT_Error *describe_kind(PJRT_MemoryDescription_Kind_Args *args) {
  TINY_SIZED(PJRT_MemoryDescription_Kind_Args, args);
  args->kind_id = TINY_PUBLIC_KIND(args->memory_description->kind_id);
  args->kind = tiny_memory_kinds[args->memory_description->kind_id];
  args->kind_size = strlen(args->kind);
  return NULL;
}

static PJRT_MemoryDescriptions_Extension memory_descriptions_extension = {
    TINY_EXTENSION(PJRT_MemoryDescriptions_Extension, MemoryDescriptions),
    .PJRT_DeviceDescription_MemoryDescriptions = describe_memories,
    .PJRT_MemoryDescription_Kind = describe_kind,
};

/* ---- FFI ----------------------------------------------------------------------------------------------------------*/
static PJRT_Error *type_register(PJRT_FFI_Type_Register_Args *args) {
  TINY_SIZED(PJRT_FFI_Type_Register_Args, args);
  return error_from(ffi_register_type(args->type_name, args->type_name_size, &args->type_id));
}

static PJRT_Error *user_data_add(PJRT_FFI_UserData_Add_Args *args) {
  TINY_SIZED(PJRT_FFI_UserData_Add_Args, args);
  PJRT_ExecuteContext *context = args->context;
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&context->mutex);
  for (size_t i = 0; i < context->num_entries; ++i) {
    if (context->entries[i].type_id == args->user_data.type_id)
      error = error_make(PJRT_Error_Code_ALREADY_EXISTS, "The context holds something of type %lld already",
                         (long long)args->user_data.type_id);
  }
  if (error == NULL) {
    void *larger = tiny_calloc(context->num_entries + 1, sizeof *context->entries);
    if (context->num_entries) memcpy(larger, context->entries, context->num_entries * sizeof *context->entries);
    free(context->entries);
    context->entries = larger;
    context->entries[context->num_entries].type_id = args->user_data.type_id;
    context->entries[context->num_entries++].data = args->user_data.data;
  }
  pthread_mutex_unlock(&context->mutex);
  return error;
}

static PJRT_Error *register_handler(PJRT_FFI_Register_Handler_Args *args) {
  TINY_SIZED(PJRT_FFI_Register_Handler_Args, args);
  return error_from(ffi_register(args->target_name, args->target_name_size, args->platform_name,
                                 args->platform_name_size, args->handler));
}

static PJRT_FFI_Extension ffi_extension = {
    TINY_EXTENSION(PJRT_FFI_Extension, FFI),
    .type_register = type_register,
    .user_data_add = user_data_add,
    .register_handler = register_handler,
};

/* ---- ExecutableMetadata: {1: fingerprint} -------------------------------------------------------------------------*/
static PJRT_Error *get_metadata(PJRT_ExecutableMetadata_GetExecutableMetadata_Args *args) {
  tiny_bytes out = {0};
  const char *fingerprint = args->executable->core->fingerprint;
  proto_bytes(&out, 1, fingerprint, strlen(fingerprint));
  args->metadata = tiny_calloc(1, sizeof *args->metadata);
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
  TINY_SIZED(PJRT_Triton_Compile_Args, args);
  if (args->module_size == 0) return error_make(INVALID, "The Triton module is empty");
  tiny_bytes text = {0};
  bytes_print(&text, "// arch=%.*s warps=%d ctas=%d stages=%d\n", (int)args->arch_name_size, args->arch_name,
              args->num_warps, args->num_ctas, args->num_stages);
  bytes_add(&text, args->module, args->module_size);
  args->out_asm = text.data;
  args->out_asm_size = text.size;
  args->out_smem_bytes = 1024 * (int64_t)args->num_stages;
  args->out_path = tiny_memdup("", 0);
  args->out_path_size = 0;
  return NULL;
}

static PJRT_Triton_Extension triton_extension = {
    TINY_EXTENSION(PJRT_Triton_Extension, Triton), .compile = triton_compile};

/* ---- the chain: an extension that nobody knows comes first --------------------------------------------------------*/
static PJRT_Extension_Base unknown_extension = {sizeof(PJRT_Extension_Base), PJRT_Extension_Type_Unknown, NULL};

PJRT_Extension_Base *extensions_chain(bool (*wanted)(PJRT_Extension_Type type)) {
  PJRT_Extension_Base *all[] = {
      &unknown_extension,          &layouts_extension.base,     &memory_descriptions_extension.base,
      &ffi_extension.base,         &profiler_extension.base,    &stream_extension.base,
      &shardings_extension.base,   &abi_version_extension.base, &metadata_extension.base,
      &raw_buffer_extension.base,  &transfers_extension.base,   &triton_extension.base,
      &phase_compile_extension.base, &tpu_topology_extension.base, &tpu_executable_extension.base,
      &megascale_extension.base,   &multi_slice_extension.base,
  };
  PJRT_Extension_Base *first = NULL;
  for (size_t i = sizeof all / sizeof all[0]; i-- > 0;) {
    if (!wanted(all[i]->type)) continue;
    all[i]->next = first;
    first = all[i];
  }
  return first;
}
