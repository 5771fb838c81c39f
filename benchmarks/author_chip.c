/* A chip for author_chip.py: memory of its own, and one queue on a thread, with fences. All arrays are rows. */
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ADD, SUBTRACT, MULTIPLY, DIVIDE, MAXIMUM, SQRT, DOT, COPY };
enum { ROOM = 4096 };

typedef struct command {
  int what;
  int64_t n, k, m;
  const void *x, *y;
  void *out;
} command;

static command ring[ROOM];
static uint64_t put, done;
static int64_t busy, blocked, delay;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void run(const command *c) {
  const float *x = c->x, *y = c->y;
  float *out = c->out;
#define EACH(value) for (int64_t i = 0; i < c->n; ++i) out[i] = (value); break
  switch (c->what) {
    case ADD: EACH(x[i] + y[i]);
    case SUBTRACT: EACH(x[i] - y[i]);
    case MULTIPLY: EACH(x[i] * y[i]);
    case DIVIDE: EACH(x[i] / y[i]);
    case MAXIMUM: EACH(x[i] > y[i] ? x[i] : y[i]);
    case SQRT: EACH(sqrtf(x[i]));
    case DOT: /* n x k by k x m */
      memset(out, 0, sizeof(float) * c->n * c->m);
      for (int64_t i = 0; i < c->n; ++i)
        for (int64_t l = 0; l < c->k; ++l)
          for (int64_t j = 0; j < c->m; ++j) out[i * c->m + j] += x[i * c->k + l] * y[l * c->m + j];
      break;
    case COPY: memcpy(c->out, c->x, c->n); break;
  }
}

static void *serve(void *unused) {
  pthread_mutex_lock(&lock);
  for (;;) {
    while (done == put) pthread_cond_wait(&changed, &lock);
    command c = ring[done % ROOM];
    pthread_mutex_unlock(&lock);
    int64_t begin = now();
    run(&c);
    if (delay && c.what != COPY) nanosleep(&(struct timespec){.tv_nsec = delay}, NULL);
    pthread_mutex_lock(&lock);
    busy += now() - begin;
    ++done;
    pthread_cond_broadcast(&ended);
  }
  return unused;
}

void chip_open(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, serve, NULL);
  pthread_detach(thread);
}

void *chip_allocate(int64_t bytes) { return malloc(bytes ? bytes : 1); }
void chip_free(void *memory) { free(memory); }
void chip_delay(int64_t nanoseconds) { delay = nanoseconds; } /* how much longer a kernel takes, asleep */
int64_t chip_busy(void) { return busy; }       /* nanoseconds of work */
int64_t chip_blocked(void) { return blocked; } /* waits for a fence that was not reached */

uint64_t chip_put(int what, int64_t n, int64_t k, int64_t m, const void *x, const void *y, void *out) {
  pthread_mutex_lock(&lock);
  while (put - done == ROOM) pthread_cond_wait(&ended, &lock);
  ring[put % ROOM] = (command){what, n, k, m, x, y, out};
  uint64_t fence = ++put;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
  return fence;
}

void chip_wait(uint64_t fence) {
  pthread_mutex_lock(&lock);
  blocked += done < fence;
  while (done < fence) pthread_cond_wait(&ended, &lock);
  pthread_mutex_unlock(&lock);
}
