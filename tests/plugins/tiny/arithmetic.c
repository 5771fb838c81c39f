/* Elementwise arithmetic, and the sum across devices. */
#include "tiny.h"

bool arithmetic_supports(PJRT_Buffer_Type type) {
  return (type >= PJRT_Buffer_Type_S8 && type <= PJRT_Buffer_Type_U64) || type == PJRT_Buffer_Type_F32 ||
         type == PJRT_Buffer_Type_F64;
}

/* Integers wrap around: they are added as unsigned numbers of their width. */
#define EACH_TYPE(X)                                                                                                  \
  X(PJRT_Buffer_Type_S8, uint8_t)                                                                                     \
  X(PJRT_Buffer_Type_U8, uint8_t)                                                                                     \
  X(PJRT_Buffer_Type_S16, uint16_t)                                                                                   \
  X(PJRT_Buffer_Type_U16, uint16_t)                                                                                   \
  X(PJRT_Buffer_Type_S32, uint32_t)                                                                                   \
  X(PJRT_Buffer_Type_U32, uint32_t)                                                                                   \
  X(PJRT_Buffer_Type_S64, uint64_t)                                                                                   \
  X(PJRT_Buffer_Type_U64, uint64_t)                                                                                   \
  X(PJRT_Buffer_Type_F32, float)                                                                                      \
  X(PJRT_Buffer_Type_F64, double)

#define DEFINE(tag, type)                                                                                             \
  static void run_##tag(tiny_opcode op, type *out, const type *a, const type *b, int64_t count) {                     \
    for (int64_t i = 0; i < count; ++i) {                                                                             \
      if (op == OP_ADD) out[i] = (type)(a[i] + b[i]);                                                                 \
      else if (op == OP_SUB) out[i] = (type)(a[i] - b[i]);                                                            \
      else if (op == OP_MUL) out[i] = (type)((type)1 * a[i] * b[i]);                                                  \
      else out[i] = (type)(-a[i]);                                                                                    \
    }                                                                                                                 \
  }
EACH_TYPE(DEFINE)

void arithmetic(tiny_opcode op, PJRT_Buffer_Type type, char *out, const char *a, const char *b, int64_t count) {
  switch (type) {
#define CASE(tag, c_type)                                                                                             \
  case tag:                                                                                                           \
    run_##tag(op, (c_type *)out, (const c_type *)a, (const c_type *)b, count);                                        \
    break;
    EACH_TYPE(CASE)
    default:
      break; /* the parser lets no other type through */
  }
}

bool arithmetic_fill(PJRT_Buffer_Type type, char *out, double value, int64_t count) {
  switch (type) {
#define FILL(tag, c_type)                                                                                             \
  case tag:                                                                                                           \
    for (int64_t i = 0; i < count; ++i)                                                                               \
      ((c_type *)out)[i] = tag == PJRT_Buffer_Type_F32 || tag == PJRT_Buffer_Type_F64 ? (c_type)value                 \
                                                                                      : (c_type)(int64_t)value;       \
    return true;
    EACH_TYPE(FILL)
    default:
      return false;
  }
}

/* ---- the sum across devices ---------------------------------------------------------------------------------------*/
struct tiny_meeting {
  atomic_int refs;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
  size_t participants, arrived;
  uint64_t round;
  char *sum, *result;
  tiny_status *failed;
};

tiny_meeting *meeting_make(size_t participants) {
  tiny_meeting *meeting = tiny_calloc(1, sizeof *meeting);
  atomic_init(&meeting->refs, 1);
  pthread_mutex_init(&meeting->mutex, NULL);
  pthread_cond_init(&meeting->changed, NULL);
  meeting->participants = participants;
  return meeting;
}

tiny_meeting *meeting_ref(tiny_meeting *meeting) {
  if (meeting) atomic_fetch_add(&meeting->refs, 1);
  return meeting;
}

void meeting_unref(tiny_meeting *meeting) {
  if (meeting == NULL || atomic_fetch_sub(&meeting->refs, 1) != 1) return;
  status_unref(meeting->failed);
  free(meeting->sum);
  free(meeting->result);
  pthread_cond_destroy(&meeting->changed);
  pthread_mutex_destroy(&meeting->mutex);
  free(meeting);
}

void meeting_fail(tiny_meeting *meeting, tiny_status *borrowed) {
  if (meeting == NULL) return;
  pthread_mutex_lock(&meeting->mutex);
  if (meeting->failed == NULL) meeting->failed = status_ref(borrowed);
  pthread_cond_broadcast(&meeting->changed);
  pthread_mutex_unlock(&meeting->mutex);
}

tiny_status *meeting_all_reduce(tiny_meeting *meeting, PJRT_Buffer_Type type, char *data, int64_t count) {
  size_t size = (size_t)count * element_size(type);
  pthread_mutex_lock(&meeting->mutex);
  uint64_t round = meeting->round;
  if (meeting->sum == NULL) meeting->sum = tiny_memdup(data, size);
  else arithmetic(OP_ADD, type, meeting->sum, meeting->sum, data, count);
  if (++meeting->arrived == meeting->participants) {
    free(meeting->result); /* everybody has read it: they all arrived here again */
    meeting->result = meeting->sum;
    meeting->sum = NULL;
    meeting->arrived = 0;
    ++meeting->round;
    pthread_cond_broadcast(&meeting->changed);
  }
  while (meeting->round == round && meeting->failed == NULL) pthread_cond_wait(&meeting->changed, &meeting->mutex);
  tiny_status *status = meeting->round == round ? status_ref(meeting->failed) : NULL;
  if (status == NULL && size) memcpy(data, meeting->result, size);
  pthread_mutex_unlock(&meeting->mutex);
  return status;
}
