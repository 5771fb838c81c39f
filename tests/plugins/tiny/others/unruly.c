/* The tiny plugin with some functions that break the rules of the C API. It stands before another library, which
 * unruly_configure names, and passes on all that it does not do itself. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

static const PJRT_Api *real;
static PJRT_Api table;

/* Events: the callback is called twice, the second time with the same arguments. */
static PJRT_Error *on_ready_twice(PJRT_Event_OnReady_Args *args);

typedef struct twice {
  PJRT_Event_OnReadyCallback callback;
  void *user_arg;
} twice;

static void call_twice(PJRT_Error *error, void *arg) {
  const twice each = *(twice *)arg;
  free(arg);
  each.callback(error, each.user_arg);
  each.callback(error, each.user_arg);
}

static PJRT_Error *on_ready_twice(PJRT_Event_OnReady_Args *args) {
  twice *each = malloc(sizeof *each);
  *each = (twice){args->callback, args->user_arg};
  PJRT_Event_OnReady_Args passed = *args;
  passed.callback = call_twice;
  passed.user_arg = each;
  return real->PJRT_Event_OnReady(&passed);
}

/* Views of memory: the deleter is called twice. */
typedef struct deleter {
  void (*callback)(void *, void *);
  void *user_arg;
} deleter;

static void delete_twice(void *pointer, void *arg) {
  const deleter each = *(deleter *)arg;
  free(arg);
  each.callback(pointer, each.user_arg);
  each.callback(pointer, each.user_arg);
}

static PJRT_Error *view_deleted_twice(PJRT_Client_CreateViewOfDeviceBuffer_Args *args) {
  deleter *each = malloc(sizeof *each);
  *each = (deleter){args->on_delete_callback, args->on_delete_callback_arg};
  args->on_delete_callback = delete_twice;
  args->on_delete_callback_arg = each;
  return real->PJRT_Client_CreateViewOfDeviceBuffer(args);
}

static PJRT_Error *no_addressable_devices(PJRT_Client_AddressableDevices_Args *args) {
  args->addressable_devices = NULL;
  args->num_addressable_devices = 0;
  return NULL;
}

static const int64_t negative[] = {4, -1};
static const int64_t endless[] = {(int64_t)1 << 40, (int64_t)1 << 40};
static const int64_t huge[] = {(int64_t)1 << 55};
static const int64_t *dimensions;
static size_t num_dimensions;

static PJRT_Error *odd_dimensions(PJRT_Buffer_Dimensions_Args *args) {
  args->dims = dimensions;
  args->num_dims = num_dimensions;
  return NULL;
}

static const int64_t strange_order[] = {2, 1, 0};

static PJRT_Error *strange_layout(PJRT_Buffer_GetMemoryLayout_Args *args) {
  memset(&args->layout, 0, sizeof args->layout);
  args->layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  args->layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  args->layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  args->layout.tiled.minor_to_major = strange_order;
  args->layout.tiled.minor_to_major_size = 3;
  return NULL;
}

static void give_dimensions(const int64_t *dims, size_t number) {
  dimensions = dims;
  num_dimensions = number;
  table.PJRT_Buffer_Dimensions = odd_dimensions;
}

/* Which library stands behind, and the one rule that is broken; returns whether both are known. */
__attribute__((visibility("default"))) bool unruly_configure(const char *path, const char *rule) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const PJRT_Api *(*get)(void) = library ? (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi") : NULL;
  if (get == NULL) return false;
  real = get();
  table = *real;
  if (strcmp(rule, "on_ready_twice") == 0) table.PJRT_Event_OnReady = on_ready_twice;
  else if (strcmp(rule, "view_deleted_twice") == 0) table.PJRT_Client_CreateViewOfDeviceBuffer = view_deleted_twice;
  else if (strcmp(rule, "no_addressable_devices") == 0) table.PJRT_Client_AddressableDevices = no_addressable_devices;
  else if (strcmp(rule, "negative_dimensions") == 0) give_dimensions(negative, 2);
  else if (strcmp(rule, "endless_dimensions") == 0) give_dimensions(endless, 2);
  else if (strcmp(rule, "huge_dimensions") == 0) give_dimensions(huge, 1);
  else if (strcmp(rule, "strange_layout") == 0) table.PJRT_Buffer_GetMemoryLayout = strange_layout;
  else return false;
  return true;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) { return &table; }
