/* What the stack needs to know of errors of layers. */
#ifndef PJRT_LAYER_ERRORS_H_
#define PJRT_LAYER_ERRORS_H_

#include "layer.h"

/* Whether a function takes nothing but an error, which may be one of a layer. */
static inline bool pjrt_takes_error(int function) {
  return function == PJRT_FUNCTION_Error_Destroy || function == PJRT_FUNCTION_Error_Message ||
         function == PJRT_FUNCTION_Error_GetCode || function == PJRT_FUNCTION_Error_ForEachPayload;
}

/* The error is the first field behind the head in all four. */
static inline bool pjrt_has_layer_error(int function, const void *args) {
  return pjrt_takes_error(function) && args != NULL &&
         pjrt_is_layer_error(((const PJRT_Error_Destroy_Args *)args)->error);
}

/* Does what the plugin's function would do for an error of its own. */
void *pjrt_call_layer_error(int function, void *args);

#endif /* PJRT_LAYER_ERRORS_H_ */
