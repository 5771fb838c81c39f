/* Clients: creation, the key-value store, devices, compiling and loading. */
#ifndef PJRT_ABI_CLIENT_H_
#define PJRT_ABI_CLIENT_H_

#include "base.h"
#include "device.h"

typedef void (*PJRT_KeyValueGetCallback_ValueDeleter)(char *value);

/* Waits up to timeout_in_ms for the key. The plugin copies the value, then calls the deleter on
 * it. An error is made with *callback_error. */
typedef struct PJRT_KeyValueGetCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *key;
  size_t key_size;
  int timeout_in_ms;
  PJRT_CallbackError *callback_error;
  void *user_arg;
  char *value;  /* out */
  size_t value_size;  /* out */
  PJRT_KeyValueGetCallback_ValueDeleter value_deleter_callback;  /* out */
} PJRT_KeyValueGetCallback_Args;

typedef PJRT_Error *(*PJRT_KeyValueGetCallback)(PJRT_KeyValueGetCallback_Args *args);

typedef void (*PJRT_KeyValueTryGetCallback_ValueDeleter)(char *value);

/* As get, but answers NOT_FOUND at once where the key is missing. */
typedef struct PJRT_KeyValueTryGetCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *key;
  size_t key_size;
  PJRT_CallbackError *callback_error;
  void *user_arg;
  char *value;  /* out */
  size_t value_size;  /* out */
  PJRT_KeyValueTryGetCallback_ValueDeleter value_deleter_callback;  /* out */
} PJRT_KeyValueTryGetCallback_Args;

typedef PJRT_Error *(*PJRT_KeyValueTryGetCallback)(PJRT_KeyValueTryGetCallback_Args *args);

/* Key and value live only during the call. */
typedef struct PJRT_KeyValuePutCallback_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *key;
  size_t key_size;
  const char *value;
  size_t value_size;
  PJRT_CallbackError *callback_error;
  void *user_arg;
} PJRT_KeyValuePutCallback_Args;

typedef PJRT_Error *(*PJRT_KeyValuePutCallback)(PJRT_KeyValuePutCallback_Args *args);

/* Options may be freed after the call. The store callbacks must stay callable, from any thread,
 * until the client is destroyed; null means that there is no store. */
typedef struct PJRT_Client_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_NamedValue *create_options;  /* count num_options */
  size_t num_options;
  PJRT_KeyValueGetCallback kv_get_callback;  /* null */
  void *kv_get_user_arg;
  PJRT_KeyValuePutCallback kv_put_callback;  /* null */
  void *kv_put_user_arg;
  PJRT_Client *client;  /* out */
  PJRT_KeyValueTryGetCallback kv_try_get_callback;  /* null, later */
  void *kv_try_get_user_arg;
} PJRT_Client_Create_Args;

/* Everything that the client owns (devices, memories, its topology) is freed with it. */
typedef struct PJRT_Client_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;  /* null */
} PJRT_Client_Destroy_Args;

typedef struct PJRT_Client_PlatformName_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const char *platform_name;  /* out */
  size_t platform_name_size;  /* out */
} PJRT_Client_PlatformName_Args;

typedef struct PJRT_Client_ProcessIndex_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  int process_index;  /* out */
} PJRT_Client_ProcessIndex_Args;

typedef struct PJRT_Client_PlatformVersion_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const char *platform_version;  /* out */
  size_t platform_version_size;  /* out */
} PJRT_Client_PlatformVersion_Args;

/* The topology is owned by the client: the caller must not destroy it. */
typedef struct PJRT_Client_TopologyDescription_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_TopologyDescription *topology;  /* out, borrowed */
} PJRT_Client_TopologyDescription_Args;

/* All devices of all processes. Array and devices are owned by the client. */
typedef struct PJRT_Client_Devices_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Device *const *devices;  /* out */
  size_t num_devices;  /* out */
} PJRT_Client_Devices_Args;

/* The devices on which this process can run programs. Array and devices are owned by the client. */
typedef struct PJRT_Client_AddressableDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Device *const *addressable_devices;  /* out */
  size_t num_addressable_devices;  /* out */
} PJRT_Client_AddressableDevices_Args;

typedef struct PJRT_Client_LookupDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  int id;
  PJRT_Device *device;  /* out */
} PJRT_Client_LookupDevice_Args;

typedef struct PJRT_Client_LookupAddressableDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  int local_hardware_id;
  PJRT_Device *addressable_device;  /* out */
} PJRT_Client_LookupAddressableDevice_Args;

typedef enum {
  PJRT_ProcessState_kUnspecified = 0,
  PJRT_ProcessState_kUninitialized = 1,
  PJRT_ProcessState_kDisconnected = 2,
  PJRT_ProcessState_kConnected = 3,
  PJRT_ProcessState_kError = 4,
} PJRT_ProcessState;

/* The state of one process of the job. */
typedef struct PJRT_ProcessInfo {
  size_t struct_size;
  int task_id;
  uint64_t incarnation_id;
  PJRT_ProcessState state;
  int error_code;
  const char *error_message;
  size_t error_message_size;
} PJRT_ProcessInfo;

typedef struct PJRT_Client_UpdateGlobalProcessInfo_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_ProcessInfo *process_infos;
  size_t num_process_infos;
} PJRT_Client_UpdateGlobalProcessInfo_Args;

typedef struct PJRT_Client_AddressableMemories_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Memory *const *addressable_memories;  /* out */
  size_t num_addressable_memories;  /* out */
} PJRT_Client_AddressableMemories_Args;

/* A program and its format: "mlir" (text, bytecode or portable artifact), "hlo" or
 * "hlo_with_config" (protos). */
typedef struct PJRT_Program {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  char *code;
  size_t code_size;
  const char *format;
  size_t format_size;
} PJRT_Program;

/* Program and options (a serialized CompileOptionsProto) may be freed after the call. The result
 * belongs to the caller. */
typedef struct PJRT_Client_Compile_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const PJRT_Program *program;
  const char *compile_options;
  size_t compile_options_size;
  PJRT_LoadedExecutable *executable;  /* out */
} PJRT_Client_Compile_Args;

/* Makes an Executable runnable on this client. */
typedef struct PJRT_Client_Load_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Executable *executable;
  const char *compile_options;
  size_t compile_options_size;
  PJRT_LoadedExecutable *loaded_executable;  /* out */
} PJRT_Client_Load_Args;

/* Fills the array of the caller, which must hold num_replicas x num_partitions device ids. */
typedef struct PJRT_Client_DefaultDeviceAssignment_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  int num_replicas;
  int num_partitions;
  size_t default_assignment_size;
  int *default_assignment;  /* fills */
} PJRT_Client_DefaultDeviceAssignment_Args;

/* Registers host memory for direct transfers until it is unmapped. */
typedef struct PJRT_Client_DmaMap_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  void *data;  /* count size, keeps */
  size_t size;
} PJRT_Client_DmaMap_Args;

typedef struct PJRT_Client_DmaUnmap_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  void *data;  /* address */
} PJRT_Client_DmaUnmap_Args;

#endif  /* PJRT_ABI_CLIENT_H_ */
