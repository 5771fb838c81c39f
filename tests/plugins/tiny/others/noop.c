/* A plugin that does nothing, as fast as possible: the floor for benchmarks of callers. One client with one device and
 * one memory; every program is taken, has one output, and is done at once; every buffer is the same f32 scalar, zero.
 * All handles are static, so nothing is allocated and nothing is freed. */
#include <string.h>

#include "pjrt_abi.h"

struct PJRT_Client { int unused; };
struct PJRT_Device { int unused; };
struct PJRT_DeviceDescription { int unused; };
struct PJRT_TopologyDescription { int unused; };
struct PJRT_Event { int unused; };
struct PJRT_Buffer { int unused; };
struct PJRT_Executable { int unused; };
struct PJRT_LoadedExecutable { int unused; };

static PJRT_Client client;
static PJRT_Device device;
static PJRT_DeviceDescription description;
static PJRT_TopologyDescription topology;
static PJRT_Event event;
static PJRT_Buffer buffer;
static PJRT_Executable executable;
static PJRT_LoadedExecutable loaded;
static PJRT_Device *const devices[] = {&device};
static PJRT_DeviceDescription *const descriptions[] = {&description};
static const float zero;

/* ---- the one error ------------------------------------------------------------------------------------------------*/
static const char refusal[] = "The plugin that does nothing does not do this either";
static void error_destroy(PJRT_Error *error) { (void)error; }
static void error_message(const PJRT_Error *error, const char **message, size_t *size) {
  (void)error;
  *message = refusal;
  *size = sizeof refusal - 1;
}
static PJRT_Error_Code error_code(const PJRT_Error *error) {
  (void)error;
  return PJRT_Error_Code_UNIMPLEMENTED;
}
static void error_payloads(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg) {
  (void)error, (void)visitor, (void)user_arg;
}
static const PJRT_Error_FunctionTable error_table = {
    PJRT_Error_FunctionTable_STRUCT_SIZE, sizeof(PJRT_Error), NULL, error_destroy, error_message, error_code,
    error_payloads};
static PJRT_Error error = {&error_table};

static void *get_user_data(PJRT_Memory *memory, const void *key) {
  (void)memory, (void)key;
  return NULL;
}
static void set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*dtor)(void *)) {
  (void)memory, (void)key;
  if (dtor) dtor(data);
}
static const PJRT_Memory_FunctionTable memory_table = {
    PJRT_Memory_FunctionTable_STRUCT_SIZE, NULL, sizeof(PJRT_Memory), get_user_data, set_user_data};
static PJRT_Memory memory = {&memory_table};
static PJRT_Memory *const memories[] = {&memory};

/* ---- the functions ------------------------------------------------------------------------------------------------*/
static PJRT_Error *unimplemented(void *args) {
  (void)args;
  return &error;
}

static void keep_attributes(PJRT_Device_Attributes *attributes) { (void)attributes; }

/* DO(name, what to write into args) */
#define DO(name, ...)                                   \
  static PJRT_Error *do_##name(PJRT_##name##_Args *a) { \
    (void)a;                                            \
    __VA_ARGS__;                                        \
    return NULL;                                        \
  }
#define TEXT(field, text) a->field = text, a->field##_size = sizeof text - 1

static void do_Error_Destroy(PJRT_Error_Destroy_Args *a) { (void)a; }
static void do_Error_Message(PJRT_Error_Message_Args *a) { error_message(a->error, &a->message, &a->message_size); }
DO(Error_GetCode, a->code = PJRT_Error_Code_UNIMPLEMENTED)
DO(Error_ForEachPayload, )
DO(Plugin_Initialize, )
DO(Event_Destroy, )
DO(Event_IsReady, a->is_ready = true)
DO(Event_Error, )
DO(Event_Await, )
DO(Event_OnReady, a->callback(NULL, a->user_arg))
DO(Client_Create, a->client = &client)
DO(Client_Destroy, )
DO(Client_PlatformName, TEXT(platform_name, "noop"))
DO(Client_ProcessIndex, a->process_index = 0)
DO(Client_PlatformVersion, TEXT(platform_version, "noop 1"))
DO(Client_TopologyDescription, a->topology = &topology)
DO(Client_Devices, a->devices = devices, a->num_devices = 1)
DO(Client_AddressableDevices, a->addressable_devices = devices, a->num_addressable_devices = 1)
DO(Client_LookupDevice, a->device = &device)
DO(Client_LookupAddressableDevice, a->addressable_device = &device)
DO(Client_AddressableMemories, a->addressable_memories = memories, a->num_addressable_memories = 1)
DO(Client_Compile, a->executable = &loaded)
DO(Client_DefaultDeviceAssignment, a->default_assignment[0] = 0)
DO(Client_BufferFromHostBuffer, a->done_with_host_buffer = &event, a->buffer = &buffer)
DO(DeviceDescription_Id, a->id = 0)
DO(DeviceDescription_ProcessIndex, a->process_index = 0)
DO(DeviceDescription_Attributes, a->attributes = NULL, a->num_attributes = 0)
DO(DeviceDescription_Kind, TEXT(device_kind, "noop"))
DO(DeviceDescription_DebugString, TEXT(debug_string, "noop"))
DO(DeviceDescription_ToString, TEXT(to_string, "noop"))
DO(Device_GetDescription, a->device_description = &description)
DO(Device_IsAddressable, a->is_addressable = true)
DO(Device_LocalHardwareId, a->local_hardware_id = 0)
DO(Device_AddressableMemories, a->memories = memories, a->num_memories = 1)
DO(Device_DefaultMemory, a->memory = &memory)
DO(Device_GetAttributes, a->attributes = NULL, a->num_attributes = 0, a->device_attributes = NULL,
   a->attributes_deleter = keep_attributes)
DO(Memory_Id, a->id = 0)
DO(Memory_Kind, TEXT(kind, "device"))
DO(Memory_Kind_Id, a->kind_id = 0)
DO(Memory_DebugString, TEXT(debug_string, "noop memory"))
DO(Memory_ToString, TEXT(to_string, "noop memory"))
DO(Memory_AddressableByDevices, a->devices = devices, a->num_devices = 1)
DO(Executable_Destroy, )
DO(Executable_Name, TEXT(executable_name, "noop"))
DO(Executable_NumReplicas, a->num_replicas = 1)
DO(Executable_NumPartitions, a->num_partitions = 1)
DO(Executable_NumOutputs, a->num_outputs = 1)
DO(Executable_SizeOfGeneratedCodeInBytes, a->size_in_bytes = 0)
DO(LoadedExecutable_Destroy, )
DO(LoadedExecutable_GetExecutable, a->executable = &executable)
DO(LoadedExecutable_AddressableDevices, a->addressable_devices = devices, a->num_addressable_devices = 1)
DO(LoadedExecutable_Delete, )
DO(LoadedExecutable_IsDeleted, a->is_deleted = false)
DO(Buffer_Destroy, )
DO(Buffer_ElementType, a->type = PJRT_Buffer_Type_F32)
DO(Buffer_Dimensions, a->dims = NULL, a->num_dims = 0)
DO(Buffer_UnpaddedDimensions, a->unpadded_dims = NULL, a->num_dims = 0)
DO(Buffer_DynamicDimensionIndices, a->dynamic_dim_indices = NULL, a->num_dynamic_dims = 0)
DO(Buffer_GetMemoryLayout, memset(&a->layout, 0, sizeof a->layout),
   a->layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE)
DO(Buffer_OnDeviceSizeInBytes, a->on_device_size_in_bytes = sizeof zero)
DO(Buffer_Device, a->device = &device)
DO(Buffer_Memory, a->memory = &memory)
DO(Buffer_Delete, )
DO(Buffer_IsDeleted, a->is_deleted = false)
DO(Buffer_IsOnCpu, a->is_on_cpu = true)
DO(Buffer_ReadyEvent, a->event = &event)
DO(Buffer_UnsafePointer, a->buffer_pointer = (uintptr_t)&zero)
DO(Buffer_IncreaseExternalReferenceCount, )
DO(Buffer_DecreaseExternalReferenceCount, )
DO(Buffer_OpaqueDeviceMemoryDataPointer, a->device_memory_ptr = (void *)&zero)
DO(Buffer_CopyToDevice, a->dst_buffer = &buffer)
DO(Buffer_CopyToMemory, a->dst_buffer = &buffer)
DO(TopologyDescription_PlatformName, TEXT(platform_name, "noop"))
DO(TopologyDescription_PlatformVersion, TEXT(platform_version, "noop 1"))
DO(TopologyDescription_GetDeviceDescriptions, a->descriptions = descriptions, a->num_descriptions = 1)
DO(TopologyDescription_Attributes, a->attributes = NULL, a->num_attributes = 0)

static PJRT_Error *do_Plugin_Attributes(PJRT_Plugin_Attributes_Args *a) {
  static const int64_t current[] = {1, 17, 0}, minimum[] = {0, 9, 0};
#define HEAD(text) .struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = text, .name_size = sizeof text - 1
  static const PJRT_NamedValue attributes[] = {
      {HEAD("xla_version"), .type = PJRT_NamedValue_kInt64, .int64_value = 2, .value_size = 1},
      {HEAD("stablehlo_current_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = current,
       .value_size = 3},
      {HEAD("stablehlo_minimum_version"), .type = PJRT_NamedValue_kInt64List, .int64_array_value = minimum,
       .value_size = 3}};
  a->attributes = attributes;
  a->num_attributes = 3;
  return NULL;
}

static PJRT_Error *do_Buffer_ToHostBuffer(PJRT_Buffer_ToHostBuffer_Args *a) {
  if (a->dst) {
    memcpy(a->dst, &zero, sizeof zero);
    a->event = &event;
  } else {
    a->dst_size = sizeof zero;
  }
  return NULL;
}

static PJRT_Error *do_LoadedExecutable_Execute(PJRT_LoadedExecutable_Execute_Args *a) {
  a->output_lists[0][0] = &buffer;
  if (a->device_complete_events) a->device_complete_events[0] = &event;
  return NULL;
}

/* One device: replica 0 of 1, partition 0 of 1, as a DeviceAssignmentProto. */
static void keep(PJRT_DeviceAssignmentSerialized *assignment) { (void)assignment; }
static PJRT_Error *do_LoadedExecutable_GetDeviceAssignment(PJRT_LoadedExecutable_GetDeviceAssignment_Args *a) {
  static const char proto[] = {8, 1, 16, 1, 26, 3, 10, 1, 0};
  a->serialized_bytes = proto;
  a->serialized_bytes_size = sizeof proto;
  a->serialized_device_assignment = NULL;
  a->serialized_device_assignment_deleter = keep;
  return NULL;
}

static PJRT_Error *do_LoadedExecutable_AddressableDeviceLogicalIds(
    PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args *a) {
  static PJRT_LogicalDeviceIds ids[1];
  a->addressable_device_logical_ids = ids;
  a->num_addressable_device_logical_ids = 1;
  return NULL;
}

static PJRT_Error *do_Executable_OutputElementTypes(PJRT_Executable_OutputElementTypes_Args *a) {
  static PJRT_Buffer_Type types[] = {PJRT_Buffer_Type_F32};
  a->output_types = types;
  a->num_output_types = 1;
  return NULL;
}

static PJRT_Error *do_Executable_OutputDimensions(PJRT_Executable_OutputDimensions_Args *a) {
  static const size_t ranks[] = {0};
  static const int64_t none[] = {0};
  a->num_outputs = 1;
  a->dims = none;
  a->dim_sizes = ranks;
  return NULL;
}

static PJRT_Error *do_Executable_OutputMemoryKinds(PJRT_Executable_OutputMemoryKinds_Args *a) {
  static const char *const kinds[] = {"device"};
  static const size_t sizes[] = {6};
  a->num_outputs = 1;
  a->memory_kinds = kinds;
  a->memory_kind_sizes = sizes;
  return NULL;
}

__attribute__((visibility("default"))) const PJRT_Api *GetPjrtApi(void) {
  static PJRT_Api api;
  if (api.struct_size) return &api;
  void **slots = (void **)(void *)&api.PJRT_Error_Destroy;
  for (size_t i = 0; i < (sizeof api - offsetof(PJRT_Api, PJRT_Error_Destroy)) / sizeof(void *); ++i)
    slots[i] = (void *)unimplemented;
  api.pjrt_api_version = (PJRT_Api_Version){PJRT_Api_Version_STRUCT_SIZE, NULL, PJRT_API_MAJOR, PJRT_API_MINOR};
#define SET(name) api.PJRT_##name = do_##name;
  SET(Error_Destroy) SET(Error_Message) SET(Error_GetCode) SET(Error_ForEachPayload) SET(Plugin_Initialize)
  SET(Event_Destroy) SET(Event_IsReady) SET(Event_Error) SET(Event_Await) SET(Event_OnReady) SET(Client_Create)
  SET(Client_Destroy) SET(Client_PlatformName) SET(Client_ProcessIndex) SET(Client_PlatformVersion)
  SET(Client_TopologyDescription) SET(Client_Devices) SET(Client_AddressableDevices) SET(Client_LookupDevice)
  SET(Client_LookupAddressableDevice) SET(Client_AddressableMemories) SET(Client_Compile)
  SET(Client_DefaultDeviceAssignment) SET(Client_BufferFromHostBuffer) SET(DeviceDescription_Id)
  SET(DeviceDescription_ProcessIndex) SET(DeviceDescription_Attributes) SET(DeviceDescription_Kind)
  SET(DeviceDescription_DebugString) SET(DeviceDescription_ToString) SET(Device_GetDescription)
  SET(Device_IsAddressable) SET(Device_LocalHardwareId) SET(Device_AddressableMemories) SET(Device_DefaultMemory) SET(Device_GetAttributes)
  SET(Memory_Id) SET(Memory_Kind) SET(Memory_Kind_Id) SET(Memory_DebugString) SET(Memory_ToString)
  SET(Memory_AddressableByDevices) SET(Executable_Destroy) SET(Executable_Name) SET(Executable_NumReplicas)
  SET(Executable_NumPartitions) SET(Executable_NumOutputs) SET(Executable_SizeOfGeneratedCodeInBytes)
  SET(LoadedExecutable_Destroy) SET(LoadedExecutable_GetExecutable) SET(LoadedExecutable_AddressableDevices)
  SET(LoadedExecutable_Delete) SET(LoadedExecutable_IsDeleted) SET(Buffer_Destroy) SET(Buffer_ElementType)
  SET(Buffer_Dimensions) SET(Buffer_UnpaddedDimensions) SET(Buffer_DynamicDimensionIndices)
  SET(Buffer_GetMemoryLayout) SET(Buffer_OnDeviceSizeInBytes) SET(Buffer_Device) SET(Buffer_Memory)
  SET(Buffer_Delete) SET(Buffer_IsDeleted) SET(Buffer_IsOnCpu) SET(Buffer_ReadyEvent) SET(Buffer_UnsafePointer)
  SET(Buffer_IncreaseExternalReferenceCount) SET(Buffer_DecreaseExternalReferenceCount)
  SET(Buffer_OpaqueDeviceMemoryDataPointer) SET(Buffer_CopyToDevice) SET(Buffer_CopyToMemory)
  SET(TopologyDescription_PlatformName) SET(TopologyDescription_PlatformVersion)
  SET(TopologyDescription_GetDeviceDescriptions) SET(TopologyDescription_Attributes) SET(Plugin_Attributes)
  SET(Buffer_ToHostBuffer) SET(LoadedExecutable_Execute) SET(LoadedExecutable_GetDeviceAssignment)
  SET(LoadedExecutable_AddressableDeviceLogicalIds) SET(Executable_OutputElementTypes)
  SET(Executable_OutputDimensions) SET(Executable_OutputMemoryKinds)
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  return &api;
}
