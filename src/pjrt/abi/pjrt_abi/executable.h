/* Executables, compiled and loaded, and their execution. */
#ifndef PJRT_ABI_EXECUTABLE_H_
#define PJRT_ABI_EXECUTABLE_H_

#include "client.h"
#include "event.h"

typedef struct PJRT_ExecuteContext_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_ExecuteContext *context;  /* out */
} PJRT_ExecuteContext_Create_Args;

typedef struct PJRT_ExecuteContext_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_ExecuteContext *context;  /* null */
} PJRT_ExecuteContext_Destroy_Args;

typedef struct PJRT_Executable_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;  /* null */
} PJRT_Executable_Destroy_Args;

typedef struct PJRT_LoadedExecutable_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;  /* null */
} PJRT_LoadedExecutable_Destroy_Args;

/* The Executable belongs to the caller. */
typedef struct PJRT_LoadedExecutable_GetExecutable_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *loaded_executable;
  PJRT_Executable *executable;  /* out */
} PJRT_LoadedExecutable_GetExecutable_Args;

/* A serialized DeviceAssignmentProto, alive until the caller calls the deleter. */
typedef struct PJRT_LoadedExecutable_GetDeviceAssignment_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  const char *serialized_bytes;  /* out */
  size_t serialized_bytes_size;  /* out */
  PJRT_DeviceAssignmentSerialized *serialized_device_assignment;  /* out */
  void (*serialized_device_assignment_deleter)(PJRT_DeviceAssignmentSerialized *da);  /* out */
} PJRT_LoadedExecutable_GetDeviceAssignment_Args;

typedef struct PJRT_Executable_Name_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  const char *executable_name;  /* out */
  size_t executable_name_size;  /* out */
} PJRT_Executable_Name_Args;

typedef struct PJRT_Executable_NumReplicas_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_replicas;  /* out */
} PJRT_Executable_NumReplicas_Args;

typedef struct PJRT_Executable_NumPartitions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_partitions;  /* out */
} PJRT_Executable_NumPartitions_Args;

typedef struct PJRT_LogicalDeviceIds {
  int replica;
  int partition;
} PJRT_LogicalDeviceIds;

typedef struct PJRT_LoadedExecutable_AddressableDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  PJRT_Device *const *addressable_devices;  /* out */
  size_t num_addressable_devices;  /* out */
} PJRT_LoadedExecutable_AddressableDevices_Args;

typedef struct PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  PJRT_LogicalDeviceIds *addressable_device_logical_ids;  /* out */
  size_t num_addressable_device_logical_ids;  /* out */
} PJRT_LoadedExecutable_AddressableDeviceLogicalIds_Args;

/* Asked twice: with code null the plugin writes code_size, then it fills the code that the
 * caller allocated. */
typedef struct PJRT_Executable_OptimizedProgram_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  PJRT_Program *program;  /* fills */
} PJRT_Executable_OptimizedProgram_Args;

typedef struct PJRT_LoadedExecutable_Delete_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
} PJRT_LoadedExecutable_Delete_Args;

typedef struct PJRT_LoadedExecutable_IsDeleted_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  bool is_deleted;  /* out */
} PJRT_LoadedExecutable_IsDeleted_Args;

/* Owns the chunk: calls its deleter when done with it. Null on success, else an error made with
 * *callback_error. */
typedef PJRT_Error *(*PJRT_SendCallback)(
    PJRT_Chunk *chunk /* consumes */, PJRT_CallbackError *callback_error, size_t total_size_in_bytes,
    bool done, void *user_arg);

typedef struct PJRT_SendCallbackInfo {
  int64_t channel_id;
  void *user_arg;
  PJRT_SendCallback send_callback;
} PJRT_SendCallbackInfo;

/* Owns the stream: fills it chunk by chunk, then destroys it. */
typedef void (*PJRT_RecvCallback)(PJRT_CopyToDeviceStream *stream /* consumes */, void *user_arg);

typedef struct PJRT_RecvCallbackInfo {
  int64_t channel_id;
  void *user_arg;
  PJRT_RecvCallback recv_callback;
} PJRT_RecvCallbackInfo;

typedef void (*PJRT_HloOutputCallback)(
    int64_t replica_id, int64_t partition_id, const void *data, const int64_t *shape_dims,
    size_t shape_num_dims, PJRT_Buffer_Type shape_element_type, int64_t operand_index,
    void *user_arg);

typedef struct PJRT_HloOutputCallbackInfo {
  void *user_arg;
  PJRT_HloOutputCallback callback;
  int64_t callback_id;
  size_t num_operands;
} PJRT_HloOutputCallbackInfo;

/* Lists of callbacks are one array a device. incarnation_ids and task_ids have num_tasks
 * entries. */
typedef struct PJRT_ExecuteOptions {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_SendCallbackInfo **send_callbacks;  /* null, values, inner num_send_ops */
  PJRT_RecvCallbackInfo **recv_callbacks;  /* null, values, inner num_recv_ops */
  size_t num_send_ops;
  size_t num_recv_ops;
  int launch_id;
  const int64_t *non_donatable_input_indices;  /* null */
  size_t num_non_donatable_input_indices;
  PJRT_ExecuteContext *context;  /* null, later */
  const char *call_location;  /* null */
  size_t num_tasks;
  int *task_ids;  /* null, count num_tasks */
  int64_t *incarnation_ids;  /* null, count num_tasks */
  PJRT_MultiSlice_Config *multi_slice_config;  /* null */
  bool use_major_to_minor_data_layout_for_callbacks;
  PJRT_HloOutputCallbackInfo *hlo_output_callbacks;  /* null */
  size_t num_hlo_output_callbacks;
  const PJRT_NamedValue *custom_options;  /* null, count num_custom_options */
  size_t num_custom_options;
} PJRT_ExecuteOptions;

/* argument_lists[device][argument]; the caller allocates output_lists[device][output] and, where
 * wanted, device_complete_events[device]. With execute_device set, num_devices is 1 and the
 * program runs there. */
typedef struct PJRT_LoadedExecutable_Execute_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  PJRT_ExecuteOptions *options;
  PJRT_Buffer *const *const *argument_lists;  /* count num_devices, inner num_args, donates */
  size_t num_devices;
  size_t num_args;
  PJRT_Buffer **const *output_lists;  /* null, count num_devices, fills, new */
  PJRT_Event **device_complete_events;  /* null, count num_devices, fills, new */
  PJRT_Device *execute_device;  /* null */
} PJRT_LoadedExecutable_Execute_Args;

typedef struct PJRT_Executable_NumOutputs_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;  /* out */
} PJRT_Executable_NumOutputs_Args;

typedef struct PJRT_Executable_SizeOfGeneratedCodeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  int64_t size_in_bytes;  /* out */
} PJRT_Executable_SizeOfGeneratedCodeInBytes_Args;

typedef struct PJRT_Executable_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  const char *executable_fingerprint;  /* out */
  size_t executable_fingerprint_size;  /* out */
} PJRT_Executable_Fingerprint_Args;

typedef struct PJRT_Executable_GetCostAnalysis_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_properties;  /* out */
  const PJRT_NamedValue *properties;  /* out */
} PJRT_Executable_GetCostAnalysis_Args;

typedef struct PJRT_Executable_GetCompiledMemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  int64_t generated_code_size_in_bytes;  /* out */
  int64_t argument_size_in_bytes;  /* out */
  int64_t output_size_in_bytes;  /* out */
  int64_t alias_size_in_bytes;  /* out */
  int64_t temp_size_in_bytes;  /* out */
  int64_t host_generated_code_size_in_bytes;  /* out, later */
  int64_t host_argument_size_in_bytes;  /* out */
  int64_t host_output_size_in_bytes;  /* out */
  int64_t host_alias_size_in_bytes;  /* out */
  int64_t host_temp_size_in_bytes;  /* out */
  int64_t peak_memory_in_bytes;  /* out */
  int64_t total_size_in_bytes;  /* out */
  int64_t total_allocation_bytes;  /* out */
  int64_t indefinite_allocations;  /* out */
  int64_t peak_unpadded_heap_bytes;  /* out */
} PJRT_Executable_GetCompiledMemoryStats_Args;

typedef struct PJRT_Executable_OutputElementTypes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  PJRT_Buffer_Type *output_types;  /* out */
  size_t num_output_types;  /* out */
} PJRT_Executable_OutputElementTypes_Args;

/* dims holds the sizes of all outputs in a row, dim_sizes the rank of each. */
typedef struct PJRT_Executable_OutputDimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;  /* out */
  const int64_t *dims;  /* out, one */
  const size_t *dim_sizes;  /* out */
} PJRT_Executable_OutputDimensions_Args;

typedef struct PJRT_Executable_ParameterMemoryKinds_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_parameters;  /* out */
  const char *const *memory_kinds;  /* out */
  const size_t *memory_kind_sizes;  /* out */
} PJRT_Executable_ParameterMemoryKinds_Args;

typedef struct PJRT_Executable_OutputMemoryKinds_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  size_t num_outputs;  /* out */
  const char *const *memory_kinds;  /* out */
  const size_t *memory_kind_sizes;  /* out */
} PJRT_Executable_OutputMemoryKinds_Args;

/* The bytes live until the caller calls the deleter. */
typedef struct PJRT_Executable_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_Executable *executable;
  const char *serialized_bytes;  /* out */
  size_t serialized_bytes_size;  /* out */
  PJRT_SerializedExecutable *serialized_executable;  /* out */
  void (*serialized_executable_deleter)(PJRT_SerializedExecutable *exec);  /* out */
} PJRT_Executable_Serialize_Args;

/* A serialized CompileOptionsProto, alive until the caller calls the deleter. */
typedef struct PJRT_Executable_GetCompileOptions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Executable *executable;
  const char *serialized_bytes;  /* out */
  size_t serialized_bytes_size;  /* out */
  PJRT_SerializedCompileOptions *serialized_compile_options;  /* out */
  void (*serialized_compile_options_deleter)(PJRT_SerializedCompileOptions *options);  /* out */
} PJRT_Executable_GetCompileOptions_Args;

typedef struct PJRT_LoadOptions {
  size_t struct_size;
  const int32_t *computation_origin;  /* null */
  size_t computation_origin_size;
  PJRT_MultiSlice_Config *multi_slice_config;  /* null, later */
} PJRT_LoadOptions;

/* The bytes may be freed after the call. */
typedef struct PJRT_Executable_DeserializeAndLoad_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const char *serialized_executable;
  size_t serialized_executable_size;
  PJRT_LoadedExecutable *loaded_executable;  /* out */
  const char *overridden_serialized_compile_options;  /* null, later */
  size_t overridden_serialized_compile_options_size;
  PJRT_LoadOptions *load_options;  /* null */
} PJRT_Executable_DeserializeAndLoad_Args;

typedef struct PJRT_LoadedExecutable_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_LoadedExecutable *executable;
  const char *executable_fingerprint;  /* out */
  size_t executable_fingerprint_size;  /* out */
} PJRT_LoadedExecutable_Fingerprint_Args;

#endif  /* PJRT_ABI_EXECUTABLE_H_ */
