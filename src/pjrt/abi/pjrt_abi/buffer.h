/* Buffers: making them, reading them, copying, donating. A PJRT_Buffer* received belongs to the
 * caller. */
#ifndef PJRT_ABI_BUFFER_H_
#define PJRT_ABI_BUFFER_H_

#include "event.h"
#include "layout.h"

typedef struct PJRT_Client_CreateUninitializedBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;  /* null */
  PJRT_Device *device;  /* null */
  PJRT_Memory *memory;  /* null */
  PJRT_Buffer *buffer;  /* out */
} PJRT_Client_CreateUninitializedBuffer_Args;

/* A buffer that is never filled: waiting for it ends with the error. */
typedef struct PJRT_Client_CreateErrorBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;  /* null */
  PJRT_Memory *memory;
  PJRT_Buffer *buffer;  /* out */
  const PJRT_NamedValue *payload;  /* later */
  size_t num_payload;
  PJRT_Buffer_MemoryLayout *device_layout;  /* null */
} PJRT_Client_CreateErrorBuffer_Args;

/* A buffer without memory yet; the callback handle is spent by PJRT_Client_FulfillAliasBuffer,
 * exactly once. */
typedef struct PJRT_Client_CreateAliasBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Memory *memory;
  const int64_t *shape_dims;
  size_t shape_num_dims;
  PJRT_Buffer_Type shape_element_type;
  PJRT_Buffer_MemoryLayout *shape_layout;  /* null */
  PJRT_Buffer *alias_buffer;  /* out */
  PJRT_FulfillAliasBufferCallback *fulfill_alias_buffer_cb;  /* out, new */
} PJRT_Client_CreateAliasBuffer_Args;

/* With status OK the alias stands for the buffer; with any other status it fails with that error. */
typedef struct PJRT_Client_FulfillAliasBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  PJRT_Buffer *buffer;  /* null */
  PJRT_Error_Code status_code;
  const char *error_message;
  size_t error_message_size;
  PJRT_FulfillAliasBufferCallback *fulfill_alias_buffer_cb;  /* consumes */
} PJRT_Client_FulfillAliasBuffer_Args;

/* The event is ready when the host memory may be changed or freed, which depends on host_buffer_semantics. Where
 * both are set, memory counts and device does not. Null byte_strides mean dense row-major. */
typedef struct PJRT_Client_BufferFromHostBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  const void *data;  /* address, keeps */
  PJRT_Buffer_Type type;
  const int64_t *dims;
  size_t num_dims;
  const int64_t *byte_strides;  /* null */
  size_t num_byte_strides;
  PJRT_HostBufferSemantics host_buffer_semantics;
  PJRT_Device *device;  /* null */
  PJRT_Memory *memory;  /* null */
  PJRT_Buffer_MemoryLayout *device_layout;  /* null */
  PJRT_Event *done_with_host_buffer;  /* out */
  PJRT_Buffer *buffer;  /* out */
} PJRT_Client_BufferFromHostBuffer_Args;

/* A buffer over device memory that it does not own. The callback runs once, when the buffer does not use the memory
 * any more. */
typedef struct PJRT_Client_CreateViewOfDeviceBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  void *device_buffer_ptr;  /* address, keeps */
  const int64_t *dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
  PJRT_Buffer_MemoryLayout *layout;  /* null */
  PJRT_Device *device;  /* null */
  void (*on_delete_callback)(void *device_buffer_ptr, void *user_arg);  /* null, once */
  void *on_delete_callback_arg;
  intptr_t stream;
  PJRT_Buffer *buffer;  /* out */
  PJRT_Memory *memory;  /* null, later */
} PJRT_Client_CreateViewOfDeviceBuffer_Args;

/* Deletes the buffer if it is not deleted yet, and frees the handle. */
typedef struct PJRT_Buffer_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;  /* null */
} PJRT_Buffer_Destroy_Args;

typedef struct PJRT_Buffer_ElementType_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Buffer_Type type;  /* out */
} PJRT_Buffer_ElementType_Args;

typedef struct PJRT_Buffer_Dimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  const int64_t *dims;  /* out */
  size_t num_dims;  /* out */
} PJRT_Buffer_Dimensions_Args;

typedef struct PJRT_Buffer_UnpaddedDimensions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  const int64_t *unpadded_dims;  /* out, count num_dims */
  size_t num_dims;  /* out */
} PJRT_Buffer_UnpaddedDimensions_Args;

typedef struct PJRT_Buffer_DynamicDimensionIndices_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  const size_t *dynamic_dim_indices;  /* out, count num_dynamic_dims */
  size_t num_dynamic_dims;  /* out */
} PJRT_Buffer_DynamicDimensionIndices_Args;

typedef struct PJRT_Buffer_GetMemoryLayout_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Buffer_MemoryLayout layout;  /* out */
} PJRT_Buffer_GetMemoryLayout_Args;

/* With dst null the plugin only writes dst_size. A null host_layout means the layout that the
 * source has on its device. */
typedef struct PJRT_Buffer_ToHostBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *src;
  PJRT_Buffer_MemoryLayout *host_layout;  /* null */
  void *dst;  /* null, fills, keeps */
  size_t dst_size;  /* in out */
  PJRT_Event *event;  /* out */
} PJRT_Buffer_ToHostBuffer_Args;

typedef struct PJRT_Buffer_OnDeviceSizeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  size_t on_device_size_in_bytes;  /* out */
} PJRT_Buffer_OnDeviceSizeInBytes_Args;

/* Releases the device memory; the handle stays. */
typedef struct PJRT_Buffer_Delete_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
} PJRT_Buffer_Delete_Args;

typedef struct PJRT_Buffer_IsDeleted_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  bool is_deleted;  /* out */
} PJRT_Buffer_IsDeleted_Args;

/* Raw bytes of the device layout; dst must live until the event is ready. */
typedef struct PJRT_Buffer_CopyRawToHost_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  void *dst;  /* count transfer_size, fills, keeps */
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  /* out */
} PJRT_Buffer_CopyRawToHost_Args;

typedef struct PJRT_Buffer_CopyRawToHostFuture_Callback_Args {
  size_t struct_size;
  void *callback_data;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
  void *dst;  /* address, fills, keeps */
} PJRT_Buffer_CopyRawToHostFuture_Callback_Args;

/* As CopyRawToHost, but the caller gives the destination later: it calls future_ready_callback once, with
 * callback_data and dst or an error. */
typedef struct PJRT_Buffer_CopyRawToHostFuture_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  /* out */
  void *callback_data;  /* out */
  void (*future_ready_callback)(PJRT_Buffer_CopyRawToHostFuture_Callback_Args *args);  /* out, once */
} PJRT_Buffer_CopyRawToHostFuture_Args;

typedef struct PJRT_Buffer_CopyToDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Device *dst_device;
  PJRT_Buffer *dst_buffer;  /* out */
} PJRT_Buffer_CopyToDevice_Args;

typedef struct PJRT_Buffer_CopyToMemory_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Memory *dst_memory;
  PJRT_Buffer *dst_buffer;  /* out */
} PJRT_Buffer_CopyToMemory_Args;

typedef struct PJRT_Buffer_Bitcast_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Buffer_Type element_type;
  const int64_t *dims;
  size_t num_dims;
  PJRT_Buffer_MemoryLayout *device_layout;  /* null */
  PJRT_Buffer *out_buffer;  /* out */
} PJRT_Buffer_Bitcast_Args;

typedef struct PJRT_Buffer_IsOnCpu_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  bool is_on_cpu;  /* out */
} PJRT_Buffer_IsOnCpu_Args;

typedef struct PJRT_Buffer_Device_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Device *device;  /* out */
} PJRT_Buffer_Device_Args;

typedef struct PJRT_Buffer_Memory_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Memory *memory;  /* out */
} PJRT_Buffer_Memory_Args;

/* A new event for each call; it belongs to the caller. */
typedef struct PJRT_Buffer_ReadyEvent_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_Event *event;  /* out */
} PJRT_Buffer_ReadyEvent_Args;

typedef struct PJRT_Buffer_UnsafePointer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  uintptr_t buffer_pointer;  /* out */
} PJRT_Buffer_UnsafePointer_Args;

/* While the count is above zero the memory behind the pointer stays. */
typedef struct PJRT_Buffer_IncreaseExternalReferenceCount_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
} PJRT_Buffer_IncreaseExternalReferenceCount_Args;

typedef struct PJRT_Buffer_DecreaseExternalReferenceCount_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
} PJRT_Buffer_DecreaseExternalReferenceCount_Args;

typedef struct PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  void *device_memory_ptr;  /* out */
} PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args;

typedef struct PJRT_Buffer_DonateWithControlDependency_Callback_Args {
  size_t struct_size;
  void *callback_data;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
} PJRT_Buffer_DonateWithControlDependency_Callback_Args;

/* The new buffer becomes ready after the old one and after the caller has called
 * dependency_ready_callback once. */
typedef struct PJRT_Buffer_DonateWithControlDependency_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;  /* donates */
  void *callback_data;  /* out */
  void (*dependency_ready_callback)(PJRT_Buffer_DonateWithControlDependency_Callback_Args *args);  /* out, once */
  PJRT_Buffer *out_buffer;  /* out */
} PJRT_Buffer_DonateWithControlDependency_Args;

#endif  /* PJRT_ABI_BUFFER_H_ */
