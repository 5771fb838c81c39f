/* The interface between the stack of layers and a layer. Everything here is C without Python.
 *
 * A wrapped table is a stack: the layers in order, the first nearest to the framework, and below them the plugin's own
 * functions. Each call of the framework makes a frame, which goes down through the layers; each call of the plugin into
 * the framework (OnReady, deleters, the key-value store, …) makes a frame that goes up. A layer does its part and calls
 * pjrt_next, or pjrt_next_callback. It may also not call it, or call it later on the same thread, or more than once. */
#ifndef PJRT_LAYER_LAYER_H_
#define PJRT_LAYER_LAYER_H_

#include <stdatomic.h>

#include "pjrt_abi.h"
#include "pjrt_support/schema.h"

enum { PJRT_MAX_STACKS = 128, PJRT_MAX_LAYERS = 8 };

typedef void *(*pjrt_slot)(void *args);

typedef struct pjrt_stack pjrt_stack;
typedef struct pjrt_layer pjrt_layer;

/* One call on its way. It lives on the C stack of the call. */
typedef struct pjrt_frame {
  pjrt_stack *stack;
  const pjrt_function *function; /* of pjrt_functions, or, of a callback, of pjrt_callbacks */
  uint16_t index;                /* its index there: PJRT_FUNCTION_…, PJRT_CALLBACK_… */
  int16_t position;              /* which layer of the stack is at work */
  bool up;                       /* a call of the plugin into the framework */
  /* Of a callback: where it comes from; else null. Also null for a callback that is called again after its only call, or
   * after its client is gone: no one is called then. */
  const struct pjrt_callback_origin *origin;
} pjrt_frame;

/* Where a callback comes from. */
typedef struct pjrt_callback_origin {
  uint16_t function; /* the function that it was handed over with: PJRT_FUNCTION_… */
  void *handle;      /* the handle that this function is a method of, such as the event of OnReady; null if none */
  void (*target)(void); /* the callback itself, as the other side gave it */
  void *user_arg;       /* its user data, as the other side gave it */
  uintptr_t token;      /* what the caller has in place of the user data; 0 where there is none */
} pjrt_callback_origin;

struct pjrt_layer {
  const char *name;
  /* Returns the layer's state for a stack; a layer without state returns anything but null. On wrong options it returns
   * null, and writes to `problem` what was expected and what was found. */
  void *(*open)(pjrt_stack *stack, const char *options, char *problem, size_t problem_size);
  /* A call of the framework. `args` is the argument struct, frame->function->args describes it. */
  void *(*call)(void *state, pjrt_frame *frame, void *args);
  /* A call of the plugin into the framework, or of a deleter by either; null if the layer does not care. `args` is a
   * struct of the parameters in order, described by frame->function->args. */
  void *(*callback)(void *state, pjrt_frame *frame, void *args);
  void (*flush)(void *state); /* writes what was recorded; may be null. Called at exit, and when asked for */
  void (*close)(void *state); /* at exit, after flush; threads may still be inside of call: it frees nothing they use */
};

struct pjrt_stack {
  _Atomic uint32_t enabled; /* a bit for each layer; 0: off, calls go straight to the plugin */
  uint16_t index;           /* among the stacks of this process */
  int16_t num_layers;
  uint16_t num_extensions;  /* of the wrapped table, the first so many are copies */
  struct {
    const pjrt_layer *layer;
    void *state;
  } layers[PJRT_MAX_LAYERS];
  const PJRT_Api *plugin;               /* the plugin's own table */
  PJRT_Api *table;                      /* the wrapped one */
  pjrt_slot plugin_functions[PJRT_NUM_FUNCTIONS]; /* null where the plugin has none */
  char name[256];                       /* the plugin's path or name, for messages */
  bool from_environment;                /* the layers are those of PJRT_LAYERS */
};

/* The wrapped table of a plugin's table; layers are named in order, separated by commas. `options` has a line
 * layer=key=value,key=value for each layer with options; for others the environment is asked, PJRT_TRACE for trace. The
 * same table with the same layers and options gives the same wrapped table. Null with the reason in `problem`. */
const PJRT_Api *pjrt_wrap(const PJRT_Api *table, const char *name, const char *layers, const char *options, char *problem,
                          size_t problem_size);
/* The stack of a wrapped table; null for a table that is not of this library. */
pjrt_stack *pjrt_stack_of(const PJRT_Api *table);
/* All stacks of this process: index 0 to the returned number - 1. */
int pjrt_num_stacks(void);
pjrt_stack *pjrt_stack_at(int index);

/* Every layer of this library, by name; the list is in layers.c. */
extern const pjrt_layer *const pjrt_layers[];
extern const size_t pjrt_num_layers;

/* The plugin's function at the end of the chain, with the callbacks in `args` replaced by ours. */
void *pjrt_call_plugin(pjrt_frame *frame, void *args);
/* The framework's callback (or the plugin's, of a deleter) at the end of the chain. */
void *pjrt_call_target(pjrt_frame *frame, void *args);

/* Gives the wrapped table trampolines where the plugin has no function: also behind the plugin's last one, where a
 * framework that does not look at the size of the table reads. Their calls end in pjrt_call_missing. */
void pjrt_fill_slots(pjrt_stack *stack);
/* What is called in place of a function that the plugin lacks; the slots are filled only for the layer adapt. */
void *pjrt_call_missing(pjrt_stack *stack, int function, void *args);
extern const pjrt_layer pjrt_layer_adapt;

static inline bool pjrt_layer_enabled(const pjrt_stack *stack, int position) {
  return atomic_load_explicit(&stack->enabled, memory_order_relaxed) >> position & 1;
}

/* Passes the call on to the next layer below, or to the plugin; returns its result. */
static inline void *pjrt_next(pjrt_frame *frame, void *args) {
  pjrt_stack *stack = frame->stack;
  const int16_t here = frame->position;
  int16_t next = here + 1;
  while (next < stack->num_layers && !pjrt_layer_enabled(stack, next)) next++;
  frame->position = next;
  void *result = next < stack->num_layers ? stack->layers[next].layer->call(stack->layers[next].state, frame, args)
                                          : pjrt_call_plugin(frame, args);
  frame->position = here;
  return result;
}

/* Passes a callback on to the next layer on its way, or to its target. A call of the plugin goes up, from the layer
 * nearest to the plugin; a call of the framework to a deleter of the plugin goes down. */
void *pjrt_next_callback(pjrt_frame *frame, void *args);

/* Calls a function of the plugin from inside of a layer, past all layers. Returns false if the plugin has none. */
static inline bool pjrt_call_below(pjrt_stack *stack, int function, void *args, void **result) {
  const pjrt_slot slot = stack->plugin_functions[function];
  if (slot == NULL) return false;
  *result = slot(args);
  return true;
}

/* An error of a layer's own, for the framework or for a callback; the framework reads and destroys it as any other.
 * Null if there are too many. */
PJRT_Error *pjrt_make_error(PJRT_Error_Code code, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool pjrt_is_layer_error(const PJRT_Error *error);

/* Empties the results in the arguments of a call that is not made. Memory of the caller stays as it is. */
void pjrt_clear_outputs(const pjrt_struct *type, void *args);

/* The code and the text of an error of this stack, also of one of a layer. The text lives as long as the error. */
PJRT_Error_Code pjrt_error_code(pjrt_stack *stack, const PJRT_Error *error);
const char *pjrt_error_message(pjrt_stack *stack, const PJRT_Error *error, size_t *size);

/* The value of a key in options of the form key=value,key=value; a comma or backslash in a value has a backslash
 * before it. Returns false if the key is missing; a value that does not fit is cut. */
bool pjrt_option(const char *options, const char *key, char *value, size_t size);
/* The first key in options that is none of `keys`, a null-terminated list; false if there is none. */
bool pjrt_unknown_option(const char *options, const char *const *keys, char *key, size_t size);

/* Reads the next key and value, and moves the options on; false at their end. What does not fit is cut. */
bool pjrt_next_option(const char **options, char *key, size_t key_size, char *value, size_t value_size);
/* Reads a number with a unit: of bytes (none, k, KiB, m, MiB, g or GiB), or of time (ns, us, ms or s). */
bool pjrt_read_size(const char *text, uint64_t *bytes);
bool pjrt_read_time(const char *text, uint64_t *nanoseconds);

/* Whether a pattern, which ends at `end`, means a function: * stands for any letters, ? for one. The pattern may leave
 * out the PJRT_ at the beginning of names. */
bool pjrt_names_function(const char *pattern, const char *end, const char *function);
/* Describes the problem that a pattern means no function, with the nearest names. */
void pjrt_unknown_function(const char *pattern, const char *end, char *problem, size_t size);

#endif /* PJRT_LAYER_LAYER_H_ */
