/* Linux with glibc: the function of library_waits.h. A library calls what it imports through slots that the loader has
 * filled with addresses; here they are filled with others. */
#ifndef PJRT_SUPPORT_SYSTEM_LINUX_LIBRARY_WAITS_H_
#define PJRT_SUPPORT_SYSTEM_LINUX_LIBRARY_WAITS_H_

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../gil.h"

/* The head of C++'s std::unique_lock<std::mutex>, whose std::mutex is one of POSIX. */
typedef struct pjrt_unique_lock {
  pthread_mutex_t *mutex;
} pjrt_unique_lock;

/* Functions of C++, and those that not every system declares on which this is built. */
static int (*pjrt_real_cond_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static void (*pjrt_real_condition_variable_wait)(void *, pjrt_unique_lock *);
static bool (*pjrt_real_atomic_futex_wait)(void *, unsigned *, unsigned, bool, int64_t, int64_t);
static int (*pjrt_real_guard_acquire)(int64_t *);

/* A thread must neither wait for a lock while it holds the GIL, nor wait for the GIL while it holds a lock that it
 * waited for: another thread may hold the one and want the other. So the lock is released, and tried again with the
 * GIL held. */
#define PJRT_LOCKS_LETTING_GO(name, type, try_lock, lock, unlock) \
  static int name(type *it) {                                     \
    int result = try_lock(it);                                    \
    if (result != EBUSY) return result;                           \
    if (!pjrt_gil_is_held()) return lock(it);                     \
    do {                                                          \
      PyThreadState *state = PyEval_SaveThread();                 \
      result = lock(it);                                          \
      if (result == 0) unlock(it);                                \
      PyEval_RestoreThread(state);                                \
      if (result != 0) return result;                             \
      result = try_lock(it);                                      \
    } while (result == EBUSY);                                    \
    return result;                                                \
  }

PJRT_LOCKS_LETTING_GO(
    pjrt_letting_mutex_lock, pthread_mutex_t, pthread_mutex_trylock, pthread_mutex_lock, pthread_mutex_unlock)
PJRT_LOCKS_LETTING_GO(
    pjrt_letting_rdlock, pthread_rwlock_t, pthread_rwlock_tryrdlock, pthread_rwlock_rdlock, pthread_rwlock_unlock)
PJRT_LOCKS_LETTING_GO(
    pjrt_letting_wrlock, pthread_rwlock_t, pthread_rwlock_trywrlock, pthread_rwlock_wrlock, pthread_rwlock_unlock)

/* Takes the GIL back after a wait for a condition, which ends with its mutex locked. */
static void pjrt_take_back_beside(PyThreadState *state, pthread_mutex_t *mutex) {
  if (state == NULL) return;
  pthread_mutex_unlock(mutex);
  PyEval_RestoreThread(state);
  pjrt_letting_mutex_lock(mutex);
}

static int pjrt_letting_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex) {
  PyThreadState *state = pjrt_gil_let_go();
  const int result = pthread_cond_wait(condition, mutex);
  pjrt_take_back_beside(state, mutex);
  return result;
}

static int pjrt_letting_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until) {
  PyThreadState *state = pjrt_gil_let_go();
  const int result = pthread_cond_timedwait(condition, mutex, until);
  pjrt_take_back_beside(state, mutex);
  return result;
}

static int pjrt_letting_cond_clockwait(
    pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
  PyThreadState *state = pjrt_gil_let_go();
  const int result = pjrt_real_cond_clockwait(condition, mutex, clock, until);
  pjrt_take_back_beside(state, mutex);
  return result;
}

/* std::condition_variable::wait(std::unique_lock<std::mutex> &) */
static void pjrt_letting_condition_variable_wait(void *condition, pjrt_unique_lock *lock) {
  PyThreadState *state = pjrt_gil_let_go();
  pjrt_real_condition_variable_wait(condition, lock);
  pjrt_take_back_beside(state, lock->mutex);
}

/* The wait of std::future. */
static bool pjrt_letting_atomic_futex_wait(
    void *self, unsigned *address, unsigned value, bool has_timeout, int64_t seconds, int64_t nanoseconds) {
  PyThreadState *state = pjrt_gil_let_go();
  const bool result = pjrt_real_atomic_futex_wait(self, address, value, has_timeout, seconds, nanoseconds);
  pjrt_gil_take_back(state);
  return result;
}

/* Called before a static variable of a function is initialized; it waits where another thread is initializing it. */
static int pjrt_letting_guard_acquire(int64_t *guard) {
  PyThreadState *state = pjrt_gil_let_go();
  const int result = pjrt_real_guard_acquire(guard);
  pjrt_gil_take_back(state);
  return result;
}

static int pjrt_letting_sem_wait(sem_t *semaphore) {
  PyThreadState *state = pjrt_gil_let_go();
  const int result = sem_wait(semaphore);
  const int error = errno;
  pjrt_gil_take_back(state);
  errno = error;
  return result;
}

/* Waits that are written with the system call itself, as those of Abseil; every other call goes through as it is. */
static long pjrt_letting_syscall(long number, long a, long b, long c, long d, long e, long f) {
  const int command = (int)b & FUTEX_CMD_MASK;
  const bool waits = number == SYS_futex && (command == FUTEX_WAIT || command == FUTEX_WAIT_BITSET);
  PyThreadState *state = waits ? pjrt_gil_let_go() : NULL;
  const long result = syscall(number, a, b, c, d, e, f);
  const int error = errno;
  pjrt_gil_take_back(state);
  errno = error;
  return result;
}

typedef struct pjrt_wait_function {
  const char *name;
  void *ours;
  void **real; /* where our function finds the real one, if not by name */
} pjrt_wait_function;

static const pjrt_wait_function pjrt_wait_functions[] = {
    {"pthread_mutex_lock", (void *)pjrt_letting_mutex_lock, NULL},
    {"pthread_rwlock_rdlock", (void *)pjrt_letting_rdlock, NULL},
    {"pthread_rwlock_wrlock", (void *)pjrt_letting_wrlock, NULL},
    {"pthread_cond_wait", (void *)pjrt_letting_cond_wait, NULL},
    {"pthread_cond_timedwait", (void *)pjrt_letting_cond_timedwait, NULL},
    {"pthread_cond_clockwait", (void *)pjrt_letting_cond_clockwait, (void **)&pjrt_real_cond_clockwait},
    {"_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE", (void *)pjrt_letting_condition_variable_wait,
     (void **)&pjrt_real_condition_variable_wait},
    {"_ZNSt28__atomic_futex_unsigned_base19_M_futex_wait_untilEPjjbNSt6chrono8durationIlSt5ratioILl1ELl1EEEENS2_IlS3_"
     "ILl1ELl1000000000EEEE",
     (void *)pjrt_letting_atomic_futex_wait, (void **)&pjrt_real_atomic_futex_wait},
    {"__cxa_guard_acquire", (void *)pjrt_letting_guard_acquire, (void **)&pjrt_real_guard_acquire},
    {"sem_wait", (void *)pjrt_letting_sem_wait, NULL},
    {"syscall", (void *)pjrt_letting_syscall, NULL},
};

/* A loaded library, and the part of it that the loader has made read-only once it was filled. */
typedef struct pjrt_loaded {
  ElfW(Addr) base;
  ElfW(Addr) sealed_begin, sealed_end;
} pjrt_loaded;

static int pjrt_find_sealed(struct dl_phdr_info *info, size_t size, void *data) {
  pjrt_loaded *library = (pjrt_loaded *)data;
  (void)size;
  if (info->dlpi_addr != library->base) return 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_GNU_RELRO) continue;
    library->sealed_begin = library->base + info->dlpi_phdr[i].p_vaddr;
    library->sealed_end = library->sealed_begin + info->dlpi_phdr[i].p_memsz;
  }
  return 1;
}

static bool pjrt_fill_slot(const pjrt_loaded *library, void **slot, void *function) {
  const ElfW(Addr) address = (ElfW(Addr))slot, page_size = (ElfW(Addr))sysconf(_SC_PAGESIZE);
  void *page = (void *)(address & ~(page_size - 1));
  const bool is_sealed = address >= library->sealed_begin && address < library->sealed_end;
  if (is_sealed && mprotect(page, page_size, PROT_READ | PROT_WRITE) != 0) return false;
  __atomic_store_n(slot, function, __ATOMIC_RELEASE);
  if (is_sealed) mprotect(page, page_size, PROT_READ);
  return true;
}

/* Replaces the functions of the table in one of the library's lists of slots. */
static int pjrt_fill_slots(const pjrt_loaded *library, void *handle, const ElfW(Rela) *slots, size_t number,
                           const ElfW(Sym) *symbols, const char *names) {
#ifdef __x86_64__
  const unsigned in_table = R_X86_64_GLOB_DAT, called = R_X86_64_JUMP_SLOT;
#else
  const unsigned in_table = R_AARCH64_GLOB_DAT, called = R_AARCH64_JUMP_SLOT;
#endif
  int replaced = 0;
  for (size_t i = 0; i < number; i++) {
    const unsigned type = (unsigned)ELF64_R_TYPE(slots[i].r_info);
    if (type != in_table && type != called) continue;
    const char *name = names + symbols[ELF64_R_SYM(slots[i].r_info)].st_name;
    for (size_t k = 0; k < sizeof pjrt_wait_functions / sizeof *pjrt_wait_functions; k++) {
      const pjrt_wait_function *function = &pjrt_wait_functions[k];
      if (strcmp(name, function->name) != 0) continue;
      /* Not what the slot holds: that may be the loader, which would look the function up and fill the slot with it. */
      if (function->real != NULL && *function->real == NULL) *function->real = dlsym(RTLD_DEFAULT, name);
      if (function->real != NULL && *function->real == NULL) *function->real = dlsym(handle, name);
      if (function->real != NULL && *function->real == NULL) continue;
      replaced += pjrt_fill_slot(library, (void **)(library->base + slots[i].r_offset), function->ours);
    }
  }
  return replaced;
}

static inline int pjrt_library_waits_let_go(const char *path) {
  void *handle = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
  struct link_map *map = NULL;
  if (handle == NULL || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) return 0;
  const ElfW(Rela) *called = NULL, *others = NULL;
  const ElfW(Sym) *symbols = NULL;
  const char *names = NULL;
  size_t called_size = 0, others_size = 0;
  for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
    /* glibc writes addresses into this list on most processors, and leaves offsets on others. */
    ElfW(Addr) address = entry->d_un.d_ptr;
    if (address < map->l_addr) address += map->l_addr;
    switch (entry->d_tag) {
      case DT_JMPREL: called = (const ElfW(Rela) *)address; break;
      case DT_PLTRELSZ: called_size = entry->d_un.d_val; break;
      case DT_RELA: others = (const ElfW(Rela) *)address; break;
      case DT_RELASZ: others_size = entry->d_un.d_val; break;
      case DT_SYMTAB: symbols = (const ElfW(Sym) *)address; break;
      case DT_STRTAB: names = (const char *)address; break;
      default: break;
    }
  }
  pjrt_loaded library = {map->l_addr, 0, 0};
  dl_iterate_phdr(pjrt_find_sealed, &library);
  int replaced = 0;
  if (called != NULL) replaced += pjrt_fill_slots(&library, handle, called, called_size / sizeof *called, symbols, names);
  if (others != NULL) replaced += pjrt_fill_slots(&library, handle, others, others_size / sizeof *others, symbols, names);
  /* The slots name functions of this module from now on, and the library may call them as long as it is there. */
  if (replaced == 0) dlclose(handle);
  return replaced;
}

#endif /* PJRT_SUPPORT_SYSTEM_LINUX_LIBRARY_WAITS_H_ */
