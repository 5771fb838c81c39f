/* The inject layer: faults by rule, to test what frameworks do about them. */
#ifndef PJRT_LAYER_INJECT_H_
#define PJRT_LAYER_INJECT_H_

#include "layer.h"
#include "pjrt_support/system.h"

enum { INJECT_MAX_RULES = 32, INJECT_TEXT = 512 };

typedef enum { INJECT_ANY_THREAD, INJECT_MAIN_THREAD, INJECT_OTHER_THREADS } inject_thread;

/* What happens to the events and buffers of a call. */
typedef enum { INJECT_NO_FATE, INJECT_NEVER_READY, INJECT_READY_WITH_ERROR, INJECT_FLIPPED } inject_fate;

typedef struct inject_rule {
  int number;             /* from 1 on, in the order of the options */
  char text[INJECT_TEXT]; /* as it is written in the options */
  bool functions[PJRT_NUM_FUNCTIONS];
  /* When: of the calls that pass the filters, counted from 1 on. */
  uint64_t nth, from, every, times; /* 0: not asked for */
  bool by_chance;
  uint64_t chance; /* in parts of 2^64 */
  uint64_t seed;
  int64_t client; /* in the order of their creation, from 0 on; -1: every one */
  inject_thread thread;
  /* What. */
  uint64_t slow; /* nanoseconds */
  bool fails;
  PJRT_Error_Code code; /* of the call, or of its events */
  char message[INJECT_TEXT]; /* empty: one that names the rule */
  inject_fate fate;
  uint64_t bit;
  bool limits_memory;
  uint64_t limit; /* bytes of each device */
  _Atomic uint64_t calls, hits;
} inject_rule;

/* What is remembered of a handle of the plugin. */
typedef struct inject_object {
  void *handle;
  int16_t kind; /* PJRT_HANDLE_… */
  void *client; /* null: unknown */
  int64_t number; /* of a client: in the order of their creation */
  const inject_rule *rule; /* the rule that decides when it is ready; null: none */
  unsigned char *flipped;  /* of the event of a read: the byte to be made wrong; null if that is done */
  unsigned char mask;
  bool ended; /* of an event that is never ready: it was destroyed, or its client was */
  bool gone;
  int waiting;               /* threads inside of Event_Await */
  struct inject_held *held;  /* callbacks that wait for the end */
  struct inject_program *program; /* of an executable */
  struct inject_space *space;     /* of a buffer: the memory that it counts in */
  uint64_t bytes;
  struct inject_object *next;
} inject_object;

/* What executions of a program return and need. */
typedef struct inject_program {
  size_t num_outputs;
  uint64_t bytes; /* on each device: of results that use no memory of arguments, and of temporary values */
  size_t num_devices;
  PJRT_Device *const *devices; /* as long as the executable */
} inject_program;

/* All rules that are in force together. A plan is never changed and never freed: events remember their rules. */
typedef struct inject_plan {
  uint8_t parts[PJRT_NUM_FUNCTIONS]; /* which parts of the layer look at a function: inject_part, or-ed */
  bool follows_objects, limits_memory;
  int num_rules;
  inject_rule *rules;
} inject_plan;

enum { INJECT_BUCKETS = 4096 };

typedef struct inject {
  pjrt_stack *stack;
  inject_plan *_Atomic plan;
  _Atomic int64_t num_clients;
  pjrt_mutex mutex; /* of what follows, and of the memory in use. It is never held during a call */
  pjrt_condition condition;
  struct inject_space *spaces;
  inject_object *buckets[INJECT_BUCKETS];
} inject;

typedef enum {
  INJECT_BY_RULES = 1 << 0,
  INJECT_BY_OBJECTS = 1 << 1,
  INJECT_BY_MEMORY = 1 << 2,
} inject_part;

#define INJECT_ARG(type, field) (((PJRT_##type##_Args *)args)->field)

/* Reads all rules; null with the reason in `problem`. */
inject_plan *inject_read_rules(const char *options, char *problem, size_t problem_size);

/* Whether a rule can make a function fail: it returns an error of the plugin's kind. */
static inline bool inject_can_fail(int function) { return pjrt_functions[function].result == PJRT_RESULT_ERROR; }

/* Whether a rule is for this client, by its number or -1, and for this thread. */
bool inject_concerns(const inject_rule *rule, int64_t client);
/* Makes the error of a rule, for a call or, with null, for an event. */
PJRT_Error *inject_error(const inject_rule *rule, const char *function, uint64_t call_number);
/* Calls a function of the plugin; whether it has the function and succeeded. */
bool inject_succeeds(inject *inject, int function, void *args);
/* Destroys an error of the plugin or of a layer; null is allowed. */
void inject_destroy_error(inject *inject, PJRT_Error *error);

/* ---- inject/objects.c: handles ------------------------------------------------------------------------------------*/
/* Whether a function makes something whose readiness a rule can decide. */
bool inject_makes_ready(int function);
/* The object of a handle, with the mutex held; null if nothing is remembered of it. */
inject_object *inject_find(inject *inject, const void *handle);
/* The client that a call belongs to; null if unknown. `number` is that of the client, or -1. */
void *inject_client_of(inject *inject, const pjrt_frame *frame, const void *args, int64_t *number);
/* The rule that decides over the arguments of a call, and so over its results; null if there is none. */
const inject_rule *inject_inherited(inject *inject, const pjrt_frame *frame, const void *args);
/* Remembers the handles that a call has returned; the rule, if there is one, decides when they are ready. */
void inject_note_results(inject *inject, const pjrt_frame *frame, void *args, void *client, const inject_rule *rule);
/* Forgets the handles that a call is going to destroy. */
void inject_forget_destroyed(inject *inject, const pjrt_frame *frame, const void *args);
void inject_forget_client(inject *inject, const void *client);
/* What a program returns and needs. The copy is valid as long as the executable. */
inject_program inject_program_of(inject *inject, PJRT_LoadedExecutable *executable);

/* ---- inject/events.c: readiness -----------------------------------------------------------------------------------*/
/* Whether a function reads data of the device into host memory, of which a bit can be made wrong. */
bool inject_reads(int function);
/* The host memory of such a call; 0 bytes if it only asks for a size. */
size_t inject_host_memory(int function, const void *args, unsigned char **memory);
/* Does the calls of events that a rule decides over; false for all other calls. */
bool inject_event_call(inject *inject, pjrt_frame *frame, void *args, void **result);
void *inject_on_ready(inject *inject, pjrt_frame *frame, void *args);
/* Ends the events of a client that are never ready: who waits for them gets an error. */
void inject_end_events(inject *inject, const void *client);
/* The same for one event, before it is destroyed. */
void inject_end_event(inject *inject, const void *event);
/* Makes the bit of a read wrong; it has arrived. */
void inject_flip(inject *inject, const void *event);

/* ---- inject/memory.c: memory that is full -------------------------------------------------------------------------*/
/* The error of a call that needs more memory than a rule leaves; null if it may be made. */
PJRT_Error *inject_check_memory(inject *inject, const inject_plan *plan, const pjrt_frame *frame, const void *args, int64_t client);
/* Counts what a call has allocated or freed. */
void inject_count_memory(inject *inject, const pjrt_frame *frame, const void *args);
/* Gives the bytes of a buffer back, with the mutex held. */
void inject_give_back(inject_object *object);
bool inject_concerns_memory(int function);
/* The bytes of an array; 0 for types without data. */
uint64_t inject_bytes_of(PJRT_Buffer_Type type, const int64_t *dims, size_t num_dims);

#endif /* PJRT_LAYER_INJECT_H_ */
