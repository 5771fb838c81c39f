/* Element types, shapes, layouts, and copies between layouts. On the host an element of less than a byte takes one. */
#include "runtime.h"

typedef struct element {
  const char *name;
  size_t bits; /* in the memory of the host */
  size_t own;  /* those that it needs, where these are fewer */
} element;

static const element elements[] = {
    [PJRT_Buffer_Type_PRED] = {"pred", 8, 1},
    [PJRT_Buffer_Type_S8] = {"s8", 8},
    [PJRT_Buffer_Type_S16] = {"s16", 16},
    [PJRT_Buffer_Type_S32] = {"s32", 32},
    [PJRT_Buffer_Type_S64] = {"s64", 64},
    [PJRT_Buffer_Type_U8] = {"u8", 8},
    [PJRT_Buffer_Type_U16] = {"u16", 16},
    [PJRT_Buffer_Type_U32] = {"u32", 32},
    [PJRT_Buffer_Type_U64] = {"u64", 64},
    [PJRT_Buffer_Type_F16] = {"f16", 16},
    [PJRT_Buffer_Type_F32] = {"f32", 32},
    [PJRT_Buffer_Type_F64] = {"f64", 64},
    [PJRT_Buffer_Type_BF16] = {"bf16", 16},
    [PJRT_Buffer_Type_C64] = {"c64", 64},
    [PJRT_Buffer_Type_C128] = {"c128", 128},
    [PJRT_Buffer_Type_F8E5M2] = {"f8e5m2", 8},
    [PJRT_Buffer_Type_F8E4M3FN] = {"f8e4m3fn", 8},
    [PJRT_Buffer_Type_F8E4M3B11FNUZ] = {"f8e4m3b11fnuz", 8},
    [PJRT_Buffer_Type_F8E5M2FNUZ] = {"f8e5m2fnuz", 8},
    [PJRT_Buffer_Type_F8E4M3FNUZ] = {"f8e4m3fnuz", 8},
    [PJRT_Buffer_Type_S4] = {"s4", 8, 4},
    [PJRT_Buffer_Type_U4] = {"u4", 8, 4},
    [PJRT_Buffer_Type_TOKEN] = {"token", 0},
    [PJRT_Buffer_Type_S2] = {"s2", 8, 2},
    [PJRT_Buffer_Type_U2] = {"u2", 8, 2},
    [PJRT_Buffer_Type_F8E4M3] = {"f8e4m3", 8},
    [PJRT_Buffer_Type_F8E3M4] = {"f8e3m4", 8},
    [PJRT_Buffer_Type_F8E8M0FNU] = {"f8e8m0fnu", 8},
    [PJRT_Buffer_Type_F4E2M1FN] = {"f4e2m1fn", 8, 4},
    [PJRT_Buffer_Type_S1] = {"s1", 8, 1},
    [PJRT_Buffer_Type_U1] = {"u1", 8, 1},
    [PJRT_Buffer_Type_F6E2M3FN] = {"f6e2m3fn", 8, 6},
    [PJRT_Buffer_Type_F6E3M2FN] = {"f6e3m2fn", 8, 6},
};

bool element_is_known(PJRT_Buffer_Type type) {
  return type > 0 && (size_t)type < sizeof elements / sizeof *elements && elements[type].name != NULL;
}

size_t element_bits(PJRT_Buffer_Type type) { return element_is_known(type) ? elements[type].bits : 0; }

bool element_fits(PJRT_Buffer_Type type, size_t bits) {
  return (bits == 1 || bits == 2 || bits == 4) && element_is_known(type) && elements[type].own && elements[type].own <= bits;
}

static size_t element_size(PJRT_Buffer_Type type) { return element_bits(type) / 8; }

/* ---- layouts --------------------------------------------------------------------------------------------------------*/
static PJRT_Error *read_tiled(shape *out, const PJRT_Buffer_MemoryLayout_Tiled *tiled) {
  if (tiled->num_tiles)
    return error_make(PJRT_Error_Code_UNIMPLEMENTED,
                      "layouts with tiles are the driver's own choice; expected a layout without, found %zu tiles",
                      tiled->num_tiles);
  if (tiled->minor_to_major_size != out->rank)
    return error_make(INVALID, "the layout has %zu dimensions, the shape has %zu", tiled->minor_to_major_size, out->rank);
  uint64_t seen = 0;
  for (size_t i = 0; i < out->rank; ++i) {
    int64_t dim = tiled->minor_to_major[i];
    if (dim < 0 || (size_t)dim >= out->rank || (seen >> dim & 1))
      return error_make(INVALID, "expected minor_to_major to name each of %zu dimensions once, found %lld at %zu",
                        out->rank, (long long)dim, i);
    seen |= UINT64_C(1) << dim;
    out->minor_to_major[i] = dim;
  }
  return NULL;
}

static PJRT_Error *read_strides(shape *out, const PJRT_Buffer_MemoryLayout_Strides *strides) {
  if (strides->num_byte_strides != out->rank)
    return error_make(INVALID, "the layout has %zu strides, the shape has %zu dimensions", strides->num_byte_strides,
                      out->rank);
  /* Insertion sort by stride; of equal ones (dimensions of size one) the last is the most minor. */
  for (size_t i = 0; i < out->rank; ++i) {
    size_t dim = out->rank - 1 - i, at = i;
    while (at > 0 && strides->byte_strides[out->minor_to_major[at - 1]] > strides->byte_strides[dim]) {
      out->minor_to_major[at] = out->minor_to_major[at - 1];
      --at;
    }
    out->minor_to_major[at] = (int64_t)dim;
  }
  int64_t dense[MAX_RANK];
  shape_strides(out, dense);
  for (size_t i = 0; i < out->rank; ++i) {
    if (out->dims[i] > 1 && dense[i] != strides->byte_strides[i])
      return error_make(INVALID, "a device's layout is dense: expected a stride of %lld for dimension %zu, found %lld",
                        (long long)dense[i], i, (long long)strides->byte_strides[i]);
  }
  return NULL;
}

PJRT_Error *shape_init(shape *out, PJRT_Buffer_Type type, const int64_t *dims, size_t rank,
                       const PJRT_Buffer_MemoryLayout *layout) {
  if (!element_is_known(type)) return error_make(INVALID, "expected an element type, found the number %d", (int)type);
  if (rank > MAX_RANK) return error_make(INVALID, "expected at most %d dimensions, found %zu", MAX_RANK, rank);
  out->type = type;
  out->rank = rank;
  int64_t total = 1;
  for (size_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return error_make(INVALID, "dimension %zu has a negative size: %lld", i, (long long)dims[i]);
    if (__builtin_mul_overflow(total, dims[i] ? dims[i] : 1, &total) || total > INT64_MAX / 16)
      return error_make(INVALID, "the shape has more elements than memory can hold");
    out->dims[i] = dims[i];
    out->minor_to_major[i] = (int64_t)(rank - 1 - i);
  }
  if (layout == NULL) return NULL;
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled) return read_tiled(out, &layout->tiled);
  if (layout->type == PJRT_Buffer_MemoryLayout_Type_Strides) return read_strides(out, &layout->strides);
  return error_make(INVALID, "expected a layout of tiles or strides, found the kind %d", (int)layout->type);
}

int64_t shape_elements(const shape *of) {
  int64_t count = 1;
  for (size_t i = 0; i < of->rank; ++i) count *= of->dims[i];
  return count;
}

size_t shape_size(const shape *of) { return (size_t)shape_elements(of) * element_size(of->type); }

bool shape_is_in_rows(const shape *of) {
  for (size_t i = 0; i < of->rank; ++i) {
    if (of->minor_to_major[i] != (int64_t)(of->rank - 1 - i) && of->dims[of->minor_to_major[i]] > 1) return false;
  }
  return true;
}

bool shape_same(const shape *a, const shape *b) {
  return a->type == b->type && a->rank == b->rank && memcmp(a->dims, b->dims, a->rank * sizeof *a->dims) == 0;
}

bool shape_same_order(const shape *a, const shape *b) {
  if (shape_is_in_rows(a) && shape_is_in_rows(b)) return true;
  return memcmp(a->minor_to_major, b->minor_to_major, a->rank * sizeof *a->minor_to_major) == 0;
}

void shape_strides(const shape *of, int64_t *byte_strides) {
  int64_t stride = (int64_t)element_size(of->type);
  for (size_t i = 0; i < of->rank; ++i) {
    byte_strides[of->minor_to_major[i]] = stride;
    stride *= of->dims[of->minor_to_major[i]];
  }
}

void row_major_strides(const shape *of, int64_t *byte_strides) {
  int64_t stride = (int64_t)element_size(of->type);
  for (size_t i = of->rank; i-- > 0;) {
    byte_strides[i] = stride;
    stride *= of->dims[i];
  }
}

bool strides_are_row_major(const shape *of, const int64_t *byte_strides) {
  int64_t dense[MAX_RANK];
  row_major_strides(of, dense);
  for (size_t i = 0; i < of->rank; ++i) {
    if (of->dims[i] > 1 && dense[i] != byte_strides[i]) return false;
  }
  return true;
}

pjrt_driver_shape driver_shape(const shape *of) {
  return (pjrt_driver_shape){.type = (int)of->type, .rank = of->rank, .dims = of->dims,
                             .minor_to_major = shape_is_in_rows(of) ? NULL : of->minor_to_major};
}

/* ---- text -----------------------------------------------------------------------------------------------------------*/
static void add_numbers(bytes *out, char open, const int64_t *numbers, size_t count) {
  bytes_add(out, &open, 1);
  for (size_t i = 0; i < count; ++i) {
    char text[32];
    int size = snprintf(text, sizeof text, "%s%lld", i ? "," : "", (long long)numbers[i]);
    bytes_add(out, text, (size_t)size);
  }
}

char *shape_text(const shape *of) {
  bytes out = {0};
  bytes_add(&out, elements[of->type].name, strlen(elements[of->type].name));
  add_numbers(&out, '[', of->dims, of->rank);
  bytes_add(&out, "]", 1);
  return out.data;
}

char *layout_text(const shape *of, const pjrt_driver_layout *tiles) {
  bytes out = {0};
  add_numbers(&out, '{', of->minor_to_major, of->rank);
  const int64_t *dims = tiles ? tiles->tile_dims : NULL;
  for (size_t i = 0; tiles && i < tiles->num_tiles; dims += tiles->tile_ranks[i++]) {
    if (i == 0) bytes_add(&out, ":T", 2);
    add_numbers(&out, '(', dims, tiles->tile_ranks[i]);
    bytes_add(&out, ")", 1);
  }
  if (tiles && tiles->element_bits) {
    char text[32];
    int size = snprintf(text, sizeof text, "%sE(%zu)", tiles->num_tiles ? "" : ":", tiles->element_bits);
    bytes_add(&out, text, (size_t)size);
  }
  bytes_add(&out, "}", 1);
  return out.data;
}

/* ---- copies ---------------------------------------------------------------------------------------------------------*/
void copy_strided(char *to, const int64_t *to_strides, const char *from, const int64_t *from_strides,
                  const int64_t *dims, size_t rank, size_t element) {
  if (rank == 0) {
    memcpy(to, from, element);
    return;
  }
  if (rank == 1 && to_strides[0] == (int64_t)element && from_strides[0] == (int64_t)element) {
    if (dims[0]) memcpy(to, from, (size_t)dims[0] * element);
    return;
  }
  for (int64_t i = 0; i < dims[0]; ++i)
    copy_strided(to + i * to_strides[0], to_strides + 1, from + i * from_strides[0], from_strides + 1, dims + 1,
                 rank - 1, element);
}
