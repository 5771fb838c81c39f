/* Windows: the functions that system.h lists. */
#ifndef PJRT_SUPPORT_SYSTEM_WINDOWS_H_
#define PJRT_SUPPORT_SYSTEM_WINDOWS_H_

#ifndef WIN32_LEAN_AND_MEAN
#define WIN32_LEAN_AND_MEAN
#endif
#ifndef NOMINMAX
#define NOMINMAX
#endif
#define PSAPI_VERSION 2 /* the list of modules comes from the system's own library */
#include <windows.h>
#include <psapi.h>
#include <stdbool.h>
#include <stddef.h>

#define PJRT_EXPORTED __declspec(dllexport)

typedef SRWLOCK pjrt_mutex;
#define PJRT_MUTEX_INITIALIZER SRWLOCK_INIT

static inline void pjrt_mutex_init(pjrt_mutex *mutex) { InitializeSRWLock(mutex); }
static inline void pjrt_mutex_lock(pjrt_mutex *mutex) { AcquireSRWLockExclusive(mutex); }
static inline void pjrt_mutex_unlock(pjrt_mutex *mutex) { ReleaseSRWLockExclusive(mutex); }
static inline void pjrt_mutex_destroy(pjrt_mutex *mutex) { (void)mutex; }

static inline double pjrt_seconds(void) {
  LARGE_INTEGER ticks, frequency;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&frequency);
  return (double)ticks.QuadPart / (double)frequency.QuadPart;
}

static inline DWORD pjrt_milliseconds(double seconds) {
  const double found = seconds * 1000;
  return found >= (double)(INFINITE - 1) ? INFINITE - 1 : (DWORD)found + 1;
}

static inline void pjrt_sleep(double seconds) { Sleep(pjrt_milliseconds(seconds)); }

typedef CONDITION_VARIABLE pjrt_condition;

static inline void pjrt_condition_init(pjrt_condition *condition) { InitializeConditionVariable(condition); }

static inline void pjrt_condition_wait(pjrt_condition *condition, pjrt_mutex *mutex) {
  SleepConditionVariableSRW(condition, mutex, INFINITE, 0);
}

/* Waits at most so many seconds; it may return earlier without a reason, as all waits for conditions may. */
static inline void pjrt_condition_wait_for(pjrt_condition *condition, pjrt_mutex *mutex, double seconds) {
  SleepConditionVariableSRW(condition, mutex, pjrt_milliseconds(seconds), 0);
}

static inline void pjrt_condition_broadcast(pjrt_condition *condition) { WakeAllConditionVariable(condition); }
static inline void pjrt_condition_destroy(pjrt_condition *condition) { (void)condition; }

/* A function in a library, or, of null, in anything that the process has loaded. */
static inline void *pjrt_find_function(void *library, const char *name) {
  if (library != NULL) return (void *)GetProcAddress((HMODULE)library, name);
  HMODULE modules[4096];
  DWORD size = 0;
  if (!EnumProcessModules(GetCurrentProcess(), modules, sizeof modules, &size)) return NULL;
  if (size > sizeof modules) size = sizeof modules;
  for (DWORD i = 0; i < size / sizeof *modules; i++) {
    void *found = (void *)GetProcAddress(modules[i], name);
    if (found != NULL) return found;
  }
  return NULL;
}

/* The libraries that it needs are looked for beside it and where the system has its own. */
static inline void *pjrt_open_library(const char *path) {
  wchar_t wide[4096];
  if (MultiByteToWideChar(CP_UTF8, 0, path, -1, wide, sizeof wide / sizeof *wide) == 0) return NULL;
  return LoadLibraryExW(wide, NULL, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

static inline const char *pjrt_library_error(void) {
  static char reason[512];
  const DWORD options = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS;
  const DWORD length = FormatMessageA(options, NULL, GetLastError(), 0, reason, sizeof reason, NULL);
  return length != 0 ? reason : "no reason given";
}

#endif /* PJRT_SUPPORT_SYSTEM_WINDOWS_H_ */
