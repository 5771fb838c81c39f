/* The table of all handles that a plugin has given out, by address and kind.
 *
 * One address may be several handles at once: a struct and its first member begin at the same place. Destroyed handles
 * stay in the table for a while, so that their use can be explained; a new handle at the same address takes the place of
 * the destroyed one, so that memory that is used again is no wrong finding. */
#ifndef PJRT_LAYER_VALIDATE_HANDLES_H_
#define PJRT_LAYER_VALIDATE_HANDLES_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "pjrt_support/system.h"

typedef enum {
  PJRT_HANDLE_LIVE,
  PJRT_HANDLE_DELETED,  /* the contents are gone, the handle is not */
  PJRT_HANDLE_DONATED,  /* an execution took the contents */
  PJRT_HANDLE_CONSUMED, /* a call took the handle over */
  PJRT_HANDLE_DESTROYED,
} pjrt_handle_state;

/* A call: the function, the thread and, where stacks are recorded, the call stack. */
typedef struct pjrt_call_site {
  int16_t function; /* -1: none yet; below -1: the callback -2 - function */
  uint32_t stack;   /* of backtraces.h; 0: not recorded */
  uint64_t thread;
} pjrt_call_site;

typedef struct pjrt_handle_record {
  struct pjrt_handle_record *next;
  const void *address;
  _Atomic int32_t uses;   /* calls that are under way with it */
  uint32_t quarantined;   /* how often it is in the ring of destroyed records */
  int16_t kind;
  /* From here on everything begins anew with a new handle at the address. */
  uint8_t state;
  bool borrowed;          /* another object owns it */
  bool client_destroyed;  /* before this object */
  bool settable;          /* an event of PJRT_Event_Create */
  bool was_set;           /* such an event, after PJRT_Event_Set */
  bool ready;             /* an event that was seen to be ready */
  bool has_callback;      /* an event with a callback */
  uint32_t generation;
  int32_t references;     /* external ones, of a buffer */
  uint32_t read_generation;
  int64_t num_outputs;    /* of an executable, one more than it reported; 0: not asked yet */
  const void *read_event; /* of a buffer: the event of its last copy to the host */
  const void *client;     /* the client that it belongs to; of a client: itself; null: none */
  const void *owner;      /* the topology that it belongs to; null: none */
  pjrt_call_site made, used, ended;
  struct pjrt_host_watch *watch;      /* host memory to compare when an event is ready or a buffer is gone */
  struct pjrt_program_facts *program; /* of a loaded executable */
} pjrt_handle_record;

enum { PJRT_HANDLE_SHARDS = 64 };

typedef struct pjrt_handle_shard {
  pjrt_mutex mutex;
  pjrt_handle_record **buckets;
  size_t num_buckets, num_records;
  pjrt_handle_record **quarantine; /* a ring of destroyed records, oldest first */
  size_t quarantine_start, quarantine_count;
} pjrt_handle_shard;

typedef struct pjrt_handle_table {
  pjrt_handle_shard shards[PJRT_HANDLE_SHARDS];
  _Atomic uint32_t generations;
  _Atomic uint32_t owners_ended; /* how many clients and topologies have ended, with what was borrowed from them */
} pjrt_handle_table;

bool pjrt_handles_open(pjrt_handle_table *table);

/* Locks the shard of an address; records of this address may be read and changed until it is unlocked. No function of
 * the plugin may be called meanwhile. */
pjrt_handle_shard *pjrt_handles_lock(pjrt_handle_table *table, const void *address);
static inline void pjrt_handles_unlock(pjrt_handle_shard *shard) { pjrt_mutex_unlock(&shard->mutex); }

/* The record of a locked shard, also of a destroyed handle; null if there is none. */
pjrt_handle_record *pjrt_handles_find(pjrt_handle_shard *shard, const void *address, int kind);
/* A record of another kind at the address, a live one before others; null if there is none. */
pjrt_handle_record *pjrt_handles_find_other(pjrt_handle_shard *shard, const void *address, int kind);

/* Adds a live handle to a locked shard, or makes a destroyed one live again as a new one. Null: no memory is left. */
pjrt_handle_record *pjrt_handles_add(pjrt_handle_table *table, pjrt_handle_shard *shard, const void *address, int kind,
                                     pjrt_call_site made);
/* Marks as destroyed or consumed; the record stays for a while. */
void pjrt_handles_end(pjrt_handle_shard *shard, pjrt_handle_record *record, pjrt_handle_state state, pjrt_call_site ended);

/* Visits every record, with its shard locked. The visitor ends and adds none. */
void pjrt_handles_visit(pjrt_handle_table *table, void (*visitor)(pjrt_handle_record *record, void *arg), void *arg);

#endif /* PJRT_LAYER_VALIDATE_HANDLES_H_ */
