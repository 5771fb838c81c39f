/* Records of callbacks: what a callback was before ours took its place. */
#ifndef PJRT_LAYER_CALLBACK_RECORDS_H_
#define PJRT_LAYER_CALLBACK_RECORDS_H_

#include "layer.h"

/* The user data that the other side gets instead of its own: a number, never an address. It names a record and one use
 * of it, so that a call after the end of that use is noticed, and reads nothing that is freed. 0: none. */
typedef uintptr_t pjrt_token;

typedef struct pjrt_record {
  pjrt_callback_origin origin;
  pjrt_stack *stack;
  uint16_t kind; /* PJRT_CALLBACK_… */
  bool up;       /* called by the plugin */
  bool once;     /* it ends with its call */
} pjrt_record;

/* A new record with these contents; 0 if there are too many. */
pjrt_token pjrt_record_new(const pjrt_record *contents);
/* Copies the record of a token; ends its use if it is for one call. Returns false, with the stack of whatever had the
 * record last, if its use has ended. */
bool pjrt_record_use(pjrt_token token, pjrt_record *contents);
/* Ends the use of a record; nothing if it has ended already. */
void pjrt_record_end(pjrt_token token);
/* Ends the use later, after some thousand others: for callbacks that may come a little after what they belong to. */
void pjrt_record_retire(pjrt_token token);
/* The number of records in use, without those that will end later. */
size_t pjrt_num_records(void);

#endif /* PJRT_LAYER_CALLBACK_RECORDS_H_ */
