/* The errors of exported plugins: made and read without Python, shared by counting. */
#ifndef PJRT_SUPPORT_ERROR_H_
#define PJRT_SUPPORT_ERROR_H_

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "pjrt_abi.h"

typedef struct pjrt_payload {
  char *key;
  size_t key_size;
  char *value;
  size_t value_size;
  struct pjrt_payload *next;
} pjrt_payload;

typedef struct pjrt_error {
  PJRT_Error base; /* the table of functions, first, as readers since 0.114 expect */
  atomic_int references;
  PJRT_Error_Code code;
  char *message;
  size_t message_size;
  pjrt_payload *payloads;
} pjrt_error;

static inline char *pjrt_copy_bytes(const char *data, size_t size) {
  char *copy = (char *)malloc(size + 1);
  if (copy == NULL) return NULL;
  if (size) memcpy(copy, data, size);
  copy[size] = 0;
  return copy;
}

static inline void pjrt_error_release(PJRT_Error *handle) {
  pjrt_error *error = (pjrt_error *)handle;
  if (error == NULL || error->references < 0) return; /* no_memory, below, is never freed */
  if (atomic_fetch_sub(&error->references, 1) != 1) return;
  while (error->payloads != NULL) {
    pjrt_payload *payload = error->payloads;
    error->payloads = payload->next;
    free(payload->key);
    free(payload->value);
    free(payload);
  }
  free(error->message);
  free(error);
}

static inline void pjrt_error_read(const PJRT_Error *handle, const char **message, size_t *size) {
  const pjrt_error *error = (const pjrt_error *)handle;
  *message = error->message;
  *size = error->message_size;
}

static inline PJRT_Error_Code pjrt_error_code(const PJRT_Error *handle) { return ((const pjrt_error *)handle)->code; }

static inline void pjrt_error_visit(const PJRT_Error *handle, PJRT_Error_PayloadVisitor visitor, void *user_arg) {
  for (const pjrt_payload *p = ((const pjrt_error *)handle)->payloads; p != NULL; p = p->next)
    visitor(p->key, p->key_size, p->value, p->value_size, user_arg);
}

static inline const PJRT_Error_FunctionTable *pjrt_error_table(void) {
  static const PJRT_Error_FunctionTable table = {
      PJRT_Error_FunctionTable_STRUCT_SIZE, sizeof(pjrt_error), NULL,
      pjrt_error_release, pjrt_error_read, pjrt_error_code, pjrt_error_visit};
  return &table;
}

/* Never null: without memory for a new error, a static one is returned. */
static inline PJRT_Error *pjrt_error_new(PJRT_Error_Code code, const char *message, size_t size) {
  static pjrt_error no_memory;
  pjrt_error *error = (pjrt_error *)calloc(1, sizeof *error);
  if (error != NULL) error->message = pjrt_copy_bytes(message, size);
  if (error == NULL || error->message == NULL) {
    free(error);
    no_memory.base.vtable = pjrt_error_table();
    no_memory.references = -1;
    no_memory.code = PJRT_Error_Code_RESOURCE_EXHAUSTED;
    no_memory.message = (char *)"no memory for an error's message";
    no_memory.message_size = strlen(no_memory.message);
    return &no_memory.base;
  }
  error->base.vtable = pjrt_error_table();
  atomic_init(&error->references, 1);
  error->code = code;
  error->message_size = size;
  return &error->base;
}

static inline PJRT_Error *pjrt_error_of_text(PJRT_Error_Code code, const char *text) {
  return pjrt_error_new(code, text, strlen(text));
}

static inline PJRT_Error *pjrt_error_share(PJRT_Error *handle) {
  pjrt_error *error = (pjrt_error *)handle;
  if (error != NULL && error->references >= 0) atomic_fetch_add(&error->references, 1);
  return handle;
}

/* Only on an error that is not shared yet; without memory the payload is left out. */
static inline void pjrt_error_add_payload(
    PJRT_Error *handle, const char *key, size_t key_size, const char *value, size_t value_size) {
  pjrt_error *error = (pjrt_error *)handle;
  pjrt_payload *payload = error->references < 0 ? NULL : (pjrt_payload *)calloc(1, sizeof *payload);
  if (payload == NULL) return;
  payload->key = pjrt_copy_bytes(key, key_size);
  payload->key_size = key_size;
  payload->value = pjrt_copy_bytes(value, value_size);
  payload->value_size = value_size;
  payload->next = error->payloads;
  error->payloads = payload;
}

#endif /* PJRT_SUPPORT_ERROR_H_ */
