/* One thread a device, which runs its work in the order in which it became ready to run. */
#include "tiny.h"

typedef struct item {
  tiny_queue *queue;
  tiny_task task;
  void *arg;
  atomic_size_t waiting; /* promises that are not set yet, and one for the call that registers */
  struct item *next;
} item;

struct tiny_queue {
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  item *first, **last;
  size_t outstanding; /* queued, running, or waiting for a promise */
  bool stop, draining;
  tiny_queue *next; /* all queues of the process, for hold */
};

static pthread_mutex_t all_mutex = PTHREAD_MUTEX_INITIALIZER;
static tiny_queue *all_queues;
static atomic_bool held;

static void *run(void *arg) {
  tiny_queue *queue = arg;
  pthread_mutex_lock(&queue->mutex);
  for (;;) {
    while (!(queue->first && (queue->draining || !atomic_load(&held))) && !(queue->stop && !queue->first))
      pthread_cond_wait(&queue->changed, &queue->mutex);
    item *each = queue->first;
    if (each == NULL) break;
    queue->first = each->next;
    if (queue->first == NULL) queue->last = &queue->first;
    pthread_mutex_unlock(&queue->mutex);
    each->task(each->arg);
    free(each);
    pthread_mutex_lock(&queue->mutex);
    --queue->outstanding;
    pthread_cond_broadcast(&queue->changed);
  }
  pthread_mutex_unlock(&queue->mutex);
  return NULL;
}

tiny_queue *queue_start(void) {
  tiny_queue *queue = tiny_calloc(1, sizeof *queue);
  pthread_mutex_init(&queue->mutex, NULL);
  pthread_cond_init(&queue->changed, NULL);
  queue->last = &queue->first;
  if (pthread_create(&queue->thread, NULL, run, queue) != 0) {
    fputs("tiny plugin: no thread to be had\n", stderr);
    abort();
  }
  pthread_mutex_lock(&all_mutex);
  queue->next = all_queues;
  all_queues = queue;
  pthread_mutex_unlock(&all_mutex);
  return queue;
}

static void enqueue(item *each) {
  tiny_queue *queue = each->queue;
  pthread_mutex_lock(&queue->mutex);
  *queue->last = each;
  queue->last = &each->next;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->mutex);
}

static void one_less(tiny_status *borrowed, void *arg) {
  (void)borrowed;
  item *each = arg;
  if (atomic_fetch_sub(&each->waiting, 1) == 1) enqueue(each);
}

void queue_push_after(tiny_queue *queue, tiny_promise *const *deps, size_t num_deps, tiny_task task, void *arg) {
  if (queue == NULL) {
    for (size_t i = 0; i < num_deps; ++i) promise_wait(deps[i]);
    task(arg);
    return;
  }
  item *each = tiny_calloc(1, sizeof *each);
  each->queue = queue;
  each->task = task;
  each->arg = arg;
  atomic_init(&each->waiting, num_deps + 1);
  pthread_mutex_lock(&queue->mutex);
  ++queue->outstanding;
  pthread_mutex_unlock(&queue->mutex);
  for (size_t i = 0; i < num_deps; ++i) promise_then(deps[i], one_less, each);
  one_less(NULL, each);
}

void queue_push(tiny_queue *queue, tiny_task task, void *arg) { queue_push_after(queue, NULL, 0, task, arg); }

bool queue_is_current(tiny_queue *queue) { return pthread_equal(queue->thread, pthread_self()) != 0; }

void queue_drain(tiny_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  queue->draining = true;
  pthread_cond_broadcast(&queue->changed);
  while (queue->outstanding) pthread_cond_wait(&queue->changed, &queue->mutex);
  queue->draining = false;
  pthread_mutex_unlock(&queue->mutex);
}

void queue_stop(tiny_queue *queue) {
  pthread_mutex_lock(&queue->mutex);
  queue->stop = true;
  pthread_cond_broadcast(&queue->changed);
  pthread_mutex_unlock(&queue->mutex);
  pthread_join(queue->thread, NULL);
  pthread_mutex_lock(&all_mutex);
  for (tiny_queue **each = &all_queues; *each; each = &(*each)->next) {
    if (*each == queue) {
      *each = queue->next;
      break;
    }
  }
  pthread_mutex_unlock(&all_mutex);
  pthread_cond_destroy(&queue->changed);
  pthread_mutex_destroy(&queue->mutex);
  free(queue);
}

void queues_hold(bool hold) {
  atomic_store(&held, hold);
  pthread_mutex_lock(&all_mutex);
  for (tiny_queue *each = all_queues; each; each = each->next) {
    pthread_mutex_lock(&each->mutex);
    pthread_cond_broadcast(&each->changed);
    pthread_mutex_unlock(&each->mutex);
  }
  pthread_mutex_unlock(&all_mutex);
}
