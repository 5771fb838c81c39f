/* A driver that keeps its contract, but for the one rule that $LIE names. A program copies its first argument to its
 * first result. Work is done when a function returns; where $LIE begins with "fence", fences tell of it. Some modes are no
 * lies: with "fence_ends_in_allocate" the first work ends while memory is asked for, which is refused for the last time.
 * With "fence_never" the first fence of programs is not done, with "fence_late" not before the second program runs, and
 * with "fence_cancel" and "fence_reset" not before the driver is told to give its work up; with "fence_cancel_fails" the
 * first two wait for a reset. "copies_never" are those of
 * copies to the host. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pjrt_driver.h"

static bool lies(const char *how) {
  const char *lie = getenv("LIE");
  return lie && strcmp(lie, how) == 0;
}

static int lying_open(const pjrt_driver_option *options, size_t num_options, pjrt_driver **out, size_t *num_devices,
                      char *message) {
  (void)options, (void)num_options;
  if (lies("open_fails")) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the cable is out");
    return 14;
  }
  *out = lies("null_driver") ? NULL : calloc(1, 1);
  *num_devices = lies("no_devices") ? 0 : lies("two_kinds") ? 2 : 1;
  return 0;
}
static void lying_close(pjrt_driver *driver) { free(driver); }
static void lying_describe(pjrt_driver *driver, size_t device, pjrt_driver_device *out) {
  (void)driver;
  static const char *const kinds[] = {"device"}, *const no_kinds[] = {NULL}, *const others[] = {"other"};
  static const int64_t limits[] = {-5};
  out->kind = lies("no_kind") ? NULL : "liar";
  out->num_memory_kinds = lies("no_memory") ? 0 : lies("many_kinds") ? 1000 : 1;
  out->memory_kinds = lies("null_memory") ? no_kinds : device ? others : kinds;
  if (lies("negative_limit")) out->memory_limits = limits;
  static const int64_t numbers[] = {1, 2};
  static pjrt_driver_attribute wrong = {.name = "coords", .type = PJRT_DRIVER_INTEGERS, .integers = numbers,
                                        .num_integers = 2};
  if (lies("no_value")) wrong.integers = NULL;
  if (lies("no_name")) wrong.name = NULL;
  if (lies("two_values")) wrong.type = PJRT_DRIVER_INTEGER;
  if (lies("no_type")) wrong.type = (pjrt_driver_attribute_type)77;
  out->attributes = lies("no_attributes") ? NULL : &wrong;
  out->num_attributes = 1;
}
static void lying_describe_client(pjrt_driver *driver, pjrt_driver_client *out) {
  (void)driver;
  if (lies("no_version")) out->platform_version = NULL;
}
typedef struct block {
  size_t size;
  char *data;
} block;
static struct { pjrt_driver_done function; void *arg; } held[4];
static int num_held;
static void end_held(int code) {
  int count = num_held;
  num_held = 0;
  for (int i = 0; i < count; ++i) held[i].function(held[i].arg, code, code ? "the work was given up" : "");
}
static int lying_allocate(pjrt_driver *driver, size_t device, size_t kind, size_t size, uint64_t *out, char *message) {
  (void)driver, (void)device, (void)kind;
  if (lies("allocate_99")) return 99;
  *out = 0;
  if (lies("allocate_0")) return 0;
  if (lies("allocate_silent")) return 8;
  if (num_held && lies("fence_ends_in_allocate")) {
    end_held(0);
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the memory was full until now");
    return 8;
  }
  if (lies("message_without_end")) {
    memset(message, 'x', PJRT_DRIVER_MESSAGE_SIZE);
    return 13;
  }
  block *each = malloc(sizeof *each);
  *each = (block){size, calloc(size + 1, 1)};
  *out = (uintptr_t)each;
  return 0;
}
static void lying_free(pjrt_driver *driver, size_t device, uint64_t memory) {
  (void)driver, (void)device;
  free(((block *)(uintptr_t)memory)->data);
  free((block *)(uintptr_t)memory);
}
static int lying_in(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                    const void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)driver, (void)device, (void)shape, (void)message;
  memcpy(((block *)(uintptr_t)memory)->data + offset, host, size);
  *fence = 0;
  return 0;
}
static int lying_out(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                     void *host, size_t size, pjrt_fence *fence, char *message) {
  (void)driver, (void)device, (void)shape, (void)message;
  memcpy(host, ((block *)(uintptr_t)memory)->data + offset, size);
  *fence = lies("copies_never") ? 6 : 0;
  return 0;
}
static int lying_load(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *out, char *message) {
  (void)driver, (void)device, (void)code, (void)size, (void)message;
  *out = lies("load_0") ? 0 : 7;
  return 0;
}
static void lying_unload(pjrt_driver *driver, size_t device, uint64_t executable) {
  (void)driver, (void)device, (void)executable;
}
static int lying_launch(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message) {
  (void)driver, (void)message;
  block *from = (block *)(uintptr_t)launch->inputs[0], *to = (block *)(uintptr_t)launch->outputs[0];
  if (from != to) memcpy(to->data, from->data, from->size);
  if (lies("fence_late")) end_held(0);
  const char *lie = getenv("LIE");
  *fence = lie && (strncmp(lie, "fence", 5) == 0 || strcmp(lie, "no_wait") == 0) ? 5 : 0;
  return 0;
}
static int lying_wait(pjrt_driver *driver, size_t device, pjrt_fence fence, int64_t nanoseconds, char *message) {
  (void)driver, (void)device, (void)fence, (void)nanoseconds;
  if (lies("fence_waits_for_ever")) pause();
  if (!lies("fence_fails")) return 0;
  snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the chip is too hot");
  return 13;
}
static int lying_done(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                      char *message) {
  (void)driver, (void)device, (void)fence;
  if (lies("fence_refused")) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "no such fence");
    return 5;
  }
  static bool was_held;
  bool is_held = lies("fence_ends_in_allocate") || lies("fence_never") || lies("fence_late") || lies("fence_cancel") ||
                 lies("fence_cancel_fails") || lies("fence_reset") || lies("copies_never");
  if (is_held && !was_held) {
    was_held = !lies("fence_cancel_fails") || num_held;
    held[num_held].function = function;
    held[num_held++].arg = arg;
    return 0;
  }
  function(arg, 0, lies("fence_null_message") ? NULL : "");
  if (lies("fence_twice")) function(arg, 0, "");
  return 0;
}
static int lying_cancel(pjrt_driver *driver, size_t device, pjrt_fence fence, char *message) {
  (void)driver, (void)device, (void)fence;
  fprintf(stderr, "cancel of fence %d\n", (int)fence);
  if (lies("fence_cancel")) end_held(1);
  else snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the chip does not listen");
  return lies("fence_cancel") ? 0 : 13;
}
static int lying_reset(pjrt_driver *driver, size_t device, char *message) {
  (void)driver, (void)device, (void)message;
  fputs("reset\n", stderr);
  end_held(1);
  return 0;
}
static int lying_layout(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *shape,
                        pjrt_driver_layout *layout, char *message) {
  (void)driver, (void)device, (void)kind, (void)shape, (void)message;
  if (lies("size_packed")) layout->element_bits = 4;
  else layout->bytes = lies("size_0") ? 0 : SIZE_MAX - 3;
  return 0;
}

static int lying_trace(pjrt_driver *driver, pjrt_driver_event function, void *arg, char *message) {
  (void)driver;
  if (lies("trace_fails")) {
    snprintf(message, PJRT_DRIVER_MESSAGE_SIZE, "the trace buffer is broken");
    return 13;
  }
  if (function)
    function(arg, lies("trace_device") ? 77 : 0, lies("trace_null") ? NULL : "wheel", "turn", 5,
             lies("trace_backwards") ? 4 : 6);
  return 0;
}

const pjrt_driver_table *pjrt_driver_entry(void) {
  static pjrt_driver_table table = {
      .struct_size = sizeof(pjrt_driver_table),
      .platform_name = "liar",
      .platform_version = "1",
      .open = lying_open,
      .close = lying_close,
      .describe = lying_describe,
      .describe_client = lying_describe_client,
      .allocate = lying_allocate,
      .free = lying_free,
      .copy_in = lying_in,
      .copy_out = lying_out,
      .load = lying_load,
      .unload = lying_unload,
      .launch = lying_launch,
      .wait = lying_wait,
      .on_done = lying_done,
  };
  if (lies("null_table")) return NULL;
  if (lies("no_launch")) table.launch = NULL;
  if (lies("old_table")) table.struct_size = offsetof(pjrt_driver_table, wait);
  if (lies("short_table")) table.struct_size = offsetof(pjrt_driver_table, launch);
  if (lies("no_wait")) table.wait = NULL, table.on_done = NULL;
  if (lies("fence_waits") || lies("fence_fails") || lies("fence_waits_for_ever")) table.on_done = NULL;
  if (lies("size_0") || lies("size_huge") || lies("size_packed")) table.layout = lying_layout;
  table.trace = lying_trace;
  if (lies("fence_cancel") || lies("fence_cancel_fails")) table.cancel = lying_cancel;
  if (lies("fence_reset") || lies("fence_cancel_fails")) table.reset = lying_reset;
  return &table;
}
