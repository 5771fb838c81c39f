/* A framework's code that must not be unwound: as C++ does where it must not throw, it ends the process. */
#include <stdlib.h>

static void end(const int *inside) {
  if (*inside) abort();
}

__attribute__((visibility("default"))) void *call(void *(*function)(void *), void *args) {
  __attribute__((cleanup(end))) int inside = 1;
  void *error = function(args);
  inside = 0;
  return error;
}
