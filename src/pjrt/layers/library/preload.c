/* For programs that know nothing of layers: with this library in LD_PRELOAD, whoever asks the dynamic linker for a
 * plugin's GetPjrtApi gets one that returns the plugin's table with the layers of PJRT_LAYERS. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"

enum { MAX_PLUGINS = 16, PROBLEM_SIZE = 1024 };

typedef void *(*find_symbol)(void *library, const char *name);
typedef const PJRT_Api *(*get_table)(void);

/* The dynamic linker's own dlsym. It is found by its version, because a search by name would find ours. */
static find_symbol real_dlsym(void) {
  static void *_Atomic known;
  void *symbol = atomic_load_explicit(&known, memory_order_relaxed);
#ifdef __GLIBC__
  /* The C library has had it since 2.34, libdl before; processors differ in the version that they began with. */
  static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.27", "GLIBC_2.0"};
  for (size_t i = 0; symbol == NULL && i < sizeof versions / sizeof *versions; i++)
    symbol = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
  atomic_store_explicit(&known, symbol, memory_order_relaxed);
#endif
  find_symbol function;
  memcpy(&function, &symbol, sizeof function);
  return function;
}

const PJRT_Api *pjrt_load_target(const char *path, char *problem, size_t problem_size) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(problem, problem_size, "its library cannot be loaded: %s", pjrt_library_error());
    return NULL;
  }
  /* Not through ours: the layers are those of the settings. */
  const find_symbol find = real_dlsym();
  void *symbol = find != NULL ? find(library, "GetPjrtApi") : pjrt_find_function(library, "GetPjrtApi");
  get_table function;
  memcpy(&function, &symbol, sizeof function);
  const PJRT_Api *table = function != NULL ? function() : NULL;
  if (table == NULL)
    snprintf(problem, problem_size, function != NULL ? "its function GetPjrtApi returned no table"
                                                     : "the library has no function GetPjrtApi, so it is no PJRT plugin");
  return table;
}

#ifdef __GLIBC__
static get_table functions[MAX_PLUGINS];
static pjrt_mutex mutex = PJRT_MUTEX_INITIALIZER;

static const PJRT_Api *table_of(int plugin) {
  Dl_info info;
  char problem[PROBLEM_SIZE] = "";
  void *address;
  const PJRT_Api *table = functions[plugin]();
  if (table == NULL) return NULL;
  memcpy(&address, &functions[plugin], sizeof address);
  const char *name = dladdr(address, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : "a plugin";
  const PJRT_Api *wrapped = pjrt_layer_wrap_by_environment(table, name, problem, sizeof problem);
  if (wrapped == NULL) pjrt_complain(name, problem);
  return wrapped;
}

/* GetPjrtApi takes no arguments, so each plugin needs one of ours. */
#define TABLE(n) \
  static const PJRT_Api *table_##n(void) { return table_of(n); }
TABLE(0) TABLE(1) TABLE(2) TABLE(3) TABLE(4) TABLE(5) TABLE(6) TABLE(7)
TABLE(8) TABLE(9) TABLE(10) TABLE(11) TABLE(12) TABLE(13) TABLE(14) TABLE(15)
static const get_table tables[MAX_PLUGINS] = {table_0, table_1, table_2,  table_3,  table_4,  table_5,  table_6,  table_7,
                                              table_8, table_9, table_10, table_11, table_12, table_13, table_14, table_15};

static void *table_function(void *symbol) {
  get_table function;
  memcpy(&function, &symbol, sizeof function);
  void *answer = symbol;
  pjrt_mutex_lock(&mutex);
  for (int i = 0; i < MAX_PLUGINS; i++) {
    if (functions[i] != NULL && functions[i] != function) continue;
    functions[i] = function;
    memcpy(&answer, &tables[i], sizeof answer);
    break;
  }
  pjrt_mutex_unlock(&mutex);
  return answer;
}

/* Every other search goes on to the dynamic linker by a jump: it learns from the return address who searches. */
PJRT_EXPORTED void *dlsym(void *restrict library, const char *restrict name) {
  const find_symbol find = real_dlsym();
  if (strcmp(name, "GetPjrtApi") != 0) return find(library, name);
  void *symbol = find(library, name);
  return symbol != NULL && getenv("PJRT_LAYERS") != NULL ? table_function(symbol) : symbol;
}
#endif
