/* The layer adapt: a plugin and a framework of different versions of the API, or a plugin that lacks functions. */
#ifndef PJRT_LAYER_ADAPT_H_
#define PJRT_LAYER_ADAPT_H_

#include "layer.h"
#include "pjrt_support/system.h"

typedef struct adapt adapt;

/* Does what a function that the plugin lacks would do, by the plugin's other functions. */
typedef void *(*adapt_substitute)(adapt *adapt, int function, void *args);

struct adapt {
  pjrt_stack *stack;
  bool log;                                 /* say on the error stream what is filled, once for each function */
  _Atomic bool logged[PJRT_NUM_FUNCTIONS];
  _Atomic bool own_contexts;                /* contexts of executions are this layer's */
  int8_t memory_field[PJRT_NUM_FUNCTIONS];  /* the argument that is a memory; -1: none */
  int8_t device_field[PJRT_NUM_FUNCTIONS];  /* the argument that names a device in its place; -1: none */
  int8_t nested_field[PJRT_NUM_FUNCTIONS];  /* the argument that points to options which grew; -1: none */
  bool grew[PJRT_NUM_FUNCTIONS];            /* the arguments, or the options in them, got fields later */
  /* The sizes that the plugin took after it refused longer ones; 0: it refused none. */
  _Atomic size_t accepted[PJRT_NUM_FUNCTIONS];
  _Atomic size_t accepted_options[PJRT_NUM_FUNCTIONS];
};

/* The substitutes by function; null where a function cannot be made of others. */
extern const adapt_substitute adapt_substitutes[PJRT_NUM_FUNCTIONS];

/* The result of a function that the plugin lacks. */
void *adapt_missing(adapt *adapt, int function, void *args);
/* Calls a function of the plugin, or its substitute. */
void *adapt_ask(adapt *adapt, int function, void *args);
void adapt_destroy_error(adapt *adapt, PJRT_Error *error);

/* Memories of the layer's own: one for each device of a plugin without memories. */
#define ADAPT_MEMORY_KIND "device"
bool adapt_is_own_memory(const PJRT_Memory *memory);
/* The memory of a device; null if there are too many devices. */
PJRT_Memory *adapt_memory_of(PJRT_Device *device);
/* A list of one memory of a device; null if there are too many devices. */
PJRT_Memory *const *adapt_list_of(PJRT_Device *device, PJRT_Memory *memory);
void *adapt_memories_of_client(adapt *adapt, PJRT_Client_AddressableMemories_Args *args, PJRT_Device *const *devices,
                               size_t num_devices);
void *adapt_output_kinds(PJRT_Executable_OutputMemoryKinds_Args *args, size_t num_outputs);
int adapt_kind_id(const char *kind, size_t size);
/* A function whose argument is a memory of the layer's own: of the memory itself, or one that places a buffer. */
void *adapt_call_with_own_memory(adapt *adapt, pjrt_frame *frame, void *args, PJRT_Memory *memory);
void adapt_forget_client(const PJRT_Client *client, PJRT_Device *const *devices, size_t num_devices);

/* A call whose structs may have another size than the plugin expects. */
void *adapt_call_resized(adapt *adapt, pjrt_frame *frame, void *args);

/* The argument of a call of which a table says the place. */
static inline const pjrt_field *adapt_field(const pjrt_frame *frame, const int8_t *places) {
  return &frame->function->args->fields[places[frame->index]];
}

#define ADAPT_BELOW(name, args) adapt_ask(adapt, PJRT_FUNCTION_##name, args)

#endif /* PJRT_LAYER_ADAPT_H_ */
