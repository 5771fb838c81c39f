/* Asynchronous host-to-device transfer managers: buffers that are filled piece by piece. */
#include "tiny.h"

typedef struct slot {
  PJRT_Buffer *buffer; /* null once retrieved */
  tiny_storage *storage;
  tiny_promise *defined;
  tiny_shape shape;
  size_t size;
  size_t under_way; /* transfers that are queued */
  bool last_seen;
} slot;

struct PJRT_AsyncHostToDeviceTransferManager {
  atomic_int refs;
  tiny_memory *memory;
  pthread_mutex_t mutex;
  slot *slots;
  size_t num_slots;
  tiny_attributes metadata;
};
typedef PJRT_AsyncHostToDeviceTransferManager manager;

static void manager_unref(manager *each) {
  if (atomic_fetch_sub(&each->refs, 1) != 1) return;
  for (size_t i = 0; i < each->num_slots; ++i) {
    slot *it = &each->slots[i];
    promise_set(it->defined, status_make(PJRT_Error_Code_CANCELLED,
                                         "The transfer manager was destroyed before buffer %zu was complete", i));
    promise_unref(it->defined);
    storage_unref(it->storage);
    if (it->buffer) tiny_Buffer_Destroy(&(PJRT_Buffer_Destroy_Args){.buffer = it->buffer});
  }
  PJRT_Client *client = each->memory->device->client;
  attributes_free(&each->metadata);
  pthread_mutex_destroy(&each->mutex);
  free(each->slots);
  free(each);
  client_unref(client);
}

static tiny_status *init_slot(slot *it, tiny_memory *memory, const PJRT_ShapeSpec *spec,
                              const PJRT_Buffer_MemoryLayout *layout) {
  tiny_status *status = shape_init(&it->shape, spec->element_type, spec->dims, spec->num_dims, layout);
  if (!status) status = storage_allocate(memory, shape_size(&it->shape), &it->storage);
  if (status) return status;
  it->size = shape_size(&it->shape);
  it->defined = promise_make();
  it->buffer = buffer_make(memory, &it->shape, storage_ref(it->storage), promise_ref(it->defined));
  return NULL;
}

PJRT_Error *tiny_Client_CreateBuffersForAsyncHostToDevice(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args *args) {
  tiny_memory *memory;
  tiny_status *status = memory_choose(args->memory, NULL, &memory);
  if (!status && args->num_device_layouts && args->num_device_layouts != args->num_shape_specs)
    status = status_make(INVALID, "Got %zu layouts for %zu shapes", args->num_device_layouts, args->num_shape_specs);
  if (status) return error_from(status);
  manager *each = tiny_calloc(1, sizeof *each);
  atomic_init(&each->refs, 1);
  pthread_mutex_init(&each->mutex, NULL);
  each->memory = memory;
  client_ref(memory->device->client);
  each->slots = tiny_calloc(args->num_shape_specs, sizeof *each->slots);
  for (size_t i = 0; i < args->num_shape_specs && !status; ++i) {
    status = init_slot(&each->slots[i], memory, &args->shape_specs[i],
                       args->num_device_layouts ? args->device_layouts[i] : NULL);
    if (!status) each->num_slots = i + 1;
  }
  if (status) {
    manager_unref(each);
    return error_from(status);
  }
  live_add(LIVE_MANAGER, 1);
  args->transfer_manager = each;
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_Destroy(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args *args) {
  if (args->transfer_manager == NULL) return NULL;
  live_add(LIVE_MANAGER, -1);
  manager_unref(args->transfer_manager);
  return NULL;
}

/* ---- transfers ----------------------------------------------------------------------------------------------------*/
typedef struct transfer {
  manager *manager;
  slot *slot;
  const char *data;
  int64_t offset, size;
  bool literal;
  int64_t strides[TINY_MAX_RANK];
  tiny_promise *done;
} transfer;

static void run_transfer(void *arg) {
  transfer *each = arg;
  slot *it = each->slot;
  char *target = storage_bytes(it->storage);
  if (each->literal && shape_elements(&it->shape) && element_size(it->shape.type)) {
    int64_t strides[TINY_MAX_RANK];
    shape_strides(&it->shape, strides);
    copy_strided(target, strides, each->data, each->strides, it->shape.dims, it->shape.rank,
                 element_size(it->shape.type));
  } else if (!each->literal && each->size) {
    memcpy(target + each->offset, each->data, (size_t)each->size);
  }
  pthread_mutex_lock(&each->manager->mutex);
  bool complete = --it->under_way == 0 && it->last_seen;
  pthread_mutex_unlock(&each->manager->mutex);
  promise_set(each->done, NULL);
  promise_unref(each->done);
  if (complete) promise_set(it->defined, NULL);
  manager_unref(each->manager);
  free(each);
}

static tiny_status *begin(manager *manager, int index, bool last, slot **out) {
  if (index < 0 || (size_t)index >= manager->num_slots)
    return status_make(INVALID, "There is no buffer %d: the manager has %zu", index, manager->num_slots);
  slot *it = *out = &manager->slots[index];
  if (promise_is_ready(it->defined) || it->last_seen)
    return status_make(PJRT_Error_Code_FAILED_PRECONDITION, "The last transfer to buffer %d was made already", index);
  it->last_seen = last;
  ++it->under_way;
  return NULL;
}

static PJRT_Event *push(manager *manager, slot *it, transfer *each, tiny_function function) {
  atomic_fetch_add(&manager->refs, 1);
  each->manager = manager;
  each->slot = it;
  each->done = promise_make();
  PJRT_Event *event = event_make(each->done, function);
  queue_push(manager->memory->device->queue, run_transfer, each);
  return event;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_TransferData(
    PJRT_AsyncHostToDeviceTransferManager_TransferData_Args *args) {
  manager *manager = args->transfer_manager;
  slot *it = NULL;
  tiny_status *status = NULL;
  pthread_mutex_lock(&manager->mutex);
  if (args->buffer_index >= 0 && (size_t)args->buffer_index < manager->num_slots) {
    int64_t size = (int64_t)manager->slots[args->buffer_index].size;
    if (args->offset < 0 || args->transfer_size < 0 || args->offset > size || args->transfer_size > size - args->offset)
      status = status_make(INVALID, "Bytes %lld to %lld are not inside a buffer of %lld bytes", (long long)args->offset,
                           (long long)(args->offset + args->transfer_size), (long long)size);
  }
  if (!status) status = begin(manager, args->buffer_index, args->is_last_transfer, &it);
  pthread_mutex_unlock(&manager->mutex);
  if (status) return error_from(status);
  transfer *each = tiny_calloc(1, sizeof *each);
  each->data = args->data;
  each->offset = args->offset;
  each->size = args->transfer_size;
  args->done_with_h2d_transfer = push(manager, it, each, F_AsyncHostToDeviceTransferManager_TransferData);
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_TransferLiteral(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args) {
  manager *manager = args->transfer_manager;
  tiny_shape shape;
  slot *it = NULL;
  tiny_status *status =
      shape_init(&shape, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout);
  pthread_mutex_lock(&manager->mutex);
  if (!status && args->buffer_index >= 0 && (size_t)args->buffer_index < manager->num_slots &&
      !shape_same_dims(&shape, &manager->slots[args->buffer_index].shape))
    status = status_make(INVALID, "The literal and buffer %d differ in shape", args->buffer_index);
  if (!status) status = begin(manager, args->buffer_index, true, &it);
  pthread_mutex_unlock(&manager->mutex);
  if (status) return error_from(status);
  transfer *each = tiny_calloc(1, sizeof *each);
  each->data = args->data;
  each->literal = true;
  shape_strides(&shape, each->strides);
  args->done_with_h2d_transfer = push(manager, it, each, F_AsyncHostToDeviceTransferManager_TransferLiteral);
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_SetBufferError(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args *args) {
  manager *manager = args->transfer_manager;
  if (args->buffer_index < 0 || (size_t)args->buffer_index >= manager->num_slots)
    return error_make(INVALID, "There is no buffer %d: the manager has %zu", args->buffer_index, manager->num_slots);
  tiny_status *error = status_from_bytes(args->error_code, args->error_message, args->error_message_size);
  if (error == NULL) return error_make(INVALID, "A buffer cannot fail with the code OK");
  if (!promise_set(manager->slots[args->buffer_index].defined, error))
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "Buffer %d is complete already", args->buffer_index);
  return NULL;
}

/* ---- what a manager answers ---------------------------------------------------------------------------------------*/
PJRT_Error *tiny_AsyncHostToDeviceTransferManager_RetrieveBuffer(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args *args) {
  manager *manager = args->transfer_manager;
  if (args->buffer_index < 0 || (size_t)args->buffer_index >= manager->num_slots)
    return error_make(INVALID, "There is no buffer %d: the manager has %zu", args->buffer_index, manager->num_slots);
  pthread_mutex_lock(&manager->mutex);
  args->buffer_out = manager->slots[args->buffer_index].buffer;
  manager->slots[args->buffer_index].buffer = NULL;
  pthread_mutex_unlock(&manager->mutex);
  if (args->buffer_out == NULL)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "Buffer %d was retrieved already", args->buffer_index);
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_Device(PJRT_AsyncHostToDeviceTransferManager_Device_Args *args) {
  args->device_out = args->transfer_manager->memory->device;
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_BufferCount(
    PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args *args) {
  args->buffer_count = args->transfer_manager->num_slots;
  return NULL;
}

PJRT_Error *tiny_AsyncHostToDeviceTransferManager_BufferSize(
    PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args *args) {
  manager *manager = args->transfer_manager;
  if (args->buffer_index < 0 || (size_t)args->buffer_index >= manager->num_slots)
    return error_make(INVALID, "There is no buffer %d: the manager has %zu", args->buffer_index, manager->num_slots);
  args->buffer_size = manager->slots[args->buffer_index].size;
  return NULL;
}

/* Metadata is kept, and refused where it has no name. */
PJRT_Error *tiny_AsyncHostToDeviceTransferManager_AddMetadata(
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args *args) {
  for (size_t i = 0; i < args->num_metadata; ++i) {
    if (args->transfer_metadata[i].name_size == 0) return error_make(INVALID, "Metadata %zu has no name", i);
    char *name = tiny_memdup(args->transfer_metadata[i].name, args->transfer_metadata[i].name_size);
    attributes_add(&args->transfer_manager->metadata, name, &args->transfer_metadata[i]);
    free(name);
  }
  return NULL;
}
