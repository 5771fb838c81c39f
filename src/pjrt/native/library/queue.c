/* The queues of devices: the work that is in flight, and the fences that tell of its end. */
#include "runtime.h"

/* ---- fences -----------------------------------------------------------------------------------------------------------
 * What a driver gives back is an entry of ours. The last ones that ended are kept unused, so that a call that comes
 * twice is noticed. */
enum { WATCHES_KEPT = 256 };

struct watch {
  PJRT_Device *device;
  atomic_bool is_used;
  continuation then;
  void *arg;
  watch *next_free;
};

/* The oldest of the entries that ended, where there are more than are kept. */
static watch *take_oldest(PJRT_Device *device, size_t kept) {
  pthread_mutex_lock(&device->watch_mutex);
  watch *each = device->num_free > kept ? device->first_free : NULL;
  if (each) {
    device->first_free = each->next_free;
    --device->num_free;
  }
  pthread_mutex_unlock(&device->watch_mutex);
  return each;
}

static watch *watch_make(PJRT_Device *device, continuation then, void *arg) {
  watch *each = take_oldest(device, WATCHES_KEPT);
  if (each == NULL) each = new_zeroed(1, sizeof *each);
  each->device = device;
  each->next_free = NULL;
  each->then = then;
  each->arg = arg;
  atomic_store(&each->is_used, true);
  return each;
}

/* Whether this was the first call for the entry; it is free from then on. */
static bool watch_take(watch *each, continuation *then, void **arg) {
  if (!atomic_exchange(&each->is_used, false)) return false;
  PJRT_Device *device = each->device;
  *then = each->then;
  *arg = each->arg;
  pthread_mutex_lock(&device->watch_mutex);
  if (device->num_free++) device->last_free->next_free = each;
  else device->first_free = each;
  device->last_free = each;
  pthread_mutex_unlock(&device->watch_mutex);
  free(take_oldest(device, 2 * WATCHES_KEPT));
  return true;
}

static void end_watch(watch *each, PJRT_Error *owned) {
  continuation then;
  void *arg;
  PJRT_Device *device = each->device;
  if (watch_take(each, &then, &arg)) {
    then(owned, arg);
    pthread_mutex_lock(&device->mutex);
    --device->in_flight;
    ++device->ended;
    pthread_cond_broadcast(&device->changed);
    pthread_mutex_unlock(&device->mutex);
  } else {
    fputs("pjrt: the driver called the function of on_done twice for one fence; the second call is ignored\n", stderr);
  }
  pjrt_error_release(owned);
}

static void driver_is_done(void *arg, int code, const char *message) {
  end_watch(arg, error_of_driver("launch or copy", code, message ? message : ""));
}

/* The thread of a device that waits for its fences in their order, for a driver without on_done. */
typedef struct wait_item {
  pjrt_fence fence;
  watch *watch;
  struct wait_item *next;
} wait_item;

struct waiter {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  wait_item *first, **last;
  bool is_stopped;
  PJRT_Device *device;
};

static void *wait_for_fences(void *arg) {
  struct waiter *waiter = arg;
  PJRT_Client *client = waiter->device->client;
  pthread_mutex_lock(&waiter->mutex);
  for (;;) {
    while (waiter->first == NULL && !waiter->is_stopped) pthread_cond_wait(&waiter->changed, &waiter->mutex);
    wait_item *item = waiter->first;
    if (item == NULL) break;
    waiter->first = item->next;
    if (waiter->first == NULL) waiter->last = &waiter->first;
    pthread_mutex_unlock(&waiter->mutex);
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    int code = client->table->wait(client->driver, waiter->device->number, item->fence, -1, message);
    end_watch(item->watch, error_of_driver("wait", code, message));
    free(item);
    pthread_mutex_lock(&waiter->mutex);
  }
  pthread_mutex_unlock(&waiter->mutex);
  return NULL;
}

static struct waiter *waiter_of(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  if (device->waiter == NULL) {
    struct waiter *waiter = new_zeroed(1, sizeof *waiter);
    pthread_mutex_init(&waiter->mutex, NULL);
    pthread_cond_init(&waiter->changed, NULL);
    waiter->last = &waiter->first;
    waiter->device = device;
    if (pthread_create(&waiter->thread, NULL, wait_for_fences, waiter) != 0) {
      pthread_cond_destroy(&waiter->changed);
      pthread_mutex_destroy(&waiter->mutex);
      free(waiter);
    } else {
      device->waiter = waiter;
    }
  }
  struct waiter *waiter = device->waiter;
  pthread_mutex_unlock(&device->mutex);
  return waiter;
}

void device_follow(PJRT_Device *device, pjrt_fence fence, continuation then, void *arg) {
  PJRT_Client *client = device->client;
  if (fence == 0) {
    then(NULL, arg);
    return;
  }
  pthread_mutex_lock(&device->mutex);
  ++device->in_flight;
  pthread_mutex_unlock(&device->mutex);
  watch *each = watch_make(device, then, arg);
  if (DRIVER_HAS(client->table, on_done)) {
    char message[PJRT_DRIVER_MESSAGE_SIZE] = "";
    int code = client->table->on_done(client->driver, device->number, fence, driver_is_done, each, message);
    if (code) end_watch(each, error_of_driver("on_done", code, message));
    return;
  }
  if (!DRIVER_HAS(client->table, wait)) {
    end_watch(each, error_make(PJRT_Error_Code_INTERNAL,
                              "the driver returned the fence %llu, and it has neither wait nor on_done; return 0 where "
                              "the work is done", (unsigned long long)fence));
    return;
  }
  struct waiter *waiter = waiter_of(device);
  if (waiter == NULL) {
    end_watch(each, error_make(PJRT_Error_Code_RESOURCE_EXHAUSTED, "the system has no thread left to wait for a device"));
    return;
  }
  wait_item *item = new_zeroed(1, sizeof *item);
  item->fence = fence;
  item->watch = each;
  pthread_mutex_lock(&waiter->mutex);
  *waiter->last = item;
  waiter->last = &item->next;
  pthread_cond_signal(&waiter->changed);
  pthread_mutex_unlock(&waiter->mutex);
}

static void stop_waiter(struct waiter *waiter) {
  pthread_mutex_lock(&waiter->mutex);
  waiter->is_stopped = true;
  pthread_cond_signal(&waiter->changed);
  pthread_mutex_unlock(&waiter->mutex);
  pthread_join(waiter->thread, NULL);
  pthread_cond_destroy(&waiter->changed);
  pthread_mutex_destroy(&waiter->mutex);
  free(waiter);
}

void device_stop(PJRT_Device *device) {
  if (device->waiter) stop_waiter(device->waiter);
  for (watch *each; (each = take_oldest(device, 0));) free(each);
}

uint64_t client_ended(PJRT_Client *client) {
  uint64_t sum = 0;
  for (size_t i = 0; i < client->num_devices; ++i) {
    pthread_mutex_lock(&client->devices[i].mutex);
    sum += client->devices[i].ended;
    pthread_mutex_unlock(&client->devices[i].mutex);
  }
  return sum;
}

bool client_wait_for_one(PJRT_Client *client, uint64_t seen) {
  for (size_t i = 0; i < client->num_devices; ++i) {
    if (client_ended(client) != seen) return true;
    PJRT_Device *device = &client->devices[i];
    pthread_mutex_lock(&device->mutex);
    uint64_t before = device->ended;
    while (device->in_flight && device->ended == before) pthread_cond_wait(&device->changed, &device->mutex);
    pthread_mutex_unlock(&device->mutex);
  }
  return client_ended(client) != seen;
}

void device_wait_for_all(PJRT_Device *device) {
  pthread_mutex_lock(&device->mutex);
  while (device->in_flight) pthread_cond_wait(&device->changed, &device->mutex);
  pthread_mutex_unlock(&device->mutex);
}
