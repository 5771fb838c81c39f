/* RawBuffer: the bytes behind a buffer, without shape or type. A raw buffer received belongs to
 * the caller. */
#ifndef PJRT_ABI_EXTENSIONS_RAW_BUFFER_H_
#define PJRT_ABI_EXTENSIONS_RAW_BUFFER_H_

#include "../base.h"

typedef struct PJRT_RawBuffer PJRT_RawBuffer;

typedef struct PJRT_RawBuffer_CreateRawAliasOfBuffer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Buffer *buffer;
  PJRT_RawBuffer *raw_buffer;  /* out */
} PJRT_RawBuffer_CreateRawAliasOfBuffer_Args;

typedef struct PJRT_RawBuffer_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
} PJRT_RawBuffer_Destroy_Args;

typedef struct PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
  size_t on_device_size_in_bytes;  /* out */
} PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args;

typedef struct PJRT_RawBuffer_GetMemorySpace_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
  PJRT_Memory *memory_space;  /* out */
} PJRT_RawBuffer_GetMemorySpace_Args;

/* The source must stay unchanged until the event is ready. */
typedef struct PJRT_RawBuffer_CopyRawHostToDevice_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
  const void *src;  /* count transfer_size, keeps */
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  /* out */
} PJRT_RawBuffer_CopyRawHostToDevice_Args;

/* The destination must live until the event is ready. */
typedef struct PJRT_RawBuffer_CopyRawDeviceToHost_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
  void *dst;  /* count transfer_size, fills, keeps */
  int64_t offset;
  int64_t transfer_size;
  PJRT_Event *event;  /* out */
} PJRT_RawBuffer_CopyRawDeviceToHost_Args;

/* Null where the memory is not visible to the host. */
typedef struct PJRT_RawBuffer_GetHostPointer_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_RawBuffer *buffer;
  void *host_pointer;  /* out */
} PJRT_RawBuffer_GetHostPointer_Args;

typedef struct PJRT_RawBuffer_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_RawBuffer_CreateRawAliasOfBuffer)(PJRT_RawBuffer_CreateRawAliasOfBuffer_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_Destroy)(PJRT_RawBuffer_Destroy_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_GetOnDeviceSizeInBytes)(PJRT_RawBuffer_GetOnDeviceSizeInBytes_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_GetMemorySpace)(PJRT_RawBuffer_GetMemorySpace_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_CopyRawHostToDevice)(PJRT_RawBuffer_CopyRawHostToDevice_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_CopyRawDeviceToHost)(PJRT_RawBuffer_CopyRawDeviceToHost_Args *args);
  PJRT_Error *(*PJRT_RawBuffer_GetHostPointer)(PJRT_RawBuffer_GetHostPointer_Args *args);
} PJRT_RawBuffer_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_RAW_BUFFER_H_ */
