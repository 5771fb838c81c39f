/* Buffers from buffers: copies, bitcasts, donations that wait. */
#include "tiny.h"

typedef struct copy {
  tiny_storage *source, *target;
  tiny_promise *source_defined, *done;
  size_t size;
} copy;

static void run_copy(void *arg) {
  copy *each = arg;
  tiny_status *status = status_ref(promise_status(each->source_defined));
  if (status == NULL && each->size) memcpy(storage_bytes(each->target), storage_bytes(each->source), each->size);
  storage_unref(each->source);
  storage_unref(each->target);
  promise_set(each->done, status);
  promise_unref(each->done);
  promise_unref(each->source_defined);
  free(each);
}

void copy_push(tiny_queue *queue, tiny_storage *owned_source, tiny_promise *defined, tiny_storage *owned_target,
               size_t size, tiny_promise *owned_done) {
  copy *each = tiny_calloc(1, sizeof *each);
  *each = (copy){owned_source, owned_target, promise_ref(defined), owned_done, size};
  queue_push_after(queue, &defined, 1, run_copy, each);
}

static tiny_status *copy_to(PJRT_Buffer *buffer, tiny_memory *memory, PJRT_Buffer **out) {
  tiny_storage *source, *target;
  tiny_promise *done = promise_make();
  tiny_status *status = storage_allocate(memory, buffer->size, &target);
  if (!status && (status = buffer_use(buffer, done, &source))) storage_unref(target);
  if (status) {
    promise_unref(done);
    return status;
  }
  *out = buffer_make(memory, &buffer->shape, storage_ref(target), promise_ref(done));
  copy_push(buffer->memory->device->queue, source, buffer->defined, target, buffer->size, done);
  return NULL;
}

PJRT_Error *tiny_Buffer_CopyToDevice(PJRT_Buffer_CopyToDevice_Args *args) {
  tiny_memory *memory;
  tiny_status *status = memory_choose(NULL, args->dst_device, &memory);
  return error_from(status ? status : copy_to(args->buffer, memory, &args->dst_buffer));
}

PJRT_Error *tiny_Buffer_CopyToMemory(PJRT_Buffer_CopyToMemory_Args *args) {
  tiny_memory *memory;
  tiny_status *status = memory_choose(args->dst_memory, NULL, &memory);
  return error_from(status ? status : copy_to(args->buffer, memory, &args->dst_buffer));
}

/* The same bytes seen as another shape of the same size. They move to the new buffer: the old one is used up. */
PJRT_Error *tiny_Buffer_Bitcast(PJRT_Buffer_Bitcast_Args *args) {
  tiny_shape shape;
  tiny_status *status = shape_init(&shape, args->element_type, args->dims, args->num_dims, args->device_layout);
  if (!status && shape_size(&shape) != args->buffer->size)
    status = status_make(INVALID, "A buffer of %zu bytes cannot be seen as a shape of %zu", args->buffer->size,
                         shape_size(&shape));
  tiny_storage *storage = NULL;
  tiny_promise **uses = NULL;
  size_t num_uses = 0;
  if (!status) status = buffer_donate(args->buffer, &storage, &uses, &num_uses);
  if (status) return error_from(status);
  args->out_buffer = buffer_make(args->buffer->memory, &shape, storage, promise_ref(args->buffer->defined));
  args->out_buffer->uses = uses;
  args->out_buffer->num_uses = num_uses;
  return NULL;
}

/* ---- a donation that becomes ready when the caller says so ----------------------------------------------------------*/
typedef struct waiting {
  atomic_size_t left;
  tiny_promise *source_defined, *dependency, *done;
} waiting;

static void one_less(tiny_status *borrowed, void *arg) {
  (void)borrowed;
  waiting *each = arg;
  if (atomic_fetch_sub(&each->left, 1) != 1) return;
  tiny_status *status = promise_status(each->dependency);
  if (status == NULL) status = promise_status(each->source_defined);
  promise_set(each->done, status_ref(status));
  promise_unref(each->done);
  promise_unref(each->dependency);
  promise_unref(each->source_defined);
  free(each);
}

static void dependency_ready(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args) {
  tiny_promise *dependency = close_promise(args->callback_data);
  promise_set(dependency, status_from_bytes(args->error_code, args->error_message, args->error_message_size));
  promise_unref(dependency);
}

PJRT_Error *tiny_Buffer_DonateWithControlDependency(PJRT_Buffer_DonateWithControlDependency_Args *args) {
  tiny_storage *storage;
  tiny_promise **deps;
  size_t num_deps;
  tiny_status *status = buffer_donate(args->buffer, &storage, &deps, &num_deps);
  if (status) return error_from(status);
  PJRT_Client *client = args->buffer->memory->device->client;
  waiting *each = tiny_calloc(1, sizeof *each);
  each->source_defined = promise_ref(args->buffer->defined);
  each->dependency = promise_make();
  each->done = promise_make();
  atomic_init(&each->left, num_deps + 1);
  args->callback_data = open_promise(client, each->dependency);
  args->dependency_ready_callback = dependency_ready;
  args->out_buffer = buffer_make(args->buffer->memory, &args->buffer->shape, storage, promise_ref(each->done));
  tiny_promise *dependency = promise_ref(each->dependency);
  for (size_t i = 0; i < num_deps; ++i) promise_then(deps[i], one_less, each);
  promise_then(dependency, one_less, each);
  promise_unref(dependency);
  promises_free(deps, num_deps);
  return NULL;
}
