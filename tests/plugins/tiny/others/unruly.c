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

/* Answers that nobody can read, or read on from. */
static const char odd_text[] = "d\xe9vice";
static const char *text_data = odd_text;
static size_t text_size = sizeof odd_text - 1;

static PJRT_Error *strange_text(PJRT_DeviceDescription_DebugString_Args *args) {
  args->debug_string = text_data;
  args->debug_string_size = text_size;
  return NULL;
}

static void give_text(const char *data, size_t size) {
  text_data = data;
  text_size = size;
  table.PJRT_DeviceDescription_DebugString = strange_text;
}

static const PJRT_NamedValue odd_values[] = {
    {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "odd", .name_size = 3, .type = (PJRT_NamedValue_Type)99},
    {.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "n", .name_size = 1, .type = PJRT_NamedValue_kInt64,
     .int64_value = 5, .value_size = 1}};

static PJRT_Error *unknown_attribute(PJRT_DeviceDescription_Attributes_Args *args) {
  args->attributes = odd_values;
  args->num_attributes = 2;
  return NULL;
}

static PJRT_Error *endless_results(PJRT_Executable_NumOutputs_Args *args) {
  args->num_outputs = (size_t)1 << 40;
  return NULL;
}

static PJRT_Error *never_deleted(PJRT_Buffer_IsDeleted_Args *args) {
  args->is_deleted = false;
  return NULL;
}

static PJRT_Error *executable_never_deleted(PJRT_LoadedExecutable_IsDeleted_Args *args) {
  args->is_deleted = false;
  return NULL;
}

/* Loading: somebody is told while it is under way. */
static void (*during_load)(void);

__attribute__((visibility("default"))) void unruly_during_load(void (*callback)(void)) { during_load = callback; }

static PJRT_Error *watched_load(PJRT_Client_Load_Args *args) {
  during_load();
  return real->PJRT_Client_Load(args);
}

/* As vendors' plugins do: what is wrong ends the process. From when it is armed on, these functions take all for wrong. */
#define FRAGILE(DO)                                                                                                  \
  DO(Buffer_Bitcast) DO(Buffer_CopyRawToHost) DO(Buffer_CopyRawToHostFuture) DO(Buffer_CopyToDevice)                 \
  DO(Buffer_CopyToMemory) DO(Buffer_Delete) DO(Buffer_DonateWithControlDependency)                                   \
  DO(Buffer_IncreaseExternalReferenceCount) DO(Buffer_ReadyEvent) DO(Buffer_ToHostBuffer) DO(Buffer_UnsafePointer)   \
  DO(Client_BufferFromHostBuffer) DO(Client_Compile) DO(Client_CreateAliasBuffer)                                    \
  DO(Client_CreateBuffersForAsyncHostToDevice) DO(Client_CreateErrorBuffer) DO(Client_CreateUninitializedBuffer)     \
  DO(Client_CreateViewOfDeviceBuffer) DO(Client_DefaultDeviceAssignment) DO(Client_DmaMap) DO(Client_DmaUnmap)       \
  DO(Client_FulfillAliasBuffer) DO(Client_LookupAddressableDevice) DO(Client_LookupDevice)                           \
  DO(Device_CreateAsyncTrackingEvent) DO(LoadedExecutable_Delete) DO(LoadedExecutable_Execute)                       \
  DO(TopologyDescription_Create) DO(TopologyDescription_MakeCanonicalShapeForMemorySpace)                            \
  DO(AsyncHostToDeviceTransferManager_RetrieveBuffer) DO(AsyncHostToDeviceTransferManager_SetBufferError)            \
  DO(AsyncHostToDeviceTransferManager_TransferData) DO(AsyncHostToDeviceTransferManager_TransferLiteral)

static bool armed;
#define GUARD(name)                                                \
  static PJRT_Error *fragile_##name(PJRT_##name##_Args *args) {    \
    if (armed) abort();                                            \
    return real->PJRT_##name(args);                                \
  }
#define PUT(name) table.PJRT_##name = fragile_##name;
FRAGILE(GUARD)

__attribute__((visibility("default"))) void unruly_arm(bool on) { armed = on; }

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
  else if (strcmp(rule, "latin_text") == 0) give_text(odd_text, sizeof odd_text - 1);
  else if (strcmp(rule, "null_text") == 0) give_text(NULL, 5);
  else if (strcmp(rule, "endless_text") == 0) give_text(odd_text, (size_t)1 << 27);
  else if (strcmp(rule, "unknown_attribute") == 0) table.PJRT_DeviceDescription_Attributes = unknown_attribute;
  else if (strcmp(rule, "endless_results") == 0) table.PJRT_Executable_NumOutputs = endless_results;
  else if (strcmp(rule, "watched_load") == 0) table.PJRT_Client_Load = watched_load;
  else if (strcmp(rule, "fragile") == 0) { FRAGILE(PUT) }
  else if (strcmp(rule, "never_deleted") == 0) {
    FRAGILE(PUT)
    table.PJRT_Buffer_IsDeleted = never_deleted;
    table.PJRT_LoadedExecutable_IsDeleted = executable_never_deleted;
  } else return false;
  return true;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) { return &table; }
