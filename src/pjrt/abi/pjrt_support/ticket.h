/* The argument of a callback that a plugin makes once: a number in the place of a pointer.
 *
 * A plugin that calls back twice would find freed memory behind a pointer. A ticket is redeemed by the first call; any
 * further call with it finds nothing, also after another ticket has taken its place in the table. */
#ifndef PJRT_SUPPORT_TICKET_H_
#define PJRT_SUPPORT_TICKET_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "system.h"

typedef struct pjrt_ticket_place {
  void *thing;     /* null while the place is free */
  uint32_t serial; /* how often the place was given out */
  uint32_t next_free;
} pjrt_ticket_place;

static pjrt_mutex pjrt_ticket_mutex = PJRT_MUTEX_INITIALIZER;
static pjrt_ticket_place *pjrt_ticket_places;
static uint32_t pjrt_ticket_number, pjrt_ticket_first_free; /* places are counted from 1: 0 is none */

/* A ticket for a thing that is not null; null without memory. */
static inline void *pjrt_ticket_new(void *thing) {
  void *ticket = NULL;
  pjrt_mutex_lock(&pjrt_ticket_mutex);
  if (pjrt_ticket_first_free == 0) {
    const uint32_t number = pjrt_ticket_number == 0 ? 64 : 2 * pjrt_ticket_number;
    pjrt_ticket_place *more =
        number > pjrt_ticket_number
            ? (pjrt_ticket_place *)realloc(pjrt_ticket_places, (number + (size_t)1) * sizeof *more)
            : NULL;
    if (more != NULL) {
      pjrt_ticket_places = more;
      for (uint32_t place = number; place > pjrt_ticket_number; place--) {
        more[place] = (pjrt_ticket_place){NULL, 0, pjrt_ticket_first_free};
        pjrt_ticket_first_free = place;
      }
      pjrt_ticket_number = number;
    }
  }
  if (pjrt_ticket_first_free != 0) {
    const uint32_t index = pjrt_ticket_first_free;
    pjrt_ticket_place *place = &pjrt_ticket_places[index];
    pjrt_ticket_first_free = place->next_free;
    place->thing = thing;
    ticket = (void *)(uintptr_t)((uint64_t)++place->serial << 32 | index);
  }
  pjrt_mutex_unlock(&pjrt_ticket_mutex);
  return ticket;
}

/* Returns the thing behind a ticket, and spends the ticket; null if it was spent before. */
static inline void *pjrt_ticket_redeem(void *ticket) {
  const uint64_t number = (uint64_t)(uintptr_t)ticket;
  const uint32_t index = (uint32_t)number, serial = (uint32_t)(number >> 32);
  void *thing = NULL;
  pjrt_mutex_lock(&pjrt_ticket_mutex);
  if (index != 0 && index <= pjrt_ticket_number) {
    pjrt_ticket_place *place = &pjrt_ticket_places[index];
    if (place->thing != NULL && place->serial == serial) {
      thing = place->thing;
      place->thing = NULL;
      place->next_free = pjrt_ticket_first_free;
      pjrt_ticket_first_free = index;
    }
  }
  pjrt_mutex_unlock(&pjrt_ticket_mutex);
  return thing;
}

#endif /* PJRT_SUPPORT_TICKET_H_ */
