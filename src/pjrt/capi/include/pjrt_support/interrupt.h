/* Ctrl-C, noticed beside Python's own handler: the signal goes on to that one, and wakes whoever waits for it here. */
#ifndef PJRT_SUPPORT_INTERRUPT_H_
#define PJRT_SUPPORT_INTERRUPT_H_

#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>

static struct sigaction pjrt_interrupt_previous;
static sem_t pjrt_interrupt_seen;

static void pjrt_on_interrupt(int number, siginfo_t *info, void *context) {
  const int saved = errno;
  if (pjrt_interrupt_previous.sa_flags & SA_SIGINFO) pjrt_interrupt_previous.sa_sigaction(number, info, context);
  else pjrt_interrupt_previous.sa_handler(number);
  sem_post(&pjrt_interrupt_seen);
  errno = saved;
}

/* Whether the signal comes here from now on; not where nobody handles it, for then it ends the process anyway. */
static inline bool pjrt_interrupt_watch(void) {
  struct sigaction ours, found;
  if (sigaction(SIGINT, NULL, &found) != 0) return false;
  if (!(found.sa_flags & SA_SIGINFO) && (found.sa_handler == SIG_DFL || found.sa_handler == SIG_IGN)) return false;
  if (found.sa_flags & SA_SIGINFO && found.sa_sigaction == pjrt_on_interrupt) return true;
  if (sem_init(&pjrt_interrupt_seen, 0, 0) != 0) return false;
  pjrt_interrupt_previous = found;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = pjrt_on_interrupt;
  ours.sa_mask = found.sa_mask;
  ours.sa_flags = found.sa_flags | SA_SIGINFO;
  return sigaction(SIGINT, &ours, NULL) == 0;
}

static inline void pjrt_interrupt_wait(void) {
  while (sem_wait(&pjrt_interrupt_seen) != 0 && errno == EINTR) {
  }
}

#endif /* PJRT_SUPPORT_INTERRUPT_H_ */
