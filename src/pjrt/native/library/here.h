/* What driver_here.c and Python ask of each other, for devices that are objects of this process.
 *
 * Python's functions take the interpreter's lock themselves. Those of the runtime are called without it. */
#ifndef PJRT_NATIVE_HERE_H_
#define PJRT_NATIVE_HERE_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pjrt_driver.h"

typedef struct here_lent here_lent;

/* An array. Its bytes are here, or in an array of the client's, or in both. */
typedef struct here_block {
  void *array;       /* the client's buffer or value, a reference of Python's; null */
  void *maker;       /* of a value: what makes a buffer of it, as long as its program is loaded; null for a buffer */
  void *type;        /* of the array: an object of Python's that is never freed; null where nobody has looked yet */
  char *bytes;       /* what the host wrote, or where the host looks at the array; null for neither */
  here_lent *lent;   /* the client looks at the bytes, and says when it no longer does; else null */
  size_t device, kind, size;
  int readers;       /* those who copy the bytes */
  bool is_viewed;    /* others have the address of the bytes */
  bool is_elsewhere; /* the bytes are not our own */
} here_block;

/* What of the bytes and the end of their use, for an array that is made of them. */
typedef struct here_bytes {
  char *data; /* null where nobody ever wrote */
  here_lent *lent;
} here_bytes;

typedef struct here_launch {
  const pjrt_driver_launch *launch;
  const char *options; /* a message: see execute_options.c; null for none */
  size_t options_size;
} here_launch;

/* Python's. A function that returns an int returns a status code, and writes a message where it is not 0. `client` is what
 * `open` gave, which is null where that failed. */
typedef struct here_client {
  void *plugin; /* what `open` and `profile` get */
  void (*open)(void *plugin, pjrt_driver *driver, void **client, const char *request, size_t size, char **answer,
               size_t *answer_size);
  void (*close)(void *client);
  /* A request and its answer, as those of a worker's process; the answer is given back with free. */
  void (*ask)(void *client, const char *request, size_t size, char **answer, size_t *answer_size);
  void (*profile)(void *plugin, const char *request, size_t size, char **answer, size_t *answer_size); /* null: no profiler */
  void (*unload)(void *client, uint64_t executable);
  int (*launch)(void *client, const here_launch *launch, pjrt_fence *fence, char *message);
  int (*copy_out)(void *client, here_block *block, size_t offset, void *host, size_t size, pjrt_fence *fence, char *message);
  int (*copy)(void *client, here_block *block, here_block *copy, pjrt_fence *fence, char *message);
  int (*address)(void *client, here_block *block, uint64_t *address, char *message);
  int (*is_on_host)(void *client, size_t device, size_t kind);
  void (*drop)(void *array, void *maker);
} here_client;

/* The runtime's. */
typedef struct here_runtime {
  pjrt_fence (*begin)(pjrt_driver *driver, bool is_copy); /* work that has not ended; a copy with the host is not cancelled */
  /* It has: what belongs to an error is {bytes of the name, bytes of the value (4 bytes each); name with a zero and value,
   * filled up to 8 bytes}. */
  void (*end)(pjrt_driver *driver, pjrt_fence fence, int code, const char *message, size_t size, const char *payloads,
              size_t payloads_size);
  bool (*is_open)(pjrt_driver *driver, pjrt_fence fence); /* whether it has neither ended nor been cancelled */
  here_bytes (*lend)(pjrt_driver *driver, here_block *block); /* `released` ends each loan */
  void (*released)(pjrt_driver *driver, here_lent *lent);
  void (*has_array)(pjrt_driver *driver, here_block *block); /* one was made of the bytes */
  void (*ref)(pjrt_driver *driver); /* it stays, also when it was closed: what was given up may end later */
  void (*unref)(pjrt_driver *driver);
  int (*questions)(pjrt_driver *driver); /* a socket to ask for functions and the store of the framework; -1 for none */
} here_runtime;

#endif /* PJRT_NATIVE_HERE_H_ */
