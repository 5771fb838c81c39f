/* The CrossHostTransfers extension, between clients of one process: a sender and a receiver find each other in a
 * mailbox by the key of the transfer, whoever comes first. */
#include "tiny.h"

/* One end of a transfer that waits for the other. */
typedef struct letter {
  char *key;
  bool sends;
  storage *storage; /* of a sender counted as a reader */
  size_t size;
  completion *defined; /* sender: when the bytes are there */
  completion *done;
  struct letter *next;
} letter;

/* A receiver copies once the bytes are there. */
typedef struct delivery {
  letter *sender, *receiver;
} delivery;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static letter *mailbox;
static atomic_llong next_descriptor;

static void letter_free(letter *each) {
  free(each->key);
  if (each->sends) storage_read(each->storage);
  else storage_unref(each->storage);
  completion_unref(each->defined);
  completion_unref(each->done);
  free(each);
}

static void end_delivery(delivery *each, PJRT_Error *owned) {
  completion *received = completion_ref(each->receiver->done), *sent = completion_ref(each->sender->done);
  PJRT_Device *from = each->sender->storage->space->device, *to = each->receiver->storage->space->device;
  letter_free(each->sender);
  letter_free(each->receiver);
  free(each);
  completion_set(received, pjrt_error_share(owned));
  completion_set(sent, owned);
  completion_unref(received);
  completion_unref(sent);
  queue_let_go(from);
  queue_let_go(to);
}

static void copy_letter(void *arg) {
  delivery *each = arg;
  memcpy((void *)(uintptr_t)storage_memory(each->receiver->storage),
         (const void *)(uintptr_t)storage_memory(each->sender->storage), each->sender->size);
  end_delivery(each, NULL);
}

static void sender_is_defined(PJRT_Error *borrowed, void *arg) {
  delivery *each = arg;
  if (borrowed) end_delivery(each, pjrt_error_share(borrowed));
  else driver_push(each->receiver->storage->space->device, copy_letter, each);
}

static void deliver(letter *sender, letter *receiver) {
  delivery *each = new_zeroed(1, sizeof *each);
  *each = (delivery){sender, receiver};
  queue_hold(sender->storage->space->device); /* whoever destroys a client waits, also until the sender is defined */
  queue_hold(receiver->storage->space->device);
  if (sender->size == receiver->size)
    completion_then(sender->defined, sender_is_defined, each);
  else
    end_delivery(each, error_make(INVALID, "%zu bytes are sent, %zu are received", sender->size, receiver->size));
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
    if (each->storage->space->device->client != client) {
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
    completion_set(each->done, error_make(PJRT_Error_Code_CANCELLED, "The client of a transfer was destroyed"));
    letter_free(each);
  }
}

static PJRT_Error *post_send(PJRT_Buffer *buffer, const char *key, completion *done) {
  storage *held;
  PJRT_Error *error = buffer_use(buffer, &held);
  if (error) return error;
  letter *each = new_zeroed(1, sizeof *each);
  *each = (letter){.key = copy_of(key, strlen(key)), .sends = true, .storage = held, .size = held->size,
                   .defined = completion_ref(buffer->defined), .done = completion_ref(done)};
  post(each);
  return NULL;
}

static PJRT_Error *post_receive(PJRT_Device *device, const shape *of, const char *key, PJRT_Buffer **out) {
  memory_space *space;
  storage *held;
  PJRT_Error *error = space_choose(NULL, device, &space);
  if (!error) error = storage_allocate(space, of, &held);
  if (error) return error;
  completion *done = completion_make();
  letter *each = new_zeroed(1, sizeof *each);
  *each = (letter){.key = copy_of(key, strlen(key)), .storage = storage_ref(held), .size = held->size,
                   .done = completion_ref(done)};
  *out = buffer_make(space, of, held, done);
  live_add(LIVE_BUFFER, 1);
  post(each);
  return NULL;
}

static char *print_key(int64_t key) { return printed("key %lld", (long long)key); }

static PJRT_Error *send(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args *args) {
  SIZED(PJRT_Transfers_PJRT_Client_CrossHostSendBuffers_Args, args);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < args->num_buffers && !error; ++i) {
    char *key = print_key(args->transfer_keys[i]);
    completion *done = completion_make();
    error = post_send(args->buffers[i], key, done);
    if (!error) args->send_events[i] = event_make(done);
    if (!error) event_shown(F_Buffer_CopyToDevice, &args->send_events[i]);
    completion_unref(done);
    free(key);
  }
  return error_shown(error);
}

static PJRT_Error *receive(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args *args) {
  SIZED(PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers_Args, args);
  PJRT_Error *error = NULL;
  for (size_t i = 0; i < args->num_shapes && !error; ++i) {
    shape of;
    char *key = print_key(args->transfer_keys[i]);
    error = shape_init(&of, args->element_types[i], args->num_dims[i], args->shape_num_dims[i],
                       args->layouts ? args->layouts[i] : NULL);
    if (!error) error = post_receive(args->device, &of, key, &args->buffers[i]);
    free(key);
  }
  return error_shown(error);
}

/* ---- the older generation: the receiver hands out descriptors, the sender brings them ---------------------------------*/
static void cancel(const char *descriptor, size_t size, PJRT_Error_Code reason, const char *message,
                   size_t message_size, PJRT_Transfers_CrossHostOnCanceledCallback on_canceled, void *canceled_arg,
                   void *user_arg) {
  (void)user_arg;
  char *key = copy_of(descriptor, size);
  pthread_mutex_lock(&mutex);
  letter *receiver = take(key, false);
  pthread_mutex_unlock(&mutex);
  free(key);
  if (receiver) {
    completion_set(receiver->done, error_from_parts(reason, message, message_size));
    letter_free(receiver);
  }
  PJRT_Error *error =
      receiver ? NULL : error_make(PJRT_Error_Code_NOT_FOUND, "No transfer waits for this descriptor");
  on_canceled(error_shown(error), canceled_arg);
}

static PJRT_Error *make_receive(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args *args) {
  SIZED(PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers_Args, args);
  size_t made = 0;
  char *descriptors[TINY_MAX_DEVICES];
  size_t sizes[TINY_MAX_DEVICES];
  PJRT_Error *error = NULL;
  if (args->num_shapes > TINY_MAX_DEVICES) error = error_make(INVALID, "At most %d shapes at once", TINY_MAX_DEVICES);
  for (size_t i = 0; i < args->num_shapes && !error; ++i) {
    shape of;
    error = shape_init(&of, args->element_types[i], args->num_dims[i], args->shape_num_dims[i],
                       args->layouts ? args->layouts[i] : NULL);
    if (error) break;
    descriptors[i] = printed("descriptor %lld", atomic_fetch_add(&next_descriptor, 1));
    sizes[i] = strlen(descriptors[i]);
    ++made;
    error = post_receive(args->device, &of, descriptors[i], &args->buffers[i]);
  }
  if (!error) {
    args->num_buffers = args->num_shapes;
    args->notifier.notifier(NULL, (const char **)descriptors, sizes, made, args->notifier.user_arg, cancel, NULL);
  }
  for (size_t i = 0; i < made; ++i) free(descriptors[i]);
  return error_shown(error);
}

typedef PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice_Args remote_copy;

static void descriptor_is_there(PJRT_Error *error, void *arg) {
  remote_copy *args = arg;
  if (!error) {
    char *key = copy_of(*args->serialized_descriptor, *args->serialized_descriptor_size);
    completion *done = completion_make();
    error = post_send(args->buffer, key, done);
    completion_unref(done);
    free(key);
  }
  bool enqueued = error == NULL;
  if (args->descriptor_destructor)
    args->descriptor_destructor(args->serialized_descriptor, args->serialized_descriptor_size);
  args->on_done.on_done(error_shown(error), enqueued, args->on_done.user_arg);
  free(args);
}

/* It can return no error. The event is ours from now on. */
static void copy_to_remote(remote_copy *args) {
  if (!HAS(args, remote_copy, on_done)) return;
  remote_copy *copy = copy_of(args, sizeof *args);
  if (!HAS(args, remote_copy, descriptor_destructor)) copy->descriptor_destructor = NULL;
  PJRT_Event *event = args->event;
  native_Event_OnReady(&(PJRT_Event_OnReady_Args){.event = event, .callback = descriptor_is_there, .user_arg = copy});
  live_add(LIVE_EVENT, -1);
  (void)event;
}

PJRT_CrossHostTransfers_Extension transfers_extension = {
    TINY_EXTENSION(PJRT_CrossHostTransfers_Extension, CrossHostTransfers),
    .PJRT_Transfers_PJRT_Client_MakeCrossHostReceiveBuffers = make_receive,
    .PJRT_Transfers_PJRT_Buffer_CopyToRemoteDevice = copy_to_remote,
    .PJRT_Transfers_PJRT_Client_CrossHostReceiveBuffers = receive,
    .PJRT_Transfers_PJRT_Client_CrossHostSendBuffers = send,
};
