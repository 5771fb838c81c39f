/* The nouns of the tiny plugin, and what each file offers to the others.
 *
 * Rules that hold in every file:
 *  - A tiny_status is immutable once shared and counted; null is OK. A function that returns one gives a reference away;
 *    a parameter named "owned" takes one.
 *  - A tiny_promise is the one kind of completion. A PJRT_Event is a handle on a promise.
 *  - Work of a device runs on the thread of its queue, in the order in which it became ready to run.
 *  - Memory lives as long as its tiny_storage is referenced, by buffers or by work that is still under way. */
#ifndef TINY_H_
#define TINY_H_

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "functions.h"
#include "pjrt_abi.h"
#include "pjrt_abi/extensions.h"

#define TINY_MAX_RANK 16
#define TINY_MAX_DEVICES 64
#define TINY_NUM_MEMORY_KINDS 3
/* The number by which a caller knows the kind of a memory: XLA's tests want one other than 0. */
#define TINY_PUBLIC_KIND(kind) ((kind) + 1)
#define TINY_PLATFORM_NAME "tiny"
#ifndef TINY_PLATFORM_VERSION
#define TINY_PLATFORM_VERSION "tiny 1.0"
#endif
#define TINY_EXPORT __attribute__((visibility("default")))

/* Whether the other side's struct is long enough to hold the field: older callers stamp less. */
#define TINY_HAS(args, type, field) \
  ((args)->struct_size >= offsetof(type, field) + sizeof(((type *)0)->field))

/* ---- bytes.c: allocation that never fails -------------------------------------------------------------------------*/
void *tiny_calloc(size_t count, size_t size);
void *tiny_memdup(const void *data, size_t size); /* one zero byte is added behind */
char *tiny_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A growing byte string. */
typedef struct tiny_bytes {
  char *data;
  size_t size, capacity;
} tiny_bytes;
void bytes_add(tiny_bytes *bytes, const void *data, size_t size);
void bytes_print(tiny_bytes *bytes, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- status.c: errors ---------------------------------------------------------------------------------------------*/
typedef struct tiny_status tiny_status;
tiny_status *status_make(PJRT_Error_Code code, const char *format, ...) __attribute__((format(printf, 2, 3)));
tiny_status *status_from_bytes(PJRT_Error_Code code, const char *message, size_t size); /* null where code is OK */
tiny_status *status_ref(tiny_status *status);
void status_unref(tiny_status *status);
PJRT_Error_Code status_code(const tiny_status *status);
const char *status_message(const tiny_status *status, size_t *size);
void status_add_payload(tiny_status *status, const char *key, size_t key_size, const char *value, size_t value_size);
void status_add_named_payloads(tiny_status *status, const PJRT_NamedValue *payloads, size_t count);
PJRT_Error *error_from(tiny_status *owned); /* null from null */
PJRT_Error *error_make(PJRT_Error_Code code, const char *format, ...) __attribute__((format(printf, 2, 3)));
tiny_status *status_take(PJRT_Error *error); /* frees the error */
extern PJRT_CallbackError tiny_callback_error;

#define INVALID PJRT_Error_Code_INVALID_ARGUMENT

/* ---- event.c: promises and events ---------------------------------------------------------------------------------*/
typedef struct tiny_promise tiny_promise;
typedef void (*tiny_continuation)(tiny_status *borrowed, void *arg);
tiny_promise *promise_make(void);
tiny_promise *promise_done(tiny_status *owned); /* one that is set already */
tiny_promise *promise_ref(tiny_promise *promise);
void promise_unref(tiny_promise *promise);
bool promise_set(tiny_promise *promise, tiny_status *owned); /* false where it was set before */
bool promise_is_ready(tiny_promise *promise);
tiny_status *promise_status(tiny_promise *promise); /* borrowed; of a ready one */
tiny_status *promise_wait(tiny_promise *promise);   /* borrowed */
void promise_then(tiny_promise *promise, tiny_continuation fn, void *arg);
/* A handle for the caller; takes a reference of its own. A fault "event" of the function replaces what it reports. */
PJRT_Event *event_make(tiny_promise *promise, tiny_function made_by);
tiny_promise *event_promise(PJRT_Event *event); /* borrowed */
void event_destroy(PJRT_Event *event);

/* ---- queue.c: one thread that runs the work of a device -----------------------------------------------------------*/
typedef struct tiny_queue tiny_queue;
typedef void (*tiny_task)(void *arg);
tiny_queue *queue_start(void);
void queue_push(tiny_queue *queue, tiny_task task, void *arg);
/* Runs the task once all promises are set, whatever their status. Reads the array only during the call. Without a
 * queue, which is a device whose client is gone, it waits and runs the task itself. */
void queue_push_after(tiny_queue *queue, tiny_promise *const *deps, size_t num_deps, tiny_task task, void *arg);
bool queue_is_current(tiny_queue *queue);
void queue_drain(tiny_queue *queue); /* waits until all work, also what waits for a promise, has run */
void queue_stop(tiny_queue *queue);
void queues_hold(bool hold);

/* ---- shape.c: element types, shapes and layouts -------------------------------------------------------------------*/
typedef struct tiny_shape {
  PJRT_Buffer_Type type;
  size_t rank;
  int64_t dims[TINY_MAX_RANK];
  int64_t minor_to_major[TINY_MAX_RANK];
} tiny_shape;
size_t element_size(PJRT_Buffer_Type type);
const char *element_name(PJRT_Buffer_Type type);
PJRT_Buffer_Type element_from_name(const char *name, size_t size); /* INVALID where unknown */
int element_xla_type(PJRT_Buffer_Type type);                       /* number of xla.PrimitiveType */
tiny_status *shape_init(tiny_shape *shape, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                        const PJRT_Buffer_MemoryLayout *layout);
int64_t shape_elements(const tiny_shape *shape);
size_t shape_size(const tiny_shape *shape);
bool shape_same_dims(const tiny_shape *a, const tiny_shape *b);
bool shape_is_row_major(const tiny_shape *shape);
void shape_strides(const tiny_shape *shape, int64_t *byte_strides);
char *shape_print(const tiny_shape *shape); /* f32[2,3] */
char *shape_print_layout(const tiny_shape *shape); /* {1,0} */
void copy_strided(char *dst, const int64_t *dst_strides, const char *src, const int64_t *src_strides,
                  const int64_t *dims, size_t rank, size_t element);

/* ---- proto.c: the little of protocol buffers that is needed -------------------------------------------------------*/
typedef struct tiny_field {
  int number, wire;
  uint64_t value;
  const char *data;
  size_t size;
} tiny_field;
bool proto_next(const char **cursor, const char *end, tiny_field *field); /* false at the end, or where it is broken */
void proto_varint(tiny_bytes *out, int number, uint64_t value);
void proto_bytes(tiny_bytes *out, int number, const void *data, size_t size);
size_t proto_int64s(const tiny_field *field, int64_t *out, size_t capacity); /* packed or single */

typedef struct tiny_compile_options {
  int64_t num_replicas, num_partitions;
  bool portable;
  bool has_assignment;
  int64_t assignment[TINY_MAX_DEVICES]; /* replica-major: [replica * num_partitions + partition] */
  int64_t device_ordinal;
} tiny_compile_options;
tiny_status *compile_options_parse(const char *data, size_t size, tiny_compile_options *out);
void assignment_serialize(const tiny_compile_options *options, const int64_t *devices, tiny_bytes *out);

/* ---- options.c: named values --------------------------------------------------------------------------------------*/
const PJRT_NamedValue *option_find(const PJRT_NamedValue *options, size_t count, const char *name);
tiny_status *option_int64(const PJRT_NamedValue *options, size_t count, const char *name, int64_t *inout);
tiny_status *option_bool(const PJRT_NamedValue *options, size_t count, const char *name, bool *inout);
/* A list of named values that owns its strings. */
typedef struct tiny_attributes {
  PJRT_NamedValue *values;
  size_t count;
} tiny_attributes;
void attributes_add(tiny_attributes *list, const char *name, const PJRT_NamedValue *value);
void attributes_string(tiny_attributes *list, const char *name, const char *value);
void attributes_int64(tiny_attributes *list, const char *name, int64_t value);
void attributes_int64_list(tiny_attributes *list, const char *name, const int64_t *values, size_t count);
void attributes_float(tiny_attributes *list, const char *name, float value);
void attributes_bool(tiny_attributes *list, const char *name, bool value);
void attributes_free(tiny_attributes *list);

/* ---- topology.c ---------------------------------------------------------------------------------------------------*/
struct PJRT_DeviceDescription {
  int id, process_index;
  int64_t coords[2];
  char *debug_string, *to_string;
  tiny_attributes attributes;
};
struct PJRT_TopologyDescription {
  int64_t rows, columns, num_processes;
  bool is_part;
  bool all_types; /* of attributes: jaxlib ends the process where a device has a float or a bool */
  size_t num_descriptions;
  struct PJRT_DeviceDescription *descriptions;
  PJRT_DeviceDescription **description_handles;
  tiny_attributes attributes;
};
PJRT_TopologyDescription *topology_make(int64_t rows, int64_t columns, int64_t num_processes, bool all_types);
void topology_free(PJRT_TopologyDescription *topology);
void topology_serialize(const PJRT_TopologyDescription *topology, tiny_bytes *out);
extern const char *const tiny_memory_kinds[TINY_NUM_MEMORY_KINDS];

/* ---- client.c, device.c -------------------------------------------------------------------------------------------*/
typedef struct tiny_user_data {
  const void *key;
  void *data;
  void (*dtor)(void *);
  struct tiny_user_data *next;
} tiny_user_data;

typedef struct tiny_memory {
  PJRT_Memory base;
  PJRT_Device *device;
  int id, kind_id;
  const char *kind;
  char *debug_string, *to_string;
  tiny_user_data *user_data;
} tiny_memory;

/* An execution that was launched and has not finished: what PoisonExecution looks for. */
typedef struct tiny_launch tiny_launch;

/* A promise that only the caller can keep (an alias buffer, a control dependency). Destroying the client breaks it. */
typedef struct tiny_open {
  PJRT_Client *client;
  tiny_promise *promise;
  struct tiny_open *next;
} tiny_open;

struct PJRT_Device {
  PJRT_Client *client;
  PJRT_DeviceDescription *description;
  int local_id; /* -1 where the device belongs to another process */
  tiny_queue *queue;
  tiny_memory memories[TINY_NUM_MEMORY_KINDS];
  PJRT_Memory *memory_handles[TINY_NUM_MEMORY_KINDS];
  pthread_mutex_t mutex; /* guards what follows */
  int64_t bytes_limit, bytes_in_use, peak_bytes, num_allocs, largest_alloc;
  tiny_launch *launches;
};

struct PJRT_Client {
  atomic_int refs; /* the handle, and every object made from the client */
  bool destroyed;
  PJRT_TopologyDescription *topology;
  char *platform_name;
  int64_t process_index;
  size_t num_devices, num_local;
  struct PJRT_Device *devices;
  PJRT_Device **device_handles, **local_handles;
  PJRT_Memory **memory_handles;
  tiny_attributes create_options;
  tiny_attributes kv_report;
  pthread_mutex_t mutex; /* guards what follows */
  struct tiny_dma_region *dma_regions;
  tiny_open *open;
  size_t num_process_infos;
  char *process_infos;
};
PJRT_Client *client_ref(PJRT_Client *client);
void client_unref(PJRT_Client *client);
PJRT_Device *client_device(PJRT_Client *client, int64_t id); /* null where unknown */
tiny_open *open_promise(PJRT_Client *client, tiny_promise *promise);
tiny_promise *close_promise(tiny_open *open); /* frees the entry, gives its reference away */
tiny_status *kv_exercise(const PJRT_Client_Create_Args *args, tiny_attributes *report);
tiny_status *device_reserve(tiny_memory *memory, size_t size);
void device_release(tiny_memory *memory, size_t size);
/* The memory named by a pair of optional handles, as the ABI has it: memory wins over the device's default. */
tiny_status *memory_choose(PJRT_Memory *memory, PJRT_Device *device, tiny_memory **out);

/* ---- storage.c: bytes on a device ---------------------------------------------------------------------------------*/
typedef struct tiny_storage {
  atomic_int refs;
  char *data;
  size_t size;
  tiny_memory *memory; /* holds a reference to its client */
  bool charged;        /* counts against the limit and is freed by us */
  atomic_bool keep;    /* others look at the bytes too: a donation must not write here */
  struct tiny_storage *target; /* an alias: the bytes are there, once it is defined */
  void (*on_free)(void *data, void *arg);
  void *on_free_arg;
  tiny_promise *freed; /* set when the last reference goes */
} tiny_storage;
tiny_status *storage_allocate(tiny_memory *memory, size_t size, tiny_storage **out);
tiny_storage *storage_borrow(tiny_memory *memory, void *data, size_t size);
tiny_storage *storage_ref(tiny_storage *storage);
void storage_unref(tiny_storage *storage);
char *storage_bytes(const tiny_storage *storage);

/* ---- buffer*.c ----------------------------------------------------------------------------------------------------*/
struct PJRT_Buffer {
  tiny_memory *memory; /* holds a reference to its client */
  tiny_shape shape;
  size_t size;
  tiny_promise *defined;
  pthread_mutex_t mutex;  /* guards what follows */
  tiny_storage *storage;  /* null once deleted or donated */
  const char *gone;       /* why storage is null: "deleted", "donated" */
  int64_t external_refs;
  tiny_promise **uses;    /* reads that a donation has to wait for */
  size_t num_uses;
};
PJRT_Buffer *buffer_make(tiny_memory *memory, const tiny_shape *shape, tiny_storage *owned, tiny_promise *owned_defined);
/* A reference to the bytes, or an error where they are gone. With a promise the use is noted: a later donation waits
 * for it. */
tiny_status *buffer_use(PJRT_Buffer *buffer, tiny_promise *use, tiny_storage **out);
/* Takes the bytes away. The promises that the taker has to wait for, its definition too, are given with a reference
 * each in an array to be freed. */
tiny_status *buffer_donate(PJRT_Buffer *buffer, tiny_storage **out, tiny_promise ***deps, size_t *num_deps);
/* Copies on the queue once the source is defined; done is set with the source's status. */
void copy_push(tiny_queue *queue, tiny_storage *owned_source, tiny_promise *defined, tiny_storage *owned_target,
               size_t size, tiny_promise *owned_done);
void promises_free(tiny_promise **promises, size_t count);

/* ---- program.c: the program format "tiny" -------------------------------------------------------------------------*/
typedef enum {
  OP_IDENTITY, OP_ADD, OP_SUB, OP_MUL, OP_NEG, OP_FILL, OP_RECV, OP_CALL, OP_ALL_REDUCE, OP_REPLICA_ID,
  OP_PARTITION_ID, OP_SLEEP, OP_FAIL, OP_SEND, OP_OUTPUT, OP_PAYLOAD, OP_EINSUM
} tiny_opcode;
typedef struct tiny_attr { char *name, *text; } tiny_attr;
typedef struct tiny_op {
  tiny_opcode code;
  int result; /* value number, or -1 */
  int operands[8];
  size_t num_operands;
  int64_t number; /* channel, milliseconds, error code, … */
  double real;
  char *text, *text2;
  tiny_attr *attrs;
  size_t num_attrs;
} tiny_op;
typedef struct tiny_value { char *name; tiny_shape shape; } tiny_value;
typedef struct tiny_output { int value; int kind; int alias; } tiny_output; /* alias: parameter or -1 */
typedef struct tiny_program {
  char *source; /* as text, from "tiny 1" on */
  char *name;
  tiny_value *values; /* parameters come first */
  size_t num_values, num_parameters;
  int *parameter_kinds;
  tiny_op *ops;
  size_t num_ops;
  tiny_output *outputs;
  size_t num_outputs;
  char **parameter_shardings, **output_shardings; /* null where not given; sizes below */
  size_t *parameter_sharding_sizes, *output_sharding_sizes;
  bool has_shardings;
} tiny_program;
tiny_status *program_parse(const char *code, size_t size, tiny_program **out);
void program_free(tiny_program *program);

/* ---- einsum.c -----------------------------------------------------------------------------------------------------*/
bool einsum_fits(const tiny_op *op, const tiny_value *values, const tiny_shape *result);
void einsum_run(const tiny_op *op, const tiny_value *values, char *const *data);

/* ---- executable.c -------------------------------------------------------------------------------------------------*/
typedef struct tiny_executable {
  atomic_int refs;
  tiny_program *program;
  tiny_compile_options options;
  char *options_bytes;
  size_t options_size;
  char fingerprint[17];
  PJRT_Buffer_Type *output_types;
  int64_t *output_dims;
  size_t *output_ranks;
  const char **output_kinds, **parameter_kinds;
  size_t *output_kind_sizes, *parameter_kind_sizes;
  tiny_attributes costs;
  pthread_mutex_t mutex; /* guards what follows: made when asked for */
  PJRT_Layouts_MemoryLayout **parameter_layouts, **output_layouts;
} tiny_executable;
struct PJRT_Executable { tiny_executable *core; };
struct PJRT_LoadedExecutable {
  tiny_executable *core;
  PJRT_Client *client;
  atomic_bool deleted;
  size_t num_local;
  int64_t assignment[TINY_MAX_DEVICES]; /* replica-major */
  PJRT_Device *local_devices[TINY_MAX_DEVICES];
  PJRT_LogicalDeviceIds logical_ids[TINY_MAX_DEVICES];
  struct tiny_join *joins; /* meetings that not all devices have joined; guarded by the client's mutex, as are runs */
  int64_t runs[TINY_MAX_DEVICES]; /* how often each local device ran it */
};
tiny_status *executable_make(const PJRT_Program *program, const char *options, size_t options_size,
                             tiny_executable **out);
tiny_executable *executable_ref(tiny_executable *executable);
void executable_unref(tiny_executable *executable);
PJRT_Executable *executable_handle(tiny_executable *owned);
tiny_status *executable_load(PJRT_Client *client, tiny_executable *owned, PJRT_LoadedExecutable **out);
void executable_serialize(const tiny_executable *executable, tiny_bytes *out);

void loaded_leave_meetings(PJRT_LoadedExecutable *loaded);

/* ---- execute.c, ops.c ---------------------------------------------------------------------------------------------*/
typedef struct tiny_meeting tiny_meeting;
struct tiny_launch {
  tiny_executable *executable;
  PJRT_Device *device;
  int launch_id, replica, partition;
  int64_t run_id;
  size_t num_arguments;
  tiny_storage **arguments; /* a reference each */
  tiny_promise **argument_defined;
  tiny_storage **outputs;
  tiny_promise *done;
  PJRT_SendCallbackInfo *sends;
  PJRT_RecvCallbackInfo *recvs;
  PJRT_HloOutputCallbackInfo *output_callbacks;
  size_t num_sends, num_recvs, num_output_callbacks;
  PJRT_ExecuteContext *context; /* a reference */
  tiny_meeting *meeting;        /* a reference */
  tiny_status *poison;
  tiny_launch *next;
};
tiny_status *ops_run(tiny_launch *launch);
tiny_meeting *meeting_make(size_t participants);
tiny_meeting *meeting_ref(tiny_meeting *meeting);
void meeting_unref(tiny_meeting *meeting);
void meeting_fail(tiny_meeting *meeting, tiny_status *borrowed);
/* Adds the share of one device and waits for the others; the sum lies in data afterwards. */
tiny_status *meeting_all_reduce(tiny_meeting *meeting, PJRT_Buffer_Type type, char *data, int64_t count);
void arithmetic(tiny_opcode op, PJRT_Buffer_Type type, char *out, const char *a, const char *b, int64_t count);
bool arithmetic_fill(PJRT_Buffer_Type type, char *out, double value, int64_t count);
bool arithmetic_supports(PJRT_Buffer_Type type);

struct PJRT_ExecuteContext {
  atomic_int refs;
  pthread_mutex_t mutex;
  struct { int64_t type_id; void *data; } *entries;
  size_t num_entries;
};
void context_unref(PJRT_ExecuteContext *context);

/* ---- stream.c -----------------------------------------------------------------------------------------------------*/
tiny_status *stream_receive(const PJRT_RecvCallbackInfo *info, char *data, size_t size, size_t granule);

/* ---- ffi.c: handlers that programs call ----------------------------------------------------------------------------*/
tiny_status *ffi_register(const char *name, size_t name_size, const char *platform, size_t platform_size, void *handler);
tiny_status *ffi_register_type(const char *name, size_t name_size, int64_t *inout_id);
tiny_status *ffi_call(tiny_launch *launch, const tiny_op *op, const tiny_value *values, char *const *data);

/* ---- extensions.c, ext_*.c ----------------------------------------------------------------------------------------*/
PJRT_Extension_Base *extensions_chain(bool (*wanted)(PJRT_Extension_Type type));
extern PJRT_Layouts_Extension layouts_extension;
extern PJRT_AbiVersion_Extension abi_version_extension;
extern PJRT_RawBuffer_Extension raw_buffer_extension;
extern PJRT_CrossHostTransfers_Extension transfers_extension;
extern PJRT_Profiler_Extension profiler_extension;
extern PJRT_PhaseCompile_Extension phase_compile_extension;
extern PJRT_TpuTopology_Extension tpu_topology_extension;
extern PJRT_TpuExecutable_Extension tpu_executable_extension;
extern PJRT_Megascale_Extension megascale_extension;
extern PJRT_MultiSlice_Extension multi_slice_extension;
#define TINY_EXTENSION(extension, kind) \
  .base = {.struct_size = extension##_STRUCT_SIZE, .type = PJRT_Extension_Type_##kind}
void transfers_forget(PJRT_Client *client); /* ends transfers that wait for their other end */
void layouts_free(PJRT_Layouts_MemoryLayout **layouts, size_t count);
extern atomic_llong executions_started; /* what the profiler counts */

/* ---- faults.c: what tests switch and count ------------------------------------------------------------------------*/
typedef enum {
  LIVE_CLIENT, LIVE_TOPOLOGY, LIVE_BUFFER, LIVE_EVENT, LIVE_EXECUTABLE, LIVE_LOADED_EXECUTABLE, LIVE_ERROR,
  LIVE_MANAGER, LIVE_CONTEXT, LIVE_STREAM, LIVE_TRACKING_EVENT, LIVE_ALIAS, LIVE_SERIALIZED, LIVE_ATTRIBUTES,
  LIVE_LAYOUT, LIVE_RAW_BUFFER, LIVE_ABI_VERSION, LIVE_PROFILER, LIVE_METADATA, LIVE_STORAGE, LIVE_PHASE_COMPILER,
  LIVE_PHASE_BUFFERS, LIVE_MULTI_SLICE, LIVE_COUNT
} tiny_live;
void live_add(tiny_live kind, int delta);
void fault_count(tiny_function function);
/* The error of an argument struct that is shorter than its first version; null where it is long enough. */
PJRT_Error *size_error(const char *type, size_t struct_size, size_t first_size);
/* The first line of a function: a struct that is too short ends it. */
#define TINY_SIZED(type, data)                                                                                        \
  do {                                                                                                                \
    PJRT_Error *too_short = size_error(#type, (data)->struct_size, type##_FIRST_STRUCT_SIZE);                         \
    if (too_short) return too_short;                                                                                  \
  } while (0)
PJRT_Error *fault_before(tiny_function function, size_t struct_size, size_t expected_size);
tiny_status *fault_event(tiny_function function); /* null: no such fault */
bool fault_legacy_errors(void);
void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *function_name(tiny_function function);
/* The first line of an extension's function: a fault, or a struct that is stamped wrongly, ends it. */
#define TINY_GUARD(function, args)                                                                                    \
  do {                                                                                                                \
    TINY_SIZED(PJRT_##function##_Args, args);                                                                         \
    PJRT_Error *fault =                                                                                               \
        fault_before(F_##function, (args)->struct_size, PJRT_##function##_Args_STRUCT_SIZE);                          \
    if (fault) return fault;                                                                                          \
  } while (0)

/* The implementation of each function: tiny_Client_Create and so on. */
#define TINY_DECLARE(name) PJRT_Error *tiny_##name(PJRT_##name##_Args *args);
TINY_ERROR_FUNCTIONS(TINY_DECLARE)
void tiny_Error_Destroy(PJRT_Error_Destroy_Args *args);
void tiny_Error_Message(PJRT_Error_Message_Args *args);

#endif /* TINY_H_ */
