/* Functions for the table of an exported plugin that do nothing but enter Python.
 *
 * A function of the table is told nothing but its arguments. So that one piece of code can serve them all, each entry
 * here knows its own number and passes it on; and because the functions that make something out of nothing (a client,
 * a topology) have no handle to tell by whose they are, there is a row of those for each exported plugin. */
#ifndef PJRT_SUPPORT_ENTRIES_H_
#define PJRT_SUPPORT_ENTRIES_H_

#include "pjrt_abi.h"

typedef PJRT_Error *(*pjrt_entry)(void *args);

static PJRT_Error *(*pjrt_enter)(int entry, void *args);
static PJRT_Error *(*pjrt_enter_plugin)(int plugin, int entry, void *args);

/* Counted from 100, because a number pasted together must not begin with a zero. */
#define PJRT_TENS(X, p) X(p##0) X(p##1) X(p##2) X(p##3) X(p##4) X(p##5) X(p##6) X(p##7) X(p##8) X(p##9)
#define PJRT_TO_269(X)                                                                                               \
  PJRT_TENS(X, 10) PJRT_TENS(X, 11) PJRT_TENS(X, 12) PJRT_TENS(X, 13) PJRT_TENS(X, 14) PJRT_TENS(X, 15)               \
  PJRT_TENS(X, 16) PJRT_TENS(X, 17) PJRT_TENS(X, 18) PJRT_TENS(X, 19) PJRT_TENS(X, 20) PJRT_TENS(X, 21)               \
  PJRT_TENS(X, 22) PJRT_TENS(X, 23) PJRT_TENS(X, 24) PJRT_TENS(X, 25) PJRT_TENS(X, 26)
#define PJRT_TO_163(X)                                                                                               \
  PJRT_TENS(X, 10) PJRT_TENS(X, 11) PJRT_TENS(X, 12) PJRT_TENS(X, 13) PJRT_TENS(X, 14) PJRT_TENS(X, 15)               \
  X(160) X(161) X(162) X(163)

enum { PJRT_NUM_ENTRIES = 170, PJRT_NUM_PLUGINS = 64, PJRT_NUM_PLUGIN_ENTRIES = 10 };

#define PJRT_DEFINE(n)                                                                                               \
  static PJRT_Error *pjrt_entry_##n(void *args) { return pjrt_enter(n - 100, args); }
PJRT_TO_269(PJRT_DEFINE)

#define PJRT_NAME(n) pjrt_entry_##n,
static const pjrt_entry pjrt_entries[PJRT_NUM_ENTRIES] = {PJRT_TO_269(PJRT_NAME)};

#define PJRT_DEFINE_ONE(n, e)                                                                                        \
  static PJRT_Error *pjrt_plugin_entry_##n##_##e(void *args) { return pjrt_enter_plugin(n - 100, e, args); }
#define PJRT_DEFINE_ROW(n)                                                                                           \
  PJRT_DEFINE_ONE(n, 0) PJRT_DEFINE_ONE(n, 1) PJRT_DEFINE_ONE(n, 2) PJRT_DEFINE_ONE(n, 3) PJRT_DEFINE_ONE(n, 4)       \
  PJRT_DEFINE_ONE(n, 5) PJRT_DEFINE_ONE(n, 6) PJRT_DEFINE_ONE(n, 7) PJRT_DEFINE_ONE(n, 8) PJRT_DEFINE_ONE(n, 9)
PJRT_TO_163(PJRT_DEFINE_ROW)

#define PJRT_NAME_ROW(n)                                                                                             \
  {pjrt_plugin_entry_##n##_0, pjrt_plugin_entry_##n##_1, pjrt_plugin_entry_##n##_2, pjrt_plugin_entry_##n##_3,        \
   pjrt_plugin_entry_##n##_4, pjrt_plugin_entry_##n##_5, pjrt_plugin_entry_##n##_6, pjrt_plugin_entry_##n##_7,        \
   pjrt_plugin_entry_##n##_8, pjrt_plugin_entry_##n##_9},
static const pjrt_entry pjrt_plugin_entries[PJRT_NUM_PLUGINS][PJRT_NUM_PLUGIN_ENTRIES] = {PJRT_TO_163(PJRT_NAME_ROW)};

#endif /* PJRT_SUPPORT_ENTRIES_H_ */
