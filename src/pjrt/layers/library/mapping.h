/* Memory that is shared with a file. */
#ifndef PJRT_LAYER_TRACE_MAPPING_H_
#define PJRT_LAYER_TRACE_MAPPING_H_

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "pjrt_support/system.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

static inline uint64_t trace_process(void) { return (uint64_t)getpid(); }

static inline uint64_t trace_thread(char name[16]) {
  name[0] = 0;
#ifdef __linux__
  pthread_getname_np(pthread_self(), name, 16);
  return (uint64_t)syscall(SYS_gettid);
#elif defined(__APPLE__)
  uint64_t number = 0;
  pthread_getname_np(pthread_self(), name, 16);
  pthread_threadid_np(NULL, &number);
  return number;
#else
  return (uint64_t)(uintptr_t)pthread_self();
#endif
}

static inline int64_t trace_wall_clock(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Takes the place on the disk at once: a full disk would otherwise end the process at some write to the memory. */
static inline int trace_allocate(int file, size_t size) {
  struct statvfs room;
  /* Asked before: the file system may fill the disk first, and then refuse. */
  if (fstatvfs(file, &room) == 0 && (double)room.f_bavail * (double)room.f_frsize < (double)size) return ENOSPC;
#ifdef __APPLE__
  fstore_t store = {F_ALLOCATEALL, F_PEOFPOSMODE, 0, (off_t)size, 0};
  if (fcntl(file, F_PREALLOCATE, &store) != 0) return errno;
  return ftruncate(file, (off_t)size) == 0 ? 0 : errno;
#else
  return posix_fallocate(file, 0, (off_t)size);
#endif
}

/* Null with a problem on failure. A file that exists is replaced, not changed: another process may still write to it. */
static inline void *trace_map(const char *path, size_t size, char *problem, size_t problem_size) {
  struct stat status;
  if (lstat(path, &status) == 0 && S_ISREG(status.st_mode)) unlink(path);
  const int file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    snprintf(problem, problem_size, "%s: %s", path, strerror(errno));
    return NULL;
  }
  int failure = trace_allocate(file, size);
  void *memory = NULL;
  if (failure == 0) {
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory == MAP_FAILED) {
      failure = errno;
      memory = NULL;
    }
  }
  if (memory == NULL) {
    snprintf(problem, problem_size, "%s: no room for %zu bytes: %s", path, size, strerror(failure));
    unlink(path);
  }
  close(file);
  return memory;
}

static inline void trace_unmap(void *memory, size_t size) { munmap(memory, size); }

/* The system writes the memory at its leisure; this only starts it, as nobody waits for the disk. */
static inline void trace_sync(void *memory, size_t size) { msync(memory, size, MS_ASYNC); }

#endif /* PJRT_LAYER_TRACE_MAPPING_H_ */
