/* ExecutableMetadata: facts about an executable as a serialized proto. These argument structs have no struct_size. */
#ifndef PJRT_ABI_EXTENSIONS_EXECUTABLE_METADATA_H_
#define PJRT_ABI_EXTENSIONS_EXECUTABLE_METADATA_H_

#include "../base.h"

typedef struct PJRT_ExecutableMetadata {
  const char *serialized_metadata;
  size_t serialized_metadata_size;
} PJRT_ExecutableMetadata;

/* The plugin allocates the metadata, struct and bytes; the caller gives both back with destroy_serialized_metadata. */
typedef struct PJRT_ExecutableMetadata_GetExecutableMetadata_Args {
  PJRT_Executable *executable;
  PJRT_ExecutableMetadata *metadata;  /* out, new */
} PJRT_ExecutableMetadata_GetExecutableMetadata_Args;

typedef struct PJRT_ExecutableMetadata_DestroySerializedMetadata_Args {
  PJRT_ExecutableMetadata *metadata;  /* destroys */
} PJRT_ExecutableMetadata_DestroySerializedMetadata_Args;

typedef struct PJRT_ExecutableMetadata_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*get_executable_metadata)(PJRT_ExecutableMetadata_GetExecutableMetadata_Args *args);
  void (*destroy_serialized_metadata)(PJRT_ExecutableMetadata_DestroySerializedMetadata_Args *args);
} PJRT_ExecutableMetadata_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_EXECUTABLE_METADATA_H_ */
