/* Topologies: descriptions of devices that need not be on this machine, and compiling for them. */
#ifndef PJRT_ABI_TOPOLOGY_H_
#define PJRT_ABI_TOPOLOGY_H_

#include "client.h"

/* Describes devices that need not be on this machine. The topology belongs to the caller. */
typedef struct PJRT_TopologyDescription_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *topology_name;
  size_t topology_name_size;
  const PJRT_NamedValue *create_options;  /* count num_options */
  size_t num_options;
  PJRT_TopologyDescription *topology;  /* out */
} PJRT_TopologyDescription_Create_Args;

/* Only for topologies that the caller made. */
typedef struct PJRT_TopologyDescription_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_TopologyDescription *topology;  /* null */
} PJRT_TopologyDescription_Destroy_Args;

typedef struct PJRT_TopologyDescription_PlatformVersion_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_TopologyDescription *topology;
  const char *platform_version;  /* out */
  size_t platform_version_size;  /* out */
} PJRT_TopologyDescription_PlatformVersion_Args;

typedef struct PJRT_TopologyDescription_PlatformName_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  const char *platform_name;  /* out */
  size_t platform_name_size;  /* out */
} PJRT_TopologyDescription_PlatformName_Args;

typedef struct PJRT_TopologyDescription_GetDeviceDescriptions_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  PJRT_DeviceDescription *const *descriptions;  /* out */
  size_t num_descriptions;  /* out */
} PJRT_TopologyDescription_GetDeviceDescriptions_Args;

typedef struct PJRT_TopologyDescription_Serialize_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_TopologyDescription *topology;
  const char *serialized_bytes;  /* out */
  size_t serialized_bytes_size;  /* out */
  PJRT_SerializedTopology *serialized_topology;  /* out */
  void (*serialized_topology_deleter)(PJRT_SerializedTopology *serialized_topology);  /* out */
} PJRT_TopologyDescription_Serialize_Args;

typedef struct PJRT_TopologyDescription_Deserialize_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *serialized_topology;
  size_t serialized_topology_size;
  PJRT_TopologyDescription *topology;  /* out */
} PJRT_TopologyDescription_Deserialize_Args;

typedef struct PJRT_TopologyDescription_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_TopologyDescription *topology;
  const PJRT_NamedValue *attributes;  /* out */
  size_t num_attributes;  /* out */
} PJRT_TopologyDescription_Attributes_Args;

typedef struct PJRT_TopologyDescription_Fingerprint_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  uint64_t fingerprint;  /* out */
} PJRT_TopologyDescription_Fingerprint_Args;

typedef struct PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  int memory_space_kind_id;
  const int64_t *dims;
  size_t num_dims;
  PJRT_Buffer_Type element_type;
  const PJRT_Buffer_MemoryLayout *layout;  /* null */
  const char *serialized_shape;  /* out */
  size_t serialized_shape_size;  /* out */
  void (*serialized_shape_deleter)(const char *);  /* out */
} PJRT_TopologyDescription_MakeCanonicalShapeForMemorySpace_Args;

typedef struct PJRT_TopologyDescription_GetMemorySpaceKindIds_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  const int *memory_space_kind_ids;  /* out */
  size_t num_memory_space_kind_ids;  /* out */
} PJRT_TopologyDescription_GetMemorySpaceKindIds_Args;

/* Compiles ahead of time. client may be null. The Executable belongs to the caller. */
typedef struct PJRT_Compile_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_TopologyDescription *topology;
  const PJRT_Program *program;
  const char *compile_options;
  size_t compile_options_size;
  PJRT_Client *client;  /* null */
  PJRT_Executable *executable;  /* out */
} PJRT_Compile_Args;

#endif  /* PJRT_ABI_TOPOLOGY_H_ */
