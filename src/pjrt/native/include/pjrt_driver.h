/* The driver of a device: what the runtime of pjrt asks of a chip.
 *
 * The runtime is a whole PJRT plugin. It decides what is the same for every device: the order of work, donation, errors
 * of results, the accounting of memory, transfers in pieces. A driver only allocates, copies and launches. Its author
 * writes one table of functions, and one symbol that returns it:
 *
 *     const pjrt_driver_table *pjrt_driver_entry(void);
 *
 * Rules for all functions:
 *  - They may be called from any thread, and from several threads at a time.
 *  - A function that can fail returns 0, or the number of an absl status code (3 is INVALID_ARGUMENT, 8 is
 *    RESOURCE_EXHAUSTED, 12 is UNIMPLEMENTED, 13 is INTERNAL). It then writes a text that ends with zero to `message`,
 *    which has room for PJRT_DRIVER_MESSAGE_SIZE bytes.
 *  - Memory and executables are numbers of the driver's choice, which need not be addresses. 0 stands for none.
 *  - A device has one queue: what it is told first, it finishes first. A *fence* is a number that stands for the end of
 *    some work in that queue. 0 means that the work is done when the function returns.
 *  - Pointers are valid during the call, unless a function says more.
 *
 * Ten functions are required. An entry that is null has the consequence that its comment names. */
#ifndef PJRT_DRIVER_H_
#define PJRT_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PJRT_DRIVER_MESSAGE_SIZE 1024

typedef struct pjrt_driver pjrt_driver; /* the driver's own: what its function open made */
typedef uint64_t pjrt_fence;

/* An option that the program which makes a client gives by name. */
typedef struct pjrt_driver_option {
  const char *name;
  const char *text;     /* null for a number */
  int64_t number;
  int is_boolean;       /* not 0: the number is 0 for false, or 1 for true */
} pjrt_driver_option;

/* An array: the element type is a number of PJRT_Buffer_Type (1 is a boolean, 11 is f32). */
typedef struct pjrt_driver_shape {
  int type;
  size_t rank;
  const int64_t *dims;
  const int64_t *minor_to_major; /* the order of the dimensions in the memory, the most minor first; null for rows */
} pjrt_driver_shape;

/* How an array lies in memory. Its first tile divides the array, with padding; the second one that tile, and so on. */
typedef struct pjrt_driver_layout {
  size_t struct_size; /* set by the runtime: write only fields that lie within */
  size_t bytes; /* with tiles and padding; what the runtime wrote is without */
  size_t num_tiles;
  const size_t *tile_ranks; /* of each tile; both lists stay valid as long as the library is loaded */
  const int64_t *tile_dims; /* of all tiles, one behind the other */
  size_t element_bits; /* of packed elements: 1, 2 or 4, as many as the type has at least; 0, as the runtime wrote it, where
                          each element has bytes of its own. On the host it always has */
} pjrt_driver_layout;

/* A fact by its name, such as "coords". */
typedef enum { PJRT_DRIVER_TEXT, PJRT_DRIVER_INTEGER, PJRT_DRIVER_INTEGERS, PJRT_DRIVER_REAL, PJRT_DRIVER_BOOLEAN }
    pjrt_driver_attribute_type;
typedef struct pjrt_driver_attribute {
  const char *name;
  pjrt_driver_attribute_type type;
  const char *text;
  const int64_t *integers; /* also one, or a boolean */
  size_t num_integers;
  float real;
} pjrt_driver_attribute;

/* What a device says about itself. All pointers stay valid until the driver is closed. */
typedef struct pjrt_driver_device {
  size_t struct_size;             /* set by the runtime: write only fields that lie within */
  const char *kind;               /* the model, such as "MyChip v2" */
  size_t num_memory_kinds;        /* at least 1: the first kind is the default */
  const char *const *memory_kinds; /* such as "device", "pinned_host" */
  const int64_t *memory_limits;   /* the bytes of each kind; 0 for no limit; null for no limits */

  /* The runtime sets what follows, for a device of this process: write what differs. */
  int id;                /* its number among the devices of all processes */
  int process_index;     /* the process that it belongs to */
  int is_addressable;    /* 0 where that is another one: then it has no memory, and no work */
  int local_hardware_id; /* its number on this machine */
  const char *text, *debug_text; /* what it is called, in short and at length */
  size_t num_attributes;
  const pjrt_driver_attribute *attributes;
} pjrt_driver_device;

/* What a client says about itself; as that of a device. */
typedef struct pjrt_driver_client {
  size_t struct_size;
  const char *platform_version;
  int process_index; /* of this process in its job */
  size_t num_attributes;
  const pjrt_driver_attribute *attributes; /* of all the devices together, such as their shape */
  const char *platform_name; /* null: that of the table */
  size_t num_plugin_attributes;
  const pjrt_driver_attribute *plugin_attributes; /* what the plugin says of itself from then on */
} pjrt_driver_client;

/* The key-value store of a framework's job, by which its processes find each other. Both functions may be called from any
 * thread until the driver is closed, and return codes as those of a driver. */
typedef struct pjrt_driver_store {
  size_t struct_size;
  void *arg;
  /* Wait for a value, at most so many milliseconds; with 0 look for it only (5 is NOT_FOUND). Give it back with free. */
  int (*get)(void *arg, const char *key, size_t key_size, int64_t milliseconds, char **value, size_t *size,
             char *message);
  int (*put)(void *arg, const char *key, size_t key_size, const char *value, size_t size, char *message);
} pjrt_driver_store;

/* One start of a program on one device. */
typedef struct pjrt_driver_launch {
  size_t struct_size;
  size_t device;
  uint64_t executable;
  size_t num_inputs;
  const uint64_t *inputs;  /* the memory of each argument */
  size_t num_outputs;
  const uint64_t *outputs; /* the memory of each result; for a donated argument perhaps the memory of an input */
  uint64_t scratch;        /* memory of the size that the compiler asked for; 0 where it asked for none */
  size_t num_after;        /* the work of other devices that must be done before */
  const size_t *after_devices;
  const pjrt_fence *after;
  int replica, partition;
  int64_t run;             /* how often the executable was started before on this client */
  int must_not_block;      /* not 0: the caller's thread must not wait, nor compute for long */

  /* For collectives, which are part of the driver's code: the devices that run the program together, this one too, those
   * of replica 0 first, by partition; none where it runs alone. Their launches have the same execution, which no others
   * of this client have. All devices get executions of programs with collectives in the same order. Where one launch of
   * them fails, the others are cancelled. */
  size_t num_participants;
  const size_t *participants;
  uint64_t execution;
} pjrt_driver_launch;

typedef struct pjrt_driver_stats {
  size_t struct_size;
  int64_t bytes_in_use;   /* of the driver's own allocator; -1 where it does not know */
  int64_t largest_free;   /* -1 where it does not know */
} pjrt_driver_stats;

/* What a device did, for a profiler: the line on which it is shown, such as "DMA engine 1", and its begin and end by the clock
 * CLOCK_MONOTONIC, in nanoseconds. Both texts are copied. */
typedef void (*pjrt_driver_event)(void *arg, size_t device, const char *line, const char *name, int64_t begin, int64_t end);

/* Work is done: code and message are those of the work, 0 and "" if it went well. */
typedef void (*pjrt_driver_done)(void *arg, int code, const char *message);

typedef struct pjrt_driver_table {
  size_t struct_size;           /* sizeof(pjrt_driver_table) where the driver was compiled */
  const char *platform_name;    /* such as "mychip" */
  const char *platform_version; /* any text */

  /* ---- required ---------------------------------------------------------------------------------------------------*/
  /* Open the devices. A driver may be opened several times. Refuse options that you do not know. One is "topology": the
   * name of devices that need not be here, for which programs are only compiled. */
  int (*open)(const pjrt_driver_option *options, size_t num_options, pjrt_driver **driver, size_t *num_devices,
              char *message);
  /* Close them. All work is done, all memory is freed and all executables are unloaded. */
  void (*close)(pjrt_driver *driver);
  void (*describe)(pjrt_driver *driver, size_t device, pjrt_driver_device *description);

  int (*allocate)(pjrt_driver *driver, size_t device, size_t kind, size_t bytes, uint64_t *memory, char *message);
  /* Nothing uses the memory any more. */
  void (*free)(pjrt_driver *driver, size_t device, uint64_t memory);

  /* Copy between the host and the memory. With a shape the host has a dense, row-major array of that shape, which fills
   * the memory in the layout that `layout` gave for the shape. Without one (null) it has bytes, which begin at the offset of the memory. The host's memory stays valid
   * until the fence is done. */
  int (*copy_in)(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                 const void *host, size_t bytes, pjrt_fence *fence, char *message);
  int (*copy_out)(pjrt_driver *driver, size_t device, uint64_t memory, const pjrt_driver_shape *shape, size_t offset,
                  void *host, size_t bytes, pjrt_fence *fence, char *message);

  /* Load what the compiler in Python returned as code. */
  int (*load)(pjrt_driver *driver, size_t device, const void *code, size_t size, uint64_t *executable, char *message);
  void (*unload)(pjrt_driver *driver, size_t device, uint64_t executable);
  int (*launch)(pjrt_driver *driver, const pjrt_driver_launch *launch, pjrt_fence *fence, char *message);

  /* ---- fences: required of a driver that returns fences other than 0 ------------------------------------------------*/
  /* Wait for a fence, at most so many nanoseconds (-1: for ever). Returns the code of the work, or 4
   * (DEADLINE_EXCEEDED). */
  int (*wait)(pjrt_driver *driver, size_t device, pjrt_fence fence, int64_t nanoseconds, char *message);
  /* Call the function once, when the fence is done, on any thread, perhaps at once. Null: the runtime has a thread for
   * each device that waits. */
  int (*on_done)(pjrt_driver *driver, size_t device, pjrt_fence fence, pjrt_driver_done function, void *arg,
                 char *message);

  /* ---- optional ---------------------------------------------------------------------------------------------------*/
  /* How an array lies in memory; or an error where the device has no such arrays, or not in this order. Frameworks see
   * it, and may ask for an order; the code says in which ones it takes and gives arrays. Null: its elements lie in rows,
   * one behind the other. */
  int (*layout)(pjrt_driver *driver, size_t device, size_t kind, const pjrt_driver_shape *shape,
                pjrt_driver_layout *layout, char *message);
  /* Copy from device to device, in the queue of the source. Null: through the host. */
  int (*copy)(pjrt_driver *driver, size_t device, uint64_t memory, size_t to_device, uint64_t to_memory, size_t bytes,
              pjrt_fence *fence, char *message);
  /* The address at which this process can read and write the memory, or null. Null entry: it cannot. */
  void *(*host_view)(pjrt_driver *driver, size_t device, uint64_t memory);
  /* The address of the memory for the device. Null: memory has no addresses. */
  uint64_t (*pointer)(pjrt_driver *driver, size_t device, uint64_t memory);
  /* Use memory of the host in place; `free` gives it back. Null: arrays of the host are copied. */
  int (*import)(pjrt_driver *driver, size_t device, size_t kind, void *host, size_t bytes, uint64_t *memory,
                char *message);
  /* Facts of the driver's own allocator. Null: the runtime's own counts only. */
  void (*stats)(pjrt_driver *driver, size_t device, size_t kind, pjrt_driver_stats *stats);

  /* ---- optional: work that must not go on ---------------------------------------------------------------------------*/
  /* Give up the work of a fence, whether it has begun or not; the queue goes on behind it. When the function returns, the
   * work uses the host's memory no more, and its fence ends soon, with an error such as 1 (CANCELLED) where the work was
   * not done before. Called for work that a framework gives up, by the watchdog, and for a launch that waits in a
   * collective for one that failed: then perhaps by the thread that tells of that one's end, so do not wait for the
   * launch. Null: the work goes on. */
  int (*cancel)(pjrt_driver *driver, size_t device, pjrt_fence fence, char *message);
  /* Bring back a device that does not answer, as `cancel` would do with all work of its queue. Memory keeps what it held,
   * but for what that work was writing. Called by the watchdog, where `cancel` is null or did not help. Null: the memory
   * of the work is kept until its fence ends, if it ever does. */
  int (*reset)(pjrt_driver *driver, size_t device, char *message);

  /* ---- optional: jobs of many processes, and topologies ---------------------------------------------------------------*/
  /* Called in the place of `open`, with the store of the framework's job; null where it has none. Null entry: `open` is
   * called. */
  int (*open_in_job)(const pjrt_driver_option *options, size_t num_options, const pjrt_driver_store *store,
                     pjrt_driver **driver, size_t *num_devices, char *message);
  /* Null: the version is that of the table, and the process is alone. */
  void (*describe_client)(pjrt_driver *driver, pjrt_driver_client *client);

  /* ---- optional: more about errors ------------------------------------------------------------------------------------*/
  /* Called while on_done tells of an error: give number `index` of what belongs to it, a name and bytes, and return 1; or
   * return 0 where there are no more. Null: an error has a code and a message. */
  int (*payload)(pjrt_driver *driver, size_t device, pjrt_fence fence, size_t index, const char **name,
                 const char **value, size_t *value_size);

  /* ---- optional: more for profilers -----------------------------------------------------------------------------------*/
  /* A profiler records from now on: call the function for what devices do, from any thread. With null it records no more,
   * and nobody may be within the function when this returns. Null entry: profiles have what the runtime knows, when
   * launches and copies began and ended. */
  int (*trace)(pjrt_driver *driver, pjrt_driver_event function, void *arg, char *message);
} pjrt_driver_table;

/* The one symbol of a driver's shared library. */
const pjrt_driver_table *pjrt_driver_entry(void);

#ifdef __cplusplus
}
#endif

#endif /* PJRT_DRIVER_H_ */
