/* What a driver of Python devices has begun: it ends once, and somebody is told that, once. */
#include "runtime.h"

pending *fences_begin(fences *all, size_t size) {
  pending *each = new_zeroed(1, size);
  each->fence = ++all->last;
  pending **bucket = &all->buckets[each->fence % FENCE_BUCKETS];
  each->next = *bucket;
  *bucket = each;
  return each;
}

static pending **find(fences *all, pjrt_fence fence) {
  pending **place = &all->buckets[fence % FENCE_BUCKETS];
  while (*place && (*place)->fence != fence) place = &(*place)->next;
  return place;
}

pending *fences_find(fences *all, pjrt_fence fence) { return *find(all, fence); }

pending *fences_take(fences *all, pjrt_fence fence) {
  pending **place = find(all, fence), *each = *place;
  if (each) *place = each->next;
  return each;
}

pending *fences_end(fences *all, pjrt_fence fence, int code, const char *message, size_t size, const char *payloads,
                    size_t payloads_size) {
  pending *each = fences_find(all, fence);
  if (each == NULL || each->is_ended) return NULL;
  each->is_ended = true;
  each->code = code;
  each->message = copy_of(message, size < PJRT_DRIVER_MESSAGE_SIZE ? size : PJRT_DRIVER_MESSAGE_SIZE - 1);
  if (payloads_size) bytes_add(&each->payloads, payloads, payloads_size);
  return each->function ? fences_take(all, fence) : NULL;
}

int fences_follow(fences *all, pjrt_fence fence, pjrt_driver_done function, void *arg, pending **ended, char *message) {
  pending *each = fences_find(all, fence);
  *ended = NULL;
  if (each == NULL) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the fence %llu is unknown", (unsigned long long)fence);
    return PJRT_Error_Code_INTERNAL;
  }
  each->function = function;
  each->arg = arg;
  if (each->is_ended) *ended = fences_take(all, fence);
  return 0;
}

void pending_free(pending *each) {
  free(each->message);
  free(each->payloads.data);
  free(each);
}

void fences_free(fences *all) {
  for (size_t i = 0; i < FENCE_BUCKETS; ++i) {
    for (pending *each; (each = all->buckets[i]);) {
      all->buckets[i] = each->next;
      pending_free(each);
    }
  }
}

static _Thread_local const pending *is_told; /* whose end this thread tells */

void pending_tell(pending *owned) {
  const pending *before = is_told;
  is_told = owned;
  owned->function(owned->arg, owned->code, owned->message);
  is_told = before;
  pending_free(owned);
}

int pending_payload(pjrt_driver *driver, size_t device, pjrt_fence fence, size_t index, const char **name,
                    const char **value, size_t *size) {
  (void)driver, (void)device;
  return is_told->fence == fence ? payload_at(&is_told->payloads, index, name, value, size) : 0;
}

void waiting_wake(void *arg, int code, const char *message) {
  waiting *each = arg;
  pthread_mutex_lock(&each->mutex);
  each->is_done = true;
  each->code = code;
  snprintf(each->message, PJRT_DRIVER_MESSAGE_SIZE, "%s", message);
  pthread_cond_signal(&each->changed);
  pthread_mutex_unlock(&each->mutex);
}

int waiting_sleep(waiting *each) {
  pthread_mutex_lock(&each->mutex);
  while (!each->is_done) pthread_cond_wait(&each->changed, &each->mutex);
  pthread_mutex_unlock(&each->mutex);
  return each->code;
}
