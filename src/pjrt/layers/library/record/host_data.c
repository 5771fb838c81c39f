/* The host arrays that calls take in, dense and in row-major order, however they lie in memory. */
#include <stdlib.h>
#include <string.h>

#include "value.h"

/* The bytes of an element in host memory: elements of less than a byte take one each. 0: unknown. */
static size_t element_size(PJRT_Buffer_Type type) {
  switch (type) {
    case PJRT_Buffer_Type_INVALID:
    case PJRT_Buffer_Type_TOKEN:
      return 0;
    case PJRT_Buffer_Type_S16:
    case PJRT_Buffer_Type_U16:
    case PJRT_Buffer_Type_F16:
    case PJRT_Buffer_Type_BF16:
      return 2;
    case PJRT_Buffer_Type_S32:
    case PJRT_Buffer_Type_U32:
    case PJRT_Buffer_Type_F32:
      return 4;
    case PJRT_Buffer_Type_S64:
    case PJRT_Buffer_Type_U64:
    case PJRT_Buffer_Type_F64:
    case PJRT_Buffer_Type_C64:
      return 8;
    case PJRT_Buffer_Type_C128:
      return 16;
    default:
      return type > PJRT_Buffer_Type_F6E3M2FN ? 0 : 1;
  }
}

static bool dense_size(const int64_t *dims, size_t num_dims, PJRT_Buffer_Type type, size_t *size) {
  *size = element_size(type);
  for (size_t i = 0; i < num_dims; i++) {
    if (dims == NULL || dims[i] < 0) return false;
    if (dims[i] != 0 && *size > SIZE_MAX / (size_t)dims[i]) return false;
    *size *= (size_t)dims[i];
  }
  return true;
}

static bool is_dense(const PJRT_Client_BufferFromHostBuffer_Args *args, size_t element) {
  if (args->byte_strides == NULL) return true;
  int64_t expected = (int64_t)element;
  for (size_t i = args->num_dims; i-- > 0;) {
    if (args->dims[i] != 1 && args->byte_strides[i] != expected) return false;
    expected *= args->dims[i];
  }
  return true;
}

/* Copies the elements in row-major order, a row at a time. */
static void gather(const PJRT_Client_BufferFromHostBuffer_Args *args, size_t element, char *out) {
  const size_t rank = args->num_dims;
  int64_t *index = calloc(rank, sizeof *index);
  if (index == NULL) return;
  const char *row = args->data;
  const int64_t length = args->dims[rank - 1], stride = args->byte_strides[rank - 1];
  for (;;) {
    if (stride == (int64_t)element) {
      memcpy(out, row, (size_t)length * element);
      out += (size_t)length * element;
    } else {
      for (int64_t i = 0; i < length; i++, out += element) memcpy(out, row + i * stride, element);
    }
    size_t axis = rank - 1;
    while (axis-- > 0) {
      row += args->byte_strides[axis];
      if (++index[axis] < args->dims[axis]) break;
      row -= args->byte_strides[axis] * args->dims[axis];
      index[axis] = 0;
    }
    if (axis == SIZE_MAX) break;
  }
  free(index);
}

void value_put_host_buffer(value_writer *writer, const PJRT_Client_BufferFromHostBuffer_Args *args) {
  size_t size;
  const size_t element = element_size(args->type);
  const bool has_strides = args->byte_strides != NULL && args->num_byte_strides == args->num_dims;
  if (args->data == NULL || !dense_size(args->dims, args->num_dims, args->type, &size) ||
      (args->byte_strides != NULL && !has_strides)) {
    value_put_text(writer, NULL, 0); /* the plugin is to refuse it */
  } else if (writer->leave_out || size == 0 || is_dense(args, element)) {
    value_put_data(writer, args->data, size);
  } else {
    char *dense = calloc(1, size);
    if (dense != NULL) gather(args, element, dense);
    value_put_data(writer, dense, size);
    free(dense);
  }
}

void value_put_literal(value_writer *writer, const PJRT_AsyncHostToDeviceTransferManager_TransferLiteral_Args *args) {
  size_t size;
  const bool valid = dense_size(args->shape_dims, args->shape_num_dims, args->shape_element_type, &size);
  value_put_data(writer, valid ? args->data : NULL, size);
}
