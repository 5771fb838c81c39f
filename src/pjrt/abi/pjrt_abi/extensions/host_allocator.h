/* HostAllocator: host memory that suits a client's transfers. HostMemoryAllocator replaces it. */
#ifndef PJRT_ABI_EXTENSIONS_HOST_ALLOCATOR_H_
#define PJRT_ABI_EXTENSIONS_HOST_ALLOCATOR_H_

#include "../base.h"

typedef struct PJRT_HostAllocator_GetPreferredAlignment_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t preferred_alignment;  /* out */
} PJRT_HostAllocator_GetPreferredAlignment_Args;

typedef struct PJRT_HostAllocator_Allocate_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t size;
  size_t alignment;
  void *ptr;  /* out */
} PJRT_HostAllocator_Allocate_Args;

typedef struct PJRT_HostAllocator_Free_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  void *ptr;  /* address */
} PJRT_HostAllocator_Free_Args;

typedef struct PJRT_HostAllocator_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*get_preferred_alignment)(PJRT_HostAllocator_GetPreferredAlignment_Args *args);
  PJRT_Error *(*allocate)(PJRT_HostAllocator_Allocate_Args *args);
  PJRT_Error *(*free)(PJRT_HostAllocator_Free_Args *args);
} PJRT_HostAllocator_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_HOST_ALLOCATOR_H_ */
