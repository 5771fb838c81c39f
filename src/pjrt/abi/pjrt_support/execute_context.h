/* Execute contexts of exported plugins: the data that a framework adds to one, kept without Python.
 *
 * JAX makes a context for every execution, adds one address to it and destroys it. Most devices never look at it, so
 * nothing of that may enter Python. A device that does gets a context of its own with the same data. */
#ifndef PJRT_SUPPORT_EXECUTE_CONTEXT_H_
#define PJRT_SUPPORT_EXECUTE_CONTEXT_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct pjrt_context_data {
  int64_t type_id;
  void *address;
  struct pjrt_context_data *next; /* the one that was added before */
} pjrt_context_data;

typedef struct pjrt_context {
  _Atomic(pjrt_context_data *) last;
} pjrt_context;

/* An empty context; null without memory. */
static inline pjrt_context *pjrt_context_new(void) {
  pjrt_context *context = (pjrt_context *)malloc(sizeof *context);
  if (context != NULL) atomic_init(&context->last, NULL);
  return context;
}

static inline const pjrt_context_data *pjrt_context_last(pjrt_context *context) { return atomic_load(&context->last); }

static inline bool pjrt_context_has(pjrt_context *context, int64_t type_id) {
  const pjrt_context_data *data = pjrt_context_last(context);
  while (data != NULL && data->type_id != type_id) data = data->next;
  return data != NULL;
}

/* Adds an address from any thread; returns false without memory. */
static inline bool pjrt_context_add(pjrt_context *context, int64_t type_id, void *address) {
  pjrt_context_data *data = (pjrt_context_data *)malloc(sizeof *data);
  if (data == NULL) return false;
  data->type_id = type_id;
  data->address = address;
  data->next = atomic_load(&context->last);
  while (!atomic_compare_exchange_weak(&context->last, &data->next, data)) {
  }
  return true;
}

static inline void pjrt_context_free(pjrt_context *context) {
  if (context == NULL) return;
  pjrt_context_data *data = atomic_load(&context->last);
  while (data != NULL) {
    pjrt_context_data *next = data->next;
    free(data);
    data = next;
  }
  free(context);
}

#endif /* PJRT_SUPPORT_EXECUTE_CONTEXT_H_ */
