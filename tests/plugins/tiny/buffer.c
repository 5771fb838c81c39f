/* Buffers: what they are, who uses them, and how they end. */
#include "tiny.h"

PJRT_Buffer *buffer_make(tiny_memory *memory, const tiny_shape *shape, tiny_storage *owned,
                         tiny_promise *owned_defined) {
  PJRT_Buffer *buffer = tiny_calloc(1, sizeof *buffer);
  buffer->memory = memory;
  client_ref(memory->device->client);
  buffer->shape = *shape;
  buffer->size = shape_size(shape);
  buffer->defined = owned_defined;
  buffer->storage = owned;
  pthread_mutex_init(&buffer->mutex, NULL);
  live_add(LIVE_BUFFER, 1);
  return buffer;
}

void promises_free(tiny_promise **promises, size_t count) {
  for (size_t i = 0; i < count; ++i) promise_unref(promises[i]);
  free(promises);
}

static tiny_status *gone(const PJRT_Buffer *buffer) {
  return status_make(INVALID, "The buffer was %s", buffer->gone);
}

static void note_use(PJRT_Buffer *buffer, tiny_promise *use) {
  size_t kept = 0;
  for (size_t i = 0; i < buffer->num_uses; ++i) {
    if (promise_is_ready(buffer->uses[i])) promise_unref(buffer->uses[i]);
    else buffer->uses[kept++] = buffer->uses[i];
  }
  tiny_promise **uses = tiny_calloc(kept + 1, sizeof *uses);
  if (kept) memcpy(uses, buffer->uses, kept * sizeof *uses);
  free(buffer->uses);
  uses[kept] = promise_ref(use);
  buffer->uses = uses;
  buffer->num_uses = kept + 1;
}

tiny_status *buffer_use(PJRT_Buffer *buffer, tiny_promise *use, tiny_storage **out) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->gone) {
    status = gone(buffer);
  } else {
    *out = storage_ref(buffer->storage);
    if (use) note_use(buffer, use);
  }
  pthread_mutex_unlock(&buffer->mutex);
  return status;
}

tiny_status *buffer_donate(PJRT_Buffer *buffer, tiny_storage **out, tiny_promise ***deps, size_t *num_deps) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->gone) {
    status = gone(buffer);
  } else if (buffer->external_refs) {
    status = status_make(INVALID, "The buffer cannot be donated: it has %lld external references",
                         (long long)buffer->external_refs);
  } else {
    *out = buffer->storage;
    *num_deps = buffer->num_uses + 1;
    *deps = tiny_calloc(*num_deps, sizeof **deps);
    if (buffer->num_uses) memcpy(*deps, buffer->uses, buffer->num_uses * sizeof **deps);
    (*deps)[buffer->num_uses] = promise_ref(buffer->defined);
    free(buffer->uses);
    buffer->uses = NULL;
    buffer->num_uses = 0;
    buffer->storage = NULL;
    buffer->gone = "donated";
  }
  pthread_mutex_unlock(&buffer->mutex);
  return status;
}

static void delete_bytes(PJRT_Buffer *buffer) {
  pthread_mutex_lock(&buffer->mutex);
  if (!buffer->gone) buffer->gone = "deleted";
  tiny_storage *storage = buffer->external_refs ? NULL : buffer->storage; /* stays while it is lent out */
  if (storage) buffer->storage = NULL;
  pthread_mutex_unlock(&buffer->mutex);
  storage_unref(storage);
}

PJRT_Error *tiny_Buffer_Destroy(PJRT_Buffer_Destroy_Args *args) {
  PJRT_Buffer *buffer = args->buffer;
  if (buffer == NULL) return NULL;
  if (buffer->external_refs) {
    violation("a buffer was destroyed with %lld external references", (long long)buffer->external_refs);
    buffer->external_refs = 0;
  }
  delete_bytes(buffer);
  promises_free(buffer->uses, buffer->num_uses);
  promise_unref(buffer->defined);
  pthread_mutex_destroy(&buffer->mutex);
  PJRT_Client *client = buffer->memory->device->client;
  free(buffer);
  live_add(LIVE_BUFFER, -1);
  client_unref(client);
  return NULL;
}

PJRT_Error *tiny_Buffer_Delete(PJRT_Buffer_Delete_Args *args) {
  delete_bytes(args->buffer);
  return NULL;
}

PJRT_Error *tiny_Buffer_IsDeleted(PJRT_Buffer_IsDeleted_Args *args) {
  pthread_mutex_lock(&args->buffer->mutex);
  args->is_deleted = args->buffer->gone != NULL;
  pthread_mutex_unlock(&args->buffer->mutex);
  return NULL;
}

/* ---- external references and raw pointers -------------------------------------------------------------------------*/
PJRT_Error *tiny_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args *args) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&args->buffer->mutex);
  if (args->buffer->gone) status = gone(args->buffer);
  else ++args->buffer->external_refs;
  pthread_mutex_unlock(&args->buffer->mutex);
  return error_from(status);
}

PJRT_Error *tiny_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args *args) {
  PJRT_Buffer *buffer = args->buffer;
  tiny_status *status = NULL;
  tiny_storage *last = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->external_refs == 0) {
    status = status_make(INVALID, "The buffer has no external reference to give back");
  } else if (--buffer->external_refs == 0 && buffer->gone) {
    last = buffer->storage;
    buffer->storage = NULL;
  }
  pthread_mutex_unlock(&buffer->mutex);
  storage_unref(last);
  return error_from(status);
}

static tiny_status *pointer_to(PJRT_Buffer *buffer, char **out) {
  tiny_status *status = NULL;
  pthread_mutex_lock(&buffer->mutex);
  if (buffer->storage == NULL) status = gone(buffer);
  else *out = storage_bytes(buffer->storage);
  pthread_mutex_unlock(&buffer->mutex);
  return status;
}

PJRT_Error *tiny_Buffer_UnsafePointer(PJRT_Buffer_UnsafePointer_Args *args) {
  char *pointer = NULL;
  tiny_status *status = pointer_to(args->buffer, &pointer);
  args->buffer_pointer = (uintptr_t)pointer;
  return error_from(status);
}

PJRT_Error *tiny_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args *args) {
  char *pointer = NULL;
  tiny_status *status = pointer_to(args->buffer, &pointer);
  args->device_memory_ptr = pointer;
  return error_from(status);
}

PJRT_Error *tiny_Buffer_ReadyEvent(PJRT_Buffer_ReadyEvent_Args *args) {
  pthread_mutex_lock(&args->buffer->mutex);
  tiny_promise *promise =
      args->buffer->gone ? promise_done(gone(args->buffer)) : promise_ref(args->buffer->defined);
  pthread_mutex_unlock(&args->buffer->mutex);
  args->event = event_make(promise, F_Buffer_ReadyEvent);
  promise_unref(promise);
  return NULL;
}

/* ---- what a buffer answers ----------------------------------------------------------------------------------------*/
PJRT_Error *tiny_Buffer_ElementType(PJRT_Buffer_ElementType_Args *args) {
  args->type = args->buffer->shape.type;
  return NULL;
}

PJRT_Error *tiny_Buffer_Dimensions(PJRT_Buffer_Dimensions_Args *args) {
  args->dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error *tiny_Buffer_UnpaddedDimensions(PJRT_Buffer_UnpaddedDimensions_Args *args) {
  args->unpadded_dims = args->buffer->shape.dims;
  args->num_dims = args->buffer->shape.rank;
  return NULL;
}

PJRT_Error *tiny_Buffer_DynamicDimensionIndices(PJRT_Buffer_DynamicDimensionIndices_Args *args) {
  args->dynamic_dim_indices = NULL;
  args->num_dynamic_dims = 0;
  return NULL;
}

PJRT_Error *tiny_Buffer_GetMemoryLayout(PJRT_Buffer_GetMemoryLayout_Args *args) {
  args->layout = (PJRT_Buffer_MemoryLayout){
      .struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
      .type = PJRT_Buffer_MemoryLayout_Type_Tiled,
      .tiled = {.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE,
                .minor_to_major = args->buffer->shape.minor_to_major,
                .minor_to_major_size = args->buffer->shape.rank},
  };
  return NULL;
}

PJRT_Error *tiny_Buffer_OnDeviceSizeInBytes(PJRT_Buffer_OnDeviceSizeInBytes_Args *args) {
  args->on_device_size_in_bytes = args->buffer->size;
  return NULL;
}

PJRT_Error *tiny_Buffer_Device(PJRT_Buffer_Device_Args *args) {
  args->device = args->buffer->memory->device;
  return NULL;
}

PJRT_Error *tiny_Buffer_Memory(PJRT_Buffer_Memory_Args *args) {
  args->memory = &args->buffer->memory->base;
  return NULL;
}

PJRT_Error *tiny_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args *args) {
  args->is_on_cpu = true;
  return NULL;
}
