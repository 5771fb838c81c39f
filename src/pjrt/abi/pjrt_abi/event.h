/* Events: the completion of something asynchronous. The receiver of an event destroys it. */
#ifndef PJRT_ABI_EVENT_H_
#define PJRT_ABI_EVENT_H_

#include "base.h"

/* Frees an event; a callback registered on it is still called. Null is allowed. */
typedef struct PJRT_Event_Destroy_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;  /* null */
} PJRT_Event_Destroy_Args;

typedef struct PJRT_Event_IsReady_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;
  bool is_ready;  /* out */
} PJRT_Event_IsReady_Args;

/* The error of a ready event, anew for each call: each belongs to the caller. */
typedef struct PJRT_Event_Error_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;
} PJRT_Event_Error_Args;

/* Blocks until the event is ready and returns its error, which belongs to the caller. */
typedef struct PJRT_Event_Await_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;
} PJRT_Event_Await_Args;

/* Owns the error, which is null on success. */
typedef void (*PJRT_Event_OnReadyCallback)(PJRT_Error *error /* consumes */, void *user_arg);

/* The callback runs once, on any thread, at once where the event is ready already; it owns the
 * error it is given. */
typedef struct PJRT_Event_OnReady_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;
  PJRT_Event_OnReadyCallback callback;  /* once */
  void *user_arg;
} PJRT_Event_OnReady_Args;

/* An event of the plugin that the caller sets with PJRT_Event_Set. */
typedef struct PJRT_Event_Create_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;  /* out */
} PJRT_Event_Create_Args;

/* The message may be freed when the call returns. */
typedef struct PJRT_Event_Set_Args {
  size_t struct_size;
  PJRT_Extension_Base *extension_start;
  PJRT_Event *event;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
} PJRT_Event_Set_Args;

#endif  /* PJRT_ABI_EVENT_H_ */
