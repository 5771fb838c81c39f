/* Questions about the running process: call stacks, names of functions, memory that can be read. Windows has only
 * pjrt_readable: the layers, which need the others, are not built there.
 *
 * pjrt_call_stack     the return addresses of the running thread, innermost first
 * pjrt_symbol         the library and the function behind such an address
 * pjrt_on_own_stack   whether memory lies on the stack of the running thread, and so can be read
 * pjrt_readable       whether memory can be read; asks the system, and never faults
 * pjrt_thread_id      the system's number of the running thread
 * pjrt_is_main_thread whether it is the first thread of the process
 */
#ifndef PJRT_SUPPORT_INSPECTION_H_
#define PJRT_SUPPORT_INSPECTION_H_

#include "system.h"

#include <stdint.h>

typedef struct pjrt_memory_range {
  const void *start;
  size_t size;
} pjrt_memory_range;

typedef struct pjrt_symbol_place {
  const char *library;  /* null where it is unknown */
  const char *function; /* null where it is unknown */
  size_t offset;        /* from the function, else from the library, else the address itself */
} pjrt_symbol_place;

#ifdef _WIN32
#include "system/windows_inspection.h"
#else
#include "system/posix_inspection.h"
#endif

#endif /* PJRT_SUPPORT_INSPECTION_H_ */
