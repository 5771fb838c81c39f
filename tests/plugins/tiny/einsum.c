/* Sums of products over named dimensions: matrix products, transposes, sums and broadcasts in one operation.
 *
 *   let z = einsum ab,bc->ac f32[2,4] x y     z[a,c] = the sum over b of x[a,b] * y[b,c]
 *
 * A letter of the result that no operand has repeats the value along that dimension. */
#include "tiny.h"

enum { MAX_LETTERS = 26 };

typedef struct sum {
  int64_t sizes[MAX_LETTERS];
  int64_t strides[3][MAX_LETTERS]; /* in elements, of the operands and of the result */
  int order[MAX_LETTERS];          /* the letters of the result, then the others */
  int num_letters, num_results;
} sum;

/* Enters the letters of one array, from `spec` on; returns the place behind them, or null where they do not fit. */
static const char *enter(sum *s, const char *spec, const tiny_shape *shape, int which) {
  int64_t stride = shape_elements(shape);
  for (size_t i = 0; i < shape->rank; ++i, ++spec) {
    if (*spec < 'a' || *spec > 'z') return NULL;
    int letter = *spec - 'a';
    if (s->sizes[letter] >= 0 && s->sizes[letter] != shape->dims[i]) return NULL;
    bool seen = s->sizes[letter] >= 0;
    s->sizes[letter] = shape->dims[i];
    stride = shape->dims[i] ? stride / shape->dims[i] : 0;
    s->strides[which][letter] += stride;
    if (!seen) s->order[s->num_letters++] = letter;
  }
  return spec;
}

static bool make_sum(sum *s, const tiny_op *op, const tiny_value *values, const tiny_shape *result) {
  *s = (sum){0};
  for (int i = 0; i < MAX_LETTERS; ++i) s->sizes[i] = -1;
  const char *arrow = strstr(op->text, "->");
  const char *end = arrow ? enter(s, arrow + 2, result, 2) : NULL;
  if (end == NULL || *end) return false;
  s->num_results = s->num_letters;
  const char *at = op->text;
  for (size_t i = 0; i < op->num_operands; ++i) {
    if (i && *at++ != ',') return false;
    at = enter(s, at, &values[op->operands[i]].shape, (int)i);
    if (at == NULL) return false;
  }
  return at == arrow;
}

bool einsum_fits(const tiny_op *op, const tiny_value *values, const tiny_shape *result) {
  sum s;
  if (result->type != PJRT_Buffer_Type_F32 || op->num_operands < 1 || op->num_operands > 2) return false;
  for (size_t i = 0; i < op->num_operands; ++i) {
    if (values[op->operands[i]].shape.type != PJRT_Buffer_Type_F32) return false;
  }
  return make_sum(&s, op, values, result);
}

/* Steps to the next element of some dimensions, the last of which is the fastest. False behind the last element. */
static bool step(const sum *s, int64_t *index, int64_t offsets[3], int first, int last) {
  for (int i = last - 1; i >= first; --i) {
    int letter = s->order[i];
    for (int k = 0; k < 3; ++k) offsets[k] += s->strides[k][letter];
    if (++index[letter] < s->sizes[letter]) return true;
    for (int k = 0; k < 3; ++k) offsets[k] -= s->strides[k][letter] * s->sizes[letter];
    index[letter] = 0;
  }
  return false;
}

void einsum_run(const tiny_op *op, const tiny_value *values, char *const *data) {
  sum s;
  make_sum(&s, op, values, &values[op->result].shape);
  const float *a = (const float *)data[op->operands[0]];
  const float *b = op->num_operands > 1 ? (const float *)data[op->operands[1]] : NULL;
  float *out = (float *)data[op->result];
  int64_t index[MAX_LETTERS] = {0}, offsets[3] = {0};
  bool empty = false;
  for (int i = s.num_results; i < s.num_letters; ++i) empty = empty || s.sizes[s.order[i]] == 0;
  if (shape_elements(&values[op->result].shape) == 0) return;
  do {
    double total = 0;
    if (!empty) {
      do total += (double)a[offsets[0]] * (b ? (double)b[offsets[1]] : 1.0);
      while (step(&s, index, offsets, s.num_results, s.num_letters));
    }
    out[offsets[2]] = (float)total;
  } while (step(&s, index, offsets, 0, s.num_results));
}
