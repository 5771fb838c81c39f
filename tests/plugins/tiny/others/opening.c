/* Opens a library that the environment names as soon as it is opened itself, and never closes it. */
#include <dlfcn.h>
#include <stdlib.h>

__attribute__((constructor)) static void start(void) {
  const char *path = getenv("PJRT_TEST_OPENS");
  if (path != NULL) dlopen(path, RTLD_NOW | RTLD_LOCAL);
}
