/* Copies: from the host, to the host, and from one memory to another. */
#include "runtime.h"

/* Runs the function once the buffer's bytes are there, or are promised by the queue that the function will use. */
static void when_submitted(completion *defined, PJRT_Device *device, continuation function, void *arg) {
  PJRT_Device *promises;
  pjrt_fence fence;
  if (!completion_is_set(defined) && completion_fence(defined, &promises, &fence) && promises == device)
    function(NULL, arg);
  else
    completion_then(defined, function, arg);
}

/* ---- from the host ----------------------------------------------------------------------------------------------------*/
typedef struct upload {
  storage *storage;
  completion *defined;
  char *staging;
} upload;

static void end_upload(PJRT_Error *borrowed, void *arg) {
  upload *each = arg;
  storage_unref(each->storage);
  completion_set(each->defined, pjrt_error_share(borrowed));
  completion_unref(each->defined);
  free(each->staging);
  free(each);
}

/* Submits a copy of bytes or of a dense array into the memory. Takes the references of `each`, and ends it. */
static void submit_upload(upload *each, const pjrt_driver_shape *given, size_t offset, const void *host, size_t size) {
  PJRT_Device *device = each->storage->space->device;
  PJRT_Client *client = device->client;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  int code = client->table->copy_in(client->driver, device->number, storage_memory(each->storage), given, offset, host,
                                    size, &fence, message);
  if (code) {
    PJRT_Error *error = error_of_driver("copy_in", code, message);
    end_upload(error, each);
    pjrt_error_release(error);
    return;
  }
  if (fence) completion_submit(each->defined, device, fence);
  queue_follow(device, fence, (work){"copy_in", NULL, each->defined, end_upload, each});
}

static PJRT_Error *host_strides(const PJRT_Client_BufferFromHostBuffer_Args *args, const shape *of, int64_t *strides) {
  if (args->byte_strides == NULL || args->num_byte_strides == 0) {
    row_major_strides(of, strides);
    return NULL;
  }
  if (args->num_byte_strides != of->rank)
    return error_make(INVALID, "expected %zu strides, one for each dimension, found %zu", of->rank,
                      args->num_byte_strides);
  memcpy(strides, args->byte_strides, of->rank * sizeof *strides);
  return NULL;
}

static void copy_rows(char *to, const char *from, const shape *of, const int64_t *strides) {
  int64_t dense[MAX_RANK];
  row_major_strides(of, dense);
  if (shape_size(of)) copy_strided(to, dense, from, strides, of->dims, of->rank, element_bits(of->type) / 8);
}

/* Uses the caller's array in place; false where the driver would have it copied, such as for its alignment. */
static bool import_array(memory_space *space, const shape *of, PJRT_Client_BufferFromHostBuffer_Args *args) {
  PJRT_Client *client = space->device->client;
  uint64_t memory = 0;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  if (client->table->import(client->driver, space->device->number, space->kind_number, (void *)args->data,
                            shape_size(of), &memory, message) != 0 || memory == 0)
    return false;
  storage *held = storage_borrow(space, memory, shape_size(of));
  atomic_init(&held->sharers, args->host_buffer_semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy);
  held->freed = completion_make();
  args->done_with_host_buffer = event_make(held->freed);
  args->buffer = buffer_make(space, of, held, &completion_done);
  return true;
}

enum { SMALL_COPY = 1 << 16 };

/* Whether the host copies the array once more, because the caller, who may change it after the call, would wait for the
 * device's queue. A small array is copied sooner than the device answers. */
static bool is_copied_first(PJRT_Device *device, PJRT_HostBufferSemantics semantics, size_t size) {
  const PJRT_Client *client = device->client;
  if (queue_leaves_work(client)) return true;
  if (semantics != PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) return false;
  if (is_python(client) && client->python->copies_at_once) return false;
  pthread_mutex_lock(&device->mutex);
  bool is_busy = device->in_flight > 0;
  pthread_mutex_unlock(&device->mutex);
  return is_busy || size <= SMALL_COPY;
}

PJRT_Error *native_Client_BufferFromHostBuffer(PJRT_Client_BufferFromHostBuffer_Args *args) {
  memory_space *space;
  shape of;
  int64_t strides[MAX_RANK];
  PJRT_Error *error = space_choose(args->memory, args->device, &space);
  if (!error) error = device_shape(&of, args->type, args->dims, args->num_dims, args->device_layout, space);
  if (!error) error = host_strides(args, &of, strides);
  if (error) return error;
  size_t size = shape_size(&of);
  PJRT_HostBufferSemantics semantics = args->host_buffer_semantics;
  if (args->data == NULL && size) return error_make(INVALID, "expected the address of %zu bytes, found null", size);
  if ((unsigned)semantics > PJRT_HostBufferSemantics_kMutableZeroCopy)
    return error_make(INVALID, "expected host buffer semantics from 0 to 3, found %d", (int)semantics);
  bool is_dense = strides_are_row_major(&of, strides);
  PJRT_Client *client = space->device->client;
  if ((semantics == PJRT_HostBufferSemantics_kImmutableZeroCopy ||
       semantics == PJRT_HostBufferSemantics_kMutableZeroCopy) &&
      is_dense && size && DRIVER_HAS(client->table, import) && shape_is_in_rows(&of) && storage_is_plain(space, &of) &&
      import_array(space, &of, args))
    return NULL;
  storage *held;
  error = storage_allocate(space, &of, &held);
  if (error) return error;
  char *view = DRIVER_HAS(client->table, layout) ? NULL : storage_host_view(held);
  if (view || size == 0) {
    int64_t begun = recording_now();
    if (is_dense && size) memcpy(view, args->data, size);
    else if (size) copy_rows(view, args->data, &of, strides);
    recording_work(space->device, &(work){.function = "copy_in"}, begun);
    args->done_with_host_buffer = event_make(&completion_done);
    args->buffer = buffer_make(space, &of, held, &completion_done);
    return NULL;
  }
  char *staging = NULL;
  if ((!is_dense || is_copied_first(space->device, semantics, size)) && (error = staging_make(size, &staging))) {
    storage_unref(held);
    return error;
  }
  upload *each = new_zeroed(1, sizeof *each);
  each->storage = storage_ref(held);
  each->defined = completion_make();
  each->staging = staging;
  if (staging) copy_rows(staging, args->data, &of, strides);
  completion *defined = completion_ref(each->defined), *host_done = staging ? &completion_done : defined;
  args->buffer = buffer_make(space, &of, held, completion_ref(defined));
  pjrt_driver_shape given = driver_shape(&of);
  submit_upload(each, &given, 0, staging ? staging : args->data, size);
  if (semantics == PJRT_HostBufferSemantics_kImmutableOnlyDuringCall) completion_wait(host_done);
  args->done_with_host_buffer = event_make(host_done);
  completion_unref(defined);
  return NULL;
}

/* ---- to the host --------------------------------------------------------------------------------------------------------*/
typedef struct download {
  storage *storage;
  completion *defined, *done;
  char *to;
  bool is_raw;
  size_t offset, size; /* of a raw one; else size is that of the dense array */
  shape shape;
  int64_t strides[MAX_RANK];
  char *staging;
} download;

static void end_download(PJRT_Error *borrowed, void *arg) {
  download *each = arg;
  /* The queue ran it after the work that fills the buffer, whatever became of that. */
  if (!borrowed && !completion_is_set(each->defined)) {
    completion_then(each->defined, end_download, each);
    return;
  }
  PJRT_Error *of_buffer = completion_is_set(each->defined) ? completion_error(each->defined) : NULL;
  PJRT_Error *error = pjrt_error_share(of_buffer ? of_buffer : borrowed);
  if (!error && each->staging && each->is_raw) {
    memcpy(each->to, each->staging, each->size);
  } else if (!error && each->staging) {
    int64_t dense[MAX_RANK];
    row_major_strides(&each->shape, dense);
    copy_strided(each->to, each->strides, each->staging, dense, each->shape.dims, each->shape.rank,
                 element_bits(each->shape.type) / 8);
  }
  storage_read(each->storage);
  completion_set(each->done, error);
  completion_unref(each->done);
  completion_unref(each->defined);
  free(each->staging);
  free(each);
}

static void submit_download(PJRT_Error *borrowed, void *arg);

/* The bytes are there: the host copies them itself, where it can see them. */
static void copy_view(PJRT_Error *borrowed, void *arg) {
  download *each = arg;
  if (borrowed == NULL && each->size) {
    const char *view = storage_host_view(each->storage);
    int64_t begun = recording_now();
    if (view == NULL) {
      submit_download(NULL, each);
      return;
    }
    if (each->is_raw) {
      memcpy(each->to, view + each->offset, each->size);
    } else {
      int64_t dense[MAX_RANK];
      row_major_strides(&each->shape, dense);
      copy_strided(each->to, each->strides, view, dense, each->shape.dims, each->shape.rank,
                   element_bits(each->shape.type) / 8);
    }
    recording_work(each->storage->space->device, &(work){.function = "copy_out"}, begun);
  }
  end_download(borrowed, each);
}

static void submit_download(PJRT_Error *borrowed, void *arg) {
  download *each = arg;
  if (borrowed || each->size == 0) {
    end_download(borrowed, each);
    return;
  }
  PJRT_Device *device = each->storage->space->device;
  PJRT_Client *client = device->client;
  pjrt_driver_shape given = driver_shape(&each->shape);
  char *to = each->to;
  if (queue_leaves_work(client) || (!each->is_raw && !strides_are_row_major(&each->shape, each->strides))) {
    PJRT_Error *error = staging_make(each->size, &each->staging);
    if (error) {
      end_download(error, each);
      pjrt_error_release(error);
      return;
    }
    to = each->staging;
  }
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  int code = client->table->copy_out(client->driver, device->number, storage_memory(each->storage),
                                     each->is_raw ? NULL : &given, each->offset, to, each->size, &fence, message);
  if (code) {
    PJRT_Error *error = error_of_driver("copy_out", code, message);
    free(each->staging);
    each->staging = NULL;
    end_download(error, each);
    pjrt_error_release(error);
    return;
  }
  if (fence) completion_submit(each->done, device, fence);
  queue_follow(device, fence, (work){"copy_out", NULL, each->done, end_download, each});
}

static void start_download(PJRT_Device *device, download *each) {
  completion *defined = completion_ref(each->defined);
  PJRT_Client *client = device->client;
  bool has_view = DRIVER_HAS(client->table, host_view) && (each->is_raw || !DRIVER_HAS(client->table, layout)) &&
                  (each->storage->memory == 0 || storage_host_view(each->storage)); /* 0: an alias, or an error */
  if (has_view) completion_then(defined, copy_view, each);
  else when_submitted(defined, device, submit_download, each);
  completion_unref(defined);
}

/* The strides of the host array asked for, and how many bytes it spans. A null layout means that of the buffer. */
static PJRT_Error *destination(const shape *of, const PJRT_Buffer_MemoryLayout *layout, int64_t *strides, size_t *span) {
  *span = shape_size(of);
  if (layout == NULL) {
    shape_strides(of, strides);
    return NULL;
  }
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) {
    if (layout->strides.num_byte_strides != of->rank)
      return error_make(INVALID, "expected %zu strides, one for each dimension, found %zu", of->rank,
                        layout->strides.num_byte_strides);
    int64_t last = (int64_t)(element_bits(of->type) / 8);
    for (size_t i = 0; i < of->rank; ++i) {
      strides[i] = layout->strides.byte_strides[i];
      if (strides[i] < 0) return error_make(INVALID, "stride %zu of the host array is negative", i);
      if (of->dims[i]) last += (of->dims[i] - 1) * strides[i];
    }
    if (*span) *span = (size_t)last;
    return NULL;
  }
  shape host;
  PJRT_Error *error = shape_init(&host, of->type, of->dims, of->rank, layout);
  if (error == NULL) shape_strides(&host, strides);
  return error;
}

PJRT_Error *native_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args *args) {
  int64_t strides[MAX_RANK];
  size_t span;
  PJRT_Buffer *buffer = args->src;
  PJRT_Error *error = destination(&buffer->shape, args->host_layout, strides, &span);
  if (error) return error;
  if (args->dst == NULL) {
    args->dst_size = span;
    return NULL;
  }
  if (args->dst_size < span)
    return error_make(INVALID, "expected room for %zu bytes, found %zu", span, args->dst_size);
  storage *held;
  error = buffer_use(buffer, &held);
  if (error) return error;
  download *each = new_zeroed(1, sizeof *each);
  each->storage = held;
  each->shape = buffer->shape;
  each->size = shape_size(&buffer->shape);
  memcpy(each->strides, strides, buffer->shape.rank * sizeof *strides);
  each->to = args->dst;
  each->defined = completion_ref(buffer->defined);
  completion *done = completion_make();
  each->done = completion_ref(done);
  start_download(buffer->space->device, each);
  args->event = event_to_await(done);
  completion_unref(done);
  return NULL;
}

static PJRT_Error *raw_download(PJRT_Buffer *buffer, int64_t offset, int64_t size, download **out) {
  storage *held;
  PJRT_Error *error = buffer_has_bytes(buffer) ? buffer_use(buffer, &held) : refuse_layout(&buffer->shape);
  if (error) return error;
  /* A buffer that holds an error has no memory, and is as large as its type all the same. */
  int64_t all = (int64_t)(held->in_rows ? held->in_rows : shape_size(&buffer->shape));
  if (offset < 0 || size < 0 || offset > all || size > all - offset) {
    error = error_make(INVALID, "expected a range within a buffer of %lld bytes, found %lld bytes from byte %lld on",
                       (long long)all, (long long)size, (long long)offset);
    storage_read(held);
    return error;
  }
  download *each = *out = new_zeroed(1, sizeof *each);
  each->is_raw = true;
  each->storage = held;
  each->offset = (size_t)offset;
  each->size = (size_t)size;
  each->defined = completion_ref(buffer->defined);
  each->done = completion_make();
  return NULL;
}

PJRT_Error *native_Buffer_CopyRawToHost(PJRT_Buffer_CopyRawToHost_Args *args) {
  download *each;
  if (args->dst == NULL && args->transfer_size)
    return error_make(INVALID, "expected the address of %lld bytes, found null", (long long)args->transfer_size);
  PJRT_Error *error = raw_download(args->buffer, args->offset, args->transfer_size, &each);
  if (error) return error;
  each->to = args->dst;
  completion *done = completion_ref(each->done);
  start_download(args->buffer->space->device, each);
  args->event = event_make(done);
  completion_unref(done);
  return NULL;
}

/* To a place on the host that is named later. */
static void destination_named(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args) {
  download *each = args->callback_data;
  PJRT_Error *error = error_from_parts(args->error_code, args->error_message, args->error_message_size);
  if (error == NULL && args->dst == NULL && each->size)
    error = error_make(INVALID, "expected the address of %zu bytes, found null", each->size);
  if (error) {
    end_download(error, each);
    pjrt_error_release(error);
    return;
  }
  each->to = args->dst;
  start_download(each->storage->space->device, each);
}

PJRT_Error *native_Buffer_CopyRawToHostFuture(PJRT_Buffer_CopyRawToHostFuture_Args *args) {
  download *each;
  PJRT_Error *error = raw_download(args->buffer, args->offset, args->transfer_size, &each);
  if (error) return error;
  args->event = event_make(each->done);
  args->callback_data = each;
  args->future_ready_callback = destination_named;
  return NULL;
}

/* ---- from memory to memory ------------------------------------------------------------------------------------------------*/
typedef struct copy {
  storage *from, *to;
  completion *defined, *done;
  shape shape, seen_as; /* of the source and of the target, which differ for a bitcast */
  bool is_bitcast;      /* through the host, where the bytes of both lie in rows */
  char *staging;
} copy;

static void end_copy(PJRT_Error *borrowed, void *arg) {
  copy *each = arg;
  if (!borrowed && !completion_is_set(each->defined)) {
    completion_then(each->defined, end_copy, each);
    return;
  }
  PJRT_Error *error = pjrt_error_share(borrowed ? borrowed : completion_error(each->defined));
  storage_read(each->from);
  storage_unref(each->to);
  completion_set(each->done, error);
  completion_unref(each->done);
  completion_unref(each->defined);
  free(each->staging);
  free(each);
}

static void fail_copy(copy *each, const char *function, int code, const char *message) {
  PJRT_Error *error = error_of_driver(function, code, message);
  end_copy(error, each);
  pjrt_error_release(error);
}

/* The second half of a copy through the host. */
static void copy_from_staging(PJRT_Error *borrowed, void *arg) {
  copy *each = arg;
  PJRT_Device *device = each->to->space->device;
  if (!borrowed && !completion_is_set(each->defined)) {
    completion_then(each->defined, copy_from_staging, each);
    return;
  }
  if (!borrowed) borrowed = completion_error(each->defined);
  if (borrowed) {
    end_copy(borrowed, each);
    return;
  }
  pjrt_driver_shape given = driver_shape(&each->seen_as);
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  int code = device->client->table->copy_in(device->client->driver, device->number, storage_memory(each->to), &given, 0,
                                            each->staging, shape_size(&each->shape), &fence, message);
  if (code) {
    fail_copy(each, "copy_in", code, message);
    return;
  }
  if (fence) completion_submit(each->done, device, fence);
  queue_follow(device, fence, (work){"copy_in", NULL, each->done, end_copy, each});
}

static void submit_copy(PJRT_Error *borrowed, void *arg) {
  copy *each = arg;
  PJRT_Device *from = each->from->space->device, *to = each->to->space->device;
  PJRT_Client *client = from->client;
  if (borrowed || shape_size(&each->shape) == 0) {
    end_copy(borrowed, each);
    return;
  }
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  if (DRIVER_HAS(client->table, copy) && !each->is_bitcast) {
    int code = client->table->copy(client->driver, from->number, storage_memory(each->from), to->number,
                                   storage_memory(each->to), each->to->in_rows, &fence, message);
    if (code) {
      fail_copy(each, "copy", code, message);
      return;
    }
    if (fence) completion_submit(each->done, from, fence);
    queue_follow(from, fence, (work){"copy", NULL, each->done, end_copy, each});
    return;
  }
  pjrt_driver_shape given = driver_shape(&each->shape);
  PJRT_Error *error = staging_make(shape_size(&each->shape), &each->staging);
  if (error) {
    end_copy(error, each);
    pjrt_error_release(error);
    return;
  }
  int code = client->table->copy_out(client->driver, from->number, storage_memory(each->from), &given, 0, each->staging,
                                     shape_size(&each->shape), &fence, message);
  if (code) {
    fail_copy(each, "copy_out", code, message);
    return;
  }
  queue_follow(from, fence, (work){"copy_out", NULL, each->done, copy_from_staging, each});
}

PJRT_Error *buffer_copied(PJRT_Buffer *buffer, memory_space *space, const shape *seen_as, PJRT_Buffer **out) {
  storage *from, *to;
  PJRT_Error *error = storage_allocate(space, seen_as ? seen_as : &buffer->shape, &to);
  if (error) return error;
  error = buffer_use(buffer, &from);
  if (error) {
    storage_unref(to);
    return error;
  }
  copy *each = new_zeroed(1, sizeof *each);
  each->from = from;
  each->to = storage_ref(to);
  each->shape = buffer->shape;
  each->seen_as = seen_as ? *seen_as : buffer->shape;
  each->is_bitcast = seen_as != NULL;
  each->defined = completion_ref(buffer->defined);
  each->done = completion_make();
  completion *done = completion_ref(each->done), *defined = completion_ref(each->defined);
  const shape of = each->seen_as;
  when_submitted(defined, buffer->space->device, submit_copy, each);
  completion_unref(defined);
  *out = buffer_make(space, &of, to, done);
  return NULL;
}

static PJRT_Error *copy_to(PJRT_Buffer *buffer, memory_space *space, PJRT_Buffer **out) {
  if (space->device->client != buffer->space->device->client)
    return error_make(INVALID, "expected a memory of the client that made the buffer, found one of another client");
  return buffer_copied(buffer, space, NULL, out);
}

PJRT_Error *native_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args *args) {
  if (args->dst_device == NULL) return error_make(INVALID, "expected a device to copy to, found null");
  return copy_to(args->buffer, &args->dst_device->spaces[0], &args->dst_buffer);
}

PJRT_Error *native_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args *args) {
  if (args->dst_memory == NULL) return error_make(INVALID, "expected a memory to copy to, found null");
  return copy_to(args->buffer, (memory_space *)args->dst_memory, &args->dst_buffer);
}

/* ---- raw buffers: the bytes behind a buffer, of an extension of the C API --------------------------------------------------*/
typedef struct raw_upload {
  storage *storage;
  completion *done;
  const void *host;
  size_t offset, size;
  char *staging;
} raw_upload;

static void end_raw_upload(PJRT_Error *borrowed, void *arg) {
  raw_upload *each = arg;
  storage_read(each->storage);
  completion_set(each->done, pjrt_error_share(borrowed));
  completion_unref(each->done);
  free(each->staging);
  free(each);
}

static void submit_raw_upload(PJRT_Error *borrowed, void *arg) {
  raw_upload *each = arg;
  if (borrowed || each->size == 0) {
    end_raw_upload(borrowed, each);
    return;
  }
  PJRT_Device *device = each->storage->space->device;
  PJRT_Error *error = queue_leaves_work(device->client) ? staging_make(each->size, &each->staging) : NULL;
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  if (!error) {
    if (each->staging) memcpy(each->staging, each->host, each->size);
    int code = device->client->table->copy_in(device->client->driver, device->number, storage_memory(each->storage), NULL,
                                              each->offset, each->staging ? each->staging : each->host, each->size,
                                              &fence, message);
    error = error_of_driver("copy_in", code, message);
  }
  if (error) {
    end_raw_upload(error, each);
    pjrt_error_release(error);
    return;
  }
  queue_follow(device, fence, (work){"copy_in", NULL, each->done, end_raw_upload, each});
}

PJRT_Error *raw_check_range(const storage *held, int64_t offset, int64_t size, const void *host) {
  int64_t all = (int64_t)held->in_rows;
  if (offset < 0 || size < 0 || offset > all || size > all - offset)
    return error_make(INVALID, "expected a range within a buffer of %lld bytes, found %lld bytes from byte %lld on",
                      (long long)all, (long long)size, (long long)offset);
  if (host == NULL && size) return error_make(INVALID, "expected the address of %lld bytes, found null", (long long)size);
  return NULL;
}

completion *raw_copy_in(storage *held, completion *defined, size_t offset, const void *host, size_t size) {
  raw_upload *each = new_zeroed(1, sizeof *each);
  completion *done = completion_make();
  *each = (raw_upload){.storage = storage_ref(held), .done = completion_ref(done), .host = host, .offset = offset,
                       .size = size};
  atomic_fetch_add(&held->readers, 1); /* nobody else writes there until it has ended */
  when_submitted(defined, held->space->device, submit_raw_upload, each);
  return done;
}

completion *raw_copy_out(storage *held, completion *defined, size_t offset, void *host, size_t size) {
  download *each = new_zeroed(1, sizeof *each);
  completion *done = completion_make();
  each->is_raw = true;
  each->storage = storage_ref(held);
  atomic_fetch_add(&held->readers, 1);
  each->offset = offset;
  each->size = size;
  each->to = host;
  each->defined = completion_ref(defined);
  each->done = completion_ref(done);
  start_download(held->space->device, each);
  return done;
}

/* ---- transfer managers: buffers that are filled piece by piece ----------------------------------------------------------------*/
typedef struct slot {
  PJRT_Buffer *buffer; /* null once retrieved */
  storage *storage;
  completion *defined;
  shape shape;
  char *pieces;     /* the array in rows, until it is complete, where the device has tiles or padding */
  size_t under_way; /* transfers that have not ended */
  bool is_last_seen;
} slot;

struct PJRT_AsyncHostToDeviceTransferManager {
  atomic_int refs;
  memory_space *space;
  pthread_mutex_t mutex;
  slot *slots;
  size_t num_slots;
};
typedef PJRT_AsyncHostToDeviceTransferManager manager;

static void manager_unref(manager *each) {
  if (atomic_fetch_sub(&each->refs, 1) != 1) return;
  for (size_t i = 0; i < each->num_slots; ++i) {
    slot *it = &each->slots[i];
    completion_set(it->defined, error_make(PJRT_Error_Code_CANCELLED,
                                           "the transfer manager was destroyed before buffer %zu was complete", i));
    completion_unref(it->defined);
    storage_unref(it->storage);
    free(it->pieces);
    if (it->buffer) buffer_destroy(it->buffer);
  }
  PJRT_Client *client = each->space->device->client;
  pthread_mutex_destroy(&each->mutex);
  free(each->slots);
  free(each);
  client_unref(client);
}

static PJRT_Error *init_slot(slot *it, memory_space *space, const PJRT_ShapeSpec *spec,
                             const PJRT_Buffer_MemoryLayout *layout) {
  bool has_layouts = DRIVER_HAS(space->device->client->table, layout);
  PJRT_Error *error =
      device_shape(&it->shape, spec->element_type, spec->dims, spec->num_dims, layout, has_layouts ? space : NULL);
  bool is_plain = !error && storage_is_plain(space, &it->shape);
  if (!error && !is_plain && !shape_is_in_rows(&it->shape)) error = refuse_layout(&it->shape);
  if (!error) error = storage_allocate(space, &it->shape, &it->storage);
  if (!error && !is_plain) {
    error = staging_make(shape_size(&it->shape), &it->pieces);
    if (error) storage_unref(it->storage);
  }
  if (error) return error;
  it->defined = completion_make();
  it->buffer = buffer_make(space, &it->shape, storage_ref(it->storage), completion_ref(it->defined));
  return NULL;
}

PJRT_Error *native_Client_CreateBuffersForAsyncHostToDevice(PJRT_Client_CreateBuffersForAsyncHostToDevice_Args *args) {
  memory_space *space;
  PJRT_Error *error = space_choose(args->memory, NULL, &space);
  if (!error && args->num_device_layouts && args->num_device_layouts != args->num_shape_specs)
    error = error_make(INVALID, "expected %zu layouts, one for each shape, found %zu", args->num_shape_specs,
                       args->num_device_layouts);
  if (error) return error;
  manager *each = new_zeroed(1, sizeof *each);
  atomic_init(&each->refs, 1);
  pthread_mutex_init(&each->mutex, NULL);
  each->space = space;
  client_ref(space->device->client);
  each->slots = new_zeroed(args->num_shape_specs, sizeof *each->slots);
  for (size_t i = 0; i < args->num_shape_specs && !error; ++i) {
    error = init_slot(&each->slots[i], space, &args->shape_specs[i],
                      args->num_device_layouts ? args->device_layouts[i] : NULL);
    if (!error) each->num_slots = i + 1;
  }
  if (error) {
    manager_unref(each);
    return error;
  }
  args->transfer_manager = each;
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_Destroy(PJRT_AsyncHostToDeviceTransferManager_Destroy_Args *args) {
  if (args->transfer_manager) manager_unref(args->transfer_manager);
  return NULL;
}

typedef struct piece {
  manager *manager;
  slot *slot;
  completion *done;
  char *staging;
} piece;

static void end_slot(PJRT_Error *borrowed, void *arg) {
  piece *each = arg;
  completion_set(each->slot->defined, pjrt_error_share(borrowed));
  manager_unref(each->manager);
  free(each);
}

/* All pieces of a buffer are there. Where they were put together on the host, the whole array goes to the device now. */
static void complete(manager *manager, slot *it) {
  size_t size = shape_size(&it->shape);
  if (it->pieces == NULL || size == 0) {
    completion_set(it->defined, NULL);
    return;
  }
  PJRT_Device *device = manager->space->device;
  piece *each = new_zeroed(1, sizeof *each);
  atomic_fetch_add(&manager->refs, 1);
  each->manager = manager;
  each->slot = it;
  pjrt_driver_shape given = driver_shape(&it->shape);
  char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
  pjrt_fence fence = 0;
  int code = device->client->table->copy_in(device->client->driver, device->number, storage_memory(it->storage), &given, 0,
                                            it->pieces, size, &fence, message);
  PJRT_Error *error = error_of_driver("copy_in", code, message);
  if (error) {
    end_slot(error, each);
    pjrt_error_release(error);
  } else {
    queue_follow(device, fence, (work){"copy_in", NULL, each->slot->defined, end_slot, each});
  }
}

static void end_piece(PJRT_Error *borrowed, void *arg) {
  piece *each = arg;
  slot *it = each->slot;
  pthread_mutex_lock(&each->manager->mutex);
  bool is_complete = --it->under_way == 0 && it->is_last_seen;
  pthread_mutex_unlock(&each->manager->mutex);
  free(each->staging);
  completion_set(each->done, pjrt_error_share(borrowed));
  completion_unref(each->done);
  if (is_complete && !borrowed) complete(each->manager, it);
  manager_unref(each->manager);
  free(each);
}

static PJRT_Error *no_slot(const manager *manager, int index) {
  if (index >= 0 && (size_t)index < manager->num_slots) return NULL;
  return error_make(INVALID, "expected the number of a buffer, 0 to %zu, found %d", manager->num_slots - 1, index);
}

static PJRT_Error *begin(manager *manager, int index, bool is_last, slot **out) {
  PJRT_Error *error = NULL;
  pthread_mutex_lock(&manager->mutex);
  slot *it = *out = &manager->slots[index];
  if (completion_is_set(it->defined) || it->is_last_seen)
    error = error_make(PJRT_Error_Code_FAILED_PRECONDITION, "the last transfer to buffer %d was made already", index);
  else {
    it->is_last_seen = is_last;
    ++it->under_way;
  }
  pthread_mutex_unlock(&manager->mutex);
  return error;
}

/* The whole fails with a piece. */
static void fail_slot(PJRT_Error *borrowed, void *arg) {
  if (borrowed) completion_set(arg, pjrt_error_share(borrowed));
  completion_unref(arg);
}

static PJRT_Event *push(manager *manager, slot *it, size_t offset, const void *host, size_t size, char *staging) {
  piece *each = new_zeroed(1, sizeof *each);
  atomic_fetch_add(&manager->refs, 1);
  each->manager = manager;
  each->slot = it;
  each->staging = staging;
  completion *done = completion_make();
  each->done = completion_ref(done);
  completion_then(done, fail_slot, completion_ref(it->defined));
  PJRT_Device *device = manager->space->device;
  char *view = it->pieces ? it->pieces : storage_host_view(it->storage);
  if (view || size == 0) {
    if (size) memcpy(view + offset, host, size);
    end_piece(NULL, each);
  } else {
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    pjrt_fence fence = 0;
    int code = device->client->table->copy_in(device->client->driver, device->number, storage_memory(it->storage), NULL,
                                              offset, host, size, &fence, message);
    PJRT_Error *error = error_of_driver("copy_in", code, message);
    if (error) {
      end_piece(error, each);
      pjrt_error_release(error);
    } else {
      queue_follow(device, fence, (work){"copy_in", NULL, each->done, end_piece, each});
    }
  }
  PJRT_Event *event = event_make(done);
  completion_unref(done);
  return event;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_TransferData(
    PJRT_AsyncHostToDeviceTransferManager_TransferData_Args *args) {
  manager *manager = args->transfer_manager;
  slot *it = NULL;
  PJRT_Error *error = no_slot(manager, args->buffer_index);
  if (error) return error;
  int64_t size = (int64_t)shape_size(&manager->slots[args->buffer_index].shape);
  if (args->offset < 0 || args->transfer_size < 0 || args->offset > size || args->transfer_size > size - args->offset)
    return error_make(INVALID, "expected a range within a buffer of %lld bytes, found %lld bytes from byte %lld on",
                      (long long)size, (long long)args->transfer_size, (long long)args->offset);
  if (args->data == NULL && args->transfer_size)
    return error_make(INVALID, "expected the address of %lld bytes, found null", (long long)args->transfer_size);
  char *staging = NULL;
  size = args->transfer_size;
  if (queue_leaves_work(manager->space->device->client)) error = staging_make((size_t)size, &staging);
  if (!error) error = begin(manager, args->buffer_index, args->is_last_transfer, &it);
  if (error) {
    free(staging);
    return error;
  }
  if (staging && size) memcpy(staging, args->data, (size_t)size);
  args->done_with_h2d_transfer =
      push(manager, it, (size_t)args->offset, staging ? staging : args->data, (size_t)size, staging);
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_TransferLiteral(
    PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args) {
  manager *manager = args->transfer_manager;
  shape of;
  slot *it = NULL;
  PJRT_Error *error = no_slot(manager, args->buffer_index);
  if (!error)
    error = shape_init(&of, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout);
  if (!error && !shape_same(&of, &manager->slots[args->buffer_index].shape))
    error = error_make(INVALID, "the literal and buffer %d differ in type or shape", args->buffer_index);
  if (!error && args->data == NULL && shape_size(&of))
    error = error_make(INVALID, "expected the address of %zu bytes, found null", shape_size(&of));
  if (error) return error;
  const shape *wanted = &manager->slots[args->buffer_index].shape;
  int64_t strides[MAX_RANK], wanted_strides[MAX_RANK];
  shape_strides(&of, strides);
  shape_strides(wanted, wanted_strides);
  char *staging = NULL;
  bool is_staged = !shape_same_order(&of, wanted) || queue_leaves_work(manager->space->device->client);
  if (is_staged && (error = staging_make(shape_size(&of), &staging))) return error;
  error = begin(manager, args->buffer_index, true, &it);
  if (error) {
    free(staging);
    return error;
  }
  if (staging && shape_size(&of))
    copy_strided(staging, wanted_strides, args->data, strides, of.dims, of.rank, element_bits(of.type) / 8);
  args->done_with_h2d_transfer = push(manager, it, 0, staging ? staging : args->data, shape_size(&of), staging);
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_SetBufferError(
    PJRT_AsyncHostToDeviceTransferManager_SetBufferError_Args *args) {
  manager *manager = args->transfer_manager;
  PJRT_Error *refusal = no_slot(manager, args->buffer_index);
  if (refusal) return refusal;
  PJRT_Error *error = error_from_parts(args->error_code, args->error_message, args->error_message_size);
  if (error == NULL) return error_make(INVALID, "expected the code of an error, found OK");
  if (!completion_set(manager->slots[args->buffer_index].defined, error))
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "buffer %d is complete already", args->buffer_index);
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_RetrieveBuffer(
    PJRT_AsyncHostToDeviceTransferManager_RetrieveBuffer_Args *args) {
  manager *manager = args->transfer_manager;
  PJRT_Error *error = no_slot(manager, args->buffer_index);
  if (error) return error;
  pthread_mutex_lock(&manager->mutex);
  args->buffer_out = manager->slots[args->buffer_index].buffer;
  manager->slots[args->buffer_index].buffer = NULL;
  pthread_mutex_unlock(&manager->mutex);
  if (args->buffer_out) return NULL;
  return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "buffer %d was retrieved already", args->buffer_index);
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_Device(PJRT_AsyncHostToDeviceTransferManager_Device_Args *args) {
  args->device_out = args->transfer_manager->space->device;
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_BufferCount(
    PJRT_AsyncHostToDeviceTransferManager_BufferCount_Args *args) {
  args->buffer_count = args->transfer_manager->num_slots;
  return NULL;
}

PJRT_Error *native_AsyncHostToDeviceTransferManager_BufferSize(
    PJRT_AsyncHostToDeviceTransferManager_BufferSize_Args *args) {
  PJRT_Error *error = no_slot(args->transfer_manager, args->buffer_index);
  if (error) return error;
  const slot *it = &args->transfer_manager->slots[args->buffer_index];
  size_t in_rows = shape_size(&it->shape); /* as the data comes, which is more where elements are packed */
  args->buffer_size = it->storage->size > in_rows ? it->storage->size : in_rows;
  return NULL;
}

/* Metadata says nothing to a driver. */
PJRT_Error *native_AsyncHostToDeviceTransferManager_AddMetadata(
    PJRT_AsyncHostToDeviceTransferManager_AddMetadata_Args *args) {
  (void)args;
  return NULL;
}
