/* Windows: the functions of interrupt.h. */
#ifndef PJRT_SUPPORT_SYSTEM_WINDOWS_INTERRUPT_H_
#define PJRT_SUPPORT_SYSTEM_WINDOWS_INTERRUPT_H_

#include <limits.h>

#include "windows.h"

/* Ctrl-C: the system calls all handlers on a thread of its own, the last one first, until one reports that it handled
 * the signal. Ours never does, so that Python's comes next. */
static HANDLE pjrt_interrupt_seen;

static BOOL WINAPI pjrt_on_interrupt(DWORD kind) {
  if (kind == CTRL_C_EVENT) ReleaseSemaphore(pjrt_interrupt_seen, 1, NULL);
  return FALSE;
}

/* Whether Ctrl-C comes here from now on. */
static inline bool pjrt_interrupt_watch(void) {
  if (pjrt_interrupt_seen != NULL) return true;
  HANDLE fresh = CreateSemaphoreW(NULL, 0, LONG_MAX, NULL);
  if (fresh == NULL) return false;
  pjrt_interrupt_seen = fresh;
  return SetConsoleCtrlHandler(pjrt_on_interrupt, TRUE) != 0;
}

/* Blocks until the next Ctrl-C. */
static inline void pjrt_interrupt_wait(void) { WaitForSingleObject(pjrt_interrupt_seen, INFINITE); }

#endif /* PJRT_SUPPORT_SYSTEM_WINDOWS_INTERRUPT_H_ */
