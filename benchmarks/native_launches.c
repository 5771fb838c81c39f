/* How long a launch takes that is waited for, on a driver without the runtime. Usage:
 *
 *     native_launches DRIVER CODE LAUNCHES
 *
 * The code is a kernel f32[8] -> f32[8]. Prints the seconds of a launch. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "pjrt_driver.h"

static char message[PJRT_DRIVER_MESSAGE_SIZE];

static void check(int code) {
  if (code == 0) return;
  fprintf(stderr, "native_launches: %d: %s\n", code, message);
  exit(1);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  const pjrt_driver_table *(*entry)(void) = NULL;
  void *symbol = library ? dlsym(library, "pjrt_driver_entry") : NULL;
  memcpy(&entry, &symbol, sizeof symbol);
  FILE *file = fopen(argv[2], "rb");
  if (entry == NULL || file == NULL) return 2;
  static char code[1 << 16];
  size_t size = fread(code, 1, sizeof code, file), num_devices;
  fclose(file);
  const pjrt_driver_table *table = entry();
  pjrt_driver *driver;
  check(table->open(NULL, 0, &driver, &num_devices, message));
  const int64_t dims[] = {8};
  const pjrt_driver_shape shape = {.type = 11, .rank = 1, .dims = dims};
  pjrt_driver_layout layout = {.struct_size = sizeof layout};
  const float x[8] = {0};
  uint64_t input, output, scratch, executable;
  pjrt_fence fence, none = 0;
  const size_t no_device = 0;
  check(table->layout(driver, 0, 0, &shape, &layout, message));
  check(table->allocate(driver, 0, 0, layout.bytes, &input, message));
  check(table->allocate(driver, 0, 0, layout.bytes, &output, message));
  check(table->allocate(driver, 0, 0, 1 << 20, &scratch, message));
  check(table->load(driver, 0, code, size, &executable, message));
  check(table->copy_in(driver, 0, input, &shape, 0, x, sizeof x, &fence, message));
  pjrt_driver_launch launch = {.struct_size = sizeof launch, .executable = executable, .num_inputs = 1, .inputs = &input,
                               .num_outputs = 1, .outputs = &output, .scratch = scratch, .after_devices = &no_device,
                               .after = &none};
  int count = atoi(argv[3]);
  double begin = now();
  for (int i = 0; i < count; ++i) {
    check(table->launch(driver, &launch, &fence, message));
    check(table->wait(driver, 0, fence, -1, message));
  }
  printf("%.9f\n", (now() - begin) / count);
  return 0;
}
