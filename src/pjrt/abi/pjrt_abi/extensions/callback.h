/* Callback: functions that a client calls when something happens to it. They take the struct that belongs to their
 * type, which lives only during the call. */
#ifndef PJRT_ABI_EXTENSIONS_CALLBACK_H_
#define PJRT_ABI_EXTENSIONS_CALLBACK_H_

#include "../base.h"

typedef enum {
  PJRT_Callback_Type_Unknown = 0,
  PJRT_Callback_Type_Tpu_SliceBuilder = 1,
  PJRT_Callback_Type_Prefatal = 2,
} PJRT_Callback_Type;

/* Why a slice of TPUs failed: its network could not be set up, a worker does not answer, a worker restarts again
 * and again, a test asked for it, or the driver of a chip reported it. */
typedef enum {
  PJRT_Callback_Tpu_SliceFailureType_Unknown = 0,
  PJRT_Callback_Tpu_SliceFailureType_InitError = 1,
  PJRT_Callback_Tpu_SliceFailureType_WorkerUnavailable = 2,
  PJRT_Callback_Tpu_SliceFailureType_FlappingTaskError = 3,
  PJRT_Callback_Tpu_SliceFailureType_SwInjectError = 4,
  PJRT_Callback_Tpu_SliceFailureType_ChipDriverError = 5,
} PJRT_Callback_Tpu_SliceFailureType;

typedef struct PJRT_Callback_Tpu_SliceBuilderArgs {
  size_t struct_size;
  PJRT_Callback_Tpu_SliceFailureType failure_type;
} PJRT_Callback_Tpu_SliceBuilderArgs;

/* The callback runs before the plugin ends the process. */
typedef struct PJRT_Callback_PrefatalArgs {
  size_t struct_size;
  PJRT_Error_Code error_code;
  const char *error_message;
  size_t error_message_size;
} PJRT_Callback_PrefatalArgs;

typedef void (*PJRT_Callback_Function)(void *args, void *user_arg);

typedef struct PJRT_Callback_RegisterCallback_Args {
  size_t struct_size;
  PJRT_Client *client;
  PJRT_Callback_Type type;
  PJRT_Callback_Function callback;
  void *user_arg;
} PJRT_Callback_RegisterCallback_Args;

/* Calls all callbacks of a type before it returns. */
typedef struct PJRT_Callback_InvokeCallback_Args {
  size_t struct_size;
  PJRT_Client *client;
  PJRT_Callback_Type type;
  void *args;  /* address */
} PJRT_Callback_InvokeCallback_Args;

typedef struct PJRT_Callback_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*register_callback)(PJRT_Callback_RegisterCallback_Args *args);
  PJRT_Error *(*invoke_callback)(PJRT_Callback_InvokeCallback_Args *args);
} PJRT_Callback_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_CALLBACK_H_ */
