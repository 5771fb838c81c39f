/* Extensions, version, errors, named values and plugin-wide functions. */
#ifndef PJRT_ABI_BASE_H_
#define PJRT_ABI_BASE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PJRT_API_MAJOR 0
#define PJRT_API_MINOR 117

/* Handles. What they point to belongs to the plugin and is never looked into, but for PJRT_Error
 * and PJRT_Memory. */
typedef struct PJRT_AsyncHostToDeviceTransferManager PJRT_AsyncHostToDeviceTransferManager;
typedef struct PJRT_AsyncTrackingEvent PJRT_AsyncTrackingEvent;
typedef struct PJRT_Buffer PJRT_Buffer;
typedef struct PJRT_Client PJRT_Client;
typedef struct PJRT_CopyToDeviceStream PJRT_CopyToDeviceStream;
typedef struct PJRT_Device PJRT_Device;
typedef struct PJRT_DeviceAssignmentSerialized PJRT_DeviceAssignmentSerialized;
typedef struct PJRT_DeviceDescription PJRT_DeviceDescription;
typedef struct PJRT_Device_Attributes PJRT_Device_Attributes;
typedef struct PJRT_Error PJRT_Error;
typedef struct PJRT_Event PJRT_Event;
typedef struct PJRT_Executable PJRT_Executable;
typedef struct PJRT_ExecuteContext PJRT_ExecuteContext;
typedef struct PJRT_FulfillAliasBufferCallback PJRT_FulfillAliasBufferCallback;
typedef struct PJRT_LoadedExecutable PJRT_LoadedExecutable;
typedef struct PJRT_Memory PJRT_Memory;
typedef struct PJRT_MultiSlice_Config PJRT_MultiSlice_Config;
typedef struct PJRT_SerializedCompileOptions PJRT_SerializedCompileOptions;
typedef struct PJRT_SerializedExecutable PJRT_SerializedExecutable;
typedef struct PJRT_SerializedTopology PJRT_SerializedTopology;
typedef struct PJRT_TopologyDescription PJRT_TopologyDescription;

/* Every kind of extension that this package knows, by name and with what it is about: Plugin.extensions shows both. */
typedef enum {
  PJRT_Extension_Type_Gpu_Custom_Call = 0,  /* functions of CUDA and ROCm as custom calls; FFI replaces it */
  PJRT_Extension_Type_Profiler = 1,  /* traces of the plugin's work */
  PJRT_Extension_Type_Custom_Partitioner = 2,  /* how custom calls are divided among devices, by functions of the caller */
  PJRT_Extension_Type_Stream = 3,  /* waiting for buffers on a device's own streams */
  PJRT_Extension_Type_Layouts = 4,  /* how arrays lie in the memory of devices */
  PJRT_Extension_Type_FFI = 5,  /* the caller's functions as custom calls of programs */
  PJRT_Extension_Type_MemoryDescriptions = 6,  /* the memories of devices that need not be on this machine */
  PJRT_Extension_Type_Triton = 7,  /* compiling kernels that are given as Triton IR */
  PJRT_Extension_Type_RawBuffer = 8,  /* the bytes of buffers, without type and shape */
  PJRT_Extension_Type_PhaseCompile = 9,  /* compiling phase by phase */
  PJRT_Extension_Type_Example = 10,  /* an example for authors of extensions */
  PJRT_Extension_Type_Unknown = 11,  /* nothing; for tests of readers */
  PJRT_Extension_Type_CrossHostTransfers = 12,  /* buffers sent from one process's device to another's */
  PJRT_Extension_Type_ExecutableMetadata = 13,  /* the vendor's facts about an executable */
  PJRT_Extension_Type_Callback = 14,  /* a callback for when a slice of TPUs fails, or before the process ends */
  PJRT_Extension_Type_HostAllocator = 15,  /* aligned host memory for a client's transfers; experimental */
  PJRT_Extension_Type_TpuTopology = 16,  /* chips, cores, processes and slices of TPU topologies */
  PJRT_Extension_Type_TpuExecutable = 17,  /* the contents of serialized TPU executables, and the TPU compiler's settings */
  PJRT_Extension_Type_Megascale = 18,  /* TPU slices joined by a data center's network */
  PJRT_Extension_Type_Shardings = 19,  /* how parameters and results are divided among devices */
  PJRT_Extension_Type_AbiVersion = 20,  /* whether a serialized executable fits a runtime */
  PJRT_Extension_Type_Collectives = 21,  /* collective operations between hosts, outside of programs */
  PJRT_Extension_Type_MultiSlice = 22,  /* which slices a program of several TPU slices runs on */
  PJRT_Extension_Type_HostMemoryAllocator = 23,  /* host memory for a client's transfers, by NUMA node */
  PJRT_Extension_Type_XlaTransform = 24,  /* the caller's passes over a program while it is compiled */
} PJRT_Extension_Type;

/* Head of every extension struct: one link of a chain that the reader walks by type. An unknown
 * type is stepped over. */
typedef struct PJRT_Extension_Base {
  size_t struct_size;
  PJRT_Extension_Type type;
  struct PJRT_Extension_Base *next;
} PJRT_Extension_Base;

/* The version of the interface that the plugin was compiled against. */
typedef struct PJRT_Api_Version {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  int major_version;
  int minor_version;
} PJRT_Api_Version;

/* Every error that a function returns belongs to the caller, who frees it with this one. Null is
 * allowed. */
typedef struct PJRT_Error_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Error *error;  /* null */
} PJRT_Error_Destroy_Args;

/* The text is not zero-terminated and lives as long as the error. */
typedef struct PJRT_Error_Message_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_Error *error;
  const char *message;  /* out */
  size_t message_size;  /* out */
} PJRT_Error_Message_Args;

/* The codes of absl::Status, number by number. */
typedef enum {
  PJRT_Error_Code_OK = 0,
  PJRT_Error_Code_CANCELLED = 1,
  PJRT_Error_Code_UNKNOWN = 2,
  PJRT_Error_Code_INVALID_ARGUMENT = 3,
  PJRT_Error_Code_DEADLINE_EXCEEDED = 4,
  PJRT_Error_Code_NOT_FOUND = 5,
  PJRT_Error_Code_ALREADY_EXISTS = 6,
  PJRT_Error_Code_PERMISSION_DENIED = 7,
  PJRT_Error_Code_RESOURCE_EXHAUSTED = 8,
  PJRT_Error_Code_FAILED_PRECONDITION = 9,
  PJRT_Error_Code_ABORTED = 10,
  PJRT_Error_Code_OUT_OF_RANGE = 11,
  PJRT_Error_Code_UNIMPLEMENTED = 12,
  PJRT_Error_Code_INTERNAL = 13,
  PJRT_Error_Code_UNAVAILABLE = 14,
  PJRT_Error_Code_DATA_LOSS = 15,
  PJRT_Error_Code_UNAUTHENTICATED = 16,
} PJRT_Error_Code;

typedef void (*PJRT_Error_PayloadVisitor)(
    const char *key, size_t key_size, const char *value, size_t value_size, void *user_arg);

/* Since 0.114 an error carries its own functions, so that either side can make one and the other
 * can read it. */
typedef struct PJRT_Error_FunctionTable {
  size_t struct_size;
  size_t instance_size;
  PJRT_Extension_Base *extension_start;
  void (*destroy)(PJRT_Error *error);
  void (*message)(const PJRT_Error *error, const char **message, size_t *message_size);
  PJRT_Error_Code (*get_code)(const PJRT_Error *error);
  void (*for_each_payload)(const PJRT_Error *error, PJRT_Error_PayloadVisitor visitor, void *user_arg);
} PJRT_Error_FunctionTable;

/* Opaque before 0.114: read the table only where the maker is known to set it. */
struct PJRT_Error {
  const struct PJRT_Error_FunctionTable *vtable;
};

typedef struct PJRT_Error_GetCode_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_Error *error;
  PJRT_Error_Code code;  /* out */
} PJRT_Error_GetCode_Args;

/* Calls the visitor once for each payload; key and value live only during that call. */
typedef struct PJRT_Error_ForEachPayload_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_Error *error;
  PJRT_Error_PayloadVisitor visitor;
  void *user_arg;
} PJRT_Error_ForEachPayload_Args;

/* Given to callbacks by the plugin, so that they can make an error of the plugin's own kind. The
 * message is copied. */
typedef PJRT_Error *(*PJRT_CallbackError)(
    PJRT_Error_Code code, const char *message, size_t message_size);

typedef enum {
  PJRT_NamedValue_kString = 0,
  PJRT_NamedValue_kInt64 = 1,
  PJRT_NamedValue_kInt64List = 2,
  PJRT_NamedValue_kFloat = 3,
  PJRT_NamedValue_kBool = 4,
} PJRT_NamedValue_Type;

/* A named value of one of five types. value_size counts the elements of a string or list, and is
 * 1 for the others. */
typedef struct PJRT_NamedValue {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const char *name;
  size_t name_size;
  PJRT_NamedValue_Type type;
  union {
    const char *string_value;  /* count value_size */
    int64_t int64_value;
    const int64_t *int64_array_value;  /* count value_size */
    float float_value;
    bool bool_value;
  };
  size_t value_size;
} PJRT_NamedValue;

/* One-time set-up, before any other function but those of errors. */
typedef struct PJRT_Plugin_Initialize_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
} PJRT_Plugin_Initialize_Args;

/* The array and everything in it lives as long as the process. */
typedef struct PJRT_Plugin_Attributes_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  const PJRT_NamedValue *attributes;  /* out */
  size_t num_attributes;  /* out */
} PJRT_Plugin_Attributes_Args;

#endif  /* PJRT_ABI_BASE_H_ */
