/* Linux and macOS: the functions that inspection.h lists. */
#ifndef PJRT_SUPPORT_SYSTEM_POSIX_INSPECTION_H_
#define PJRT_SUPPORT_SYSTEM_POSIX_INSPECTION_H_

#include "posix.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#if defined(__GLIBC__) || defined(__APPLE__)
#include <execinfo.h>
#define PJRT_HAS_BACKTRACE 1
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <sys/uio.h>
#endif

static inline size_t pjrt_call_stack(void **addresses, size_t capacity) {
#ifdef PJRT_HAS_BACKTRACE
  const int count = backtrace(addresses, (int)capacity);
  return count > 0 ? (size_t)count : 0;
#else
  (void)addresses;
  (void)capacity;
  return 0;
#endif
}

static inline pjrt_symbol_place pjrt_symbol(void *address) {
  pjrt_symbol_place place = {NULL, NULL, (size_t)address};
  Dl_info info;
  if (dladdr(address, &info) == 0) return place;
  place.library = info.dli_fname;
  place.function = info.dli_sname;
  place.offset = (size_t)((char *)address - (char *)(info.dli_sname != NULL ? info.dli_saddr : info.dli_fbase));
  return place;
}

static inline uint64_t pjrt_thread_id(void) {
  static _Thread_local uint64_t number;
  if (number != 0) return number;
#ifdef __linux__
  number = (uint64_t)syscall(SYS_gettid);
#else
  pthread_threadid_np(NULL, &number);
#endif
  return number;
}

static inline bool pjrt_is_main_thread(void) {
#ifdef __linux__
  return pjrt_thread_id() == (uint64_t)getpid();
#else
  return pthread_main_np() != 0;
#endif
}

/* The bounds are asked for once a thread: the main thread's stack may grow below them later, which costs speed alone. */
static inline bool pjrt_on_own_stack(const void *start, size_t size) {
  static _Thread_local const char *low, *high;
  if (high == NULL) {
#ifdef __linux__
    pthread_attr_t attributes;
    void *base = NULL;
    size_t length = 0;
    high = (const char *)1;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
      if (pthread_attr_getstack(&attributes, &base, &length) == 0) high = (const char *)base + length;
      pthread_attr_destroy(&attributes);
    }
#else
    high = (const char *)pthread_get_stackaddr_np(pthread_self());
#endif
  }
  /* What lies above this function's own frame is in use, so it is mapped. */
  low = (const char *)__builtin_frame_address(0);
  return (const char *)start >= low && (const char *)start < high && size <= (size_t)(high - (const char *)start);
}

enum { PJRT_PROBED_PAGES = 64, PJRT_PAGE = 4096, PJRT_MOST_PAGES = 4096 };

/* Writes the bytes into a pipe: the system answers EFAULT for one that cannot be read. */
static inline bool pjrt_readable_by_pipe(const void *const *bytes, size_t count) {
  int ends[2];
  bool readable = true;
  if (pipe(ends) != 0) return true; /* no answer: the memory gets the benefit of the doubt */
  for (size_t i = 0; i < count && readable; i++) readable = write(ends[1], bytes[i], 1) == 1 || errno != EFAULT;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

static inline bool pjrt_bytes_readable(const void *const *bytes, size_t count) {
#ifdef __linux__
  enum { FEW = 4, SIGNALS = 8 };
  /* For few: the kernel reads a set of signals before it refuses to change the mask in an unknown way. */
  for (size_t i = 0; i < count && count <= FEW; i++) {
    const uintptr_t words = (uintptr_t)bytes[i] & ~(uintptr_t)(SIGNALS - 1);
    if (syscall(SYS_rt_sigprocmask, -1L, words, 0L, (long)SIGNALS) == 0 || errno != EINVAL) return false;
  }
  if (count <= FEW) return true;
  struct iovec remote[PJRT_PROBED_PAGES];
  char sink[PJRT_PROBED_PAGES];
  const struct iovec local = {sink, count};
  for (size_t i = 0; i < count; i++) {
    remote[i].iov_base = (void *)(uintptr_t)bytes[i];
    remote[i].iov_len = 1;
  }
  const long done = syscall(SYS_process_vm_readv, (long)getpid(), &local, 1L, remote, (long)count, 0L);
  if (done == (long)count) return true;
  if (done >= 0 || errno == EFAULT) return false;
#endif
  return pjrt_readable_by_pipe(bytes, count); /* a container may forbid the faster call */
}

/* Asks for one byte of each page; of ranges of more than 16 MiB for the first pages and the last byte. */
static inline bool pjrt_readable(const pjrt_memory_range *ranges, size_t count) {
  const void *bytes[PJRT_PROBED_PAGES];
  size_t number = 0;
  for (size_t i = 0; i < count; i++) {
    const char *start = (const char *)ranges[i].start;
    if (ranges[i].size == 0 || pjrt_on_own_stack(start, ranges[i].size)) continue;
    if ((uintptr_t)start > UINTPTR_MAX - ranges[i].size) return false;
    const char *last = start + (ranges[i].size - 1);
    const char *page = start;
    for (int pages = 0; page < last && pages < PJRT_MOST_PAGES; pages++) {
      if (number == PJRT_PROBED_PAGES) {
        if (!pjrt_bytes_readable(bytes, number)) return false;
        number = 0;
      }
      bytes[number++] = page;
      page = (const char *)(((uintptr_t)page & ~(uintptr_t)(PJRT_PAGE - 1)) + PJRT_PAGE);
    }
    if (number == PJRT_PROBED_PAGES) {
      if (!pjrt_bytes_readable(bytes, number)) return false;
      number = 0;
    }
    bytes[number++] = last;
  }
  return number == 0 || pjrt_bytes_readable(bytes, number);
}

#endif /* PJRT_SUPPORT_SYSTEM_POSIX_INSPECTION_H_ */
