/* What differs between operating systems, for the C parts of this package. Each system has a header with the same
 * functions; everything else names no system.
 *
 * pjrt_mutex, PJRT_MUTEX_INITIALIZER   as in POSIX: pjrt_mutex_init, _lock, _unlock, _destroy
 * pjrt_condition                       pjrt_condition_init, _wait, _wait_for, _broadcast, _destroy
 * pjrt_seconds                         a clock that only goes forward
 * pjrt_sleep                           for a number of seconds
 * pjrt_find_function                   in all libraries that the process has loaded, or in one
 * pjrt_open_library                    with its symbols for everyone
 * pjrt_library_error                   why the last opening failed; valid until the next call
 * PJRT_EXPORTED                        before a function that others find in a library
 */
#ifndef PJRT_SUPPORT_SYSTEM_H_
#define PJRT_SUPPORT_SYSTEM_H_

#ifdef _WIN32
#include "system/windows.h"
#else
#include "system/posix.h"
#endif

#endif /* PJRT_SUPPORT_SYSTEM_H_ */
