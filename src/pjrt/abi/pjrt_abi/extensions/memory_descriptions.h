/* MemoryDescriptions: the memories of a device that need not be on this machine. Everything is owned by the device
 * description. */
#ifndef PJRT_ABI_EXTENSIONS_MEMORY_DESCRIPTIONS_H_
#define PJRT_ABI_EXTENSIONS_MEMORY_DESCRIPTIONS_H_

#include "../base.h"

typedef struct PJRT_MemoryDescription PJRT_MemoryDescription;

/* default_memory_index is the largest size_t where no memory is the default. */
typedef struct PJRT_DeviceDescription_MemoryDescriptions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_DeviceDescription *device_description;
  const PJRT_MemoryDescription *const *memory_descriptions;  /* out */
  size_t num_memory_descriptions;  /* out */
  size_t default_memory_index;  /* out */
} PJRT_DeviceDescription_MemoryDescriptions_Args;

typedef struct PJRT_MemoryDescription_Kind_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_MemoryDescription *memory_description;
  const char *kind;  /* out */
  size_t kind_size;  /* out */
  int kind_id;  /* out */
} PJRT_MemoryDescription_Kind_Args;

typedef struct PJRT_MemoryDescriptions_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*PJRT_DeviceDescription_MemoryDescriptions)(PJRT_DeviceDescription_MemoryDescriptions_Args *args);
  PJRT_Error *(*PJRT_MemoryDescription_Kind)(PJRT_MemoryDescription_Kind_Args *args);
} PJRT_MemoryDescriptions_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_MEMORY_DESCRIPTIONS_H_ */
