/* Bytes on a device, counted against the limit of its memory. */
#include "tiny.h"

static tiny_storage *make(tiny_memory *memory, char *data, size_t size) {
  tiny_storage *storage = tiny_calloc(1, sizeof *storage);
  atomic_init(&storage->refs, 1);
  storage->data = data;
  storage->size = size;
  storage->memory = memory;
  client_ref(memory->device->client);
  live_add(LIVE_STORAGE, 1);
  return storage;
}

tiny_status *storage_allocate(tiny_memory *memory, size_t size, tiny_storage **out) {
  tiny_status *status = device_reserve(memory, size);
  if (status) return status;
  void *data = NULL;
  if (posix_memalign(&data, 64, size ? size : 64) != 0) {
    device_release(memory, size);
    return status_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "The host has no %zu bytes left", size);
  }
  *out = make(memory, data, size);
  (*out)->charged = true;
  return NULL;
}

tiny_storage *storage_borrow(tiny_memory *memory, void *data, size_t size) { return make(memory, data, size); }

tiny_storage *storage_ref(tiny_storage *storage) {
  atomic_fetch_add(&storage->refs, 1);
  return storage;
}

void storage_unref(tiny_storage *storage) {
  if (storage == NULL || atomic_fetch_sub(&storage->refs, 1) != 1) return;
  PJRT_Client *client = storage->memory->device->client;
  if (storage->charged) {
    device_release(storage->memory, storage->size);
    free(storage->data);
  }
  storage_unref(storage->target);
  if (storage->on_free) storage->on_free(storage->data, storage->on_free_arg);
  if (storage->freed) {
    promise_set(storage->freed, NULL);
    promise_unref(storage->freed);
  }
  free(storage);
  live_add(LIVE_STORAGE, -1);
  client_unref(client);
}

char *storage_bytes(const tiny_storage *storage) {
  return storage->target ? storage_bytes(storage->target) : storage->data;
}
