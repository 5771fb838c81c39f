/* Libraries that wait with the GIL held: pjrt_library_waits_let_go makes all waits of one release it.
 *
 * A library that waits in native code for a thread that needs Python must release the GIL first, or both wait for
 * ever. For one that does not, each function that it imports in order to wait is replaced by one that releases the GIL,
 * where the waiting thread holds it, waits, and takes it back. Callers of the library notice nothing: it is as if the
 * library had done so itself.
 *
 * pjrt_library_waits_let_go(path)   returns how many imported functions were replaced, now or before; 0 where the
 *                                   library is not loaded or imports none, or the system is not one where this works
 */
#ifndef PJRT_SUPPORT_LIBRARY_WAITS_H_
#define PJRT_SUPPORT_LIBRARY_WAITS_H_

#if defined(__linux__) && defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#include "system/linux_library_waits.h"
#else
static inline int pjrt_library_waits_let_go(const char *path) {
  (void)path;
  return 0;
}
#endif

#endif /* PJRT_SUPPORT_LIBRARY_WAITS_H_ */
