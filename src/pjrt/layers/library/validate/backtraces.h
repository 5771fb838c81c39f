/* Call stacks, each kept once: addresses of C, and lines of Python where Python runs in the process. */
#ifndef PJRT_LAYER_VALIDATE_BACKTRACES_H_
#define PJRT_LAYER_VALIDATE_BACKTRACES_H_

#include <stdint.h>

#include "json.h"

/* The number of the running thread's call stack; 0 where there is none. The same stack has the same number. */
uint32_t pjrt_backtrace_take(void);

/* Writes a JSON list of frames, innermost first: those of Python, then those of C, whose names are looked up now. */
void pjrt_backtrace_write(pjrt_json *json, uint32_t number);
/* Writes the frames as lines of text. */
void pjrt_backtrace_print(pjrt_json *text, uint32_t number, const char *indent);

#endif /* PJRT_LAYER_VALIDATE_BACKTRACES_H_ */
