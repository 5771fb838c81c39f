/* Custom_Partitioner: how the compiler divides custom calls among devices, by functions of the caller.
 *
 * What a function is given lives during the call. What it returns, also the text of an error, lives until the compiler
 * calls cleanup_fn, which is null where there is nothing to free. Shapes are serialized ShapeProtos, and shardings
 * serialized OpShardings. The structs of the functions have no struct_size, and those of the extension no
 * extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_CUSTOM_PARTITIONER_H_
#define PJRT_ABI_EXTENSIONS_CUSTOM_PARTITIONER_H_

#include "../base.h"

typedef struct JAX_CustomCallPartitioner_string {
  const char *data;  /* bytes */
  size_t size;
} JAX_CustomCallPartitioner_string;

typedef struct JAX_CustomCallPartitioner_aval {
  JAX_CustomCallPartitioner_string shape;
  bool has_sharding;
  JAX_CustomCallPartitioner_string sharding;
} JAX_CustomCallPartitioner_aval;

/* The version is 0. */
typedef struct JAX_CustomCallPartitioner_version_and_error {
  int64_t api_version;
  void *data;  /* out, address */
  void (*cleanup_fn)(void *data);  /* out */
  bool has_error;  /* out */
  PJRT_Error_Code code;  /* out */
  JAX_CustomCallPartitioner_string error_msg;  /* out */
} JAX_CustomCallPartitioner_version_and_error;

/* The module is what each device does with its parts, as MLIR. The arguments get the shardings that are returned first. */
typedef struct JAX_CustomCallPartitioner_Partition_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  size_t num_args;
  JAX_CustomCallPartitioner_aval *op_args;  /* count num_args */
  JAX_CustomCallPartitioner_aval op_result;
  JAX_CustomCallPartitioner_string backend_config;
  JAX_CustomCallPartitioner_string mlir_module;  /* out */
  JAX_CustomCallPartitioner_string *args_sharding;  /* out, count num_args */
  JAX_CustomCallPartitioner_string result_sharding;  /* out */
} JAX_CustomCallPartitioner_Partition_Args;

typedef struct JAX_CustomCallPartitioner_InferShardingFromOperands_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  size_t num_args;
  JAX_CustomCallPartitioner_aval *op_args;  /* count num_args */
  JAX_CustomCallPartitioner_string result_shape;
  JAX_CustomCallPartitioner_string backend_config;
  bool has_result_sharding;  /* out */
  JAX_CustomCallPartitioner_string result_sharding;  /* out */
} JAX_CustomCallPartitioner_InferShardingFromOperands_Args;

typedef struct JAX_CustomCallPartitioner_PropagateUserSharding_Args {
  JAX_CustomCallPartitioner_version_and_error header;
  JAX_CustomCallPartitioner_string backend_config;
  JAX_CustomCallPartitioner_string result_shape;
  JAX_CustomCallPartitioner_string result_sharding;  /* in out */
} JAX_CustomCallPartitioner_PropagateUserSharding_Args;

/* The version is 0. The struct belongs to the plugin that it was registered with, which calls dtor when it needs the
 * functions no more. */
typedef struct JAX_CustomCallPartitioner_Callbacks {
  int64_t version;
  void *private_data;  /* address */
  void (*dtor)(struct JAX_CustomCallPartitioner_Callbacks *data);
  void (*partition)(struct JAX_CustomCallPartitioner_Callbacks *data, JAX_CustomCallPartitioner_Partition_Args *args);
  void (*infer_sharding)(
      struct JAX_CustomCallPartitioner_Callbacks *data, JAX_CustomCallPartitioner_InferShardingFromOperands_Args *args);
  void (*propagate_user_sharding)(
      struct JAX_CustomCallPartitioner_Callbacks *data, JAX_CustomCallPartitioner_PropagateUserSharding_Args *args);
  bool can_side_effecting_have_replicated_sharding;
} JAX_CustomCallPartitioner_Callbacks;

/* Takes the place of what the name has already. After an error the callbacks are the caller's still. */
typedef struct PJRT_Register_Custom_Partitioner_Args {
  size_t struct_size;
  const char *name;
  size_t name_size;
  JAX_CustomCallPartitioner_Callbacks *callbacks;  /* address */
} PJRT_Register_Custom_Partitioner_Args;

/* Calls of the name are divided along their leading dimensions, which they compute one by one. */
typedef struct PJRT_Register_Batch_Partitionable_Args {
  size_t struct_size;
  const char *name;
  size_t name_size;
} PJRT_Register_Batch_Partitionable_Args;

typedef struct PJRT_Custom_Partitioner_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*register_custom_partitioner)(PJRT_Register_Custom_Partitioner_Args *args);
  PJRT_Error *(*register_batch_partitionable)(PJRT_Register_Batch_Partitionable_Args *args);
} PJRT_Custom_Partitioner_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_CUSTOM_PARTITIONER_H_ */
