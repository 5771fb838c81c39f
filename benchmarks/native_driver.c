/* Calls of a driver without the runtime, as functions for ctypes: each call of one of them is done when it returns. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_driver.h"

enum { SIDE = 4096 };
static const int64_t small_dims[] = {8}, large_dims[] = {SIDE, SIDE};
static const pjrt_driver_shape small = {.type = 11, .rank = 1, .dims = small_dims};
static const pjrt_driver_shape large = {.type = 11, .rank = 2, .dims = large_dims};
static const size_t large_size = (size_t)SIDE * SIDE * sizeof(float);

static char message[PJRT_DRIVER_MESSAGE_SIZE];
static const pjrt_driver_table *table;
static pjrt_driver *driver;
static uint64_t input, output, scratch, executable, memory;

static void check(int code) {
  if (code == 0) return;
  fprintf(stderr, "native_driver: %d: %s\n", code, message);
  abort();
}

static void end(pjrt_fence fence) {
  if (fence) check(table->wait(driver, 0, fence, -1, message));
}

static uint64_t allocate(const pjrt_driver_shape *shape) {
  pjrt_driver_layout layout = {.struct_size = sizeof layout};
  uint64_t made;
  check(table->layout(driver, 0, 0, shape, &layout, message));
  check(table->allocate(driver, 0, 0, layout.bytes, &made, message));
  return made;
}

/* Opens the driver at a path, and loads a kernel f32[8] -> f32[8]. Returns 0 where there is no driver. */
int raw_open(const char *path, const void *code, size_t size) {
  void *library = dlopen(path, RTLD_NOW);
  const pjrt_driver_table *(*entry)(void) = NULL;
  void *symbol = library ? dlsym(library, "pjrt_driver_entry") : NULL;
  memcpy(&entry, &symbol, sizeof entry);
  if (entry == NULL) return 0;
  table = entry();
  size_t num_devices;
  check(table->open(NULL, 0, &driver, &num_devices, message));
  const float x[8] = {0};
  pjrt_fence fence;
  input = allocate(&small);
  output = allocate(&small);
  check(table->allocate(driver, 0, 0, 1 << 20, &scratch, message));
  check(table->load(driver, 0, code, size, &executable, message));
  check(table->copy_in(driver, 0, input, &small, 0, x, sizeof x, &fence, message));
  end(fence);
  memory = allocate(&large);
  return 1;
}

void raw_launch(void) {
  const size_t no_device = 0;
  const pjrt_fence none = 0;
  pjrt_driver_launch launch = {.struct_size = sizeof launch, .executable = executable, .num_inputs = 1, .inputs = &input,
                               .num_outputs = 1, .outputs = &output, .scratch = scratch, .after_devices = &no_device,
                               .after = &none};
  pjrt_fence fence;
  check(table->launch(driver, &launch, &fence, message));
  end(fence);
}

/* An array of 4096 x 4096 floats. */
void raw_copy_in(const float *host) {
  pjrt_fence fence;
  check(table->copy_in(driver, 0, memory, &large, 0, host, large_size, &fence, message));
  end(fence);
}

void raw_copy_out(float *host) {
  pjrt_fence fence;
  check(table->copy_out(driver, 0, memory, &large, 0, host, large_size, &fence, message));
  end(fence);
}
