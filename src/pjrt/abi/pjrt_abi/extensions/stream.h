/* Stream: the device queue that external work (DLPack, for one) is ordered against. */
#ifndef PJRT_ABI_EXTENSIONS_STREAM_H_
#define PJRT_ABI_EXTENSIONS_STREAM_H_

#include "../base.h"

typedef struct PJRT_Get_Stream_For_External_Ready_Events_Args {
  size_t struct_size;
  PJRT_Device *device;
  intptr_t stream;  /* out */
} PJRT_Get_Stream_For_External_Ready_Events_Args;

typedef struct PJRT_Wait_Until_Buffer_Ready_On_Stream_Args {
  size_t struct_size;
  intptr_t stream;
  PJRT_Buffer *buffer;
} PJRT_Wait_Until_Buffer_Ready_On_Stream_Args;

typedef struct PJRT_Stream_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*get_stream)(PJRT_Get_Stream_For_External_Ready_Events_Args *args);
  PJRT_Error *(*wait_stream)(PJRT_Wait_Until_Buffer_Ready_On_Stream_Args *args);
} PJRT_Stream_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_STREAM_H_ */
