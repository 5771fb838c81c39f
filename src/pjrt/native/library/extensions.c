/* The extensions: how arrays lie in memory, as XLA writes it, {1,0} (Layouts); how they are divided among devices
 * (Shardings); the bytes behind buffers (RawBuffer); and memory of the host for transfers
 * (HostAllocator and HostMemoryAllocator, which is newer). */
#include "pjrt_support/struct_size.h"
#include "runtime.h"

struct PJRT_Layouts_MemoryLayout {
  char *text;
};

/* As it lies in the memory; without a memory there are no tiles. */
static PJRT_Layouts_MemoryLayout *layout_make(const shape *of, const memory_space *space) {
  pjrt_driver_layout own = {0};
  if (space) pjrt_error_release(storage_layout(space, of, &own)); /* an array that is refused has no tiles */
  PJRT_Layouts_MemoryLayout *layout = new_zeroed(1, sizeof *layout);
  layout->text = layout_text(of, &own);
  return layout;
}

static void layout_free(PJRT_Layouts_MemoryLayout *layout) {
  free(layout->text);
  free(layout);
}

void layouts_free(PJRT_Layouts_MemoryLayout **layouts, size_t count) {
  for (size_t i = 0; layouts && i < count; ++i) layout_free(layouts[i]);
  free(layouts);
}

static PJRT_Error *destroy(PJRT_Layouts_MemoryLayout_Destroy_Args *args) {
  SIZED(PJRT_Layouts_MemoryLayout_Destroy_Args, args);
  if (args->layout) layout_free(args->layout);
  return NULL;
}

static void free_serialized(PJRT_Layouts_SerializedLayout *serialized) { free(serialized); }

static PJRT_Error *serialize(PJRT_Layouts_MemoryLayout_Serialize_Args *args) {
  SIZED(PJRT_Layouts_MemoryLayout_Serialize_Args, args);
  char *copy = copy_of(args->layout->text, strlen(args->layout->text));
  args->serialized_bytes = copy;
  args->serialized_bytes_size = strlen(copy);
  args->serialized_layout = (PJRT_Layouts_SerializedLayout *)copy;
  args->serialized_layout_deleter = free_serialized;
  return NULL;
}

static PJRT_Error *default_layout(PJRT_Buffer_Type type, const int64_t *dims, size_t num_dims,
                                  const PJRT_Client *client, PJRT_Layouts_MemoryLayout **out) {
  const memory_space *space = client && client->num_addressable ? client->addressable_handles[0]->spaces : NULL;
  shape of;
  PJRT_Error *error = shape_init(&of, type, dims, num_dims, NULL);
  if (!error) *out = layout_make(&of, space);
  return error;
}

static PJRT_Error *client_default(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Client_GetDefaultLayout_Args, args);
  return default_layout(args->type, args->dims, args->num_dims, args->client, &args->layout);
}

static PJRT_Error *topology_default(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Topology_GetDefaultLayout_Args, args);
  const PJRT_TopologyDescription *topology = args->topology_description;
  const PJRT_Client *client = topology->owner ? topology->owner : topology->compiler;
  return default_layout(args->type, args->dims, args->num_dims, client, &args->layout);
}

static PJRT_Error *of_buffer(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Buffer_MemoryLayout_Args, args);
  args->layout = layout_make(&args->buffer->shape, args->buffer->space);
  return NULL;
}

/* An executable's layouts are made when it is loaded, or asked for them before that, and live as long as it. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void layouts_note(executable *core, const PJRT_Device *device) {
  pthread_mutex_lock(&mutex);
  bool has_parameters = core->parameter_layouts != NULL, has_outputs = core->output_layouts != NULL;
  if (!has_parameters) core->parameter_layouts = new_zeroed(core->num_parameters, sizeof *core->parameter_layouts);
  if (!has_outputs) core->output_layouts = new_zeroed(core->num_outputs, sizeof *core->output_layouts);
  for (size_t i = 0; i < core->num_parameters && !has_parameters; ++i)
    core->parameter_layouts[i] =
        layout_make(&core->parameters[i].shape, device ? &device->spaces[core->parameters[i].kind] : NULL);
  for (size_t i = 0; i < core->num_outputs && !has_outputs; ++i)
    core->output_layouts[i] = layout_make(&core->outputs[i].shape, device ? &device->spaces[core->outputs[i].kind] : NULL);
  pthread_mutex_unlock(&mutex);
}

static PJRT_Error *of_outputs(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Executable_GetOutputLayouts_Args, args);
  executable *core = args->executable->core;
  layouts_note(core, NULL);
  args->num_outputs = core->num_outputs;
  args->layouts = core->output_layouts;
  return NULL;
}

static PJRT_Error *of_parameters(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args *args) {
  SIZED(PJRT_Layouts_PJRT_Executable_GetParameterLayouts_Args, args);
  executable *core = args->executable->core;
  layouts_note(core, NULL);
  args->num_parameters = core->num_parameters;
  args->layouts = core->parameter_layouts;
  return NULL;
}

PJRT_Layouts_Extension layouts_extension = {
    .base = {.struct_size = PJRT_Layouts_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Layouts,
             .next = &shardings_extension.base},
    .PJRT_Layouts_MemoryLayout_Destroy = destroy,
    .PJRT_Layouts_MemoryLayout_Serialize = serialize,
    .PJRT_Layouts_PJRT_Client_GetDefaultLayout = client_default,
    .PJRT_Layouts_PJRT_Buffer_MemoryLayout = of_buffer,
    .PJRT_Layouts_PJRT_Topology_GetDefaultLayout = topology_default,
    .PJRT_Layouts_PJRT_Executable_GetOutputLayouts = of_outputs,
    .PJRT_Layouts_PJRT_Executable_GetParameterLayouts = of_parameters,
};

/* ---- shardings -----------------------------------------------------------------------------------------------------------*/
static PJRT_Error *parameter_shardings(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args *args) {
  SIZED(PJRT_Shardings_PJRT_Executable_ParameterShardings_Args, args);
  const executable *core = args->executable->core;
  args->num_parameters = core->num_parameters;
  args->shardings = core->parameter_shardings;
  args->sharding_sizes = core->parameter_sharding_sizes;
  return NULL;
}

static PJRT_Error *output_shardings(PJRT_Shardings_PJRT_Executable_OutputShardings_Args *args) {
  SIZED(PJRT_Shardings_PJRT_Executable_OutputShardings_Args, args);
  const executable *core = args->executable->core;
  args->num_outputs = core->num_outputs;
  args->shardings = core->output_shardings;
  args->sharding_sizes = core->output_sharding_sizes;
  /* XLA asks for the sharding of the empty tuple, which a program without results has: an OpSharding of defaults. */
  static const char *replicated = "";
  static size_t size = 0;
  if (core->num_outputs || !core->is_sharded) return NULL;
  args->num_outputs = 1;
  args->shardings = &replicated;
  args->sharding_sizes = &size;
  return NULL;
}

PJRT_Shardings_Extension shardings_extension = {
    .base = {.struct_size = PJRT_Shardings_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_Shardings,
             .next = &raw_buffer_extension.base},
    .PJRT_Shardings_PJRT_Executable_ParameterShardings = parameter_shardings,
    .PJRT_Shardings_PJRT_Executable_OutputShardings = output_shardings,
};

/* ---- RawBuffer --------------------------------------------------------------------------------------------------------*/
struct PJRT_RawBuffer {
  const void *vtable; /* read by nobody who uses the functions of the extension */
  memory_space *space;
  storage *storage;
  completion *defined;
};

/* The alias shares the memory: as long as it lives, a donation of the buffer does not write to it. */
static PJRT_Error *raw_create(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args *args) {
  SIZED(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args, args);
  storage *held;
  const shape *of = &args->buffer->shape;
  PJRT_Error *error = buffer_has_bytes(args->buffer) ? buffer_use(args->buffer, &held) : refuse_layout(of);
  if (error) return error;
  atomic_fetch_add(&held->sharers, 1);
  atomic_fetch_sub(&held->readers, 1);
  PJRT_RawBuffer *raw = args->raw_buffer = new_zeroed(1, sizeof *raw);
  raw->space = args->buffer->space;
  raw->storage = held;
  raw->defined = completion_ref(args->buffer->defined);
  return NULL;
}

static PJRT_Error *raw_destroy(PJRT_RawBuffer_Destroy_Args *args) {
  SIZED(PJRT_RawBuffer_Destroy_Args, args);
  if (args->buffer == NULL) return NULL;
  completion_unref(args->buffer->defined);
  atomic_fetch_sub(&args->buffer->storage->sharers, 1);
  storage_unref(args->buffer->storage);
  free(args->buffer);
  return NULL;
}

static PJRT_Error *raw_size(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args *args) {
  SIZED(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args, args);
  args->on_device_size_in_bytes = args->buffer->storage->in_rows;
  return NULL;
}

static PJRT_Error *raw_memory(PJRT_RawBuffer_GetMemorySpace_Args *args) {
  SIZED(PJRT_RawBuffer_GetMemorySpace_Args, args);
  args->memory_space = &args->buffer->space->base;
  return NULL;
}

/* Null where the host cannot see the memory. */
static PJRT_Error *raw_pointer(PJRT_RawBuffer_GetHostPointer_Args *args) {
  SIZED(PJRT_RawBuffer_GetHostPointer_Args, args);
  const storage *held = args->buffer->storage;
  const PJRT_Client *client = held->space->device->client;
  if (!is_python(client)) {
    args->host_pointer = storage_host_view(held);
    return NULL;
  }
  args->host_pointer = NULL;
  if (!python_is_on_host(held->space)) return NULL;
  uint64_t address;
  PJRT_Error *error = storage_address(held, &address);
  args->host_pointer = (void *)(uintptr_t)address;
  return error;
}

static PJRT_Error *raw_to_device(PJRT_RawBuffer_CopyRawHostToDevice_Args *args) {
  SIZED(PJRT_RawBuffer_CopyRawHostToDevice_Args, args);
  PJRT_RawBuffer *raw = args->buffer;
  PJRT_Error *error = raw_check_range(raw->storage, args->offset, args->transfer_size, args->src);
  if (error) return error;
  completion *done =
      raw_copy_in(raw->storage, raw->defined, (size_t)args->offset, args->src, (size_t)args->transfer_size);
  args->event = event_make(done);
  completion_unref(done);
  return NULL;
}

static PJRT_Error *raw_to_host(PJRT_RawBuffer_CopyRawDeviceToHost_Args *args) {
  SIZED(PJRT_RawBuffer_CopyRawDeviceToHost_Args, args);
  PJRT_RawBuffer *raw = args->buffer;
  PJRT_Error *error = raw_check_range(raw->storage, args->offset, args->transfer_size, args->dst);
  if (error) return error;
  completion *done =
      raw_copy_out(raw->storage, raw->defined, (size_t)args->offset, args->dst, (size_t)args->transfer_size);
  args->event = event_make(done);
  completion_unref(done);
  return NULL;
}

PJRT_RawBuffer_Extension raw_buffer_extension = {
    .base = {.struct_size = PJRT_RawBuffer_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_RawBuffer,
             .next = &host_allocator_extension.base},
    .PJRT_RawBuffer_CreateRawAliasOfBuffer = raw_create,
    .PJRT_RawBuffer_Destroy = raw_destroy,
    .PJRT_RawBuffer_GetOnDeviceSizeInBytes = raw_size,
    .PJRT_RawBuffer_GetMemorySpace = raw_memory,
    .PJRT_RawBuffer_CopyRawHostToDevice = raw_to_device,
    .PJRT_RawBuffer_CopyRawDeviceToHost = raw_to_host,
    .PJRT_RawBuffer_GetHostPointer = raw_pointer,
};

/* ---- memory of the host ----------------------------------------------------------------------------------------------------*/
enum { HOST_ALIGNMENT = 64 }; /* a line of the cache, from which devices take arrays in place */

static PJRT_Error *host_alignment(PJRT_HostAllocator_GetPreferredAlignment_Args *args) {
  SIZED(PJRT_HostAllocator_GetPreferredAlignment_Args, args);
  args->preferred_alignment = HOST_ALIGNMENT;
  return NULL;
}

static PJRT_Error *memory_of_host(size_t size, size_t alignment, void **out) {
  *out = NULL;
  if (alignment == 0 || (alignment & (alignment - 1)))
    return error_make(PJRT_Error_Code_INVALID_ARGUMENT, "expected an alignment that is a power of two, found %zu", alignment);
  if (posix_memalign(out, alignment < sizeof(void *) ? sizeof(void *) : alignment, size ? size : 1) == 0) return NULL;
  return error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the host has no %zu bytes for transfers", size);
}

static PJRT_Error *host_allocate(PJRT_HostAllocator_Allocate_Args *args) {
  SIZED(PJRT_HostAllocator_Allocate_Args, args);
  return memory_of_host(args->size, args->alignment, &args->ptr);
}

static PJRT_Error *host_free(PJRT_HostAllocator_Free_Args *args) {
  SIZED(PJRT_HostAllocator_Free_Args, args);
  free(args->ptr);
  return NULL;
}

PJRT_HostAllocator_Extension host_allocator_extension = {
    .base = {.struct_size = PJRT_HostAllocator_Extension_STRUCT_SIZE, .type = PJRT_Extension_Type_HostAllocator,
             .next = &host_memory_allocator_extension.base},
    .get_preferred_alignment = host_alignment,
    .allocate = host_allocate,
    .free = host_free,
};

static void delete_memory(void *memory, void *arg) {
  (void)arg;
  free(memory);
}

/* The system chooses the node: that of the thread which writes first. */
static PJRT_Error *host_memory_allocate(PJRT_HostMemoryAllocator_Allocate_Args *args) {
  SIZED(PJRT_HostMemoryAllocator_Allocate_Args, args);
  void *memory;
  PJRT_Error *error = memory_of_host(args->size, HOST_ALIGNMENT, &memory);
  args->ptr = memory;
  args->deleter = delete_memory;
  args->deleter_arg = NULL;
  return error;
}

PJRT_HostMemoryAllocator_Extension host_memory_allocator_extension = {
    .base = {.struct_size = PJRT_HostMemoryAllocator_Extension_STRUCT_SIZE,
             .type = PJRT_Extension_Type_HostMemoryAllocator, .next = &ffi_extension.base},
    .allocate = host_memory_allocate,
};
