/* Callbacks on their way through the stack. */
#ifndef PJRT_LAYER_CALLBACKS_H_
#define PJRT_LAYER_CALLBACKS_H_

#include "layer.h"
#include "callback_records.h"

enum { PJRT_MAX_PATCHES = 16 };

/* Whether a function hands a callback over, in either direction, or ends the life of some. */
bool pjrt_moves_callbacks(int function);

/* Calls the plugin with each callback in `args` replaced by one of ours; replaces those that the plugin returns. */
void *pjrt_call_with_callbacks(pjrt_frame *frame, pjrt_slot slot, void *args);

/* The same for PJRT_LoadedExecutable_Execute, whose callbacks live until the execution is complete. */
void *pjrt_execute_with_callbacks(pjrt_frame *frame, pjrt_slot slot, PJRT_LoadedExecutable_Execute_Args *args);

/* What was replaced by a call, to put it back: the struct belongs to the caller. */
typedef struct pjrt_patches {
  int count;
  struct {
    void **place;
    void *old;
    pjrt_token token; /* 0: of a callback without user data */
    int kind;
  } list[PJRT_MAX_PATCHES];
} pjrt_patches;

typedef struct pjrt_place {
  pjrt_stack *stack;
  int function;
  void *handle;
  bool up; /* of callbacks that are handed over now */
} pjrt_place;

/* Replaces the callback in a field of a struct, and its user data; notes what was there, if there is room to note it. */
void pjrt_replace_field(const pjrt_place *from, const pjrt_struct *type, int index, char *base, pjrt_patches *done);

/* Ours for a callback without user data; the callback itself if none is left. */
void (*pjrt_plain_entry(const pjrt_stack *stack, int kind, int function, bool up, void (*target)(void)))(void);

/* Sends a call of a callback through the layers. */
void *pjrt_run_callback(pjrt_stack *stack, int kind, bool up, const pjrt_callback_origin *origin, void *args);

#endif /* PJRT_LAYER_CALLBACKS_H_ */
