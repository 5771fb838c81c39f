/* Ctrl-C, noticed beside Python's own handler: pjrt_interrupt_watch registers for it, pjrt_interrupt_wait waits for
 * the next one. */
#ifndef PJRT_SUPPORT_INTERRUPT_H_
#define PJRT_SUPPORT_INTERRUPT_H_

#ifdef _WIN32
#include "system/windows_interrupt.h"
#else
#include "system/posix_interrupt.h"
#endif

#endif /* PJRT_SUPPORT_INTERRUPT_H_ */
