/* Devices, their descriptions and their memories. All are owned by the client or the topology
 * they come from. */
#ifndef PJRT_ABI_DEVICE_H_
#define PJRT_ABI_DEVICE_H_

#include "base.h"

/* Since 0.114 a memory carries its own functions, for data that the caller attaches to it: by key, freed with the
 * destructor. */
typedef struct PJRT_Memory_FunctionTable {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  size_t instance_struct_size;
  void * (*get_user_data)(struct PJRT_Memory *memory, const void *key);
  void (*set_user_data)(struct PJRT_Memory *memory, const void *key, void *data, void (*dtor)(void *));
} PJRT_Memory_FunctionTable;

/* Opaque before 0.114. Owned by the client. */
struct PJRT_Memory {
  const struct PJRT_Memory_FunctionTable *vtable;
};

typedef struct PJRT_DeviceDescription_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  int id;  /* out */
} PJRT_DeviceDescription_Id_Args;

typedef struct PJRT_DeviceDescription_ProcessIndex_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  int process_index;  /* out */
} PJRT_DeviceDescription_ProcessIndex_Args;

typedef struct PJRT_DeviceDescription_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  size_t num_attributes;  /* out */
  const PJRT_NamedValue *attributes;  /* out */
} PJRT_DeviceDescription_Attributes_Args;

typedef struct PJRT_DeviceDescription_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  const char *device_kind;  /* out */
  size_t device_kind_size;  /* out */
} PJRT_DeviceDescription_Kind_Args;

typedef struct PJRT_DeviceDescription_DebugString_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  const char *debug_string;  /* out */
  size_t debug_string_size;  /* out */
} PJRT_DeviceDescription_DebugString_Args;

typedef struct PJRT_DeviceDescription_ToString_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  const char *to_string;  /* out */
  size_t to_string_size;  /* out */
} PJRT_DeviceDescription_ToString_Args;

typedef struct PJRT_Device_GetDescription_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  PJRT_DeviceDescription *device_description;  /* out */
} PJRT_Device_GetDescription_Args;

typedef struct PJRT_Device_IsAddressable_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  bool is_addressable;  /* out */
} PJRT_Device_IsAddressable_Args;

typedef struct PJRT_Device_LocalHardwareId_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  int local_hardware_id;  /* out */
} PJRT_Device_LocalHardwareId_Args;

typedef struct PJRT_Device_AddressableMemories_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  PJRT_Memory *const *memories;  /* out */
  size_t num_memories;  /* out */
} PJRT_Device_AddressableMemories_Args;

typedef struct PJRT_Device_DefaultMemory_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  PJRT_Memory *memory;  /* out */
} PJRT_Device_DefaultMemory_Args;

/* A value is meaningful where its _is_set is true; bytes_in_use always is. */
typedef struct PJRT_Device_MemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  int64_t bytes_in_use;  /* out */
  int64_t peak_bytes_in_use;  /* out */
  bool peak_bytes_in_use_is_set;  /* out */
  int64_t num_allocs;  /* out */
  bool num_allocs_is_set;  /* out */
  int64_t largest_alloc_size;  /* out */
  bool largest_alloc_size_is_set;  /* out */
  int64_t bytes_limit;  /* out */
  bool bytes_limit_is_set;  /* out */
  int64_t bytes_reserved;  /* out, later */
  bool bytes_reserved_is_set;  /* out */
  int64_t peak_bytes_reserved;  /* out */
  bool peak_bytes_reserved_is_set;  /* out */
  int64_t bytes_reservable_limit;  /* out */
  bool bytes_reservable_limit_is_set;  /* out */
  int64_t largest_free_block_bytes;  /* out */
  bool largest_free_block_bytes_is_set;  /* out */
  int64_t pool_bytes;  /* out */
  bool pool_bytes_is_set;  /* out */
  int64_t peak_pool_bytes;  /* out */
  bool peak_pool_bytes_is_set;  /* out */
  int64_t peak_allocated_bytes;  /* out */
  bool peak_allocated_bytes_is_set;  /* out */
} PJRT_Device_MemoryStats_Args;

typedef struct PJRT_Device_ClearMemoryStats_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
} PJRT_Device_ClearMemoryStats_Args;

/* Makes the execution with that launch id fail; poisoned is set where the call came in time. */
typedef struct PJRT_Device_PoisonExecution_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  int32_t launch_id;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
  bool poisoned;  /* out */
  const PJRT_NamedValue *payload;  /* later */
  size_t num_payload;
} PJRT_Device_PoisonExecution_Args;

/* The array lives until the caller calls attributes_deleter on device_attributes. */
typedef struct PJRT_Device_GetAttributes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  const PJRT_NamedValue *attributes;  /* out */
  size_t num_attributes;  /* out */
  PJRT_Device_Attributes *device_attributes;  /* out */
  void (*attributes_deleter)(PJRT_Device_Attributes *device_attributes);  /* out */
} PJRT_Device_GetAttributes_Args;

typedef struct PJRT_Device_CreateAsyncTrackingEvent_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Device *device;
  const char *description;
  size_t description_size;
  PJRT_AsyncTrackingEvent *event;  /* out */
} PJRT_Device_CreateAsyncTrackingEvent_Args;

typedef struct PJRT_AsyncTrackingEvent_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_AsyncTrackingEvent *event;
} PJRT_AsyncTrackingEvent_Destroy_Args;

typedef struct PJRT_Memory_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  int id;  /* out */
} PJRT_Memory_Id_Args;

typedef struct PJRT_Memory_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  const char *kind;  /* out */
  size_t kind_size;  /* out */
} PJRT_Memory_Kind_Args;

typedef struct PJRT_Memory_Kind_Id_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  int kind_id;  /* out */
} PJRT_Memory_Kind_Id_Args;

typedef struct PJRT_Memory_DebugString_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  const char *debug_string;  /* out */
  size_t debug_string_size;  /* out */
} PJRT_Memory_DebugString_Args;

typedef struct PJRT_Memory_ToString_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  const char *to_string;  /* out */
  size_t to_string_size;  /* out */
} PJRT_Memory_ToString_Args;

typedef struct PJRT_Memory_AddressableByDevices_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Memory *memory;
  PJRT_Device *const *devices;  /* out */
  size_t num_devices;  /* out */
} PJRT_Memory_AddressableByDevices_Args;

#endif  /* PJRT_ABI_DEVICE_H_ */
