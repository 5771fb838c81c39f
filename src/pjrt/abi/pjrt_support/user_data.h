/* Data that a framework attaches to a memory of an exported plugin: by key, freed with its destructor. */
#ifndef PJRT_SUPPORT_USER_DATA_H_
#define PJRT_SUPPORT_USER_DATA_H_

#include <stdlib.h>

#include "pjrt_abi.h"
#include "system.h"

typedef struct pjrt_user_data {
  const void *key;
  void *data;
  void (*destructor)(void *);
  struct pjrt_user_data *next;
} pjrt_user_data;

/* The head of a memory's handle; the rest belongs to the exporter. */
typedef struct pjrt_memory_head {
  PJRT_Memory base;
  void *record;
  pjrt_user_data *user_data;
} pjrt_memory_head;

static pjrt_mutex pjrt_user_data_mutex = PJRT_MUTEX_INITIALIZER;

static void *pjrt_get_user_data(PJRT_Memory *memory, const void *key) {
  void *data = NULL;
  pjrt_mutex_lock(&pjrt_user_data_mutex);
  for (pjrt_user_data *one = ((pjrt_memory_head *)memory)->user_data; one != NULL; one = one->next)
    if (one->key == key) data = one->data;
  pjrt_mutex_unlock(&pjrt_user_data_mutex);
  return data;
}

/* Where a key has data already, the new data replaces it, and the old data is destroyed. */
static void pjrt_set_user_data(PJRT_Memory *memory, const void *key, void *data, void (*destructor)(void *)) {
  pjrt_memory_head *head = (pjrt_memory_head *)memory;
  pjrt_user_data old = {NULL, NULL, NULL, NULL};
  pjrt_user_data *fresh = (pjrt_user_data *)calloc(1, sizeof *fresh);
  pjrt_mutex_lock(&pjrt_user_data_mutex);
  pjrt_user_data *one = head->user_data;
  while (one != NULL && one->key != key) one = one->next;
  if (one != NULL) {
    old = *one;
  } else if (fresh != NULL) {
    one = fresh;
    fresh = NULL;
    one->key = key;
    one->next = head->user_data;
    head->user_data = one;
  }
  if (one != NULL) {
    one->data = data;
    one->destructor = destructor;
  }
  pjrt_mutex_unlock(&pjrt_user_data_mutex);
  free(fresh);
  if (old.destructor != NULL) old.destructor(old.data);
}

static inline const PJRT_Memory_FunctionTable *pjrt_memory_table(void) {
  static const PJRT_Memory_FunctionTable table = {
      PJRT_Memory_FunctionTable_STRUCT_SIZE, NULL, sizeof(pjrt_memory_head), pjrt_get_user_data, pjrt_set_user_data};
  return &table;
}

static inline void pjrt_user_data_free(void **list) {
  pjrt_user_data *one = (pjrt_user_data *)*list;
  *list = NULL;
  while (one != NULL) {
    pjrt_user_data *next = one->next;
    if (one->destructor != NULL) one->destructor(one->data);
    free(one);
    one = next;
  }
}

#endif /* PJRT_SUPPORT_USER_DATA_H_ */
