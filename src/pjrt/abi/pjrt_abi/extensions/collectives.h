/* Collectives: operations between hosts on their own memory, outside of programs. The Megascale extension makes the
 * PJRT_Collectives object. The structs have no extension_start. */
#ifndef PJRT_ABI_EXTENSIONS_COLLECTIVES_H_
#define PJRT_ABI_EXTENSIONS_COLLECTIVES_H_

#include "../layout.h"

typedef struct PJRT_Collectives PJRT_Collectives;
typedef struct PJRT_Collectives_Communicator PJRT_Collectives_Communicator;
typedef struct PJRT_Collectives_Communicators PJRT_Collectives_Communicators;
typedef struct PJRT_Collectives_ToString_Holder PJRT_Collectives_ToString_Holder;

typedef enum {
  PJRT_Collectives_ReductionKind_Sum = 0,
  PJRT_Collectives_ReductionKind_Product = 1,
  PJRT_Collectives_ReductionKind_Min = 2,
  PJRT_Collectives_ReductionKind_Max = 3,
} PJRT_Collectives_ReductionKind;

typedef enum {
  PJRT_Collectives_CollectiveOpKind_CrossModule = 0,
  PJRT_Collectives_CollectiveOpKind_CrossReplica = 1,
} PJRT_Collectives_CollectiveOpKind;

typedef struct PJRT_Collectives_Destroy_Args {
  size_t struct_size;
  PJRT_Collectives *collectives;
} PJRT_Collectives_Destroy_Args;

/* One communicator for each rank of this process. The array lives until the deleter is called; each communicator is the
 * caller's, and outlives it. clique_ids may be null. */
typedef struct PJRT_Collectives_CreateCommunicators_Args {
  size_t struct_size;
  PJRT_Collectives *collectives;
  const int64_t *device_ids;
  size_t num_device_ids;
  const char **clique_ids;  /* null, text */
  const size_t *clique_id_sizes;  /* null */
  size_t num_clique_ids;
  int64_t *rank_ids;  /* count num_device_ranks */
  size_t num_device_ranks;
  PJRT_Collectives_Communicator **communicators;  /* out, new */
  size_t num_communicators;  /* out */
  PJRT_Collectives_Communicators *communicators_holder;  /* out */
  void (*communicators_holder_deleter)(PJRT_Collectives_Communicators *holder);  /* out */
} PJRT_Collectives_CreateCommunicators_Args;

typedef struct PJRT_Collectives_Communicator_Destroy_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
} PJRT_Collectives_Communicator_Destroy_Args;

/* The rendezvous of an operation's participants, and how long they wait for each other. It has no struct_size. */
typedef struct PJRT_Collectives_CpuExecutor {
  int64_t run_id;
  int64_t *global_device_ids;
  size_t num_global_device_ids;
  int32_t num_local_participants;
  PJRT_Collectives_CollectiveOpKind collective_op_kind;
  int64_t op_id;
  int64_t timeout_in_ns;
} PJRT_Collectives_CpuExecutor;

/* An operation is complete when its event is set. The event belongs to the caller. */
typedef struct PJRT_Collectives_Communicator_AllReduce_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  void *send_buffer_ptr;  /* keeps */
  size_t send_buffer_size;
  void *recv_buffer_ptr;  /* fills, keeps */
  size_t recv_buffer_size;
  PJRT_Buffer_Type primitive_type;
  size_t count;
  PJRT_Collectives_ReductionKind reduction_kind;
  PJRT_Collectives_CpuExecutor *cpu_executor;  /* null */
  PJRT_Event *event;  /* out */
} PJRT_Collectives_Communicator_AllReduce_Args;

typedef struct PJRT_Collectives_Communicator_ReduceScatter_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  void *send_buffer_ptr;  /* keeps */
  size_t send_buffer_size;
  void *recv_buffer_ptr;  /* fills, keeps */
  size_t recv_buffer_size;
  PJRT_Buffer_Type primitive_type;
  size_t count;
  PJRT_Collectives_ReductionKind reduction_kind;
  PJRT_Collectives_CpuExecutor *cpu_executor;  /* null */
  PJRT_Event *event;  /* out */
} PJRT_Collectives_Communicator_ReduceScatter_Args;

typedef struct PJRT_Collectives_Communicator_AllGather_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  void *send_buffer_ptr;  /* keeps */
  size_t send_buffer_size;
  void *recv_buffer_ptr;  /* fills, keeps */
  size_t recv_buffer_size;
  PJRT_Buffer_Type primitive_type;
  size_t count;
  PJRT_Collectives_CpuExecutor *cpu_executor;  /* null */
  PJRT_Event *event;  /* out */
} PJRT_Collectives_Communicator_AllGather_Args;

typedef struct PJRT_Collectives_Communicator_CollectivePermute_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  void *send_buffer_ptr;  /* keeps */
  size_t send_buffer_size;
  void *recv_buffer_ptr;  /* fills, keeps */
  size_t recv_buffer_size;
  PJRT_Buffer_Type primitive_type;
  size_t count;
  bool has_source_rank;
  int64_t source_rank;
  int64_t *target_ranks;
  size_t num_target_ranks;
  PJRT_Collectives_CpuExecutor *cpu_executor;  /* null */
  PJRT_Event *event;  /* out */
} PJRT_Collectives_Communicator_CollectivePermute_Args;

typedef struct PJRT_Collectives_Communicator_AllToAll_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  void **send_buffers_ptrs;  /* count num_send_buffers, inner send_buffers_sizes, keeps */
  const size_t *send_buffers_sizes;  /* count num_send_buffers */
  size_t num_send_buffers;
  void **recv_buffers_ptrs;  /* count num_recv_buffers, inner recv_buffers_sizes, fills, keeps */
  const size_t *recv_buffers_sizes;  /* count num_recv_buffers */
  size_t num_recv_buffers;
  PJRT_Buffer_Type primitive_type;
  size_t count;
  PJRT_Collectives_CpuExecutor *cpu_executor;  /* null */
  PJRT_Event *event;  /* out */
} PJRT_Collectives_Communicator_AllToAll_Args;

typedef struct PJRT_Collectives_Communicator_ToString_Args {
  size_t struct_size;
  PJRT_Collectives_Communicator *communicator;
  const char *str;  /* out */
  size_t str_size;  /* out */
  PJRT_Collectives_ToString_Holder *str_holder;  /* out */
  void (*str_holder_deleter)(PJRT_Collectives_ToString_Holder *holder);  /* out */
} PJRT_Collectives_Communicator_ToString_Args;

typedef struct PJRT_Collectives_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*collectives_destroy)(PJRT_Collectives_Destroy_Args *args);
  PJRT_Error *(*collectives_create_communicators)(PJRT_Collectives_CreateCommunicators_Args *args);
  PJRT_Error *(*communicator_destroy)(PJRT_Collectives_Communicator_Destroy_Args *args);
  PJRT_Error *(*communicator_all_reduce)(PJRT_Collectives_Communicator_AllReduce_Args *args);
  PJRT_Error *(*communicator_reduce_scatter)(PJRT_Collectives_Communicator_ReduceScatter_Args *args);
  PJRT_Error *(*communicator_all_gather)(PJRT_Collectives_Communicator_AllGather_Args *args);
  PJRT_Error *(*communicator_collective_permute)(PJRT_Collectives_Communicator_CollectivePermute_Args *args);
  PJRT_Error *(*communicator_all_to_all)(PJRT_Collectives_Communicator_AllToAll_Args *args);
  PJRT_Error *(*communicator_to_string)(PJRT_Collectives_Communicator_ToString_Args *args);
} PJRT_Collectives_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_COLLECTIVES_H_ */
