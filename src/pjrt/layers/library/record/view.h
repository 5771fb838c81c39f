/* Buffers that the framework reads in place, through their address, as those of CPUs. */
#ifndef PJRT_LAYER_RECORD_VIEW_H_
#define PJRT_LAYER_RECORD_VIEW_H_

#include "layer.h"

/* The memory of a buffer if it is host memory and its contents are there; false where one of both is not so. */
bool record_view(pjrt_stack *stack, PJRT_Buffer *buffer, const void **data, size_t *size);

/* Whether an event that is ready ended without an error. */
bool record_event_succeeded(pjrt_stack *stack, PJRT_Event *event);

#endif /* PJRT_LAYER_RECORD_VIEW_H_ */
