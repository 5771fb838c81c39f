/* AbiVersion: whether a serialized executable fits a runtime. Handles received belong to the
 * caller. */
#ifndef PJRT_ABI_EXTENSIONS_ABI_VERSION_H_
#define PJRT_ABI_EXTENSIONS_ABI_VERSION_H_

#include "../base.h"

typedef struct PJRT_RuntimeAbiVersion PJRT_RuntimeAbiVersion;
typedef struct PJRT_ExecutableAbiVersion PJRT_ExecutableAbiVersion;
typedef struct PJRT_AbiVersion_SerializedProto PJRT_AbiVersion_SerializedProto;

typedef struct PJRT_Client_RuntimeAbiVersion_Args {
  size_t struct_size;
  PJRT_Client *client;
  PJRT_RuntimeAbiVersion *abi_version;  /* out */
} PJRT_Client_RuntimeAbiVersion_Args;

typedef struct PJRT_Executable_GetAbiVersion_Args {
  size_t struct_size;
  PJRT_Executable *executable;
  PJRT_ExecutableAbiVersion *abi_version;  /* out */
} PJRT_Executable_GetAbiVersion_Args;

typedef struct PJRT_RuntimeAbiVersion_Destroy_Args {
  size_t struct_size;
  PJRT_RuntimeAbiVersion *abi_version;
} PJRT_RuntimeAbiVersion_Destroy_Args;

/* Null where they fit, otherwise an error with the reason. */
typedef struct PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const PJRT_RuntimeAbiVersion *other_abi_version;
} PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args;

/* Null where they fit, otherwise an error with the reason. */
typedef struct PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const PJRT_ExecutableAbiVersion *executable_abi_version;
} PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args;

/* The bytes live until the caller calls the deleter on the holder. */
typedef struct PJRT_RuntimeAbiVersion_ToProto_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  const char *serialized_proto;  /* out */
  size_t serialized_proto_size;  /* out */
  PJRT_AbiVersion_SerializedProto *serialized_proto_holder;  /* out */
  void (*serialized_proto_deleter)(PJRT_AbiVersion_SerializedProto *holder);  /* out */
} PJRT_RuntimeAbiVersion_ToProto_Args;

typedef struct PJRT_RuntimeAbiVersion_PlatformId_Args {
  size_t struct_size;
  const PJRT_RuntimeAbiVersion *abi_version;
  size_t platform_id;  /* out */
} PJRT_RuntimeAbiVersion_PlatformId_Args;

typedef struct PJRT_RuntimeAbiVersion_FromProto_Args {
  size_t struct_size;
  const char *serialized_proto;
  size_t serialized_proto_size;
  PJRT_RuntimeAbiVersion *abi_version;  /* out */
} PJRT_RuntimeAbiVersion_FromProto_Args;

typedef struct PJRT_ExecutableAbiVersion_Destroy_Args {
  size_t struct_size;
  PJRT_ExecutableAbiVersion *abi_version;
} PJRT_ExecutableAbiVersion_Destroy_Args;

/* The bytes live until the caller calls the deleter on the holder. */
typedef struct PJRT_ExecutableAbiVersion_ToProto_Args {
  size_t struct_size;
  const PJRT_ExecutableAbiVersion *abi_version;
  const char *serialized_proto;  /* out */
  size_t serialized_proto_size;  /* out */
  PJRT_AbiVersion_SerializedProto *serialized_proto_holder;  /* out */
  void (*serialized_proto_deleter)(PJRT_AbiVersion_SerializedProto *holder);  /* out */
} PJRT_ExecutableAbiVersion_ToProto_Args;

typedef struct PJRT_ExecutableAbiVersion_PlatformId_Args {
  size_t struct_size;
  const PJRT_ExecutableAbiVersion *abi_version;
  size_t platform_id;  /* out */
} PJRT_ExecutableAbiVersion_PlatformId_Args;

typedef struct PJRT_ExecutableAbiVersion_FromProto_Args {
  size_t struct_size;
  const char *serialized_proto;
  size_t serialized_proto_size;
  PJRT_ExecutableAbiVersion *abi_version;  /* out */
} PJRT_ExecutableAbiVersion_FromProto_Args;

typedef struct PJRT_AbiVersion_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*client_runtime_abi_version)(PJRT_Client_RuntimeAbiVersion_Args *args);
  PJRT_Error *(*executable_get_abi_version)(PJRT_Executable_GetAbiVersion_Args *args);
  PJRT_Error *(*runtime_abi_version_destroy)(PJRT_RuntimeAbiVersion_Destroy_Args *args);
  PJRT_Error *(*runtime_abi_version_is_compatible_with_runtime)(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args *args);
  PJRT_Error *(*runtime_abi_version_is_compatible_with_executable)(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args *args);
  PJRT_Error *(*runtime_abi_version_to_proto)(PJRT_RuntimeAbiVersion_ToProto_Args *args);
  PJRT_Error *(*runtime_abi_version_platform_id)(PJRT_RuntimeAbiVersion_PlatformId_Args *args);
  PJRT_Error *(*executable_abi_version_destroy)(PJRT_ExecutableAbiVersion_Destroy_Args *args);
  PJRT_Error *(*executable_abi_version_to_proto)(PJRT_ExecutableAbiVersion_ToProto_Args *args);
  PJRT_Error *(*executable_abi_version_platform_id)(PJRT_ExecutableAbiVersion_PlatformId_Args *args);
  PJRT_Error *(*runtime_abi_version_from_proto)(PJRT_RuntimeAbiVersion_FromProto_Args *args);
  PJRT_Error *(*executable_abi_version_from_proto)(PJRT_ExecutableAbiVersion_FromProto_Args *args);
} PJRT_AbiVersion_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_ABI_VERSION_H_ */
