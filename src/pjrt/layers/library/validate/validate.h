/* The validate layer: what its files offer to one another.
 *
 * validate/validate.c            the layer: options, one call from its beginning to its end, callbacks
 * validate/rules.h      the rules
 * validate/findings.c   findings: where they are written, what follows from one
 * validate/handles.c    the table of handles
 * validate/life.c       handles in arguments and results: their states, clients and owners
 * validate/structs.c    argument structs: sizes, null pointers, arrays, enums
 * validate/results.c    what the plugin returns
 * validate/events.c     events, callbacks, and waiting inside of callbacks
 * validate/buffers.c    the places of new buffers, external references, reads by the host
 * validate/programs.c   executions: counts of arguments and devices, donation
 * validate/host_memory.c  memory of the host that must not change
 * validate/leaks.c      what is left when a client is destroyed
 * validate/backtraces.c call stacks
 */
#ifndef PJRT_LAYER_VALIDATE_H_
#define PJRT_LAYER_VALIDATE_H_

#include "layer.h"
#include "handles.h"
#include "json.h"
#include "rules.h"

typedef enum { PJRT_ACTION_REPORT, PJRT_ACTION_ERROR, PJRT_ACTION_ABORT } pjrt_action;
typedef enum { PJRT_STACKS_OFF, PJRT_STACKS_FINDINGS, PJRT_STACKS_ALL } pjrt_stacks;

enum { PJRT_MOST_USES = 8, PJRT_MOST_KEPT_FINDINGS = 1000 };

typedef struct pjrt_validate {
  struct pjrt_validate *next; /* of all that are open, for handles of other plugins */
  pjrt_stack *stack;
  pjrt_handle_table handles;
  pjrt_action action;
  pjrt_stacks stacks;
  bool advice;
  bool checksums;
  bool knows_every_extension; /* else the plugin may give out handles that no layer sees */
  long process;               /* that opened the layer: a fork of it destroys nothing */
  size_t limit;               /* how many findings of the same rule and function are written */
  char file[1024];            /* empty: the error stream */
  pjrt_mutex mutex;           /* of what follows */
  FILE *stream;
  pjrt_json kept[PJRT_MOST_KEPT_FINDINGS]; /* as JSON, for pjrt_validate_finding */
  size_t num_kept;
  uint64_t num_findings;
  uint32_t counts[PJRT_NUM_RULES][PJRT_NUM_FUNCTIONS + PJRT_NUM_CALLBACKS];
} pjrt_validate;

/* One call on its way through this layer. */
typedef struct pjrt_check {
  pjrt_validate *validate;
  pjrt_frame *frame;
  void *args;
  bool callback;
  bool refused;          /* the call is not made */
  bool unreadable;       /* not even the argument struct can be read */
  bool failed;           /* the call returned an error already */
  PJRT_Error *error;     /* of a call that is not made, or whose results cannot be used */
  const void *client;    /* of the handles in the arguments; null: none yet */
  const char *client_field; /* the argument with the handle that has this client */
  uint16_t num_uses;
  pjrt_handle_record *uses[PJRT_MOST_USES]; /* in use until the call returns */
  uint32_t generation;   /* of the youngest handle when the call began; for calls that destroy clients */
  int64_t element;       /* of the array that is being read; -1: none */
  uint64_t checksum;     /* of host memory, before the call */
  size_t span;           /* of that memory, in bytes */
  struct pjrt_program_facts *facts; /* of the executable that is executed; null: unknown */
} pjrt_check;

/* ---- validate/findings.c ------------------------------------------------------------------------------------------*/
/* Makes a finding of a rule. `field` is the argument, or null; `record` is a copy of the handle's record, or null. What
 * follows depends on the options: the call may be refused, or the process may end. */
void pjrt_found(pjrt_check *check, pjrt_rule_id rule, const char *field, const pjrt_handle_record *record,
                const char *format, ...) __attribute__((format(printf, 5, 6)));
const char *pjrt_call_name(int16_t function);
pjrt_call_site pjrt_call_site_of(const pjrt_check *check);
void pjrt_findings_flush(pjrt_validate *validate);

/* ---- validate/life.c ----------------------------------------------------------------------------------------------*/
/* Checks a handle in the arguments, and notes its use. */
void pjrt_check_handle(pjrt_check *check, const pjrt_field *field, const char *name, void *handle);
bool pjrt_destroys(const pjrt_check *check, const pjrt_field *field);
/* Notes a handle that the plugin gave out: a new object, or one that another object owns. */
void pjrt_note_handle(pjrt_check *check, const pjrt_field *field, const char *name, void *handle);
/* Ends what the call destroys, before the call: another thread may get the same address for a new handle during it. */
void pjrt_end_handle(pjrt_check *check, void *handle, int kind, pjrt_handle_state state);
void pjrt_release_uses(pjrt_check *check);

/* ---- validate/structs.c -------------------------------------------------------------------------------------------*/
void pjrt_check_struct(pjrt_check *check, const pjrt_struct *type, const void *args, const char *path);
bool pjrt_check_readable(pjrt_check *check, const char *path, const void *start, uint64_t size);
/* How many elements an array has that this field counts; -1 if the caller's struct does not have the field. */
int64_t pjrt_count_of(const pjrt_struct *type, const pjrt_field *field, int16_t count, const void *args);

/* ---- validate/results.c -------------------------------------------------------------------------------------------*/
void pjrt_clear_results(pjrt_check *check);
void pjrt_check_results(pjrt_check *check, const pjrt_struct *type, const void *args);
void pjrt_check_error(pjrt_check *check, PJRT_Error *error);

/* ---- validate/events.c, validate/buffers.c, validate/programs.c ---------------------------------------------------*/
pjrt_validate *pjrt_first_validate(void);
void pjrt_before_event_call(pjrt_check *check);
void pjrt_after_event_call(pjrt_check *check, void *result);
bool pjrt_event_is_ready(pjrt_check *check, void *event);
void pjrt_event_became_ready(pjrt_check *check, void *event);
void *pjrt_pass_callback(pjrt_check *check);
void pjrt_before_buffer_call(pjrt_check *check);
void pjrt_after_buffer_call(pjrt_check *check);
void pjrt_check_counts(pjrt_check *check);
void pjrt_end_donated(pjrt_check *check, void *buffer);
void pjrt_before_execution(pjrt_check *check);
void pjrt_after_execution(pjrt_check *check);

/* ---- validate/leaks.c ---------------------------------------------------------------------------------------------*/
void pjrt_end_client(pjrt_check *check, void *client);
void pjrt_client_ended(pjrt_check *check, void *client);
void pjrt_end_topology(pjrt_check *check, void *topology);
void pjrt_process_ends(pjrt_validate *validate); /* looks for clients that were not destroyed */

extern _Thread_local int pjrt_callback_depth; /* callbacks of a plugin that this thread is inside of */

#endif /* PJRT_LAYER_VALIDATE_H_ */
