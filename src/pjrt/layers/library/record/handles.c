#include "handles.h"

#include <stdlib.h>
#include <string.h>

static size_t place_of(const record_numbers *numbers, record_key key) {
  const uint64_t mixed = ((uintptr_t)key.address ^ (uintptr_t)key.second * 31 ^ (uint64_t)key.kind << 48) *
                         0x9E3779B97F4A7C15u;
  return mixed >> 24 & (numbers->num_places - 1);
}

static bool same(record_key a, record_key b) {
  return a.address == b.address && a.second == b.second && a.kind == b.kind;
}

static bool grow(record_numbers *numbers) {
  if (numbers->num_used * 2 < numbers->num_places) return true;
  record_numbers larger = {.num_places = numbers->num_places ? numbers->num_places * 2 : 256};
  larger.places = calloc(larger.num_places, sizeof *larger.places);
  if (larger.places == NULL) return false;
  for (size_t i = 0; i < numbers->num_places; i++) {
    if (numbers->places[i].number == 0) continue;
    size_t at = place_of(&larger, numbers->places[i].key);
    while (larger.places[at].number != 0) at = (at + 1) & (larger.num_places - 1);
    larger.places[at] = numbers->places[i];
  }
  free(numbers->places);
  numbers->places = larger.places;
  numbers->num_places = larger.num_places;
  return true;
}

struct record_number *numbers_find(record_numbers *numbers, record_key key) {
  if (numbers->num_places == 0) return NULL;
  for (size_t at = place_of(numbers, key);; at = (at + 1) & (numbers->num_places - 1)) {
    struct record_number *entry = &numbers->places[at];
    if (entry->number == 0) return NULL;
    if (same(entry->key, key)) return entry;
  }
}

static uint64_t put(record_numbers *numbers, record_key key, uint64_t number) {
  struct record_number *entry = numbers_find(numbers, key);
  if (entry == NULL) {
    if (!grow(numbers)) return 0;
    size_t at = place_of(numbers, key);
    while (numbers->places[at].number != 0) at = (at + 1) & (numbers->num_places - 1);
    entry = &numbers->places[at];
    numbers->num_used++;
  }
  *entry = (struct record_number){key, number, 0};
  return number;
}

uint64_t numbers_get(record_numbers *numbers, record_key key) {
  const struct record_number *entry = numbers_find(numbers, key);
  return entry != NULL ? entry->number : put(numbers, key, ++numbers->last);
}

uint64_t numbers_renew(record_numbers *numbers, record_key key) { return put(numbers, key, ++numbers->last); }

void numbers_restore(record_numbers *numbers, record_key key, uint64_t number) {
  if (numbers_find(numbers, key) == NULL) put(numbers, key, number);
}

uint64_t numbers_remove(record_numbers *numbers, record_key key) {
  struct record_number *entry = numbers_find(numbers, key);
  if (entry == NULL) return 0;
  const uint64_t number = entry->number;
  size_t hole = (size_t)(entry - numbers->places);
  numbers->num_used--;
  /* Entries behind the hole that began before it move up, so that a search never ends too early. */
  for (size_t at = (hole + 1) & (numbers->num_places - 1); numbers->places[at].number != 0;
       at = (at + 1) & (numbers->num_places - 1)) {
    const size_t wanted = place_of(numbers, numbers->places[at].key);
    const size_t from_wanted = (at - wanted) & (numbers->num_places - 1);
    const size_t from_hole = (at - hole) & (numbers->num_places - 1);
    if (from_wanted < from_hole) continue;
    numbers->places[hole] = numbers->places[at];
    hole = at;
  }
  memset(&numbers->places[hole], 0, sizeof numbers->places[hole]);
  return number;
}
