/* A library that never finishes loading. */
#include <unistd.h>

__attribute__((constructor)) static void hang(void) {
  for (;;) pause();
}

const void *GetPjrtApi(void) { return 0; }
