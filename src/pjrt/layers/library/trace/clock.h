/* The clock of traces: the processor's counter where it runs at one speed, else the system's monotonic clock.
 *
 * Reading the counter takes a third of the time of clock_gettime. Its speed is not known: the reader of a trace derives
 * it from anchors, which are pairs of the counter and the monotonic clock. */
#ifndef PJRT_LAYER_TRACE_CLOCK_H_
#define PJRT_LAYER_TRACE_CLOCK_H_

#include <stdbool.h>
#include <stdint.h>

#include "pjrt_support/system.h"

#if defined(__x86_64__)
#include <cpuid.h>
#define TRACE_HAS_COUNTER 1
/* As __rdtsc, whose header declares all vector instructions: reading it takes longer than compiling a file here. */
static inline uint64_t trace_counter(void) { return __builtin_ia32_rdtsc(); }
#elif defined(__aarch64__)
#define TRACE_HAS_COUNTER 1
static inline uint64_t trace_counter(void) {
  uint64_t ticks;
  __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
}
#else
#define TRACE_HAS_COUNTER 0
static inline uint64_t trace_counter(void) { return 0; }
#endif

/* Whether the counter has one speed, whatever the processor does to save energy. */
static inline bool trace_counter_is_steady(void) {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  return __get_cpuid(0x80000007, &a, &b, &c, &d) && ((d >> 8) & 1);
#else
  return TRACE_HAS_COUNTER;
#endif
}

static inline uint64_t trace_nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

#endif /* PJRT_LAYER_TRACE_CLOCK_H_ */
