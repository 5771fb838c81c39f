/* Numbers for handles and callbacks: an address may be used again, a number never is. */
#ifndef PJRT_LAYER_RECORD_HANDLES_H_
#define PJRT_LAYER_RECORD_HANDLES_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct record_key {
  const void *address;
  const void *second; /* of a callback its user data; of a handle null */
  int32_t kind;
} record_key;

typedef struct record_numbers {
  struct record_number {
    record_key key;
    uint64_t number; /* 0 marks a free place */
    uint64_t value;  /* a fact about the object that the layer keeps; 0 at first */
  } *places;
  size_t num_places, num_used;
  uint64_t last;
} record_numbers;

/* The number of the object, a new one where it has none; 0 when memory is out. */
uint64_t numbers_get(record_numbers *numbers, record_key key);
/* A new number for a new object, at an address that an older one may have had. */
uint64_t numbers_renew(record_numbers *numbers, record_key key);
/* Gives an object the number that it had, after a call that did not destroy it. */
void numbers_restore(record_numbers *numbers, record_key key, uint64_t number);
/* Forgets an object; returns its number, 0 where it had none. */
uint64_t numbers_remove(record_numbers *numbers, record_key key);
/* The entry of an object, valid until the next change; null where it has no number. */
struct record_number *numbers_find(record_numbers *numbers, record_key key);

#endif /* PJRT_LAYER_RECORD_HANDLES_H_ */
