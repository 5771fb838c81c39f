/* Functions that a plugin lacks, made of others that it has. What cannot be made returns the error UNIMPLEMENTED, which a
 * framework can report; it would crash if it called a null pointer. */
#include <stdlib.h>

#include "adapt.h"

#define ARGS(name)                      \
  PJRT_##name##_Args *args = untyped; \
  (void)adapt, (void)function
#define SUBSTITUTE(name) static void *name(adapt *adapt, int function, void *untyped)

/* ---- errors and the plugin ----------------------------------------------------------------------------------------*/
SUBSTITUTE(nothing) { /* succeeds; for a function that ends something it is a leak */
  (void)adapt, (void)function, (void)untyped;
  return NULL;
}

SUBSTITUTE(zeros) { /* no attributes, the first process, not deleted, not on the host, … */
  (void)adapt;
  pjrt_clear_outputs(pjrt_functions[function].args, untyped);
  return NULL;
}

SUBSTITUTE(error_message) {
  static const char text[] = "the plugin gives no message: it lacks PJRT_Error_Message";
  ARGS(Error_Message);
  args->message = text;
  args->message_size = sizeof text - 1;
  return NULL;
}

SUBSTITUTE(error_code) {
  ARGS(Error_GetCode);
  args->code = PJRT_Error_Code_UNKNOWN;
  return NULL;
}

/* ---- events -------------------------------------------------------------------------------------------------------*/
static void *await_event(adapt *adapt, PJRT_Event *event) {
  PJRT_Event_Await_Args await = {PJRT_Event_Await_Args_STRUCT_SIZE, NULL, event};
  void *result = NULL;
  if (!pjrt_call_below(adapt->stack, PJRT_FUNCTION_Event_Await, &await, &result))
    return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED, "the plugin lacks PJRT_Event_Await, so nothing can wait");
  return result;
}

SUBSTITUTE(event_is_ready) { /* it is, after a wait */
  ARGS(Event_IsReady);
  adapt_destroy_error(adapt, await_event(adapt, args->event));
  args->is_ready = true;
  return NULL;
}

SUBSTITUTE(event_error) {
  ARGS(Event_Error);
  return await_event(adapt, args->event);
}

SUBSTITUTE(event_on_ready) {
  ARGS(Event_OnReady);
  args->callback(await_event(adapt, args->event), args->user_arg);
  return NULL;
}

/* ---- clients and devices ------------------------------------------------------------------------------------------*/
SUBSTITUTE(platform_name) {
  ARGS(Client_PlatformName);
  args->platform_name = "unknown";
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

SUBSTITUTE(platform_version) {
  ARGS(Client_PlatformVersion);
  args->platform_version = "";
  args->platform_version_size = 0;
  return NULL;
}

SUBSTITUTE(topology_name) {
  ARGS(TopologyDescription_PlatformName);
  args->platform_name = "unknown";
  args->platform_name_size = strlen(args->platform_name);
  return NULL;
}

SUBSTITUTE(topology_version) {
  ARGS(TopologyDescription_PlatformVersion);
  args->platform_version = "";
  args->platform_version_size = 0;
  return NULL;
}

/* The devices of a client, by either of the two functions. */
static void *devices_of(adapt *adapt, PJRT_Client *client, bool addressable, PJRT_Device *const **devices, size_t *number) {
  PJRT_Client_Devices_Args all = {PJRT_Client_Devices_Args_STRUCT_SIZE, NULL, client};
  PJRT_Client_AddressableDevices_Args own = {PJRT_Client_AddressableDevices_Args_STRUCT_SIZE, NULL, client};
  for (int tries = 0; tries < 2; tries++, addressable = !addressable) {
    void *error = NULL;
    const bool called = addressable
                            ? pjrt_call_below(adapt->stack, PJRT_FUNCTION_Client_AddressableDevices, &own, &error)
                            : pjrt_call_below(adapt->stack, PJRT_FUNCTION_Client_Devices, &all, &error);
    if (!called) continue;
    *devices = addressable ? own.addressable_devices : all.devices;
    *number = addressable ? own.num_addressable_devices : all.num_devices;
    return error;
  }
  return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED,
                         "the plugin has neither PJRT_Client_Devices nor PJRT_Client_AddressableDevices");
}

SUBSTITUTE(client_devices) {
  ARGS(Client_Devices);
  return devices_of(adapt, args->client, true, &args->devices, &args->num_devices);
}

SUBSTITUTE(addressable_devices) {
  ARGS(Client_AddressableDevices);
  return devices_of(adapt, args->client, false, &args->addressable_devices, &args->num_addressable_devices);
}

static void *id_of(adapt *adapt, PJRT_Device *device, int *id) {
  PJRT_Device_GetDescription_Args description = {PJRT_Device_GetDescription_Args_STRUCT_SIZE, NULL, device};
  void *error = ADAPT_BELOW(Device_GetDescription, &description);
  if (error != NULL) return error;
  PJRT_DeviceDescription_Id_Args of = {PJRT_DeviceDescription_Id_Args_STRUCT_SIZE, NULL,
                                       description.device_description};
  error = ADAPT_BELOW(DeviceDescription_Id, &of);
  *id = of.id;
  return error;
}

static void *hardware_id_of(adapt *adapt, PJRT_Device *device, int *id) {
  PJRT_Device_LocalHardwareId_Args of = {PJRT_Device_LocalHardwareId_Args_STRUCT_SIZE, NULL, device};
  void *error = ADAPT_BELOW(Device_LocalHardwareId, &of);
  *id = of.local_hardware_id;
  return error;
}

static void *look_up(adapt *adapt, PJRT_Client *client, bool addressable, int id, PJRT_Device **found) {
  PJRT_Device *const *devices = NULL;
  size_t number = 0;
  void *error = devices_of(adapt, client, addressable, &devices, &number);
  for (size_t i = 0; error == NULL && i < number; i++) {
    int each = -1;
    error = addressable ? hardware_id_of(adapt, devices[i], &each) : id_of(adapt, devices[i], &each);
    if (error != NULL || each != id) continue;
    *found = devices[i];
    return NULL;
  }
  if (error != NULL) return error;
  return pjrt_make_error(PJRT_Error_Code_INVALID_ARGUMENT, "expected the id of one of %zu devices, found %d", number, id);
}

SUBSTITUTE(lookup_device) {
  ARGS(Client_LookupDevice);
  return look_up(adapt, args->client, false, args->id, &args->device);
}

SUBSTITUTE(lookup_addressable_device) {
  ARGS(Client_LookupAddressableDevice);
  return look_up(adapt, args->client, true, args->local_hardware_id, &args->addressable_device);
}

SUBSTITUTE(default_assignment) {
  ARGS(Client_DefaultDeviceAssignment);
  PJRT_Device *const *devices = NULL;
  size_t number = 0;
  void *error = devices_of(adapt, args->client, false, &devices, &number);
  if (error != NULL) return error;
  const int64_t wanted = (int64_t)args->num_replicas * args->num_partitions;
  if (args->num_replicas < 0 || args->num_partitions < 0 || wanted > (int64_t)number ||
      wanted > (int64_t)args->default_assignment_size)
    return pjrt_make_error(PJRT_Error_Code_INVALID_ARGUMENT,
                           "expected an assignment of at most %zu devices into at least as many numbers, found %d replicas "
                           "of %d partitions into %zu", number, args->num_replicas, args->num_partitions,
                           args->default_assignment_size);
  for (int64_t i = 0; i < wanted && error == NULL; i++) error = id_of(adapt, devices[i], &args->default_assignment[i]);
  return error;
}

/* The kind of a device in place of its texts: they live as long, and name it. */
static void *kind_of(adapt *adapt, PJRT_DeviceDescription *description, const char **text, size_t *size) {
  PJRT_DeviceDescription_Kind_Args kind = {PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE, NULL, description};
  void *error = NULL;
  if (!pjrt_call_below(adapt->stack, PJRT_FUNCTION_DeviceDescription_Kind, &kind, &error)) {
    kind.device_kind = "device";
    kind.device_kind_size = strlen(kind.device_kind);
  }
  *text = kind.device_kind;
  *size = kind.device_kind_size;
  return error;
}

SUBSTITUTE(description_kind) {
  ARGS(DeviceDescription_Kind);
  args->device_kind = "device";
  args->device_kind_size = strlen(args->device_kind);
  return NULL;
}

SUBSTITUTE(description_debug_string) {
  ARGS(DeviceDescription_DebugString);
  return kind_of(adapt, args->device_description, &args->debug_string, &args->debug_string_size);
}

SUBSTITUTE(description_to_string) {
  ARGS(DeviceDescription_ToString);
  return kind_of(adapt, args->device_description, &args->to_string, &args->to_string_size);
}

SUBSTITUTE(device_addressable) {
  ARGS(Device_IsAddressable);
  args->is_addressable = true;
  return NULL;
}

SUBSTITUTE(device_hardware_id) {
  ARGS(Device_LocalHardwareId);
  return id_of(adapt, args->device, &args->local_hardware_id);
}

/* ---- executables --------------------------------------------------------------------------------------------------*/
SUBSTITUTE(executable_name) {
  ARGS(Executable_Name);
  args->executable_name = "executable";
  args->executable_name_size = strlen(args->executable_name);
  return NULL;
}

SUBSTITUTE(num_replicas) {
  ARGS(Executable_NumReplicas);
  args->num_replicas = 1;
  return NULL;
}

SUBSTITUTE(num_partitions) {
  ARGS(Executable_NumPartitions);
  args->num_partitions = 1;
  return NULL;
}

SUBSTITUTE(context_create) {
  ARGS(ExecuteContext_Create);
  args->context = malloc(1); /* an address of its own; the plugin never sees it */
  atomic_store(&adapt->own_contexts, true);
  return args->context != NULL ? NULL : pjrt_make_error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory is left");
}

SUBSTITUTE(context_destroy) {
  ARGS(ExecuteContext_Destroy);
  if (atomic_load(&adapt->own_contexts)) free(args->context);
  return NULL;
}

/* ---- buffers ------------------------------------------------------------------------------------------------------*/
SUBSTITUTE(unpadded_dimensions) {
  ARGS(Buffer_UnpaddedDimensions);
  PJRT_Buffer_Dimensions_Args of = {PJRT_Buffer_Dimensions_Args_STRUCT_SIZE, NULL, args->buffer};
  void *error = ADAPT_BELOW(Buffer_Dimensions, &of);
  args->unpadded_dims = of.dims;
  args->num_dims = of.num_dims;
  return error;
}

SUBSTITUTE(unsafe_pointer) {
  ARGS(Buffer_UnsafePointer);
  PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args of = {PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args_STRUCT_SIZE, NULL,
                                                       args->buffer};
  void *error = ADAPT_BELOW(Buffer_OpaqueDeviceMemoryDataPointer, &of);
  args->buffer_pointer = (uintptr_t)of.device_memory_ptr;
  return error;
}

/* ---- memories -----------------------------------------------------------------------------------------------------*/
static void *no_room(void) {
  return pjrt_make_error(PJRT_Error_Code_RESOURCE_EXHAUSTED, "adapt makes memories for at most 1024 devices");
}

SUBSTITUTE(default_memory) {
  ARGS(Device_DefaultMemory);
  PJRT_Device_AddressableMemories_Args all = {PJRT_Device_AddressableMemories_Args_STRUCT_SIZE, NULL, args->device};
  void *error = NULL;
  if (pjrt_call_below(adapt->stack, PJRT_FUNCTION_Device_AddressableMemories, &all, &error) && error == NULL &&
      all.num_memories > 0) {
    args->memory = all.memories[0];
    return NULL;
  }
  adapt_destroy_error(adapt, error);
  args->memory = adapt_memory_of(args->device);
  return args->memory != NULL ? NULL : no_room();
}

SUBSTITUTE(device_memories) { /* its default memory */
  ARGS(Device_AddressableMemories);
  PJRT_Device_DefaultMemory_Args of = {PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, NULL, args->device, NULL};
  void *error = ADAPT_BELOW(Device_DefaultMemory, &of);
  if (error != NULL) return error;
  args->memories = adapt_list_of(args->device, of.memory);
  args->num_memories = 1;
  return args->memories != NULL ? NULL : no_room();
}

SUBSTITUTE(client_memories) {
  ARGS(Client_AddressableMemories);
  PJRT_Device *const *devices = NULL;
  size_t number = 0;
  void *error = devices_of(adapt, args->client, true, &devices, &number);
  if (error != NULL) return error;
  return adapt_memories_of_client(adapt, args, devices, number);
}

SUBSTITUTE(buffer_memory) {
  ARGS(Buffer_Memory);
  PJRT_Buffer_Device_Args device = {PJRT_Buffer_Device_Args_STRUCT_SIZE, NULL, args->buffer};
  void *error = ADAPT_BELOW(Buffer_Device, &device);
  if (error != NULL) return error;
  PJRT_Device_DefaultMemory_Args memory = {PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, NULL, device.device};
  error = ADAPT_BELOW(Device_DefaultMemory, &memory);
  args->memory = memory.memory;
  return error;
}

SUBSTITUTE(copy_to_memory) { /* to the device whose default memory it is */
  ARGS(Buffer_CopyToMemory);
  PJRT_Memory_AddressableByDevices_Args by = {PJRT_Memory_AddressableByDevices_Args_STRUCT_SIZE, NULL, args->dst_memory};
  void *error = ADAPT_BELOW(Memory_AddressableByDevices, &by);
  for (size_t i = 0; error == NULL && i < by.num_devices; i++) {
    PJRT_Device_DefaultMemory_Args of = {PJRT_Device_DefaultMemory_Args_STRUCT_SIZE, NULL, by.devices[i]};
    error = ADAPT_BELOW(Device_DefaultMemory, &of);
    if (error != NULL || of.memory != args->dst_memory) continue;
    PJRT_Buffer_CopyToDevice_Args to = {PJRT_Buffer_CopyToDevice_Args_STRUCT_SIZE, NULL, args->buffer, by.devices[i]};
    error = ADAPT_BELOW(Buffer_CopyToDevice, &to);
    args->dst_buffer = to.dst_buffer;
    return error;
  }
  if (error != NULL) return error;
  return pjrt_make_error(PJRT_Error_Code_UNIMPLEMENTED, "the plugin %s lacks PJRT_Buffer_CopyToMemory: adapt copies to "
                         "the default memory of a device, and found another memory", adapt->stack->name);
}

SUBSTITUTE(output_memory_kinds) {
  ARGS(Executable_OutputMemoryKinds);
  PJRT_Executable_NumOutputs_Args outputs = {PJRT_Executable_NumOutputs_Args_STRUCT_SIZE, NULL, args->executable};
  void *error = ADAPT_BELOW(Executable_NumOutputs, &outputs);
  if (error != NULL) return error;
  return adapt_output_kinds(args, outputs.num_outputs);
}

/* Memories of the plugin of which it says less than all. Those of the layer do not come here. */
static void *kind_of_memory(adapt *adapt, PJRT_Memory *memory, const char **text, size_t *size) {
  PJRT_Memory_Kind_Args kind = {PJRT_Memory_Kind_Args_STRUCT_SIZE, NULL, memory};
  void *error = NULL;
  if (!pjrt_call_below(adapt->stack, PJRT_FUNCTION_Memory_Kind, &kind, &error)) {
    kind.kind = ADAPT_MEMORY_KIND;
    kind.kind_size = strlen(kind.kind);
  }
  *text = kind.kind;
  *size = kind.kind_size;
  return error;
}

SUBSTITUTE(memory_kind) {
  ARGS(Memory_Kind);
  return kind_of_memory(adapt, args->memory, &args->kind, &args->kind_size);
}

SUBSTITUTE(memory_kind_id) {
  ARGS(Memory_Kind_Id);
  const char *text = "";
  size_t size = 0;
  void *error = kind_of_memory(adapt, args->memory, &text, &size);
  args->kind_id = error == NULL ? adapt_kind_id(text, size) : 0;
  return error;
}

SUBSTITUTE(memory_debug_string) {
  ARGS(Memory_DebugString);
  return kind_of_memory(adapt, args->memory, &args->debug_string, &args->debug_string_size);
}

SUBSTITUTE(memory_to_string) {
  ARGS(Memory_ToString);
  return kind_of_memory(adapt, args->memory, &args->to_string, &args->to_string_size);
}

const adapt_substitute adapt_substitutes[PJRT_NUM_FUNCTIONS] = {
    [PJRT_FUNCTION_Error_Destroy] = nothing,
    [PJRT_FUNCTION_Error_Message] = error_message,
    [PJRT_FUNCTION_Error_GetCode] = error_code,
    [PJRT_FUNCTION_Error_ForEachPayload] = nothing,
    [PJRT_FUNCTION_Plugin_Initialize] = nothing,
    [PJRT_FUNCTION_Plugin_Attributes] = zeros,
    [PJRT_FUNCTION_Event_Destroy] = nothing,
    [PJRT_FUNCTION_Event_IsReady] = event_is_ready,
    [PJRT_FUNCTION_Event_Error] = event_error,
    [PJRT_FUNCTION_Event_OnReady] = event_on_ready,
    [PJRT_FUNCTION_Client_Destroy] = nothing,
    [PJRT_FUNCTION_Client_ProcessIndex] = zeros,
    [PJRT_FUNCTION_Client_PlatformName] = platform_name,
    [PJRT_FUNCTION_Client_PlatformVersion] = platform_version,
    [PJRT_FUNCTION_Client_Devices] = client_devices,
    [PJRT_FUNCTION_Client_AddressableDevices] = addressable_devices,
    [PJRT_FUNCTION_Client_LookupDevice] = lookup_device,
    [PJRT_FUNCTION_Client_LookupAddressableDevice] = lookup_addressable_device,
    [PJRT_FUNCTION_Client_AddressableMemories] = client_memories,
    [PJRT_FUNCTION_Client_DefaultDeviceAssignment] = default_assignment,
    [PJRT_FUNCTION_DeviceDescription_ProcessIndex] = zeros,
    [PJRT_FUNCTION_DeviceDescription_Attributes] = zeros,
    [PJRT_FUNCTION_DeviceDescription_Kind] = description_kind,
    [PJRT_FUNCTION_DeviceDescription_DebugString] = description_debug_string,
    [PJRT_FUNCTION_DeviceDescription_ToString] = description_to_string,
    [PJRT_FUNCTION_Device_IsAddressable] = device_addressable,
    [PJRT_FUNCTION_Device_LocalHardwareId] = device_hardware_id,
    [PJRT_FUNCTION_Device_AddressableMemories] = device_memories,
    [PJRT_FUNCTION_Device_DefaultMemory] = default_memory,
    [PJRT_FUNCTION_Memory_Kind] = memory_kind,
    [PJRT_FUNCTION_Memory_Kind_Id] = memory_kind_id,
    [PJRT_FUNCTION_Memory_DebugString] = memory_debug_string,
    [PJRT_FUNCTION_Memory_ToString] = memory_to_string,
    [PJRT_FUNCTION_Executable_Destroy] = nothing,
    [PJRT_FUNCTION_Executable_Name] = executable_name,
    [PJRT_FUNCTION_Executable_NumReplicas] = num_replicas,
    [PJRT_FUNCTION_Executable_NumPartitions] = num_partitions,
    [PJRT_FUNCTION_Executable_SizeOfGeneratedCodeInBytes] = zeros,
    [PJRT_FUNCTION_Executable_OutputMemoryKinds] = output_memory_kinds,
    [PJRT_FUNCTION_LoadedExecutable_Destroy] = nothing,
    [PJRT_FUNCTION_LoadedExecutable_IsDeleted] = zeros,
    [PJRT_FUNCTION_ExecuteContext_Create] = context_create,
    [PJRT_FUNCTION_ExecuteContext_Destroy] = context_destroy,
    [PJRT_FUNCTION_FFI_UserData_Add] = nothing, /* a handler that wants the data has an error */
    [PJRT_FUNCTION_Buffer_Destroy] = nothing,
    [PJRT_FUNCTION_Buffer_UnpaddedDimensions] = unpadded_dimensions,
    [PJRT_FUNCTION_Buffer_DynamicDimensionIndices] = zeros,
    [PJRT_FUNCTION_Buffer_Memory] = buffer_memory,
    [PJRT_FUNCTION_Buffer_CopyToMemory] = copy_to_memory,
    [PJRT_FUNCTION_Buffer_IsDeleted] = zeros,
    [PJRT_FUNCTION_Buffer_IsOnCpu] = zeros,
    [PJRT_FUNCTION_Buffer_UnsafePointer] = unsafe_pointer,
    [PJRT_FUNCTION_Buffer_IncreaseExternalReferenceCount] = nothing,
    [PJRT_FUNCTION_Buffer_DecreaseExternalReferenceCount] = nothing,
    [PJRT_FUNCTION_TopologyDescription_Destroy] = nothing,
    [PJRT_FUNCTION_TopologyDescription_PlatformName] = topology_name,
    [PJRT_FUNCTION_TopologyDescription_PlatformVersion] = topology_version,
    [PJRT_FUNCTION_TopologyDescription_Attributes] = zeros,
    [PJRT_FUNCTION_CopyToDeviceStream_Destroy] = nothing,
};
