/* HostMemoryAllocator: host memory that suits a client's transfers, of a NUMA node if the caller names one. */
#ifndef PJRT_ABI_EXTENSIONS_HOST_MEMORY_ALLOCATOR_H_
#define PJRT_ABI_EXTENSIONS_HOST_MEMORY_ALLOCATOR_H_

#include "../base.h"

/* The memory is freed with deleter(ptr, deleter_arg). */
typedef struct PJRT_HostMemoryAllocator_Allocate_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Client *client;
  size_t size;
  int numa_node;
  uint8_t *ptr;  /* out */
  void (*deleter)(void *ptr, void *arg);  /* out, once */
  void *deleter_arg;  /* out */
} PJRT_HostMemoryAllocator_Allocate_Args;

typedef struct PJRT_HostMemoryAllocator_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*allocate)(PJRT_HostMemoryAllocator_Allocate_Args *args);
} PJRT_HostMemoryAllocator_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_HOST_MEMORY_ALLOCATOR_H_ */
