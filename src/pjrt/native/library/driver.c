/* Which driver the library has: one of an author, loaded by its path, or the host's; and the library's settings. */
#include <dlfcn.h>

#include "runtime.h"

#define SETTINGS_SIZE 16384

/* "key=value" lines behind the mark, by which the copy of this library is made in Python: `driver`, the path of a shared
 * library, "host", "worker" or "here"; `compiler`, `python` and `path` of the process in Python, the `label` of the lines
 * that it prints, and its `profiler`; `attributes` of the plugin, and the versions of `stablehlo` that it reads; `platform`,
 * the name that frameworks see. */
static volatile char settings[SETTINGS_SIZE] = "PJRT-NATIVE-SETTINGS\n";

static char text[SETTINGS_SIZE];

static struct {
  pthread_once_t once;
  const pjrt_driver_table *table;
  char reason[PJRT_DRIVER_MESSAGE_SIZE];
} found = {.once = PTHREAD_ONCE_INIT};

/* Reads the settings into words that end with zero: key, "=", value. */
static void read_settings(void) {
  for (size_t i = 0; i < SETTINGS_SIZE - 1; ++i) text[i] = settings[i] == '\n' ? 0 : settings[i];
}

const char *setting(const char *key) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, read_settings);
  size_t size = strlen(key);
  for (const char *line = text; *line; line += strlen(line) + 1) {
    if (strncmp(line, key, size) == 0 && line[size] == '=' && line[size + 1]) return line + size + 1;
  }
  return NULL;
}

static const char *missing_function(const pjrt_driver_table *table) {
#define REQUIRED(function) if (!DRIVER_HAS(table, function)) return #function
  REQUIRED(platform_name);
  REQUIRED(platform_version);
  REQUIRED(open);
  REQUIRED(close);
  REQUIRED(describe);
  REQUIRED(allocate);
  REQUIRED(free);
  REQUIRED(copy_in);
  REQUIRED(copy_out);
  REQUIRED(load);
  REQUIRED(unload);
  REQUIRED(launch);
  return NULL;
}

static const pjrt_driver_table *load_driver(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    snprintf(found.reason, sizeof found.reason, "the driver cannot be loaded: %s", dlerror());
    return NULL;
  }
  void *symbol = dlsym(library, "pjrt_driver_entry");
  if (symbol == NULL) {
    snprintf(found.reason, sizeof found.reason, "%s: expected a driver, which has the function pjrt_driver_entry", path);
    return NULL;
  }
  const pjrt_driver_table *(*entry)(void);
  memcpy(&entry, &symbol, sizeof entry);
  const pjrt_driver_table *table = entry();
  if (table == NULL) snprintf(found.reason, sizeof found.reason, "%s: pjrt_driver_entry returned null", path);
  return table;
}

/* A driver of ours, under the name that the settings give to the platform. */
static const pjrt_driver_table *named(const pjrt_driver_table *ours) {
  static pjrt_driver_table table;
  const char *name = setting("platform");
  table = *ours;
  if (name) table.platform_name = name;
  return &table;
}

bool driver_is_in_c(void) {
  const char *driver = setting("driver");
  return driver == NULL || (strcmp(driver, "here") != 0 && strcmp(driver, "worker") != 0);
}

static const pjrt_driver_table *choose(const char *driver) {
  if (driver == NULL || strcmp(driver, "host") == 0) return named(&host_driver);
  if (strcmp(driver, "here") == 0) return named(&here_driver);
  return strcmp(driver, "worker") == 0 ? named(&worker_driver) : load_driver(driver);
}

static void find(void) {
  const char *path = setting("driver");
  const pjrt_driver_table *table = choose(path);
  const char *missing = table ? missing_function(table) : NULL;
  if (missing)
    snprintf(found.reason, sizeof found.reason, "%s: the driver's table has no %s, which every driver needs",
             path ? path : "host", missing);
  else if (table)
    found.table = driver_is_in_c() ? recording_table(table) : table;
}

PJRT_Error *driver_find(const pjrt_driver_table **out) {
  pthread_once(&found.once, find);
  *out = found.table;
  return found.table ? NULL : pjrt_error_of_text(PJRT_Error_Code_FAILED_PRECONDITION, found.reason);
}
