/* Linux and macOS: the functions of interrupt.h. */
#ifndef PJRT_SUPPORT_SYSTEM_POSIX_INTERRUPT_H_
#define PJRT_SUPPORT_SYSTEM_POSIX_INTERRUPT_H_

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

/* Ctrl-C: the signal goes on to the previous handler, and a byte goes through a pipe to the thread that waits for
 * it. A child made by fork has the pipe of its parent, which it must not use, until it calls pjrt_interrupt_watch
 * itself. */
static struct sigaction pjrt_interrupt_previous;
static int pjrt_interrupt_pipe[2] = {-1, -1};
static pid_t pjrt_interrupt_process;

static void pjrt_on_interrupt(int number, siginfo_t *info, void *context) {
  const int saved = errno;
  if (pjrt_interrupt_previous.sa_flags & SA_SIGINFO) pjrt_interrupt_previous.sa_sigaction(number, info, context);
  else pjrt_interrupt_previous.sa_handler(number);
  /* A full pipe wakes its reader as well. */
  if (getpid() == pjrt_interrupt_process && write(pjrt_interrupt_pipe[1], "", 1) < 0) errno = 0;
  errno = saved;
}

static inline bool pjrt_interrupt_make_pipe(void) {
  if (pjrt_interrupt_process == getpid()) return true;
  int fresh[2];
  if (pipe(fresh) != 0) return false;
  for (int i = 0; i < 2; i++) fcntl(fresh[i], F_SETFD, FD_CLOEXEC);
  fcntl(fresh[1], F_SETFL, O_NONBLOCK);
  if (pjrt_interrupt_process != 0) {
    close(pjrt_interrupt_pipe[0]);
    close(pjrt_interrupt_pipe[1]);
  }
  memcpy(pjrt_interrupt_pipe, fresh, sizeof fresh);
  pjrt_interrupt_process = getpid();
  return true;
}

/* Returns whether the signal arrives here from now on. It does not where the process has no handler: it then ends
 * the process. */
static inline bool pjrt_interrupt_watch(void) {
  struct sigaction ours, found;
  if (sigaction(SIGINT, NULL, &found) != 0) return false;
  if (!(found.sa_flags & SA_SIGINFO) && (found.sa_handler == SIG_DFL || found.sa_handler == SIG_IGN)) return false;
  if (!pjrt_interrupt_make_pipe()) return false;
  if (found.sa_flags & SA_SIGINFO && found.sa_sigaction == pjrt_on_interrupt) return true;
  pjrt_interrupt_previous = found;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = pjrt_on_interrupt;
  ours.sa_mask = found.sa_mask;
  ours.sa_flags = found.sa_flags | SA_SIGINFO;
  return sigaction(SIGINT, &ours, NULL) == 0;
}

/* Blocks until the next Ctrl-C; for ever where the process has closed the pipe, as daemons close all files. */
static inline void pjrt_interrupt_wait(void) {
  char byte;
  ssize_t count;
  do count = read(pjrt_interrupt_pipe[0], &byte, 1);
  while (count < 0 && errno == EINTR);
  while (count != 1) pause();
}

#endif /* PJRT_SUPPORT_SYSTEM_POSIX_INTERRUPT_H_ */
