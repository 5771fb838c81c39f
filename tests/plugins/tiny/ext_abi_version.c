/* The AbiVersion extension. Both protos are {1: platform id, 2: version}, as varints. */
#include "tiny.h"

#define TINY_PLATFORM_ID 0x74696e79u
#define TINY_ABI_VERSION 3

typedef struct abi_version {
  uint64_t platform_id, version;
} abi_version;
struct PJRT_RuntimeAbiVersion {
  abi_version it;
};
struct PJRT_ExecutableAbiVersion {
  abi_version it;
};

static void *version_make(uint64_t platform_id, uint64_t version) {
  abi_version *each = tiny_calloc(1, sizeof *each);
  *each = (abi_version){platform_id, version};
  live_add(LIVE_ABI_VERSION, 1);
  return each;
}

static PJRT_Error *version_free(void *each) {
  if (each == NULL) return NULL;
  free(each);
  live_add(LIVE_ABI_VERSION, -1);
  return NULL;
}

static PJRT_Error *compare(const abi_version *runtime, const abi_version *other) {
  if (runtime->platform_id != other->platform_id)
    return error_make(INVALID, "Platform %llu is not platform %llu", (unsigned long long)other->platform_id,
                      (unsigned long long)runtime->platform_id);
  if (runtime->version != other->version)
    return error_make(PJRT_Error_Code_FAILED_PRECONDITION, "Version %llu does not fit a runtime of version %llu",
                      (unsigned long long)other->version, (unsigned long long)runtime->version);
  return NULL;
}

static void free_proto(PJRT_AbiVersion_SerializedProto *proto) {
  free(proto);
  live_add(LIVE_SERIALIZED, -1);
}

static char *to_proto(const abi_version *each, size_t *size) {
  tiny_bytes out = {0};
  proto_varint(&out, 1, each->platform_id);
  proto_varint(&out, 2, each->version);
  live_add(LIVE_SERIALIZED, 1);
  *size = out.size;
  return out.data;
}

static PJRT_Error *from_proto(const char *data, size_t size, void **out) {
  const char *cursor = data, *end = data + size;
  abi_version each = {0};
  tiny_field field;
  while (proto_next(&cursor, end, &field)) {
    if (field.number == 1) each.platform_id = field.value;
    if (field.number == 2) each.version = field.value;
  }
  if (cursor != end || each.version == 0) return error_make(INVALID, "These %zu bytes are no ABI version", size);
  *out = version_make(each.platform_id, each.version);
  return NULL;
}

static PJRT_Error *client_version(PJRT_Client_RuntimeAbiVersion_Args *args) {
  TINY_SIZED(PJRT_Client_RuntimeAbiVersion_Args, args);
  args->abi_version = version_make(TINY_PLATFORM_ID, TINY_ABI_VERSION);
  return NULL;
}

static PJRT_Error *executable_version(PJRT_Executable_GetAbiVersion_Args *args) {
  TINY_SIZED(PJRT_Executable_GetAbiVersion_Args, args);
  args->abi_version = version_make(TINY_PLATFORM_ID, TINY_ABI_VERSION);
  return NULL;
}

static PJRT_Error *runtime_destroy(PJRT_RuntimeAbiVersion_Destroy_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_Destroy_Args, args);
  return version_free(args->abi_version);
}

static PJRT_Error *executable_destroy(PJRT_ExecutableAbiVersion_Destroy_Args *args) {
  TINY_SIZED(PJRT_ExecutableAbiVersion_Destroy_Args, args);
  return version_free(args->abi_version);
}

static PJRT_Error *fits_runtime(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_IsCompatibleWithRuntime_Args, args);
  return compare(&args->abi_version->it, &args->other_abi_version->it);
}

static PJRT_Error *fits_executable(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_IsCompatibleWithExecutable_Args, args);
  return compare(&args->abi_version->it, &args->executable_abi_version->it);
}

static PJRT_Error *runtime_to_proto(PJRT_RuntimeAbiVersion_ToProto_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_ToProto_Args, args);
  args->serialized_proto = to_proto(&args->abi_version->it, &args->serialized_proto_size);
  args->serialized_proto_holder = (PJRT_AbiVersion_SerializedProto *)args->serialized_proto;
  args->serialized_proto_deleter = free_proto;
  return NULL;
}

static PJRT_Error *executable_to_proto(PJRT_ExecutableAbiVersion_ToProto_Args *args) {
  TINY_SIZED(PJRT_ExecutableAbiVersion_ToProto_Args, args);
  args->serialized_proto = to_proto(&args->abi_version->it, &args->serialized_proto_size);
  args->serialized_proto_holder = (PJRT_AbiVersion_SerializedProto *)args->serialized_proto;
  args->serialized_proto_deleter = free_proto;
  return NULL;
}

static PJRT_Error *runtime_platform(PJRT_RuntimeAbiVersion_PlatformId_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_PlatformId_Args, args);
  args->platform_id = args->abi_version->it.platform_id;
  return NULL;
}

static PJRT_Error *executable_platform(PJRT_ExecutableAbiVersion_PlatformId_Args *args) {
  TINY_SIZED(PJRT_ExecutableAbiVersion_PlatformId_Args, args);
  args->platform_id = args->abi_version->it.platform_id;
  return NULL;
}

static PJRT_Error *runtime_from_proto(PJRT_RuntimeAbiVersion_FromProto_Args *args) {
  TINY_SIZED(PJRT_RuntimeAbiVersion_FromProto_Args, args);
  void *out = NULL;
  PJRT_Error *error = from_proto(args->serialized_proto, args->serialized_proto_size, &out);
  args->abi_version = out;
  return error;
}

static PJRT_Error *executable_from_proto(PJRT_ExecutableAbiVersion_FromProto_Args *args) {
  TINY_SIZED(PJRT_ExecutableAbiVersion_FromProto_Args, args);
  void *out = NULL;
  PJRT_Error *error = from_proto(args->serialized_proto, args->serialized_proto_size, &out);
  args->abi_version = out;
  return error;
}

PJRT_AbiVersion_Extension abi_version_extension = {
    TINY_EXTENSION(PJRT_AbiVersion_Extension, AbiVersion),
    .client_runtime_abi_version = client_version,
    .executable_get_abi_version = executable_version,
    .runtime_abi_version_destroy = runtime_destroy,
    .runtime_abi_version_is_compatible_with_runtime = fits_runtime,
    .runtime_abi_version_is_compatible_with_executable = fits_executable,
    .runtime_abi_version_to_proto = runtime_to_proto,
    .runtime_abi_version_platform_id = runtime_platform,
    .executable_abi_version_destroy = executable_destroy,
    .executable_abi_version_to_proto = executable_to_proto,
    .executable_abi_version_platform_id = executable_platform,
    .runtime_abi_version_from_proto = runtime_from_proto,
    .executable_abi_version_from_proto = executable_from_proto,
};
