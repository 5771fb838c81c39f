/* Profiler: a trace recorder of the plugin, with errors and a table of functions of its own. */
#ifndef PJRT_ABI_EXTENSIONS_PROFILER_H_
#define PJRT_ABI_EXTENSIONS_PROFILER_H_

#include "../base.h"

typedef struct PLUGIN_Profiler PLUGIN_Profiler;
typedef struct PLUGIN_Profiler_Error PLUGIN_Profiler_Error;

typedef struct PLUGIN_Profiler_Error_Destroy_Args {
  size_t struct_size;
  void *priv;
  PLUGIN_Profiler_Error *error;
} PLUGIN_Profiler_Error_Destroy_Args;

typedef struct PLUGIN_Profiler_Error_Message_Args {
  size_t struct_size;
  void *priv;
  const PLUGIN_Profiler_Error *error;
  const char *message;  /* out */
  size_t message_size;  /* out */
} PLUGIN_Profiler_Error_Message_Args;

typedef struct PLUGIN_Profiler_Error_GetCode_Args {
  size_t struct_size;
  void *priv;
  const PLUGIN_Profiler_Error *error;
  int code;  /* out */
} PLUGIN_Profiler_Error_GetCode_Args;

/* options is a serialized ProfileOptions proto. The profiler belongs to the caller. */
typedef struct PLUGIN_Profiler_Create_Args {
  size_t struct_size;
  const char *options;
  size_t options_size;
  PLUGIN_Profiler *profiler;  /* out */
} PLUGIN_Profiler_Create_Args;

/* The argument of destroy, start and stop alike. */
typedef struct PLUGIN_Profiler_Destroy_Args {
  size_t struct_size;
  PLUGIN_Profiler *profiler;
} PLUGIN_Profiler_Destroy_Args;

typedef PLUGIN_Profiler_Destroy_Args PLUGIN_Profiler_Start_Args;
typedef PLUGIN_Profiler_Destroy_Args PLUGIN_Profiler_Stop_Args;

/* Asked twice: with buffer null the plugin writes the size, then it fills the buffer (a serialized XSpace proto). XLA asks
 * once: it reads memory of the plugin, whose address it expects in place of null. It sets struct_size in none of them. */
typedef struct PLUGIN_Profiler_CollectData_Args {
  size_t struct_size;
  PLUGIN_Profiler *profiler;
  uint8_t *buffer;  /* null, fills, count buffer_size_in_bytes */
  size_t buffer_size_in_bytes;  /* in out */
} PLUGIN_Profiler_CollectData_Args;

typedef struct PLUGIN_Profiler_Api {
  size_t struct_size;
  void *priv;
  void (*error_destroy)(PLUGIN_Profiler_Error_Destroy_Args *args);
  void (*error_message)(PLUGIN_Profiler_Error_Message_Args *args);
  PLUGIN_Profiler_Error *(*error_get_code)(PLUGIN_Profiler_Error_GetCode_Args *args);
  PLUGIN_Profiler_Error *(*create)(PLUGIN_Profiler_Create_Args *args);
  PLUGIN_Profiler_Error *(*destroy)(PLUGIN_Profiler_Destroy_Args *args);
  PLUGIN_Profiler_Error *(*start)(PLUGIN_Profiler_Start_Args *args);
  PLUGIN_Profiler_Error *(*stop)(PLUGIN_Profiler_Stop_Args *args);
  PLUGIN_Profiler_Error *(*collect_data)(PLUGIN_Profiler_CollectData_Args *args);
} PLUGIN_Profiler_Api;

/* profiler_api may be null where the struct extends an argument struct, and only there is the context id valid. */
typedef struct PJRT_Profiler_Extension {
  PJRT_Extension_Base base;
  PLUGIN_Profiler_Api *profiler_api;
  int64_t traceme_context_id;
} PJRT_Profiler_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_PROFILER_H_ */
