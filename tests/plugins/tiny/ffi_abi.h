/* The XLA FFI ABI at 0.3, in our own words: what a handler called from inside a program is given. Argument structs start
 * with their size and a chain of extensions, like those of PJRT. Only what the tiny plugin offers is declared; the
 * table has all its slots, so that a handler finds each where it expects it. */
#ifndef TINY_FFI_ABI_H_
#define TINY_FFI_ABI_H_

#include <stddef.h>
#include <stdint.h>

typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef struct XLA_FFI_Future XLA_FFI_Future;
typedef struct XLA_FFI_ExecutionContext XLA_FFI_ExecutionContext;

typedef struct XLA_FFI_Extension_Base {
  size_t struct_size;
  int type; /* 1: metadata */
  struct XLA_FFI_Extension_Base *next;
} XLA_FFI_Extension_Base;

#define XLA_FFI_HEAD         \
  size_t struct_size;        \
  XLA_FFI_Extension_Base *extension_start

typedef struct { XLA_FFI_HEAD; int major_version, minor_version; } XLA_FFI_Api_Version;
typedef struct { XLA_FFI_HEAD; const char *message; int errc; } XLA_FFI_Error_Create_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_Error *error; const char *message; } XLA_FFI_Error_GetMessage_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_Error *error; } XLA_FFI_Error_Destroy_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_Future *future; } XLA_FFI_Future_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_Future *future; XLA_FFI_Error *error; } XLA_FFI_Future_SetError_Args;
typedef struct { const char *ptr; size_t len; } XLA_FFI_ByteSpan;
typedef struct { int64_t type_id; } XLA_FFI_TypeId;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ByteSpan name; XLA_FFI_TypeId *type_id; const void *type_info; }
    XLA_FFI_Type_Register_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; XLA_FFI_TypeId *type_id; void *data; }
    XLA_FFI_ExecutionContext_Get_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; void *stream; } XLA_FFI_Stream_Get_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; size_t size, alignment; void *data; }
    XLA_FFI_DeviceMemory_Allocate_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; size_t size; void *data; } XLA_FFI_DeviceMemory_Free_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; void (*task)(void *data); void *data; }
    XLA_FFI_ThreadPool_Schedule_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; int64_t *num_threads; } XLA_FFI_ThreadPool_NumThreads_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; int64_t run_id; } XLA_FFI_RunId_Get_Args;
typedef struct { XLA_FFI_HEAD; XLA_FFI_ExecutionContext *ctx; int32_t device_ordinal; } XLA_FFI_DeviceOrdinal_Get_Args;

typedef struct XLA_FFI_Api {
  XLA_FFI_HEAD;
  XLA_FFI_Api_Version api_version;
  const void *internal_api;
  XLA_FFI_Error *(*Error_Create)(XLA_FFI_Error_Create_Args *);
  void (*Error_GetMessage)(XLA_FFI_Error_GetMessage_Args *);
  void (*Error_Destroy)(XLA_FFI_Error_Destroy_Args *);
  XLA_FFI_Error *(*Handler_Register)(void *);
  XLA_FFI_Error *(*Stream_Get)(XLA_FFI_Stream_Get_Args *);
  XLA_FFI_Error *(*Type_Register)(XLA_FFI_Type_Register_Args *);
  XLA_FFI_Error *(*ExecutionContext_Get)(XLA_FFI_ExecutionContext_Get_Args *);
  XLA_FFI_Error *(*State_Set)(void *);
  XLA_FFI_Error *(*State_Get)(void *);
  XLA_FFI_Error *(*DeviceMemory_Allocate)(XLA_FFI_DeviceMemory_Allocate_Args *);
  XLA_FFI_Error *(*DeviceMemory_Free)(XLA_FFI_DeviceMemory_Free_Args *);
  XLA_FFI_Error *(*ThreadPool_Schedule)(XLA_FFI_ThreadPool_Schedule_Args *);
  XLA_FFI_Error *(*ThreadPool_NumThreads)(XLA_FFI_ThreadPool_NumThreads_Args *);
  XLA_FFI_Error *(*Future_Create)(XLA_FFI_Future_Args *);
  XLA_FFI_Error *(*Future_SetAvailable)(XLA_FFI_Future_Args *);
  XLA_FFI_Error *(*Future_SetError)(XLA_FFI_Future_SetError_Args *);
  XLA_FFI_Error *(*RunId_Get)(XLA_FFI_RunId_Get_Args *);
  XLA_FFI_Error *(*DeviceOrdinal_Get)(XLA_FFI_DeviceOrdinal_Get_Args *);
} XLA_FFI_Api;

typedef struct { XLA_FFI_HEAD; int dtype; void *data; int64_t rank; int64_t *dims; } XLA_FFI_Buffer;
typedef struct { int dtype; void *value; } XLA_FFI_Scalar;
typedef struct { XLA_FFI_HEAD; int64_t size; int *types; void **values; } XLA_FFI_Values; /* arguments, results */
typedef struct { XLA_FFI_HEAD; int64_t size; int *types; XLA_FFI_ByteSpan **names; void **attrs; } XLA_FFI_Attrs;
enum { XLA_FFI_BUFFER = 1, XLA_FFI_ATTR_SCALAR = 3, XLA_FFI_ATTR_STRING = 4, XLA_FFI_STAGE_EXECUTE = 3 };

typedef struct XLA_FFI_CallFrame {
  XLA_FFI_HEAD;
  const XLA_FFI_Api *api;
  XLA_FFI_ExecutionContext *ctx;
  int stage;
  XLA_FFI_Values args, rets;
  XLA_FFI_Attrs attrs;
  XLA_FFI_Future *future; /* out: set by a handler that goes on after it returned */
} XLA_FFI_CallFrame;

typedef XLA_FFI_Error *(*XLA_FFI_Handler)(XLA_FFI_CallFrame *);

/* A registered handler is called once with this extension and nothing else, to tell its version. */
typedef struct {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  uint32_t traits;
  XLA_FFI_TypeId state_type_id;
} XLA_FFI_Metadata;
typedef struct { XLA_FFI_Extension_Base base; XLA_FFI_Metadata *metadata; } XLA_FFI_Metadata_Extension;

#endif /* TINY_FFI_ABI_H_ */
