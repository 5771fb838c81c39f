/* The structs of DLPack, by which array libraries share memory: the plain capsule and the versioned one. */
#ifndef PJRT_SUPPORT_DLPACK_H_
#define PJRT_SUPPORT_DLPACK_H_

#include <stdint.h>

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2, DLPACK_ROCM = 10 };

typedef struct dlpack_tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t type_code;
  uint8_t type_bits;
  uint16_t type_lanes;
  int64_t *shape;
  int64_t *strides; /* in elements; null means row-major */
  uint64_t byte_offset;
} dlpack_tensor;

/* The user of the capsule calls the deleter once, on any thread. */
typedef struct dlpack_managed {
  dlpack_tensor tensor;
  void *context;
  void (*deleter)(struct dlpack_managed *self);
} dlpack_managed;

typedef struct dlpack_versioned {
  uint32_t major;
  uint32_t minor;
  void *context;
  void (*deleter)(struct dlpack_versioned *self);
  uint64_t flags; /* 1: read-only; 2: a copy */
  dlpack_tensor tensor;
} dlpack_versioned;

#endif /* PJRT_SUPPORT_DLPACK_H_ */
