/* Storage, and the buffers that hold it: how they begin and end, who reads them, and what they answer. */
#include "runtime.h"

/* ---- storage --------------------------------------------------------------------------------------------------------*/
static storage *storage_make(memory_space *space, uint64_t memory, size_t size) {
  storage *each = new_zeroed(1, sizeof *each);
  atomic_init(&each->refs, 1);
  each->space = space;
  each->memory = memory;
  each->size = each->in_rows = size;
  device_ref(space->device);
  return each;
}

storage *storage_borrow(memory_space *space, uint64_t memory, size_t size) { return storage_make(space, memory, size); }

static PJRT_Error *reserve(memory_space *space, size_t size) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&space->mutex);
  if (space->limit && (int64_t)size > space->limit - space->in_use) {
    error = error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED,
                       "out of memory %s: %zu bytes are wanted, buffers hold %lld of %lld", space->to_string, size,
                       (long long)space->in_use, (long long)space->limit);
  } else {
    space->in_use += (int64_t)size;
    space->allocations += 1;
    if (space->in_use > space->peak) space->peak = space->in_use;
    if ((int64_t)size > space->largest) space->largest = (int64_t)size;
  }
  pthread_mutex_unlock(&space->mutex);
  return error;
}

static void unreserve(memory_space *space, size_t size) {
  pthread_mutex_lock(&space->mutex);
  space->in_use -= (int64_t)size;
  pthread_mutex_unlock(&space->mutex);
}

/* It counts for one number of bytes, and the driver gives another one. */
static PJRT_Error *try_allocate(memory_space *space, size_t size, size_t given, uint64_t *memory) {
  PJRT_Error *error = reserve(space, size);
  if (error) return error;
  PJRT_Client *client = space->device->client;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  int code = client->table->allocate(client->driver, space->device->number, space->kind_number, given, memory, message);
  error = error_of_driver("allocate", code, message);
  if (!error && *memory == 0 && given)
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function allocate gave 0 for %zu bytes, which stands for "
                       "no memory", given);
  if (error) unreserve(space, size);
  return error;
}

static PJRT_Error *allocate(memory_space *space, size_t size, size_t given, storage **out) {
  PJRT_Client *client = space->device->client;
  uint64_t memory = 0;
  PJRT_Error *error = try_allocate(space, size, given, &memory);
  /* What is in flight may free what is missing; a copy to another device frees it from that device's queue. */
  for (uint64_t seen = 0; error && pjrt_error_code(error) == PJRT_Error_Code_RESOURCE_EXHAUSTED;) {
    if (!client_wait_for_one(client, seen)) break;
    seen = client_ended(client);
    pjrt_error_release(error);
    error = try_allocate(space, size, given, &memory);
  }
  if (error) return error;
  *out = storage_make(space, memory, size);
  (*out)->is_owned = true;
  (*out)->in_rows = given;
  return NULL;
}

PJRT_Error *storage_allocate_bytes(memory_space *space, size_t size, storage **out) {
  return allocate(space, size, size, out);
}

PJRT_Error *storage_recount(storage *each, size_t size) {
  if (!each->is_owned || each->size == size) return NULL;
  PJRT_Error *error = size > each->size ? reserve(each->space, size - each->size) : NULL;
  if (error) return error;
  if (size < each->size) unreserve(each->space, each->size - size);
  each->size = size;
  return NULL;
}

PJRT_Error *storage_layout(const memory_space *space, const shape *of, pjrt_driver_layout *out) {
  PJRT_Client *client = space->device->client;
  *out = (pjrt_driver_layout){.struct_size = sizeof *out, .bytes = shape_size(of)};
  if (!DRIVER_HAS(client->table, layout) || of->type == PJRT_Buffer_Type_TOKEN) return NULL;
  pjrt_driver_shape given = driver_shape(of);
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  int code = client->table->layout(client->driver, space->device->number, space->kind_number, &given, out, message);
  if (code) return error_of_driver("layout", code, message);
  const size_t elements = (size_t)shape_elements(of), bits = out->element_bits;
  const bool has_elements = bits == 0 || element_fits(of->type, bits);
  const size_t least = bits == 0 ? elements > 0 : elements / 8 * bits + (elements % 8 * bits + 7) / 8;
  if (has_elements && out->bytes >= least && (out->bytes == 0) == (elements == 0) && out->bytes <= INT64_MAX / 2) return NULL;
  char *text = shape_text(of);
  PJRT_Error *error =
      has_elements ? error_make(PJRT_Error_Code_INTERNAL, "the driver's function layout gave %zu bytes for %s, expected as "
                                "many as an array of %zu bytes takes", out->bytes, text, bits ? least : shape_size(of))
                   : error_make(PJRT_Error_Code_INTERNAL, "the driver's function layout gave elements of %zu bits for %s, "
                                "expected 0, or 1, 2 or 4 that hold such an element", bits, text);
  free(text);
  return error;
}

bool storage_is_plain(const memory_space *space, const shape *of) {
  pjrt_driver_layout own;
  if (!DRIVER_HAS(space->device->client->table, layout)) return shape_is_in_rows(of);
  PJRT_Error *error = storage_layout(space, of, &own);
  pjrt_error_release(error);
  if (error || own.num_tiles || own.element_bits) return false;
  return is_laid_out(space->device->client) ? shape_is_in_rows(of) : own.bytes == shape_size(of);
}

PJRT_Error *storage_allocate(memory_space *space, const shape *of, storage **out) {
  pjrt_driver_layout layout;
  PJRT_Error *error = storage_layout(space, of, &layout);
  /* A device in Python has tiles and padding in its own memory; the driver's is for the host's array. */
  return error ? error : allocate(space, layout.bytes, is_laid_out(space->device->client) ? shape_size(of) : layout.bytes, out);
}

storage *storage_ref(storage *each) {
  atomic_fetch_add_explicit(&each->refs, 1, memory_order_relaxed);
  return each;
}

static void end_storage(void *arg) {
  storage *each = arg;
  if (each->target) atomic_fetch_sub(&each->target->sharers, 1);
  storage_unref(each->target);
  if (each->on_free) each->on_free(each->on_free_data, each->on_free_arg);
  if (each->freed) {
    completion_set(each->freed, NULL);
    completion_unref(each->freed);
  }
  PJRT_Device *device = each->space->device;
  free(each);
  device_unref(device);
}

void storage_unref(storage *each) {
  if (each == NULL || atomic_fetch_sub(&each->refs, 1) != 1) return;
  PJRT_Client *client = each->space->device->client;
  if (each->freed && is_python(client) && client->python->give_back) {
    client->python->give_back(client->driver, each->memory, end_storage, each);
    return;
  }
  if (each->is_owned || each->freed) client->table->free(client->driver, each->space->device->number, each->memory);
  if (each->is_owned) unreserve(each->space, each->size);
  end_storage(each);
}

uint64_t storage_memory(const storage *each) { return each->target ? storage_memory(each->target) : each->memory; }

void *storage_host_view(const storage *each) {
  PJRT_Client *client = each->space->device->client;
  if (!DRIVER_HAS(client->table, host_view)) return NULL;
  return client->table->host_view(client->driver, each->space->device->number, storage_memory(each));
}

/* ---- buffers --------------------------------------------------------------------------------------------------------*/
static bool has_tiles(const pjrt_driver_layout *own, const PJRT_Buffer_MemoryLayout_Tiled *asked) {
  size_t total = 0;
  if (own->num_tiles != asked->num_tiles) return false;
  for (size_t i = 0; i < own->num_tiles; total += own->tile_ranks[i++])
    if (own->tile_ranks[i] != asked->tile_dim_sizes[i]) return false;
  return memcmp(own->tile_dims, asked->tile_dims, total * sizeof *own->tile_dims) == 0;
}

PJRT_Error *device_shape(shape *out, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                         const PJRT_Buffer_MemoryLayout *layout, const memory_space *space) {
  const pjrt_driver_table *table = space ? space->device->client->table : NULL;
  const bool has_layouts = table && DRIVER_HAS(table, layout);
  const bool is_tiled = has_layouts && layout && layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled &&
                        layout->tiled.num_tiles;
  PJRT_Buffer_MemoryLayout order = {.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                    .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  if (is_tiled) {
    order.tiled = (PJRT_Buffer_MemoryLayout_Tiled){.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                                                   .minor_to_major = layout->tiled.minor_to_major,
                                                   .minor_to_major_size = layout->tiled.minor_to_major_size};
  }
  PJRT_Error *error = shape_init(out, type, dims, rank, is_tiled ? &order : layout);
  if (error || (shape_is_in_rows(out) && !is_tiled)) return error;
  if (has_layouts) {
    pjrt_driver_layout own;
    error = storage_layout(space, out, &own);
    if (error || !is_tiled || has_tiles(&own, &layout->tiled)) return error;
    char *text = layout_text(out, &own);
    error = error_make(PJRT_Error_Code_UNIMPLEMENTED, "expected the device's own tiles, as in %s, found others", text);
    free(text);
    return error;
  }
  if (table && !DRIVER_HAS(table, host_view) && !DRIVER_HAS(table, pointer)) return NULL;
  return refuse_layout(out);
}

PJRT_Error *refuse_layout(const shape *of) {
  char *text = layout_text(of, NULL);
  PJRT_Error *error = error_make(PJRT_Error_Code_UNIMPLEMENTED,
                                 "expected an array in rows, the last dimension the most minor; found the layout %s", text);
  free(text);
  return error;
}

static void take_storage(PJRT_Buffer *buffer, storage *owned) {
  buffer->storage = owned;
  buffer->gone = NULL;
  atomic_fetch_add_explicit(&owned->holders, 1, memory_order_relaxed);
}

static storage *give_storage(PJRT_Buffer *buffer) {
  storage *given = buffer->storage;
  if (given) atomic_fetch_sub_explicit(&given->holders, 1, memory_order_relaxed);
  buffer->storage = NULL;
  return given;
}

PJRT_Buffer *buffer_make(memory_space *space, const shape *of, storage *owned, completion *owned_defined) {
  PJRT_Buffer *buffer = malloc(sizeof *buffer);
  if (buffer == NULL) buffer = new_zeroed(1, sizeof *buffer);
  buffer->space = space;
  device_ref(space->device);
  buffer->shape.type = of->type;
  buffer->shape.rank = of->rank;
  memcpy(buffer->shape.dims, of->dims, of->rank * sizeof *of->dims);
  memcpy(buffer->shape.minor_to_major, of->minor_to_major, of->rank * sizeof *of->minor_to_major);
  buffer->defined = owned_defined;
  take_storage(buffer, owned);
  buffer->external_references = 0;
  pthread_mutex_init(&buffer->mutex, NULL);
  return buffer;
}

static PJRT_Error *gone(const PJRT_Buffer *buffer) {
  return error_make(INVALID, "the buffer was %s, and holds nothing any more", buffer->gone);
}

PJRT_Error *buffer_use(PJRT_Buffer *buffer, storage **out) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->gone) {
    error = gone(buffer);
  } else {
    *out = storage_ref(buffer->storage);
    atomic_fetch_add(&buffer->storage->readers, 1);
  }
  pthread_mutex_unlock(&buffer->mutex);
  return error;
}

void storage_read(storage *owned) {
  atomic_fetch_sub(&owned->readers, 1);
  storage_unref(owned);
}

PJRT_Error *buffer_donate(PJRT_Buffer *buffer, storage **out) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->gone) {
    error = gone(buffer);
  } else if (buffer->external_references) {
    error = error_make(INVALID, "the buffer cannot be donated: it has %lld external references",
                       (long long)buffer->external_references);
  } else {
    *out = give_storage(buffer);
    buffer->gone = "donated";
  }
  pthread_mutex_unlock(&buffer->mutex);
  return error;
}

void buffer_take_back(PJRT_Buffer *buffer, storage *owned) {
  pthread_mutex_lock(&buffer->mutex);
  take_storage(buffer, owned);
  pthread_mutex_unlock(&buffer->mutex);
}

PJRT_Error *buffer_check(PJRT_Buffer *buffer) {
  pthread_mutex_lock(&buffer->mutex);
  PJRT_Error *error = buffer->gone ? gone(buffer) : NULL;
  pthread_mutex_unlock(&buffer->mutex);
  return error;
}

bool buffer_has_bytes(const PJRT_Buffer *buffer) {
  bool is_plain = storage_is_plain(buffer->space, &buffer->shape);
  return is_plain || (!is_laid_out(buffer->space->device->client) && shape_is_in_rows(&buffer->shape));
}

static void give_up_storage(PJRT_Buffer *buffer) {
  pthread_mutex_lock(&buffer->mutex);
  if (!buffer->gone) buffer->gone = "deleted";
  storage *held = buffer->external_references ? NULL : give_storage(buffer); /* stays while it is lent out */
  pthread_mutex_unlock(&buffer->mutex);
  storage_unref(held);
}

void buffer_destroy(PJRT_Buffer *buffer) {
  buffer->external_references = 0;
  give_up_storage(buffer);
  completion_unref(buffer->defined);
  pthread_mutex_destroy(&buffer->mutex);
  PJRT_Device *device = buffer->space->device;
  free(buffer);
  device_unref(device);
}

PJRT_Error *native_Buffer_Destroy(PJRT_Buffer_Destroy_Args *args) {
  if (args->buffer) buffer_destroy(args->buffer);
  return NULL;
}

PJRT_Error *native_Buffer_Delete(PJRT_Buffer_Delete_Args *args) {
  give_up_storage(args->buffer);
  return NULL;
}

PJRT_Error *native_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args *args) {
  pthread_mutex_lock(&args->buffer->mutex);
  args->is_deleted = args->buffer->gone != NULL;
  pthread_mutex_unlock(&args->buffer->mutex);
  return NULL;
}

/* ---- external references and addresses ----------------------------------------------------------------------------------*/
PJRT_Error *native_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args *args) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&args->buffer->mutex);
  if (args->buffer->gone) error = gone(args->buffer);
  else ++args->buffer->external_references; /* until they are given back it is not donated */
  pthread_mutex_unlock(&args->buffer->mutex);
  return error;
}

PJRT_Error *native_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args *args) {
  PJRT_Buffer *buffer = args->buffer;
  PJRT_Error *error = NULL;
  storage *last = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->external_references == 0) {
    error = error_make(INVALID, "Attempting to decrease reference on a buffer with zero reference count.");
  } else if (--buffer->external_references == 0 && buffer->gone) {
    last = give_storage(buffer);
  }
  pthread_mutex_unlock(&buffer->mutex);
  storage_unref(last);
  return error;
}

static bool is_on_host(const memory_space *space) {
  const PJRT_Client *client = space->device->client;
  if (is_python(client)) return python_is_on_host(space);
  return DRIVER_HAS(client->table, host_view);
}

PJRT_Error *storage_address(const storage *of, uint64_t *out) {
  const memory_space *space = of->space;
  PJRT_Client *client = space->device->client;
  *out = 0;
  if (is_python(client) && is_on_host(space)) {
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    void *view = NULL;
    int code = client->python->view(client->driver, storage_memory(of), &view, message);
    *out = (uintptr_t)view;
    return error_from_parts((PJRT_Error_Code)code, message, strlen(message));
  }
  if (!DRIVER_HAS(client->table, pointer))
    return error_make(PJRT_Error_Code_UNIMPLEMENTED, "the memory %s has no addresses", space->to_string);
  *out = client->table->pointer(client->driver, space->device->number, storage_memory(of));
  return NULL;
}

/* The address for the device; the caller sees to it that the buffer is ready, and stays. */
static PJRT_Error *address_of(PJRT_Buffer *buffer, uint64_t *out) {
  storage *held;
  *out = 0;
  if (is_laid_out(buffer->space->device->client) && !buffer_has_bytes(buffer)) return refuse_layout(&buffer->shape);
  PJRT_Error *error = buffer_use(buffer, &held);
  if (error) return error;
  error = storage_address(held, out);
  storage_read(held);
  return error;
}

PJRT_Error *native_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args *args) {
  uint64_t address = 0;
  PJRT_Error *error = address_of(args->buffer, &address);
  args->buffer_pointer = (uintptr_t)address;
  return error;
}

PJRT_Error *native_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args) {
  uint64_t address = 0;
  PJRT_Error *error = address_of(args->buffer, &address);
  args->device_memory_ptr = (void *)(uintptr_t)address;
  return error;
}

PJRT_Error *native_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args *args) {
  pthread_mutex_lock(&args->buffer->mutex);
  completion *of = args->buffer->gone ? completion_with(gone(args->buffer)) : completion_ref(args->buffer->defined);
  pthread_mutex_unlock(&args->buffer->mutex);
  args->event = event_to_await(of);
  completion_unref(of);
  return NULL;
}

/* ---- what a buffer answers ------------------------------------------------------------------------------------------------*/
PJRT_Error *native_Buffer_ElementType(PJRT_Buffer_ElementType_Args *args) {
  args->type = args->buffer->shape.type;
  return NULL;
}

PJRT_Error *native_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args *args) {
  args->dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error *native_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args *args) {
  args->unpadded_dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error *native_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args *args) {
  args->dynamic_dim_indices = NULL;
  args->num_dynamic_dims = 0;
  return NULL;
}

PJRT_Error *native_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args *args) {
  pjrt_driver_layout own;
  PJRT_Error *error = storage_layout(args->buffer->space, &args->buffer->shape, &own);
  if (error) return error;
  args->layout = (PJRT_Buffer_MemoryLayout){
      .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
      .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
      .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                .minor_to_major = args->buffer->shape.minor_to_major,
                .minor_to_major_size = args->buffer->shape.rank,
                .tile_dims = own.tile_dims,
                .tile_dim_sizes = own.tile_ranks,
                .num_tiles = own.num_tiles},
  };
  return NULL;
}

PJRT_Error *native_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args *args) {
  pthread_mutex_lock(&args->buffer->mutex);
  args->on_device_size_in_bytes = args->buffer->storage ? args->buffer->storage->size : shape_size(&args->buffer->shape);
  pthread_mutex_unlock(&args->buffer->mutex);
  return NULL;
}

PJRT_Error *native_Buffer_Device(PJRT_Buffer_Device_Args *args) {
  args->device = args->buffer->space->device;
  return NULL;
}

PJRT_Error *native_Buffer_Memory(PJRT_Buffer_Memory_Args *args) {
  args->memory = &args->buffer->space->base;
  return NULL;
}

PJRT_Error *native_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args *args) {
  args->is_on_cpu = is_on_host(args->buffer->space) && storage_is_plain(args->buffer->space, &args->buffer->shape);
  return NULL;
}

/* ---- buffers that are not filled from the host ------------------------------------------------------------------------------*/
PJRT_Error *native_Client_CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args *args) {
  memory_space *space;
  shape of;
  storage *held;
  PJRT_Error *error = space_choose(args->memory, args->device, &space);
  if (!error)
    error = device_shape(&of, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout,
                         space);
  if (!error) error = storage_allocate(space, &of, &held);
  if (!error) args->buffer = buffer_make(space, &of, held, &completion_done);
  return error;
}

PJRT_Error *native_Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args *args) {
  memory_space *space;
  shape of;
  PJRT_Error *error = space_choose(args->memory, NULL, &space);
  if (!error)
    error = device_shape(&of, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout,
                         space);
  if (!error && args->error_code == PJRT_Error_Code_OK)
    error = error_make(INVALID, "a buffer with an error needs an error, found the code OK");
  if (error) return error;
  PJRT_Error *held = error_from_parts(args->error_code, args->error_message, args->error_message_size);
  if (HAS(args, PJRT_Client_CreateErrorBuffer_Args, num_payload)) error_add_payloads(held, args->payload, args->num_payload);
  args->buffer = buffer_make(space, &of, storage_make(space, 0, 0), completion_with(held));
  return NULL;
}

PJRT_Error *native_Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args *args) {
  memory_space *space;
  shape of;
  PJRT_Memory *wanted = HAS(args, PJRT_Client_CreateViewOfDeviceBuffer_Args, memory) ? args->memory : NULL;
  PJRT_Error *error = space_choose(wanted, args->device, &space);
  bool has_layouts = !error && DRIVER_HAS(space->device->client->table, layout);
  if (!error)
    error = device_shape(&of, args->element_type, args->dims, args->num_dims, args->layout, has_layouts ? space : NULL);
  if (!error && !storage_is_plain(space, &of))
    error = error_make(PJRT_Error_Code_UNIMPLEMENTED, "an array in this device's own layout cannot be used in place");
  if (!error && args->device_buffer_ptr == NULL && shape_size(&of))
    error = error_make(INVALID, "expected the address of %zu bytes, found null", shape_size(&of));
  if (error) return error;
  PJRT_Client *client = space->device->client;
  const size_t alignment = is_python(client) && python_is_on_host(space) ? client->python->alignment : 0;
  if (alignment && (uintptr_t)args->device_buffer_ptr % alignment)
    return error_make(INVALID, "the memory at %p is not aligned to %zu bytes, so the device cannot use it in place; copy it",
                      args->device_buffer_ptr, alignment);
  if (!DRIVER_HAS(client->table, import))
    return error_make(PJRT_Error_Code_UNIMPLEMENTED, "%s cannot use memory that it did not allocate: its driver has no "
                      "function import", client->table->platform_name);
  uint64_t memory = 0;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  error = error_of_driver("import", client->table->import(client->driver, space->device->number, space->kind_number,
                                                          args->device_buffer_ptr, shape_size(&of), &memory, message),
                          message);
  if (!error && memory == 0 && shape_size(&of))
    error = error_make(PJRT_Error_Code_INTERNAL, "the driver's function import gave 0, which stands for no memory");
  if (error) return error;
  storage *held = storage_make(space, memory, shape_size(&of));
  held->freed = completion_make();
  held->on_free = args->on_delete_callback;
  held->on_free_data = args->device_buffer_ptr;
  held->on_free_arg = args->on_delete_callback_arg;
  atomic_init(&held->sharers, 1);
  args->buffer = buffer_make(space, &of, held, &completion_done);
  return NULL;
}

/* The same bytes seen as another shape of the same size. They move to the new buffer: the old one is used up. Where the
 * elements do not lie in rows alone, the bytes are those of the host's array, and are laid out anew. */
PJRT_Error *native_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args *args) {
  shape of;
  memory_space *space = args->buffer->space;
  pjrt_driver_layout layout;
  const bool converts = is_laid_out(space->device->client);
  PJRT_Error *error =
      device_shape(&of, args->element_type, args->dims, args->num_dims, args->device_layout, converts ? space : NULL);
  if (!error && !shape_is_in_rows(&args->buffer->shape)) error = refuse_layout(&args->buffer->shape);
  if (!error && !shape_is_in_rows(&of)) error = refuse_layout(&of);
  if (!error && converts) error = storage_layout(space, &of, &layout);
  if (!error && shape_size(&of) != shape_size(&args->buffer->shape))
    error = error_make(INVALID, "expected a shape of %zu bytes, as the buffer has, found one of %zu",
                       shape_size(&args->buffer->shape), shape_size(&of));
  const bool is_plain = storage_is_plain(space, &args->buffer->shape) && !error && storage_is_plain(space, &of);
  if (!error && !converts && !is_plain) {
    error = buffer_copied(args->buffer, space, &of, &args->out_buffer);
    if (!error) give_up_storage(args->buffer);
    return error;
  }
  storage *held = NULL;
  if (!error) error = buffer_donate(args->buffer, &held);
  if (!error && converts && (error = storage_recount(held, layout.bytes))) buffer_take_back(args->buffer, held);
  if (error) return error;
  args->out_buffer = buffer_make(space, &of, held, completion_ref(args->buffer->defined));
  return NULL;
}

/* ---- aliases: buffers that become others ------------------------------------------------------------------------------------*/
struct PJRT_FulfillAliasBufferCallback {
  open_end *end;
  storage *storage; /* of the alias, without a target yet */
  shape shape;
};

PJRT_Error *native_Client_CreateAliasBuffer(PJRT_Client_CreateAliasBuffer_Args *args) {
  memory_space *space;
  shape of;
  PJRT_Error *error = space_choose(args->memory, NULL, &space);
  if (!error)
    error = device_shape(&of, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout,
                         space);
  if (error) return error;
  completion *defined = completion_make();
  storage *held = storage_make(space, 0, 0);
  atomic_init(&held->sharers, 1); /* its bytes are those of another buffer */
  PJRT_FulfillAliasBufferCallback *callback = new_zeroed(1, sizeof *callback);
  callback->end = open_end_make(args->client, defined);
  callback->storage = storage_ref(held);
  callback->shape = of;
  args->alias_buffer = buffer_make(space, &of, held, defined);
  args->fulfill_alias_buffer_cb = callback;
  return NULL;
}

static void follow(PJRT_Error *borrowed, void *arg) {
  completion_set(arg, pjrt_error_share(borrowed));
  completion_unref(arg);
}

/* With an OK code the alias becomes the buffer, else it fails. The handle is spent either way: a call that is refused
 * fails the alias too. */
PJRT_Error *native_Client_FulfillAliasBuffer(PJRT_Client_FulfillAliasBuffer_Args *args) {
  PJRT_FulfillAliasBufferCallback *callback = args->fulfill_alias_buffer_cb;
  if (callback == NULL) return error_make(INVALID, "expected the handle of an alias, found null");
  PJRT_Error *given = error_from_parts(args->status_code, args->error_message, args->error_message_size);
  PJRT_Error *refusal = NULL;
  storage *target = NULL;
  if (!given && args->buffer == NULL) refusal = error_make(INVALID, "an alias needs a buffer or an error, found neither");
  else if (!given && !shape_same(&args->buffer->shape, &callback->shape))
    refusal = error_make(INVALID, "the buffer and its alias differ in type or shape");
  else if (!given) refusal = buffer_use(args->buffer, &target);
  completion *defined = open_end_take(callback->end);
  if (given || refusal) {
    completion_set(defined, given ? given : pjrt_error_share(refusal));
    completion_unref(defined);
  } else {
    atomic_fetch_add(&target->sharers, 1); /* until the alias ends */
    atomic_fetch_sub(&target->readers, 1);
    callback->storage->target = target;
    completion_then(args->buffer->defined, follow, defined);
  }
  storage_unref(callback->storage);
  free(callback);
  return refusal;
}

/* ---- a donation that becomes ready when the caller says so --------------------------------------------------------------------*/
typedef struct dependency {
  atomic_size_t left;
  completion *source, *caller, *done;
} dependency;

static void one_less(PJRT_Error *borrowed, void *arg) {
  (void)borrowed;
  dependency *each = arg;
  if (atomic_fetch_sub(&each->left, 1) != 1) return;
  PJRT_Error *error = completion_error(each->caller);
  if (error == NULL) error = completion_error(each->source);
  completion_set(each->done, pjrt_error_share(error));
  completion_unref(each->done);
  completion_unref(each->caller);
  completion_unref(each->source);
  free(each);
}

static void dependency_ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) {
  completion *caller = open_end_take(args->callback_data);
  completion_set(caller, error_from_parts(args->error_code, args->error_message, args->error_message_size));
  completion_unref(caller);
}

PJRT_Error *native_Buffer_DonateWithControlDependency(PJRT_Buffer_DonateWithControlDependency_Args *args) {
  storage *held;
  PJRT_Error *error = buffer_donate(args->buffer, &held);
  if (error) return error;
  dependency *each = new_zeroed(1, sizeof *each);
  each->source = completion_ref(args->buffer->defined);
  completion *caller = each->caller = completion_make();
  each->done = completion_make();
  atomic_init(&each->left, 2);
  args->callback_data = open_end_make(args->buffer->space->device->client, caller);
  args->dependency_ready_callback = dependency_ready;
  args->out_buffer = buffer_make(args->buffer->space, &args->buffer->shape, held, completion_ref(each->done));
  completion *source = completion_ref(each->source), *kept = completion_ref(caller);
  completion_then(source, one_less, each);
  completion_then(kept, one_less, each);
  completion_unref(source);
  completion_unref(kept);
  return NULL;
}
