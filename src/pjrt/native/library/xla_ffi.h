/* XLA's foreign function interface (FFI), version 0.5: how a program calls a handler, a function of its host.
 *
 * These are the names, numbers and layouts of xla/ffi/api/c_api.h, which are stable: fields and functions are only
 * added at the end of a struct, whose size says which ones it has. */
#ifndef PJRT_NATIVE_XLA_FFI_H_
#define PJRT_NATIVE_XLA_FFI_H_

#include <stddef.h>
#include <stdint.h>

enum { XLA_FFI_API_MAJOR = 0, XLA_FFI_API_MINOR = 5 };
enum { XLA_FFI_BUFFER = 1 };                                                        /* kinds of arguments and results */
enum { XLA_FFI_ARRAY = 1, XLA_FFI_DICTIONARY = 2, XLA_FFI_SCALAR = 3, XLA_FFI_STRING = 4 }; /* of attributes */
enum { XLA_FFI_EXECUTE = 3 };                                                       /* stages of a call */
enum { XLA_FFI_METADATA = 1 };                                                      /* extensions of a call frame */

#define XLA_FFI_HEAD   \
  size_t struct_size;  \
  void *extension_start

typedef struct XLA_FFI_Error XLA_FFI_Error;
typedef struct XLA_FFI_Future XLA_FFI_Future;
typedef struct XLA_FFI_InvokeContext XLA_FFI_InvokeContext;

typedef struct XLA_FFI_ByteSpan {
  const char *ptr;
  size_t len;
} XLA_FFI_ByteSpan;

typedef struct XLA_FFI_Buffer {
  XLA_FFI_HEAD;
  int dtype;
  void *data;
  int64_t rank;
  int64_t *dims;
} XLA_FFI_Buffer;

typedef struct XLA_FFI_Scalar {
  int dtype;
  void *value;
} XLA_FFI_Scalar;

typedef struct XLA_FFI_Array {
  int dtype;
  size_t size;
  void *data;
} XLA_FFI_Array;

/* Arguments or results. */
typedef struct XLA_FFI_Values {
  XLA_FFI_HEAD;
  int64_t size;
  int *types;
  void **values;
} XLA_FFI_Values;

/* In the order of their names. */
typedef struct XLA_FFI_Attrs {
  XLA_FFI_HEAD;
  int64_t size;
  int *types;
  XLA_FFI_ByteSpan **names;
  void **attrs;
} XLA_FFI_Attrs;

typedef struct XLA_FFI_Api_Version {
  XLA_FFI_HEAD;
  int major_version, minor_version;
} XLA_FFI_Api_Version;

typedef struct XLA_FFI_Metadata {
  size_t struct_size;
  XLA_FFI_Api_Version api_version;
  uint32_t traits;
  int64_t state_type_id;
} XLA_FFI_Metadata;

typedef struct XLA_FFI_Metadata_Extension {
  size_t struct_size;
  int type;
  void *next;
  XLA_FFI_Metadata *metadata;
} XLA_FFI_Metadata_Extension;

typedef struct XLA_FFI_Error_Create_Args {
  XLA_FFI_HEAD;
  const char *message;
  int errc;
} XLA_FFI_Error_Create_Args;

typedef struct XLA_FFI_Error_GetDetails_Args {
  XLA_FFI_HEAD;
  XLA_FFI_Error *error;
  const char *message;
  int errc; /* since 0.4 */
} XLA_FFI_Error_GetDetails_Args;

typedef struct XLA_FFI_Error_Destroy_Args {
  XLA_FFI_HEAD;
  XLA_FFI_Error *error;
} XLA_FFI_Error_Destroy_Args;

typedef struct XLA_FFI_Future_Create_Args {
  XLA_FFI_HEAD;
  XLA_FFI_Future *future;
} XLA_FFI_Future_Create_Args;

typedef struct XLA_FFI_Future_SetAvailable_Args {
  XLA_FFI_HEAD;
  XLA_FFI_Future *future;
} XLA_FFI_Future_SetAvailable_Args;

typedef struct XLA_FFI_Future_SetError_Args {
  XLA_FFI_HEAD;
  XLA_FFI_Future *future;
  XLA_FFI_Error *error;
} XLA_FFI_Future_SetError_Args;

typedef struct XLA_FFI_FindExtension_Args {
  XLA_FFI_HEAD;
  XLA_FFI_InvokeContext *ctx;
  int64_t extension_type;
  const void *extension;
} XLA_FFI_FindExtension_Args;

/* A function that only refuses does not read its arguments. */
typedef XLA_FFI_Error *XLA_FFI_Refused(void *args);

typedef struct XLA_FFI_Api {
  XLA_FFI_HEAD;
  XLA_FFI_Api_Version api_version;
  const void *internal_api;
  XLA_FFI_Error *(*Error_Create)(XLA_FFI_Error_Create_Args *args);
  void (*Error_GetDetails)(XLA_FFI_Error_GetDetails_Args *args);
  void (*Error_Destroy)(XLA_FFI_Error_Destroy_Args *args);
  XLA_FFI_Refused *Handler_Register, *Stream_Get, *Type_Register, *InvokeContext_Get, *State_Set, *State_Get,
      *DeviceMemory_Allocate, *DeviceMemory_Free, *ThreadPool_Schedule, *ThreadPool_NumThreads;
  XLA_FFI_Error *(*Future_Create)(XLA_FFI_Future_Create_Args *args);
  XLA_FFI_Error *(*Future_SetAvailable)(XLA_FFI_Future_SetAvailable_Args *args);
  XLA_FFI_Error *(*Future_SetError)(XLA_FFI_Future_SetError_Args *args);
  XLA_FFI_Refused *RunId_Get, *DeviceOrdinal_Get;
  XLA_FFI_Error *(*InvokeContext_FindExtension)(XLA_FFI_FindExtension_Args *args);
  XLA_FFI_Refused *CustomOptions_Get;
} XLA_FFI_Api;

typedef struct XLA_FFI_CallFrame {
  XLA_FFI_HEAD;
  const XLA_FFI_Api *api;
  XLA_FFI_InvokeContext *ctx;
  int stage;
  XLA_FFI_Values args, rets;
  XLA_FFI_Attrs attrs;
  XLA_FFI_Future *future; /* what a handler made whose work goes on */
} XLA_FFI_CallFrame;

/* What XLA states as its size: without the future, which was added later. Handlers of jaxlib want this number exactly. */
#define XLA_FFI_CALL_FRAME_SIZE offsetof(XLA_FFI_CallFrame, future)

typedef XLA_FFI_Error *XLA_FFI_Handler(XLA_FFI_CallFrame *frame);

#endif /* PJRT_NATIVE_XLA_FFI_H_ */
