/* Values of a recording: the arguments and results of a call, read with the schema. `pjrt.layers.recording` reads
 * the same bytes, and lists the meaning of their first one. */
#ifndef PJRT_LAYER_RECORD_VALUE_H_
#define PJRT_LAYER_RECORD_VALUE_H_

#include "layer.h"
#include "file.h"
#include "handles.h"

typedef enum {
  VALUE_NULL, VALUE_FALSE, VALUE_TRUE, VALUE_NUMBER, VALUE_NEGATIVE, VALUE_REAL, VALUE_TEXT, VALUE_BLOB, VALUE_LEFT_OUT,
  VALUE_LIST, VALUE_STRUCT, VALUE_HANDLE, VALUE_POINTER, VALUE_FUNCTION,
} value_tag;

typedef enum {
  PHASE_CALL,   /* what the caller set */
  PHASE_RESULT, /* what the function set */
  PHASE_ALL,    /* everything: a struct that one side gives the other */
} value_phase;

typedef struct value_writer {
  record_file *file;
  record_bytes bytes;       /* the value so far */
  record_numbers handles, callbacks;
  bool leave_out;           /* of host data only the size is recorded */
  bool host_data;           /* the bytes of this call are host data */
  bool is_callback;         /* the receiver of a handle is the framework, which knows it from now on */
  bool filled_later;        /* the memory that this call fills is ready with an event, not when the call returns */
  bool shallow;             /* the memory behind bytes is not written yet */
  size_t num_devices;       /* on which a program runs, for the lists of its callbacks */
  size_t num_outputs;       /* of the program that runs, for the lists of its results; SIZE_MAX: unknown */
  record_key removed;       /* the handle that the call destroys, and its number; 0: none */
  uint64_t removed_number;
} value_writer;

void value_put_number(value_writer *writer, int64_t number);
void value_put_text(value_writer *writer, const void *data, size_t size);
/* Host data, which the user may have asked to leave out. */
void value_put_data(value_writer *writer, const void *data, size_t size);
void value_put_handle(value_writer *writer, int kind, const void *handle, bool is_new);
/* The fields of a struct that belong to the phase. */
void value_put_struct(value_writer *writer, const pjrt_struct *type, const void *base, value_phase phase);

/* The number of a function that the plugin gave, and that the framework calls now. */
uint64_t value_function_of_plugin(value_writer *writer, const pjrt_frame *frame, const void *args);

/* The number of elements, or of bytes, of a field; 0 where it is unknown or the caller's struct lacks it. */
size_t value_count(const pjrt_struct *type, int16_t count, const void *base);

/* The host data of PJRT_Client_BufferFromHostBuffer, dense and in row-major order, and that of a literal. */
void value_put_host_buffer(value_writer *writer, const PJRT_Client_BufferFromHostBuffer_Args *args);
void value_put_literal(value_writer *writer, const PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args);

#endif /* PJRT_LAYER_RECORD_VALUE_H_ */
