/* The nouns of the runtime, and what each file offers to the others.
 *
 * Rules that hold in every file:
 *  - An error is a PJRT_Error that is never changed once it is shared; null is OK. A function that returns one gives a
 *    reference away; a parameter named "owned" takes one.
 *  - A completion is the one way in which something ends. A PJRT_Event is a handle on one.
 *  - A device's queue belongs to its driver. What reads or writes memory of a device goes through that queue, so work
 *    that was submitted there is in order. Work that waits for something else is submitted later, by the thread that
 *    completes what it waits for; memory that it will read is not written to until then (storage.readers).
 *  - Small objects come from malloc, and the process ends where there is none, as it does under C++. Memory for arrays
 *    comes from the driver, and its lack is an error. */
#ifndef PJRT_NATIVE_RUNTIME_H_
#define PJRT_NATIVE_RUNTIME_H_

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"
#include "pjrt_abi/extensions.h"
#include "pjrt_driver.h"
#include "pjrt_support/error.h"

#define MAX_RANK 32
#define MAX_DEVICES 256 /* of one client, and of one program */
#define MAX_KINDS 64    /* of a device's memory */
#define HIDDEN __attribute__((visibility("hidden")))
#define PRINTS(text, values) __attribute__((format(printf, text, values)))

/* Returns an error where the arguments of an extension's function are too short. */
#define SIZED(type, args)                                                                     \
  do {                                                                                        \
    PJRT_Error *too_short = pjrt_check_size(args, type##_FIRST_STRUCT_SIZE, #type);           \
    if (too_short) return too_short;                                                          \
  } while (0)

/* Whether the other side's struct is long enough to hold the field: older callers stamp less. */
#define HAS(args, type, field) ((args)->struct_size >= offsetof(type, field) + sizeof(((type *)0)->field))

/* ---- values.c: memory, text, errors, named values, protocol buffers -------------------------------------------------*/
void *new_zeroed(size_t count, size_t size);
void *copy_of(const void *data, size_t size); /* one zero byte is added behind */
PJRT_Error *staging_make(size_t size, char **out); /* memory for as many bytes of arrays: its lack is an error */
char *printed(const char *format, ...) PRINTS(1, 2);

typedef struct bytes {
  char *data;
  size_t size, capacity;
} bytes;
void bytes_add(bytes *out, const void *data, size_t size);

#define INVALID PJRT_Error_Code_INVALID_ARGUMENT
PJRT_Error *error_make(PJRT_Error_Code code, const char *format, ...) PRINTS(2, 3);
PJRT_Error *error_from_parts(PJRT_Error_Code code, const char *message, size_t size); /* null where the code is OK */
void error_add_payloads(PJRT_Error *error, const PJRT_NamedValue *values, size_t count); /* of one that is not shared */
/* The error of a driver's function, which gave the code and perhaps a text; null where the code is 0. */
PJRT_Error *error_of_driver(const char *function, int code, const char *message);
int error_say(PJRT_Error *borrowed, char *message); /* as a driver gives it: writes the text, and returns the code */
int error_give(PJRT_Error *owned, char *message);   /* the same; 0 for null */
/* What belongs to an error, as Python writes it: returns whether there is one of this number. */
int payload_at(const bytes *from, size_t index, const char **name, const char **value, size_t *size);

typedef struct named_values {
  PJRT_NamedValue *values;
  size_t count;
} named_values;
void named_value_add(named_values *list, const char *name, size_t name_size, const PJRT_NamedValue *value);
void named_float_add(named_values *list, const char *name, float value);
bool named_value_is(const PJRT_NamedValue *value, const char *name);
void named_values_free(named_values *list);

typedef struct proto_field {
  int number, wire;
  uint64_t value;
  const char *data;
  size_t size;
} proto_field;
bool proto_next(const char **cursor, const char *end, proto_field *field); /* false at the end, or where it is broken */
void proto_varint(bytes *out, int number, uint64_t value);
void proto_bytes(bytes *out, int number, const void *data, size_t size);
/* Writes at most so many numbers, packed or single, and returns how many there are. */
size_t proto_int64s(const proto_field *field, int64_t *out, size_t capacity);

int64_t monotonic_now(void); /* nanoseconds */

/* ---- event.c ------------------------------------------------------------------------------------------------------*/
typedef struct completion completion;
typedef void (*continuation)(PJRT_Error *borrowed, void *arg);
extern completion completion_done; /* the one that is done without an error; references to it are not counted */
completion *completion_make(void);
completion *completion_with(PJRT_Error *owned); /* one that is done already */
completion *completion_ref(completion *each);
void completion_unref(completion *each);
bool completion_set(completion *each, PJRT_Error *owned); /* false where it was set before */
bool completion_is_set(completion *each);
PJRT_Error *completion_error(completion *each); /* borrowed; of one that is set */
PJRT_Error *completion_wait(completion *each);  /* borrowed */
void completion_then(completion *each, continuation function, void *arg);
/* Work that a driver has taken: what other devices can wait for. A completion that is neither set nor submitted is
 * waited for on the host. */
void completion_submit(completion *each, PJRT_Device *device, pjrt_fence fence);
bool completion_fence(completion *each, PJRT_Device **device, pjrt_fence *fence);

PJRT_Event *event_make(completion *of); /* takes a reference of its own */
void events_interrupt(void); /* ends the waits of frameworks for what no device does now */
void events_fork(void);      /* in a fork, what is in flight ends with an error */
PJRT_Event *event_to_await(completion *of); /* one that is asked for to wait for it, most likely */

/* ---- shape.c ------------------------------------------------------------------------------------------------------*/
typedef struct shape {
  PJRT_Buffer_Type type;
  size_t rank;
  int64_t dims[MAX_RANK];
  int64_t minor_to_major[MAX_RANK];
} shape;
size_t element_bits(PJRT_Buffer_Type type); /* 0 for a token, and for unknown types */
bool element_is_known(PJRT_Buffer_Type type);
bool element_fits(PJRT_Buffer_Type type, size_t bits); /* so that elements can be packed */
PJRT_Error *shape_init(shape *out, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                       const PJRT_Buffer_MemoryLayout *layout);
int64_t shape_elements(const shape *of);
size_t shape_size(const shape *of); /* of the dense array on the host, one byte for each element of less than a byte */
bool shape_is_in_rows(const shape *of);
bool shape_same(const shape *a, const shape *b); /* the same type and dimensions */
bool shape_same_order(const shape *a, const shape *b); /* of dimensions that are the same */
void shape_strides(const shape *of, int64_t *byte_strides);
void row_major_strides(const shape *of, int64_t *byte_strides);
char *shape_text(const shape *of);  /* f32[2,3] */
char *layout_text(const shape *of, const pjrt_driver_layout *tiles); /* {1,0:T(8,128)E(4)}; {1,0} for null */
void copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                  const int64_t *dims, size_t rank, size_t element);
bool strides_are_row_major(const shape *of, const int64_t *byte_strides);
pjrt_driver_shape driver_shape(const shape *of);

/* ---- driver.c: which driver the library has, and its settings ---------------------------------------------------------*/
const char *setting(const char *key); /* null where it is not set */
PJRT_Error *driver_find(const pjrt_driver_table **out);
bool driver_is_in_c(void); /* not one of ours before Python */
extern const pjrt_driver_table host_driver;

/* A function that a driver may lack because its struct is shorter than ours, or because the entry is null. */
#define DRIVER_HAS(table, function) (HAS(table, pjrt_driver_table, function) && (table)->function != NULL)

/* ---- facts.c: what a driver says about a client and its devices, and its form as a message --------------------------*/
typedef struct facts {
  bool has_layouts; /* memories say how they lay out arrays */
  const char *platform, *topology; /* the second null for devices that are here */
  pjrt_driver_client client;
  size_t num_devices;
  pjrt_driver_device *devices;
} facts;
void facts_write_client(bytes *out, const char *platform, const char *topology, const pjrt_driver_client *each);
void facts_write_device(bytes *out, const pjrt_driver_device *each);
bool facts_read(facts *out, const char *data, size_t size); /* false where it is none; it is freed all the same */
void facts_free(facts *each);
void facts_attributes(named_values *out, const pjrt_driver_attribute *attributes, size_t count);

/* ---- topology.c -----------------------------------------------------------------------------------------------------*/
struct PJRT_MemoryDescription {
  const char *kind; /* within the facts */
  int kind_id;
};
struct PJRT_DeviceDescription {
  int id, process_index;
  const char *kind; /* within the facts */
  char *debug_string, *to_string;
  named_values attributes;
  size_t num_memories;
  PJRT_MemoryDescription *memories;
  const PJRT_MemoryDescription **memory_handles;
};
struct PJRT_TopologyDescription {
  bytes message; /* the facts as they are serialized */
  facts facts;
  PJRT_DeviceDescription *descriptions;
  PJRT_DeviceDescription **handles;
  named_values attributes;
  PJRT_Client *compiler; /* a reference; null for the topology of a client, and for one that was serialized */
  const PJRT_Client *owner; /* the client whose it is, and that it ends with; null for others */
};
PJRT_TopologyDescription *topology_make(const bytes *message); /* null where the message is no such facts */
void topology_free(PJRT_TopologyDescription *each);
PJRT_Error *topology_compiler(const PJRT_TopologyDescription *topology, PJRT_Client **out); /* gives a reference */
int shown_kind(size_t kind); /* the number of a kind of memory that frameworks see */
uint64_t fingerprint_of(uint64_t start, const void *data, size_t size);

/* ---- store.c: the key-value store of a framework's job ------------------------------------------------------------------*/
typedef struct store store;
store *store_make(const PJRT_Client_Create_Args *args); /* null where the framework has none */
const pjrt_driver_store *store_of(const store *each);   /* null for null */

/* ---- client.c, device.c ---------------------------------------------------------------------------------------------*/
typedef struct user_data user_data;
typedef struct memory_space {
  PJRT_Memory base;
  PJRT_Device *device;
  int id;
  size_t kind_number;
  char *kind, *debug_string, *to_string;
  user_data *user_data;
  pthread_mutex_t mutex; /* guards what follows */
  int64_t limit, in_use, peak, allocations, largest;
} memory_space;

typedef struct launch launch;
typedef struct watch watch;
typedef enum remedy { NO_REMEDY, CANCELLED, RESET } remedy;
struct PJRT_Device {
  PJRT_Client *client;
  size_t number; /* the driver's */
  bool is_addressable;
  int local_hardware_id;
  PJRT_DeviceDescription *description;
  size_t num_spaces;
  memory_space *spaces;
  PJRT_Memory **space_handles;
  atomic_int refs; /* storages and buffers; together one reference to the client */
  pthread_mutex_t mutex; /* guards what follows */
  pthread_cond_t changed;
  watch *first_watch, *last_watch; /* the work in the driver's queue */
  size_t in_flight; /* how much of it somebody waits for */
  uint64_t ended;   /* how often work has ended, or was given up */
  int64_t moved;    /* when work ended last, or was given up; where there is a watchdog, or a profiler records */
  remedy remedy;    /* what was tried since then */
  watch *first_unused, *last_unused;
  size_t num_unused;
  launch *launches; /* those that wait or run, the latest first: what PoisonExecution looks for */
  struct waiter *waiter; /* the thread that waits for fences, where the driver has no on_done */
  struct host_thread *host; /* runs the host's steps, where a program has some */
};

typedef struct open_end open_end;
typedef struct dma_region dma_region;
struct PJRT_Client {
  atomic_int refs; /* the handle, and every object made from the client */
  pid_t owner;
  PJRT_Client *next_living;
  const pjrt_driver_table *table;
  pjrt_driver_table laid_out; /* the table of a client in Python that has layouts */
  const struct python_functions *python; /* null for other drivers */
  pjrt_driver *driver;
  store *store;
  int process_index;
  PJRT_TopologyDescription *topology;
  size_t num_devices; /* of all processes */
  struct PJRT_Device *devices;
  PJRT_Device **device_handles;
  size_t num_addressable;
  PJRT_Device **addressable_handles;
  PJRT_Memory **space_handles;
  size_t num_spaces;
  struct process *compiler; /* of its own; null for a device in Python, which compiles itself */
  int64_t patience; /* the nanoseconds that the watchdog gives the first work of a queue; 0 for no watchdog */
  struct watchdog *watchdog;
  _Atomic uint64_t executions; /* of several devices */
  pthread_mutex_t order;       /* of their launches: devices get them in the same one; guards what follows */
  struct together *last;
  pthread_mutex_t mutex; /* guards what follows */
  open_end *open_ends;
  dma_region *dma_regions;
};
PJRT_Client *client_ref(PJRT_Client *client);
typedef enum interrupt { PRESSED = 0, UNHELD = 1, AWAITED = 2, ENDING = 3, NONE = 4 } interrupt; /* see pjrt_native_interrupt */
size_t launches_interrupt(PJRT_Device *device, interrupt stage); /* how many are in flight */
void client_unref(PJRT_Client *client);
PJRT_Client **clients_of_process(size_t *count); /* a reference to each that is not closed */
PJRT_Device *client_device(PJRT_Client *client, int64_t id); /* null where it has none of this id */
/* A reference to the client, counted by its device: two devices do not write to one number when they execute. */
void device_ref(PJRT_Device *device);
void device_unref(PJRT_Device *device);
/* A completion that only the caller can set (an alias buffer, a control dependency). Destroying the client sets it. */
open_end *open_end_make(PJRT_Client *client, completion *of);
completion *open_end_take(open_end *owned); /* gives its reference away */

/* The memory named by a pair of optional handles, as the ABI has it: the memory wins over the device's default. */
PJRT_Error *space_choose(PJRT_Memory *memory, PJRT_Device *device, memory_space **out);

/* ---- queue.c --------------------------------------------------------------------------------------------------------*/
/* Work that a driver has taken. */
typedef struct work {
  const char *function; /* of the driver, which gave the fence */
  const char *program;  /* of a launch; null for a copy */
  completion *done;     /* what is set where the work is given up */
  continuation then;    /* is called with the error of the work when it has ended, given up or not */
  void *arg;            /* what both are part of */
} work;
/* Follows the work until the fence is done; where that is 0, it is done at once. */
void queue_follow(PJRT_Device *device, pjrt_fence fence, work of);
void queue_stop(PJRT_Device *device);
void queue_hold(PJRT_Device *device); /* the client is not closed until it is let go */
void queue_let_go(PJRT_Device *device);
void queue_cancel(PJRT_Device *device, completion *done); /* the work that ends it, or is a part of it; where the driver can */
/* Whether work that was given up may go on: copies with the host go through memory of ours then. */
bool queue_leaves_work(const PJRT_Client *client);
bool queue_is_calling(void); /* whether this thread is the driver's or ours, and tells that work has ended */
void queue_call(bool begins); /* this thread begins to tell such things, or has told them */
uint64_t client_ended(PJRT_Client *client); /* how much work of all queues has ended */
bool client_wait_for_one(PJRT_Client *client, uint64_t seen); /* waits until more has; false where none is in flight */
void client_wait_for_all(PJRT_Client *client);
PJRT_Error *watchdog_start(PJRT_Client *client); /* where the client has patience */
void watchdog_stop(PJRT_Client *client);

/* ---- buffer.c -------------------------------------------------------------------------------------------------------*/
enum { ALIGNMENT = 64 }; /* of arrays in the host's memory: what XLA's code and frameworks expect */
typedef struct storage {
  atomic_int refs;
  memory_space *space; /* holds a reference to its client */
  uint64_t memory;
  size_t size;           /* what it counts for */
  size_t in_rows;        /* how many bytes can be read and written one by one: of a device in Python those of the host's array */
  bool is_owned;         /* the driver's function free gives it back */
  atomic_int sharers;    /* others that look at the bytes too: a donation must not write here */
  atomic_int holders;    /* buffers */
  atomic_int readers;    /* work that will read it and is not in the device's queue yet */
  struct storage *target; /* an alias: the bytes are there, once it is defined */
  void (*on_free)(void *data, void *arg);
  void *on_free_data, *on_free_arg;
  completion *freed; /* set when the last reference goes */
} storage;
/* How an array lies in the memory, or an error where the device has no such arrays. */
PJRT_Error *storage_layout(const memory_space *space, const shape *of, pjrt_driver_layout *out);
/* Whether the device has the array dense, in its own order of dimensions: without tiles, padding or packed elements. The
 * padding of a device in Python is its own business, and the order is that of rows. */
bool storage_is_plain(const memory_space *space, const shape *of);
PJRT_Error *storage_allocate(memory_space *space, const shape *of, storage **out);
PJRT_Error *storage_allocate_bytes(memory_space *space, size_t size, storage **out);
storage *storage_borrow(memory_space *space, uint64_t memory, size_t size);
storage *storage_ref(storage *each);
void storage_unref(storage *each);
PJRT_Error *storage_recount(storage *each, size_t size); /* it counts for as many bytes from now on */
uint64_t storage_memory(const storage *each);
void *storage_host_view(const storage *each); /* null where the host cannot see it at once */
PJRT_Error *storage_address(const storage *of, uint64_t *out);

struct PJRT_Buffer {
  memory_space *space; /* holds a reference to its client */
  shape shape;
  completion *defined;
  pthread_mutex_t mutex; /* guards what follows */
  storage *storage;      /* null once deleted or donated */
  const char *gone;      /* why it is null: "deleted", "donated" */
  int64_t external_references;
};
PJRT_Buffer *buffer_make(memory_space *space, const shape *of, storage *owned, completion *owned_defined);
/* A reference to the bytes, counted as a reader until storage_read ends it. */
PJRT_Error *buffer_use(PJRT_Buffer *buffer, storage **out);
void storage_read(storage *owned); /* the reader's work is in the queue, or will never be */
PJRT_Error *buffer_donate(PJRT_Buffer *buffer, storage **out);
void buffer_take_back(PJRT_Buffer *buffer, storage *owned); /* what was donated to a call that was refused */
PJRT_Error *buffer_check(PJRT_Buffer *buffer);              /* the error of a buffer that holds nothing any more */
bool buffer_has_bytes(const PJRT_Buffer *buffer); /* which are those of an array in the order that frameworks see */
void buffer_destroy(PJRT_Buffer *buffer);

/* An array in the memory of a device is dense and in rows to the runtime; what a driver makes of it is its own. Another
 * layout is asked of a driver that has some; else it is what frameworks see of the array, in a space whose bytes have no
 * address. Without a space it is refused. */
PJRT_Error *device_shape(shape *out, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                         const PJRT_Buffer_MemoryLayout *layout, const memory_space *space);
PJRT_Error *refuse_layout(const shape *of); /* for what is about bytes, which lie in rows */

/* ---- transfer.c: copies in the memory of devices, once the buffer is defined --------------------------------------------*/
/* A copy; seen as another shape of as many bytes on the host, if one is given. */
PJRT_Error *buffer_copied(PJRT_Buffer *buffer, memory_space *space, const shape *seen_as, PJRT_Buffer **out);
PJRT_Error *raw_check_range(const storage *held, int64_t offset, int64_t size, const void *host);
completion *raw_copy_in(storage *held, completion *defined, size_t offset, const void *host, size_t size);
completion *raw_copy_out(storage *held, completion *defined, size_t offset, void *host, size_t size);

/* ---- executable.c ---------------------------------------------------------------------------------------------------*/
typedef struct parameter {
  shape shape;
  size_t kind;
  atomic_size_t size; /* as the device has it; in rows, until the executable is loaded */
} parameter;
typedef struct output {
  shape shape;
  size_t kind;
  atomic_size_t size;
  int64_t alias; /* the parameter whose memory it may take over; -1 for none */
} output;
typedef struct value { /* between steps */
  shape shape;
  size_t kind;
  atomic_size_t size;
  bool is_on_host; /* no kernel reads it: the device has no memory for it */
} value;
/* A step reads and writes values by their numbers: first the parameters, then the outputs, then those between steps. */
enum { TOKEN = -3, REPLICA = -2, PARTITION = -1 }; /* arrays of a host's step that are none of them; the last two u32 */
typedef struct step {
  const char *code, *call, *program; /* one of them: a kernel's code; the target and the attributes of a handler's call;
                                        a program that another process of ours runs */
  size_t size;
  size_t num_inputs, num_outputs;
  int64_t *inputs, *outputs;
  proto_field *arrays; /* of a host's step: inputs and outputs as a call has them, without their bytes */
} step;
typedef struct executable {
  atomic_int refs;
  char *serialized; /* the whole: what follows points into it, or is made of it */
  size_t serialized_size;
  char *name, *format, *optimized_format; /* the last one null where the program itself is all there is */
  const char *code, *program, *optimized, *options, *identity; /* the last one null: all of `serialized` */
  size_t code_size, program_size, optimized_size, options_size, identity_size;
  size_t num_parameters, num_outputs;
  parameter *parameters;
  output *outputs;
  bool *donated; /* by parameter */
  size_t scratch;
  size_t num_memory; /* how many of the facts about memory are known */
  int64_t memory[16];
  size_t num_values, num_steps; /* no steps: the driver runs the code */
  value *values;
  step *steps;
  int64_t num_replicas, num_partitions;
  bool is_portable, has_assignment, takes_any_memory, is_sharded, has_collectives;
  int64_t assignment[MAX_DEVICES]; /* replica-major */
  int64_t device_ordinal;
  char fingerprint[17];
  named_values costs;
  PJRT_Buffer_Type *output_types;
  int64_t *output_dims;
  size_t *output_ranks, *output_kind_sizes, *parameter_kind_sizes;
  const char **output_kinds, **parameter_kinds;
  const char **output_shardings, **parameter_shardings; /* null where nothing is divided; within `serialized` */
  size_t *output_sharding_sizes, *parameter_sharding_sizes;
  proto_field *asked_layouts; /* by parameter, then by output: the text of a layout with tiles, or nothing */
  PJRT_Layouts_MemoryLayout **parameter_layouts, **output_layouts;
} executable;
struct PJRT_Executable {
  executable *core;
};
struct PJRT_LoadedExecutable {
  atomic_int refs; /* the handle, and every launch */
  executable *core;
  PJRT_Client *client;
  atomic_bool is_deleted;
  atomic_llong runs;
  size_t num_participants; /* of programs for several devices, all of this process */
  size_t participants[MAX_DEVICES];
  size_t num_local;
  PJRT_Device *devices[MAX_DEVICES];
  PJRT_LogicalDeviceIds ids[MAX_DEVICES];
  int64_t assignment[MAX_DEVICES];
  pthread_mutex_t mutex; /* for loading */
  _Atomic uint64_t loaded[MAX_DEVICES]; /* by the device's number; 0 until it is loaded */
  uint64_t *kernels[MAX_DEVICES];       /* of a program in steps, by the step */
};
/* Reads what the compiler wrote; copies it. The kinds of memory are those of the client's devices. */
PJRT_Error *executable_read(const char *data, size_t size, const char *const *kinds, size_t num_kinds,
                            executable **out);
executable *executable_ref(executable *each);
void executable_unref(executable *each);
PJRT_Executable *executable_handle(executable *owned);
PJRT_Error *executable_load(PJRT_Client *client, executable *owned, PJRT_LoadedExecutable **out);
void loaded_unref(PJRT_LoadedExecutable *loaded);
PJRT_Error *loaded_on(PJRT_LoadedExecutable *loaded, PJRT_Device *device, uint64_t *out);
void layouts_free(PJRT_Layouts_MemoryLayout **layouts, size_t count);
void layouts_note(executable *core, const PJRT_Device *device); /* those of its arrays on the device, for frameworks */

/* ---- steps.c: programs of which the host does a part -------------------------------------------------------------------*/
size_t num_values(const executable *core); /* parameters, outputs, and those between steps */
PJRT_Error *steps_read(executable *out);   /* fills the steps of an executable whose other fields were read */
void steps_free(executable *each);
/* One run of a program in steps. What it has is its caller's, and stays until `then` is called, once. */
typedef struct stepped {
  PJRT_LoadedExecutable *loaded;
  PJRT_Device *device;
  launch *launch; /* what may be poisoned */
  int replica, partition;
  int64_t run;
  uint64_t execution;
  const uint64_t *memory; /* by value */
  uint64_t scratch;
  completion **defined;   /* by parameter: set, or promised by the queue of the device */
  completion *done;       /* is set where the watchdog gives up work */
  continuation then;
  void *arg;
} stepped;
void steps_run(const stepped *of);
void steps_stop(PJRT_Device *device); /* no step runs, or will */
PJRT_Error *launch_refusal(launch *each); /* why no more of it may begin; null where it may */
void together_unref(struct together *each); /* executions with collectives, see execute.c */

/* ---- process.c: a Python process of ours --------------------------------------------------------------------------------*/
typedef struct process process;
typedef struct answer {
  char *text; /* the whole: what follows points into it */
  size_t size;
  const char *data;
  size_t data_size;
  uint64_t number;
} answer;
/* Of the module; errors say that it is the process that does this. With a file to share it is not started again. */
process *process_make(const char *module, const char *does, int shared, const pjrt_driver_store *store);
void process_let_ask(process *each); /* it may ask this one, although it shares no file */
void process_share(process *each);   /* it serves other processes of this user, too, and ends with the last one */
void process_free(process *each);
PJRT_Error *process_start(process *each);
void process_signal(process *each, int signal);
void process_kill(process *each);  /* as it is, because it cannot be trusted; where it serves others, it is left */
void process_close(process *each); /* lets it end, and waits for that */
PJRT_Error *process_wait(process *each); /* waits until it has ended, and returns the error that says how */
PJRT_Error *process_ask(process *each, bytes *request, answer *out); /* one at a time */
/* Writes the request to open a client with options. */
void request_open(bytes *request, const pjrt_driver_option *options, size_t num_options, bool has_store);
/* Asks to load code on a device, as a driver's function does. */
typedef PJRT_Error *(*ask_function)(pjrt_driver *driver, bytes *request, answer *out);
int ask_to_load(ask_function ask, pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable,
                char *message);
/* How memories in Python lay out arrays, as they were asked. A lock of the driver guards them. */
typedef struct known_layout known_layout;
enum { LAYOUT_BUCKETS = 256 };
typedef struct known_layouts {
  known_layout *buckets[LAYOUT_BUCKETS];
} known_layouts;
/* Does what a driver's function layout does. Its lists stay valid until all are freed. */
int ask_for_layout(known_layouts *known, pthread_mutex_t *mutex, ask_function ask, pjrt_driver *driver, size_t device,
                   size_t kind, const pjrt_driver_shape *shape, pjrt_driver_layout *layout, char *message);
void known_layouts_free(known_layouts *known);
/* Answers questions of devices of this process, at the other end of a socket that they get. */
typedef struct questions questions;
questions *questions_begin(const pjrt_driver_store *store, int *theirs); /* null where there is no socket */
void questions_end(questions *owned);
PJRT_Error *answer_read(answer *out); /* of its text */
void answer_free(answer *each);

/* ---- recording.c: what devices of a driver in C did while a profiler recorded --------------------------------------------*/
typedef struct recording recording;
recording *recording_make(PJRT_Client *client); /* which must not end before it */
PJRT_Error *recording_switch(recording *each, bool is_on);
void recording_write(const recording *each, bytes *space); /* adds an XSpace */
void recording_free(recording *owned);
const pjrt_driver_table *recording_table(const pjrt_driver_table *of); /* the same, whose calls are noted */
int64_t recording_called(void); /* when this thread gave work to a driver last, asked once; 0 where nobody records */
int64_t recording_now(void);    /* 0 where nobody records */
/* Work has ended now; nothing is recorded of what began at 0. */
void recording_work(const PJRT_Device *device, const work *of, int64_t begun);
void recording_host(const PJRT_Client *client, const char *line, const char *name, int64_t begun);

/* ---- printout.c ------------------------------------------------------------------------------------------------------*/
typedef struct printout printout;
/* Reads what a process writes to the file `theirs`; null where it cannot. */
printout *printout_make(const char *name, int *theirs);
void printout_unref(printout *each);
char *printout_last(printout *each); /* the last lines, once it has ended; null for none */

/* What the process waits for: an answer to a question that it asked. */
typedef struct reply reply;
void reply_send(reply *owned, PJRT_Error *owned_error, const bytes *data);

/* ---- ffi.c: functions of this process that programs call ----------------------------------------------------------------*/
/* Adds the handlers that were registered after the first so many, by name, address and traits, in three fields from this
 * number on; returns how many there are. */
size_t ffi_add_names(bytes *request, int number, size_t known);
/* Calls a handler as a message says; adds the bytes of its results. */
PJRT_Error *ffi_call(const char *message, size_t size, bytes *results);

/* ---- partitioner.c: functions of this process that say how custom calls are divided ------------------------------------------*/
/* Adds the names that were registered after the one of this number, with their traits, in two fields from this number on;
 * returns the number of the latest. */
uint64_t partitioner_add_names(bytes *request, int number, uint64_t known);
/* Calls a function as a message says; adds the message of what it returns. */
PJRT_Error *partitioner_call(const char *message, size_t size, bytes *results);

/* ---- execute_options.c: what a framework gives to one execution beside its arguments ---------------------------------------*/
typedef struct execute_options execute_options;

/* Those of one list of arguments; null for the defaults. With contexts their data is in it. */
execute_options *execute_options_make(const PJRT_ExecuteOptions *options, const executable *of, size_t list,
                                      bool has_contexts);
execute_options *execute_options_fail(execute_options *owned, PJRT_Error *borrowed); /* an argument has the error */
const bytes *execute_options_message(const execute_options *each); /* for a worker */
void execute_options_end(execute_options *owned);
void execute_options_call(const proto_field *question, reply *owned); /* calls a function of the framework */
PJRT_Error *context_add(PJRT_ExecuteContext *context, int64_t type_id, void *data);

/* ---- fences.c: what such a driver has begun; its mutex guards all, and is not held where somebody is told ------------------*/
typedef struct pending {
  pjrt_fence fence;
  struct pending *next; /* in its bucket */
  bool is_ended;
  int code;
  char *message;
  bytes payloads;
  pjrt_driver_done function; /* null as long as nobody is to be told */
  void *arg;
} pending;
enum { FENCE_BUCKETS = 1024 };
typedef struct fences {
  pjrt_fence last;
  pending *buckets[FENCE_BUCKETS];
} fences;
pending *fences_begin(fences *all, size_t size); /* of the structure, which begins with a `pending` */
pending *fences_find(fences *all, pjrt_fence fence);
pending *fences_take(fences *all, pjrt_fence fence); /* nobody is told any more */
/* Returns what somebody is to be told; null for nobody yet, and where it has ended before. */
pending *fences_end(fences *all, pjrt_fence fence, int code, const char *message, size_t size, const char *payloads,
                    size_t payloads_size);
int fences_follow(fences *all, pjrt_fence fence, pjrt_driver_done function, void *arg, pending **ended, char *message);
void fences_free(fences *all);
void pending_free(pending *each);
void pending_tell(pending *owned);
int pending_payload(pjrt_driver *driver, size_t device, pjrt_fence fence, size_t index, const char **name,
                    const char **value, size_t *size); /* of what this thread tells */
/* A thread that waits for an end. */
typedef struct waiting {
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  atomic_bool is_done;
  int code;
  char *message;
} waiting;
#define WAITING(message) {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, 0, message}
void waiting_wake(void *arg, int code, const char *message); /* a pjrt_driver_done */
int waiting_sleep(waiting *each); /* returns the code */

/* ---- driver_worker.c, driver_here.c: devices in Python, of another process and of this one --------------------------------*/
/* What the runtime asks of them beside what it asks of all drivers. */
typedef struct python_functions {
  ask_function ask; /* to compile, for example */
  void (*hold)(pjrt_driver *driver, bool holds); /* its lock, for a fork */
  /* The function of the table, for a client whose memories say how they lay out arrays. Null where none ever does. */
  bool (*has_layouts)(pjrt_driver *driver);
  int (*layout)(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *shape, pjrt_driver_layout *layout,
                char *message);
  /* Null for devices of another process: */
  bool (*is_on_host)(pjrt_driver *driver, size_t device, size_t kind);  /* whether this process can look at arrays there */
  int (*view)(pjrt_driver *driver, uint64_t memory, void **out, char *message);
  /* Frees memory that was imported, and calls the function when nobody looks at it any longer. */
  void (*give_back)(pjrt_driver *driver, uint64_t memory, void (*returned)(void *arg), void *arg);
  bool (*has_contexts)(pjrt_driver *driver); /* whether its client takes addresses of this process */
  size_t alignment;    /* of memory that it uses in place; 0 for any */
  bool copies_at_once; /* copies from the host have ended when they return */
  /* Null for devices of this process: */
  void (*end)(pjrt_driver *driver); /* with all that it does */
  void (*look)(pjrt_driver *driver, completion *until); /* see worker_look */
} python_functions;
bool here_has_profiler(void); /* of the plugin in this process, which no client needs */
PJRT_Error *here_profile(bytes *request, answer *out); /* what a client of another process is asked by `ask` */
extern const pjrt_driver_table worker_driver, here_driver;
extern const python_functions worker_functions, here_functions;
static inline bool is_python(const PJRT_Client *client) { return client->python != NULL; }

/* Whether the memories of a device in Python say how they lay out arrays: to the runtime their bytes are those of the host. */
static inline bool is_laid_out(const PJRT_Client *client) { return client->table == &client->laid_out; }
static inline bool python_is_on_host(const memory_space *space) {
  const PJRT_Client *client = space->device->client;
  return client->python->is_on_host && client->python->is_on_host(client->driver, space->device->number, space->kind_number);
}
/* A launch as a worker gets it; drivers of others see the first part. */
typedef struct worker_launch {
  pjrt_driver_launch launch;
  const execute_options *options;
} worker_launch;

/* ---- api.c: the interpreter of the devices that are objects of this process ------------------------------------------------*/
void plugin_learn(const pjrt_driver_attribute *of_client, size_t count); /* attributes that a client adds to the plugin's */
void *interpreter_release(void); /* its lock, where this thread has it; null where it does not */
void interpreter_take(void *released);
bool interpreter_was_forked(void); /* into this process, in which nobody makes clients */
bool interpreter_is_ending(void); /* its threads do nothing any more */

/* ---- api.c --------------------------------------------------------------------------------------------------------------*/
extern PJRT_MemoryDescriptions_Extension memory_descriptions_extension;
extern PJRT_Layouts_Extension layouts_extension;
extern PJRT_Shardings_Extension shardings_extension;
extern PJRT_RawBuffer_Extension raw_buffer_extension;
extern PJRT_HostAllocator_Extension host_allocator_extension;
extern PJRT_HostMemoryAllocator_Extension host_memory_allocator_extension;
extern PJRT_FFI_Extension ffi_extension;
extern PJRT_Profiler_Extension profiler_extension; /* before them, where there is a profiler */
extern PJRT_Custom_Partitioner_Extension partitioner_extension; /* where programs are compiled */

#include "functions.h"
#define DECLARE(name) HIDDEN PJRT_Error *native_##name(PJRT_##name##_Args *args);
FUNCTIONS(DECLARE)

#endif /* PJRT_NATIVE_RUNTIME_H_ */
