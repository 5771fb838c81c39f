/* Callbacks on their way through the stack. */
#ifndef PJRT_LAYER_CALLBACKS_H_
#define PJRT_LAYER_CALLBACKS_H_

#include "layer.h"

/* Whether a function hands a callback over, in either direction, or ends the life of some. */
bool pjrt_moves_callbacks(int function);

/* Calls the plugin with each callback in `args` replaced by one of ours; replaces those that the plugin returns. */
void *pjrt_call_with_callbacks(pjrt_frame *frame, pjrt_slot slot, void *args);

#endif /* PJRT_LAYER_CALLBACKS_H_ */
