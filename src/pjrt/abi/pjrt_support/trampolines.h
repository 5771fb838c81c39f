/* Trampolines: functions for the table of an exported plugin that do nothing but enter Python.
 *
 * A function of the table gets nothing but its arguments. So that one piece of code can serve them all, each trampoline
 * here knows its own number and passes it on. Most trampolines serve all exported plugins, because their arguments hold a
 * handle that belongs to one of them. The functions that make something out of nothing (a client, a topology) have no
 * handle, so each exported plugin has a row of trampolines for those. */
#ifndef PJRT_SUPPORT_TRAMPOLINES_H_
#define PJRT_SUPPORT_TRAMPOLINES_H_

#include <stdbool.h>

#include "pjrt_abi.h"
#include "system.h"

typedef PJRT_Error *(*pjrt_trampoline)(void *args);

static PJRT_Error *(*pjrt_enter)(void *args, int number);
static PJRT_Error *(*pjrt_enter_plugin)(void *args, int number);

enum { PJRT_NUM_TRAMPOLINES = 192, PJRT_NUM_PLUGINS = 1024, PJRT_NUM_PLUGIN_TRAMPOLINES = 8 };

/* Once the interpreter is finalized, Python (before 3.14) ends a thread that asks for the GIL on the spot. Where that
 * unwinds the thread's stack, as with glibc, the unwinding would reach the framework's C++ code and end the process. So a
 * thread that is ended inside a trampoline is held in it, for the short time until the process ends. */
#ifdef __GLIBC__
static inline void pjrt_hold(bool *inside) {
  while (*inside) pjrt_sleep(3600);
}
#define PJRT_HELD_IF_ENDED __attribute__((cleanup(pjrt_hold)))
#else
#define PJRT_HELD_IF_ENDED
#endif

static PJRT_Error *pjrt_guarded(PJRT_Error *(*enter)(void *, int), void *args, int number) {
  PJRT_HELD_IF_ENDED bool inside = true;
  PJRT_Error *error = enter(args, number);
  inside = false;
  return error;
}

/* Numbers are pasted together digit by digit, so they are octal: those may begin with zeros. */
#define PJRT_8(X, n) X(n##0) X(n##1) X(n##2) X(n##3) X(n##4) X(n##5) X(n##6) X(n##7)
#define PJRT_64(X, n)                                                                                                \
  PJRT_8(X, n##0) PJRT_8(X, n##1) PJRT_8(X, n##2) PJRT_8(X, n##3)                                                     \
  PJRT_8(X, n##4) PJRT_8(X, n##5) PJRT_8(X, n##6) PJRT_8(X, n##7)
#define PJRT_512(X, n)                                                                                               \
  PJRT_64(X, n##0) PJRT_64(X, n##1) PJRT_64(X, n##2) PJRT_64(X, n##3)                                                 \
  PJRT_64(X, n##4) PJRT_64(X, n##5) PJRT_64(X, n##6) PJRT_64(X, n##7)

#define PJRT_DEFINE(n)                                                                                               \
  static PJRT_Error *pjrt_trampoline_##n(void *args) { return pjrt_guarded(pjrt_enter, args, n); }
#define PJRT_DEFINE_PLUGIN(n)                                                                                        \
  static PJRT_Error *pjrt_plugin_trampoline_##n(void *args) { return pjrt_guarded(pjrt_enter_plugin, args, n); }
#define PJRT_NAME(n) pjrt_trampoline_##n,
#define PJRT_NAME_PLUGIN(n) pjrt_plugin_trampoline_##n,

PJRT_64(PJRT_DEFINE, 00)
PJRT_64(PJRT_DEFINE, 01)
PJRT_64(PJRT_DEFINE, 02)

static const pjrt_trampoline pjrt_trampolines[PJRT_NUM_TRAMPOLINES] = {
    PJRT_64(PJRT_NAME, 00)
    PJRT_64(PJRT_NAME, 01)
    PJRT_64(PJRT_NAME, 02)};

/* In pieces, because some compilers limit the length of a line that a macro expands to. */
PJRT_512(PJRT_DEFINE_PLUGIN, 000)
PJRT_512(PJRT_DEFINE_PLUGIN, 001)
PJRT_512(PJRT_DEFINE_PLUGIN, 002)
PJRT_512(PJRT_DEFINE_PLUGIN, 003)
PJRT_512(PJRT_DEFINE_PLUGIN, 004)
PJRT_512(PJRT_DEFINE_PLUGIN, 005)
PJRT_512(PJRT_DEFINE_PLUGIN, 006)
PJRT_512(PJRT_DEFINE_PLUGIN, 007)
PJRT_512(PJRT_DEFINE_PLUGIN, 010)
PJRT_512(PJRT_DEFINE_PLUGIN, 011)
PJRT_512(PJRT_DEFINE_PLUGIN, 012)
PJRT_512(PJRT_DEFINE_PLUGIN, 013)
PJRT_512(PJRT_DEFINE_PLUGIN, 014)
PJRT_512(PJRT_DEFINE_PLUGIN, 015)
PJRT_512(PJRT_DEFINE_PLUGIN, 016)
PJRT_512(PJRT_DEFINE_PLUGIN, 017)

/* Row by row: the trampolines of the first plugin, then those of the second. */
static const pjrt_trampoline pjrt_plugin_trampolines[PJRT_NUM_PLUGINS * PJRT_NUM_PLUGIN_TRAMPOLINES] = {
    PJRT_512(PJRT_NAME_PLUGIN, 000)
    PJRT_512(PJRT_NAME_PLUGIN, 001)
    PJRT_512(PJRT_NAME_PLUGIN, 002)
    PJRT_512(PJRT_NAME_PLUGIN, 003)
    PJRT_512(PJRT_NAME_PLUGIN, 004)
    PJRT_512(PJRT_NAME_PLUGIN, 005)
    PJRT_512(PJRT_NAME_PLUGIN, 006)
    PJRT_512(PJRT_NAME_PLUGIN, 007)
    PJRT_512(PJRT_NAME_PLUGIN, 010)
    PJRT_512(PJRT_NAME_PLUGIN, 011)
    PJRT_512(PJRT_NAME_PLUGIN, 012)
    PJRT_512(PJRT_NAME_PLUGIN, 013)
    PJRT_512(PJRT_NAME_PLUGIN, 014)
    PJRT_512(PJRT_NAME_PLUGIN, 015)
    PJRT_512(PJRT_NAME_PLUGIN, 016)
    PJRT_512(PJRT_NAME_PLUGIN, 017)};

#endif /* PJRT_SUPPORT_TRAMPOLINES_H_ */
