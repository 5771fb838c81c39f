/* The CrossHostTransfers extension, between clients of one process: a sender and a receiver find each other in a
 * mailbox by the key of the transfer, whoever comes first. */
#include "tiny.h"

/* One end of a transfer that waits for the other. */
typedef struct letter {
  char *key;
  bool sends;
  tiny_storage *storage;
  size_t size;
  tiny_promise *defined; /* sender: when the bytes are there */
  tiny_promise *done;
  tiny_queue *queue; /* receiver: who copies */
  struct letter *next;
} letter;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static letter *mailbox;
static atomic_llong next_descriptor;

static void letter_free(letter *each) {
  free(each->key);
  storage_unref(each->storage);
  promise_unref(each->defined);
  promise_unref(each->done);
  free(each);
}

static void follow(tiny_status *borrowed, void *arg) {
  promise_set(arg, status_ref(borrowed));
  promise_unref(arg);
}

static void deliver(letter *sender, letter *receiver) {
  if (sender->size != receiver->size) {
    tiny_status *status = status_make(INVALID, "%zu bytes are sent, %zu are received", sender->size, receiver->size);
    promise_set(receiver->done, status_ref(status));
    promise_set(sender->done, status);
  } else {
    promise_then(receiver->done, follow, promise_ref(sender->done));
    copy_push(receiver->queue, storage_ref(sender->storage), sender->defined, storage_ref(receiver->storage),
              sender->size, promise_ref(receiver->done));
  }
  letter_free(sender);
  letter_free(receiver);
}

static letter *take(const char *key, bool sends) {
  for (letter **place = &mailbox; *place; place = &(*place)->next) {
    letter *each = *place;
    if (each->sends != sends || strcmp(each->key, key) != 0) continue;
    *place = each->next;
    return each;
  }
  return NULL;
}

static void post(letter *owned) {
  pthread_mutex_lock(&mutex);
  letter *other = take(owned->key, !owned->sends);
  if (other == NULL) {
    owned->next = mailbox;
    mailbox = owned;
  }
  pthread_mutex_unlock(&mutex);
  if (other) deliver(owned->sends ? owned : other, owned->sends ? other : owned);
}

void transfers_forget(PJRT_Client *client) {
  letter *forgotten = NULL;
  pthread_mutex_lock(&mutex);
  for (letter **place = &mailbox; *place;) {
    letter *each = *place;
    if (each->storage->memory->device->client != client) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    each->next = forgotten;
    forgotten = each;
  }
  pthread_mutex_unlock(&mutex);
  while (forgotten) {
    letter *each = forgotten;
    forgotten = each->next;
    promise_set(each->done, status_make(PJRT_Error_Code_CANCELLED, "The client of a transfer was destroyed"));
    letter_free(each);
  }
}

static tiny_status *post_send(PJRT_Buffer *buffer, const char *key, tiny_promise *done) {
  tiny_storage *storage;
  tiny_status *status = buffer_use(buffer, done, &storage);
  if (status) return status;
  letter *each = tiny_calloc(1, sizeof *each);
  *each = (letter){.key = tiny_memdup(key, strlen(key)), .sends = true, .storage = storage, .size = buffer->size,
                   .defined = promise_ref(buffer->defined), .done = promise_ref(done)};
  post(each);
  return NULL;
}

static tiny_status *post_receive(PJRT_Device *device, const tiny_shape *shape, const char *key, PJRT_Buffer **out) {
  tiny_memory *memory;
  tiny_storage *storage;
  tiny_status *status = memory_choose(NULL, device, &memory);
  if (!status) status = storage_allocate(memory, shape_size(shape), &storage);
  if (status) return status;
  tiny_promise *done = promise_make();
  *out = buffer_make(memory, shape, storage, done);
  letter *each = tiny_calloc(1, sizeof *each);
  *each = (letter){.key = tiny_memdup(key, strlen(key)), .storage = storage_ref(storage), .size = shape_size(shape),
                   .done = promise_ref(done), .queue = device->queue};
  post(each);
  return NULL;
}

static char *print_key(int64_t key) { return tiny_printf("key %lld", (long long)key); }

static PJRT_Error *send(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args *args) {
  TINY_SIZED(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args, args);
  tiny_status *status = NULL;
  for (size_t i = 0; i < args->num_buffers && !status; ++i) {
    char *key = print_key(args->transfer_keys[i]);
    tiny_promise *done = promise_make();
    status = post_send(args->buffers[i], key, done);
    if (!status) args->send_events[i] = event_make(done, F_Buffer_CopyToDevice);
    promise_unref(done);
    free(key);
  }
  return error_from(status);
}

static PJRT_Error *receive(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args *args) {
  TINY_SIZED(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args, args);
  tiny_status *status = NULL;
  for (size_t i = 0; i < args->num_shapes && !status; ++i) {
    tiny_shape shape;
    char *key = print_key(args->transfer_keys[i]);
    status = shape_init(&shape, args->element_types[i], args->num_dims[i], args->shape_num_dims[i],
                        args->layouts ? args->layouts[i] : NULL);
    if (!status) status = post_receive(args->device, &shape, key, &args->buffers[i]);
    free(key);
  }
  return error_from(status);
}

/* ---- the older generation: the receiver hands out descriptors, the sender brings them ---------------------------------*/
static void cancel(const char *descriptor, size_t size, PJRT_Error_Code reason, const char *message,
                   size_t message_size, PJRT_Transfers_CrossHostOnCanceledCallback on_canceled, void *canceled_arg,
                   void *user_arg) {
  (void)user_arg;
  char *key = tiny_memdup(descriptor, size);
  pthread_mutex_lock(&mutex);
  letter *receiver = take(key, false);
  pthread_mutex_unlock(&mutex);
  free(key);
  if (receiver) {
    promise_set(receiver->done, status_from_bytes(reason, message, message_size));
    letter_free(receiver);
  }
  on_canceled(receiver ? NULL : error_make(PJRT_Error_Code_NOT_FOUND, "No transfer waits for this descriptor"),
              canceled_arg);
}

static PJRT_Error *make_receive(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args *args) {
  TINY_SIZED(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args, args);
  size_t made = 0;
  char *descriptors[TINY_MAX_DEVICES];
  size_t sizes[TINY_MAX_DEVICES];
  if (args->num_shapes > TINY_MAX_DEVICES) return error_make(INVALID, "At most %d shapes at once", TINY_MAX_DEVICES);
  tiny_status *status = NULL;
  for (size_t i = 0; i < args->num_shapes && !status; ++i) {
    tiny_shape shape;
    status = shape_init(&shape, args->element_types[i], args->num_dims[i], args->shape_num_dims[i],
                        args->layouts ? args->layouts[i] : NULL);
    if (status) break;
    descriptors[i] = tiny_printf("descriptor %lld", atomic_fetch_add(&next_descriptor, 1));
    sizes[i] = strlen(descriptors[i]);
    ++made;
    status = post_receive(args->device, &shape, descriptors[i], &args->buffers[i]);
  }
  if (!status) {
    args->num_buffers = args->num_shapes;
    args->notifier.notifier(NULL, (const char **)descriptors, sizes, made, args->notifier.user_arg, cancel, NULL);
  }
  for (size_t i = 0; i < made; ++i) free(descriptors[i]);
  return error_from(status);
}

static void descriptor_is_there(tiny_status *borrowed, void *arg) {
  PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args *args = arg;
  tiny_status *status = status_ref(borrowed);
  if (!status) {
    char *key = tiny_memdup(*args->serialized_descriptor, *args->serialized_descriptor_size);
    tiny_promise *done = promise_make();
    status = post_send(args->buffer, key, done);
    promise_unref(done);
    free(key);
  }
  bool enqueued = status == NULL;
  if (args->descriptor_destructor)
    args->descriptor_destructor(args->serialized_descriptor, args->serialized_descriptor_size);
  args->on_done.on_done(error_from(status), enqueued, args->on_done.user_arg);
  event_destroy(args->event);
  free(args);
}

static void copy_to_remote(PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args *args) {
  if (!TINY_HAS(args, PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args, on_done)) return; /* it can return no error */
  PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args *copy = tiny_memdup(args, sizeof *args);
  if (!TINY_HAS(args, PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args, descriptor_destructor))
    copy->descriptor_destructor = NULL;
  promise_then(event_promise(args->event), descriptor_is_there, copy);
}

PJRT_CrossHostTransfers_Extension transfers_extension = {
    TINY_EXTENSION(PJRT_CrossHostTransfers_Extension, CrossHostTransfers),
    .PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers = make_receive,
    .PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice = copy_to_remote,
    .PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers = receive,
    .PJRT_Transfers_PJRT_Client_CrossHostSendBuffers = send,
};
