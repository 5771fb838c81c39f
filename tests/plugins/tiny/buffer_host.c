/* Buffers from host memory and back. */
#include "tiny.h"

/* ---- from the host ------------------------------------------------------------------------------------------------*/
typedef struct upload {
  tiny_storage *storage;
  const char *source; /* null: the bytes are there already */
  int64_t source_strides[TINY_MAX_RANK];
  tiny_shape shape;
  tiny_promise *defined, *host_done; /* host_done may be null */
} upload;

static void copy_in(const upload *each) {
  int64_t strides[TINY_MAX_RANK];
  shape_strides(&each->shape, strides);
  if (shape_elements(&each->shape) && element_size(each->shape.type))
    copy_strided(storage_bytes(each->storage), strides, each->source, each->source_strides, each->shape.dims,
                 each->shape.rank, element_size(each->shape.type));
}

static void run_upload(void *arg) {
  upload *each = arg;
  if (each->source) copy_in(each);
  if (each->host_done) {
    promise_set(each->host_done, NULL);
    promise_unref(each->host_done);
  }
  storage_unref(each->storage);
  promise_set(each->defined, NULL);
  promise_unref(each->defined);
  free(each);
}

static bool same_strides(const tiny_shape *shape, const int64_t *host) {
  int64_t device[TINY_MAX_RANK];
  shape_strides(shape, device);
  for (size_t i = 0; i < shape->rank; ++i) {
    if (shape->dims[i] > 1 && device[i] != host[i]) return false;
  }
  return true;
}

static tiny_status *host_strides(const PJRT_Client_BufferFromHostBuffer_Args *args, const tiny_shape *shape,
                                 int64_t *strides) {
  if (args->byte_strides && args->num_byte_strides) {
    if (args->num_byte_strides != shape->rank)
      return status_make(INVALID, "Got %zu strides for %zu dimensions", args->num_byte_strides, shape->rank);
    memcpy(strides, args->byte_strides, shape->rank * sizeof *strides);
    return NULL;
  }
  int64_t stride = (int64_t)element_size(shape->type);
  for (size_t i = shape->rank; i-- > 0;) {
    strides[i] = stride;
    stride *= shape->dims[i];
  }
  return NULL;
}

PJRT_Error *tiny_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args *args) {
  tiny_memory *memory;
  tiny_status *status = memory_choose(args->memory, args->device, &memory);
  if (status) return error_from(status);
  upload *each = tiny_calloc(1, sizeof *each);
  status = shape_init(&each->shape, args->type, args->dims, args->num_dims, args->device_layout);
  if (!status) status = host_strides(args, &each->shape, each->source_strides);
  if (!status && args->data == NULL && shape_size(&each->shape)) status = status_make(INVALID, "The host data is null");
  PJRT_HostBufferSemantics semantics = args->host_buffer_semantics;
  if (!status && (unsigned)semantics > PJRT_HostBufferSemantics_kMutableZeroCopy)
    status = status_make(INVALID, "Unknown host buffer semantics %d", (int)semantics);
  bool zero_copy = (semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||
                    semantics == PJRT_HostBufferSemantics_kMutableZeroCopy) &&
                   shape_size(&each->shape) && same_strides(&each->shape, each->source_strides);
  tiny_promise *host_done = promise_make();
  if (!status && zero_copy) {
    each->storage = storage_borrow(memory, (void *)args->data, shape_size(&each->shape));
    atomic_store(&each->storage->keep, semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy);
    each->storage->freed = promise_ref(host_done);
  } else if (!status) {
    status = storage_allocate(memory, shape_size(&each->shape), &each->storage);
  }
  if (status) {
    promise_unref(host_done);
    free(each);
    return error_from(status);
  }
  each->defined = promise_make();
  if (!zero_copy) each->source = args->data;
  if (!zero_copy && semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) {
    copy_in(each);
    each->source = NULL;
    promise_set(host_done, NULL);
  } else if (!zero_copy) {
    each->host_done = promise_ref(host_done);
  }
  args->buffer = buffer_make(memory, &each->shape, storage_ref(each->storage), promise_ref(each->defined));
  args->done_with_host_buffer = event_make(host_done, F_Client_BufferFromHostBuffer);
  promise_unref(host_done);
  queue_push(memory->device->queue, run_upload, each);
  return NULL;
}

/* ---- to the host --------------------------------------------------------------------------------------------------*/
typedef struct download {
  tiny_storage *storage;
  tiny_promise *defined, *done;
  char *destination;
  bool raw;
  int64_t offset, size; /* raw only */
  int64_t strides[TINY_MAX_RANK];
  tiny_shape shape;
} download;

static void run_download(void *arg) {
  download *each = arg;
  tiny_status *status = status_ref(promise_status(each->defined));
  if (status == NULL && each->raw) {
    if (each->size) memcpy(each->destination, storage_bytes(each->storage) + each->offset, (size_t)each->size);
  } else if (status == NULL && shape_elements(&each->shape) && element_size(each->shape.type)) {
    int64_t strides[TINY_MAX_RANK];
    shape_strides(&each->shape, strides);
    copy_strided(each->destination, each->strides, storage_bytes(each->storage), strides, each->shape.dims,
                 each->shape.rank, element_size(each->shape.type));
  }
  storage_unref(each->storage);
  promise_set(each->done, status);
  promise_unref(each->done);
  promise_unref(each->defined);
  free(each);
}

static void push_download(PJRT_Buffer *buffer, download *each) {
  each->defined = promise_ref(buffer->defined);
  tiny_promise *dep = promise_ref(buffer->defined);
  queue_push_after(buffer->memory->device->queue, &dep, 1, run_download, each);
  promise_unref(dep);
}

/* The strides of the host array asked for, and how many bytes it spans. A null layout means the buffer's own. */
static tiny_status *destination_layout(const PJRT_Buffer *buffer, const PJRT_Buffer_MemoryLayout *layout,
                                       int64_t *strides, size_t *span) {
  *span = buffer->size;
  if (layout == NULL) {
    shape_strides(&buffer->shape, strides);
    return NULL;
  }
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) {
    if (layout->strides.num_byte_strides != buffer->shape.rank)
      return status_make(INVALID, "Got %zu strides for %zu dimensions", layout->strides.num_byte_strides,
                         buffer->shape.rank);
    int64_t last = (int64_t)element_size(buffer->shape.type);
    for (size_t i = 0; i < buffer->shape.rank; ++i) {
      strides[i] = layout->strides.byte_strides[i];
      if (strides[i] < 0) return status_make(INVALID, "Stride %zu of the host array is negative", i);
      if (buffer->shape.dims[i]) last += (buffer->shape.dims[i] - 1) * strides[i];
    }
    if (buffer->size) *span = (size_t)last;
    return NULL;
  }
  tiny_shape host;
  tiny_status *status = shape_init(&host, buffer->shape.type, buffer->shape.dims, buffer->shape.rank, layout);
  if (status == NULL) shape_strides(&host, strides);
  return status;
}

PJRT_Error *tiny_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args *args) {
  download *each = tiny_calloc(1, sizeof *each);
  size_t span;
  tiny_status *status = destination_layout(args->src, args->host_layout, each->strides, &span);
  if (!status && args->dst == NULL) {
    args->dst_size = span;
    free(each);
    return NULL;
  }
  if (!status && args->dst_size < span)
    status = status_make(INVALID, "The destination has %zu bytes, %zu are needed", args->dst_size, span);
  each->done = promise_make();
  if (!status) status = buffer_use(args->src, each->done, &each->storage);
  if (status) {
    promise_unref(each->done);
    free(each);
    return error_from(status);
  }
  each->shape = args->src->shape;
  each->destination = args->dst;
  args->event = event_make(each->done, F_Buffer_ToHostBuffer);
  push_download(args->src, each);
  return NULL;
}

static tiny_status *raw_download(PJRT_Buffer *buffer, int64_t offset, int64_t size, download **out) {
  if (offset < 0 || size < 0 || offset > (int64_t)buffer->size || size > (int64_t)buffer->size - offset)
    return status_make(INVALID, "Bytes %lld to %lld are not inside a buffer of %zu bytes", (long long)offset,
                       (long long)(offset + size), buffer->size);
  download *each = tiny_calloc(1, sizeof *each);
  each->raw = true;
  each->offset = offset;
  each->size = size;
  each->done = promise_make();
  tiny_status *status = buffer_use(buffer, each->done, &each->storage);
  if (status) {
    promise_unref(each->done);
    free(each);
    return status;
  }
  *out = each;
  return NULL;
}

PJRT_Error *tiny_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args *args) {
  download *each;
  tiny_status *status = raw_download(args->buffer, args->offset, args->transfer_size, &each);
  if (status) return error_from(status);
  each->destination = args->dst;
  args->event = event_make(each->done, F_Buffer_CopyRawToHost);
  push_download(args->buffer, each);
  return NULL;
}

/* ---- to a place on the host that is named later ---------------------------------------------------------------------*/
typedef struct named_later {
  download *download;
  tiny_queue *queue;
  tiny_promise *defined;
} named_later;

static void destination_named(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) {
  named_later *later = args->callback_data;
  download *each = later->download;
  tiny_status *status = status_from_bytes(args->error_code, args->error_message, args->error_message_size);
  if (status == NULL && args->dst == NULL && each->size)
    status = status_make(INVALID, "The destination of a raw copy is null");
  if (status) {
    storage_unref(each->storage);
    promise_set(each->done, status);
    promise_unref(each->done);
    promise_unref(later->defined);
    free(each);
  } else {
    each->destination = args->dst;
    each->defined = later->defined;
    tiny_promise *dep = promise_ref(later->defined);
    queue_push_after(later->queue, &dep, 1, run_download, each);
    promise_unref(dep);
  }
  free(later);
}

PJRT_Error *tiny_Buffer_CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args *args) {
  download *each;
  tiny_status *status = raw_download(args->buffer, args->offset, args->transfer_size, &each);
  if (status) return error_from(status);
  named_later *later = tiny_calloc(1, sizeof *later);
  later->download = each;
  later->queue = args->buffer->memory->device->queue;
  later->defined = promise_ref(args->buffer->defined);
  args->event = event_make(each->done, F_Buffer_CopyRawToHostFuture);
  args->callback_data = later;
  args->future_ready_callback = destination_named;
  return NULL;
}
