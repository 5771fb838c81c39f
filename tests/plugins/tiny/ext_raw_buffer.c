/* The RawBuffer extension: the bytes behind a buffer. */
#include "tiny.h"

struct PJRT_RawBuffer {
  const void *vtable; /* read by nobody who uses the functions of the extension */
  tiny_memory *memory;
  tiny_storage *storage;
  tiny_promise *defined;
  size_t size;
};

static PJRT_Error *create(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args, args);
  tiny_storage *storage;
  tiny_status *status = buffer_use(args->buffer, NULL, &storage);
  if (status) return error_from(status);
  atomic_store(&storage->keep, true);
  PJRT_RawBuffer *raw = tiny_calloc(1, sizeof *raw);
  raw->memory = args->buffer->memory;
  raw->storage = storage;
  raw->defined = promise_ref(args->buffer->defined);
  raw->size = args->buffer->size;
  live_add(LIVE_RAW_BUFFER, 1);
  args->raw_buffer = raw;
  return NULL;
}

static PJRT_Error *destroy(PJRT_RawBuffer_Destroy_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_Destroy_Args, args);
  if (args->buffer == NULL) return NULL;
  promise_unref(args->buffer->defined);
  storage_unref(args->buffer->storage);
  free(args->buffer);
  live_add(LIVE_RAW_BUFFER, -1);
  return NULL;
}

static PJRT_Error *get_size(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args, args);
  args->on_device_size_in_bytes = args->buffer->size;
  return NULL;
}

static PJRT_Error *get_memory(PJRT_RawBuffer_GetMemorySpace_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_GetMemorySpace_Args, args);
  args->memory_space = &args->buffer->memory->base;
  return NULL;
}

static PJRT_Error *get_host_pointer(PJRT_RawBuffer_GetHostPointer_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_GetHostPointer_Args, args);
  args->host_pointer = storage_bytes(args->buffer->storage);
  return NULL;
}

typedef struct raw_copy {
  tiny_storage *storage;
  tiny_promise *defined, *done;
  void *host;
  int64_t offset, size;
  bool to_device;
} raw_copy;

static void run_raw_copy(void *arg) {
  raw_copy *each = arg;
  tiny_status *status = status_ref(promise_status(each->defined));
  char *device = storage_bytes(each->storage);
  if (!status && each->size && each->to_device) memcpy(device + each->offset, each->host, (size_t)each->size);
  if (!status && each->size && !each->to_device) memcpy(each->host, device + each->offset, (size_t)each->size);
  storage_unref(each->storage);
  promise_unref(each->defined);
  promise_set(each->done, status);
  promise_unref(each->done);
  free(each);
}

static PJRT_Error *push(PJRT_RawBuffer *raw, void *host, int64_t offset, int64_t size, bool to_device,
                        PJRT_Event **out) {
  if (offset < 0 || size < 0 || offset > (int64_t)raw->size || size > (int64_t)raw->size - offset)
    return error_make(INVALID, "Bytes %lld to %lld are not inside a buffer of %zu bytes", (long long)offset,
                      (long long)(offset + size), raw->size);
  raw_copy *each = tiny_calloc(1, sizeof *each);
  *each = (raw_copy){storage_ref(raw->storage), promise_ref(raw->defined), promise_make(), host, offset, size, to_device};
  *out = event_make(each->done, F_Buffer_CopyRawToHost);
  queue_push_after(raw->memory->device->queue, &raw->defined, 1, run_raw_copy, each);
  return NULL;
}

static PJRT_Error *to_device(PJRT_RawBuffer_CopyRawHostToDevice_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_CopyRawHostToDevice_Args, args);
  return push(args->buffer, (void *)args->src, args->offset, args->transfer_size, true, &args->event);
}

static PJRT_Error *to_host(PJRT_RawBuffer_CopyRawDeviceToHost_Args *args) {
  TINY_SIZED(PJRT_RawBuffer_CopyRawDeviceToHost_Args, args);
  return push(args->buffer, args->dst, args->offset, args->transfer_size, false, &args->event);
}

PJRT_RawBuffer_Extension raw_buffer_extension = {
    TINY_EXTENSION(PJRT_RawBuffer_Extension, RawBuffer),
    .PJRT_RawBuffer_CreateRawAliasOfBuffer = create,
    .PJRT_RawBuffer_Destroy = destroy,
    .PJRT_RawBuffer_GetOnDeviceSizeInBytes = get_size,
    .PJRT_RawBuffer_GetMemorySpace = get_memory,
    .PJRT_RawBuffer_CopyRawHostToDevice = to_device,
    .PJRT_RawBuffer_CopyRawDeviceToHost = to_host,
    .PJRT_RawBuffer_GetHostPointer = get_host_pointer,
};
