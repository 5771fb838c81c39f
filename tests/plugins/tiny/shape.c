/* Element types, shapes, layouts, and copies between layouts. Types of less than a byte take one byte an element, on
 * the host and on the device alike. */
#include "tiny.h"

typedef struct element {
  const char *name;
  size_t size;
  int xla; /* number in xla.PrimitiveType */
} element;

static const element elements[] = {
    [PJRT_Buffer_Type_PRED] = {"pred", 1, 1},
    [PJRT_Buffer_Type_S8] = {"s8", 1, 2},
    [PJRT_Buffer_Type_S16] = {"s16", 2, 3},
    [PJRT_Buffer_Type_S32] = {"s32", 4, 4},
    [PJRT_Buffer_Type_S64] = {"s64", 8, 5},
    [PJRT_Buffer_Type_U8] = {"u8", 1, 6},
    [PJRT_Buffer_Type_U16] = {"u16", 2, 7},
    [PJRT_Buffer_Type_U32] = {"u32", 4, 8},
    [PJRT_Buffer_Type_U64] = {"u64", 8, 9},
    [PJRT_Buffer_Type_F16] = {"f16", 2, 10},
    [PJRT_Buffer_Type_F32] = {"f32", 4, 11},
    [PJRT_Buffer_Type_F64] = {"f64", 8, 12},
    [PJRT_Buffer_Type_BF16] = {"bf16", 2, 16},
    [PJRT_Buffer_Type_C64] = {"c64", 8, 15},
    [PJRT_Buffer_Type_C128] = {"c128", 16, 18},
    [PJRT_Buffer_Type_F8E5M2] = {"f8e5m2", 1, 19},
    [PJRT_Buffer_Type_F8E4M3FN] = {"f8e4m3fn", 1, 20},
    [PJRT_Buffer_Type_F8E4M3B11FNUZ] = {"f8e4m3b11fnuz", 1, 23},
    [PJRT_Buffer_Type_F8E5M2FNUZ] = {"f8e5m2fnuz", 1, 24},
    [PJRT_Buffer_Type_F8E4M3FNUZ] = {"f8e4m3fnuz", 1, 25},
    [PJRT_Buffer_Type_S4] = {"s4", 1, 21},
    [PJRT_Buffer_Type_U4] = {"u4", 1, 22},
    [PJRT_Buffer_Type_TOKEN] = {"token", 0, 17},
    [PJRT_Buffer_Type_S2] = {"s2", 1, 26},
    [PJRT_Buffer_Type_U2] = {"u2", 1, 27},
    [PJRT_Buffer_Type_F8E4M3] = {"f8e4m3", 1, 28},
    [PJRT_Buffer_Type_F8E3M4] = {"f8e3m4", 1, 29},
    [PJRT_Buffer_Type_F8E8M0FNU] = {"f8e8m0fnu", 1, 33},
    [PJRT_Buffer_Type_F4E2M1FN] = {"f4e2m1fn", 1, 32},
    [PJRT_Buffer_Type_S1] = {"s1", 1, 30},
    [PJRT_Buffer_Type_U1] = {"u1", 1, 31},
    [PJRT_Buffer_Type_F6E2M3FN] = {"f6e2m3fn", 1, 34},
    [PJRT_Buffer_Type_F6E3M2FN] = {"f6e3m2fn", 1, 35},
};
#define NUM_ELEMENTS (sizeof elements / sizeof elements[0])

static bool known(PJRT_Buffer_Type type) { return type > 0 && (size_t)type < NUM_ELEMENTS && elements[type].name; }

size_t element_size(PJRT_Buffer_Type type) { return known(type) ? elements[type].size : 0; }
const char *element_name(PJRT_Buffer_Type type) { return known(type) ? elements[type].name : "invalid"; }
int element_xla_type(PJRT_Buffer_Type type) { return known(type) ? elements[type].xla : 0; }

PJRT_Buffer_Type element_from_name(const char *name, size_t size) {
  for (size_t i = 1; i < NUM_ELEMENTS; ++i) {
    if (elements[i].name && strlen(elements[i].name) == size && memcmp(elements[i].name, name, size) == 0)
      return (PJRT_Buffer_Type)i;
  }
  return PJRT_Buffer_Type_INVALID;
}

/* ---- layouts ------------------------------------------------------------------------------------------------------*/
static tiny_status *layout_from_tiled(tiny_shape *shape, const PJRT_Buffer_MemoryLayout_Tiled *tiled) {
  if (tiled->num_tiles)
    return status_make(PJRT_Error_Code_UNIMPLEMENTED, "The tiny device has no tiled layouts, got %zu tiles",
                       tiled->num_tiles);
  if (tiled->minor_to_major_size != shape->rank)
    return status_make(INVALID, "The layout has %zu dimensions, the shape has %zu", tiled->minor_to_major_size,
                       shape->rank);
  uint32_t seen = 0;
  for (size_t i = 0; i < shape->rank; ++i) {
    int64_t dim = tiled->minor_to_major[i];
    if (dim < 0 || (size_t)dim >= shape->rank || (seen >> dim & 1))
      return status_make(INVALID, "minor_to_major is no permutation of the dimensions: entry %zu is %lld", i,
                         (long long)dim);
    seen |= 1u << dim;
    shape->minor_to_major[i] = dim;
  }
  return NULL;
}

static tiny_status *layout_from_strides(tiny_shape *shape, const PJRT_Buffer_MemoryLayout_Strides *strides) {
  if (strides->num_byte_strides != shape->rank)
    return status_make(INVALID, "The layout has %zu strides, the shape has %zu dimensions", strides->num_byte_strides,
                       shape->rank);
  /* Insertion sort by stride; of equal ones (dimensions of size one) the last is the most minor. */
  for (size_t i = 0; i < shape->rank; ++i) {
    size_t dim = shape->rank - 1 - i, at = i;
    while (at > 0 && strides->byte_strides[shape->minor_to_major[at - 1]] > strides->byte_strides[dim]) {
      shape->minor_to_major[at] = shape->minor_to_major[at - 1];
      --at;
    }
    shape->minor_to_major[at] = (int64_t)dim;
  }
  int64_t dense[TINY_MAX_RANK];
  shape_strides(shape, dense);
  for (size_t i = 0; i < shape->rank; ++i) {
    if (shape->dims[i] > 1 && dense[i] != strides->byte_strides[i])
      return status_make(INVALID, "A device layout must be dense: stride %lld of dimension %zu should be %lld",
                         (long long)strides->byte_strides[i], i, (long long)dense[i]);
  }
  return NULL;
}

tiny_status *shape_init(tiny_shape *shape, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                        const PJRT_Buffer_MemoryLayout *layout) {
  memset(shape, 0, sizeof *shape);
  if (!known(type)) return status_make(INVALID, "Unknown element type %d", (int)type);
  if (rank > TINY_MAX_RANK)
    return status_make(INVALID, "The tiny device takes at most %d dimensions, got %zu", TINY_MAX_RANK, rank);
  shape->type = type;
  shape->rank = rank;
  int64_t total = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return status_make(INVALID, "Dimension %zu is negative: %lld", i, (long long)dims[i]);
    if (__builtin_mul_overflow(total, dims[i] ? dims[i] : 1, &total) || total > INT64_MAX / 16)
      return status_make(INVALID, "The shape has too many elements");
    shape->dims[i] = dims[i];
    shape->minor_to_major[i] = (int64_t)(rank - 1 - i);
  }
  if (layout == NULL) return NULL;
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled) return layout_from_tiled(shape, &layout->tiled);
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) return layout_from_strides(shape, &layout->strides);
  return status_make(INVALID, "Unknown kind of layout %d", (int)layout->type);
}

int64_t shape_elements(const tiny_shape *shape) {
  int64_t count = 1;
  for (size_t i = 0; i < shape->rank; ++i) count *= shape->dims[i];
  return count;
}

size_t shape_size(const tiny_shape *shape) { return (size_t)shape_elements(shape) * element_size(shape->type); }

bool shape_same_dims(const tiny_shape *a, const tiny_shape *b) {
  return a->type == b->type && a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof a->dims[0]) == 0;
}

bool shape_is_row_major(const tiny_shape *shape) {
  for (size_t i = 0; i < shape->rank; ++i) {
    if (shape->minor_to_major[i] != (int64_t)(shape->rank - 1 - i)) return false;
  }
  return true;
}

void shape_strides(const tiny_shape *shape, int64_t *byte_strides) {
  int64_t stride = (int64_t)element_size(shape->type);
  for (size_t i = 0; i < shape->rank; ++i) {
    byte_strides[shape->minor_to_major[i]] = stride;
    stride *= shape->dims[shape->minor_to_major[i]];
  }
}

static char *print_numbers(const char *head, char open, const int64_t *numbers, size_t count, char close) {
  tiny_bytes out = {0};
  bytes_print(&out, "%s%c", head, open);
  for (size_t i = 0; i < count; ++i) bytes_print(&out, "%s%lld", i ? "," : "", (long long)numbers[i]);
  bytes_print(&out, "%c", close);
  return out.data;
}

char *shape_print(const tiny_shape *shape) {
  return print_numbers(element_name(shape->type), '[', shape->dims, shape->rank, ']');
}

char *shape_print_layout(const tiny_shape *shape) {
  return print_numbers("", '{', shape->minor_to_major, shape->rank, '}');
}

/* ---- copies -------------------------------------------------------------------------------------------------------*/
void copy_strided(char *dst, const int64_t *dst_strides, const char *src, const int64_t *src_strides,
                  const int64_t *dims, size_t rank, size_t element) {
  if (rank == 0) {
    memcpy(dst, src, element);
    return;
  }
  if (rank == 1 && dst_strides[0] == (int64_t)element && src_strides[0] == (int64_t)element) {
    if (dims[0]) memcpy(dst, src, (size_t)dims[0] * element);
    return;
  }
  for (int64_t i = 0; i < dims[0]; ++i)
    copy_strided(dst + i * dst_strides[0], dst_strides + 1, src + i * src_strides[0], src_strides + 1, dims + 1,
                 rank - 1, element);
}
