/* A thread that never ends, of a library that is not told when it is not needed any more. */
#include <pthread.h>
#include <unistd.h>

static void *linger(void *arg) {
  for (;;) pause();
  return arg;
}

__attribute__((constructor)) static void start(void) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, linger, NULL) == 0) pthread_detach(thread);
}
