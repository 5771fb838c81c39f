/* Buffers that are not filled from the host: uninitialized, failed, views of memory that is there, and aliases of
 * buffers to come. */
#include "tiny.h"

PJRT_Error *tiny_Client_CreateUninitializedBuffer(PJRT_Client_CreateUninitializedBuffer_Args *args) {
  tiny_memory *memory;
  tiny_shape shape;
  tiny_storage *storage;
  tiny_status *status = memory_choose(args->memory, args->device, &memory);
  if (!status)
    status = shape_init(&shape, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout);
  if (!status) status = storage_allocate(memory, shape_size(&shape), &storage);
  if (status) return error_from(status);
  memset(storage->data, 0, storage->size); /* so that tools do not cry over reads of it */
  args->buffer = buffer_make(memory, &shape, storage, promise_done(NULL));
  return NULL;
}

PJRT_Error *tiny_Client_CreateErrorBuffer(PJRT_Client_CreateErrorBuffer_Args *args) {
  tiny_memory *memory;
  tiny_shape shape;
  tiny_status *status = memory_choose(args->memory, NULL, &memory);
  if (!status)
    status = shape_init(&shape, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout);
  if (!status && args->error_code == PJRT_Error_Code_OK) status = status_make(INVALID, "An error buffer needs an error");
  if (status) return error_from(status);
  tiny_status *error = status_from_bytes(args->error_code, args->error_message, args->error_message_size);
  if (TINY_HAS(args, PJRT_Client_CreateErrorBuffer_Args, num_payload))
    status_add_named_payloads(error, args->payload, args->num_payload);
  args->buffer = buffer_make(memory, &shape, storage_borrow(memory, NULL, 0), promise_done(error));
  return NULL;
}

PJRT_Error *tiny_Client_CreateViewOfDeviceBuffer(PJRT_Client_CreateViewOfDeviceBuffer_Args *args) {
  tiny_memory *memory;
  tiny_shape shape;
  PJRT_Memory *wanted = TINY_HAS(args, PJRT_Client_CreateViewOfDeviceBuffer_Args, memory) ? args->memory : NULL;
  tiny_status *status = memory_choose(wanted, args->device, &memory);
  if (!status) status = shape_init(&shape, args->element_type, args->dims, args->num_dims, args->layout);
  if (!status && args->device_buffer_ptr == NULL && shape_size(&shape))
    status = status_make(INVALID, "The pointer to view is null");
  if (status) return error_from(status);
  tiny_storage *storage = storage_borrow(memory, args->device_buffer_ptr, shape_size(&shape));
  storage->on_free = args->on_delete_callback;
  storage->on_free_arg = args->on_delete_callback_arg;
  args->buffer = buffer_make(memory, &shape, storage, promise_done(NULL));
  return NULL;
}

/* ---- aliases ------------------------------------------------------------------------------------------------------*/
struct PJRT_FulfillAliasBufferCallback {
  tiny_open *open;
  tiny_storage *storage; /* of the alias, without a target yet */
  tiny_shape shape;
};

PJRT_Error *tiny_Client_CreateAliasBuffer(PJRT_Client_CreateAliasBuffer_Args *args) {
  tiny_memory *memory;
  tiny_shape shape;
  tiny_status *status = memory_choose(args->memory, NULL, &memory);
  if (!status)
    status = shape_init(&shape, args->shape_element_type, args->shape_dims, args->shape_num_dims, args->shape_layout);
  if (status) return error_from(status);
  tiny_promise *defined = promise_make();
  tiny_storage *storage = storage_borrow(memory, NULL, 0);
  atomic_store(&storage->keep, true);
  PJRT_FulfillAliasBufferCallback *callback = tiny_calloc(1, sizeof *callback);
  callback->open = open_promise(args->client, defined);
  callback->storage = storage_ref(storage);
  callback->shape = shape;
  live_add(LIVE_ALIAS, 1);
  args->alias_buffer = buffer_make(memory, &shape, storage, defined);
  args->fulfill_alias_buffer_cb = callback;
  return NULL;
}

static void follow(tiny_status *borrowed, void *arg) {
  promise_set(arg, status_ref(borrowed));
  promise_unref(arg);
}

/* With an OK code the alias becomes the buffer, else it fails. The handle is spent either way: a call that is refused
 * fails the alias too. */
PJRT_Error *tiny_Client_FulfillAliasBuffer(PJRT_Client_FulfillAliasBuffer_Args *args) {
  PJRT_FulfillAliasBufferCallback *callback = args->fulfill_alias_buffer_cb;
  if (callback == NULL) return error_make(INVALID, "The handle of the alias is null");
  tiny_status *error = status_from_bytes(args->status_code, args->error_message, args->error_message_size);
  tiny_status *refusal = NULL;
  tiny_storage *target = NULL;
  if (!error && args->buffer == NULL) refusal = status_make(INVALID, "An alias needs a buffer or an error");
  else if (!error && !shape_same_dims(&args->buffer->shape, &callback->shape))
    refusal = status_make(INVALID, "The buffer and its alias differ in shape");
  else if (!error) refusal = buffer_use(args->buffer, NULL, &target);
  tiny_promise *defined = close_promise(callback->open);
  if (error || refusal) {
    promise_set(defined, error ? error : status_ref(refusal));
    promise_unref(defined);
  } else {
    atomic_store(&target->keep, true);
    callback->storage->target = target;
    promise_then(args->buffer->defined, follow, defined);
  }
  storage_unref(callback->storage);
  free(callback);
  live_add(LIVE_ALIAS, -1);
  return error_from(refusal);
}
