/* What is left of a client when it is destroyed. */
#include <inttypes.h>

#include "validate.h"

enum { MOST_GROUPS = 256 };

/* Objects of one kind that were made at the same place. */
typedef struct leak_group {
  pjrt_handle_record first;
  uint64_t count;
} leak_group;

typedef struct leak_search {
  const void *client, *topology;
  bool after;           /* the client was destroyed: now for the events that are left */
  uint32_t generation;  /* younger objects are of a new client at the same address */
  pjrt_call_site ended;
  leak_group groups[MOST_GROUPS];
  size_t num_groups;
  uint64_t others; /* that fit into no group */
} leak_search;

static bool is_leak(const pjrt_handle_record *record) {
  return record->kind != PJRT_HANDLE_Client && record->kind != PJRT_HANDLE_Error && !record->borrowed &&
         pjrt_handles[record->kind].destroyed_by >= 0;
}

static void add_leak(leak_search *search, const pjrt_handle_record *record) {
  for (size_t i = 0; i < search->num_groups; i++) {
    leak_group *group = &search->groups[i];
    if (group->first.kind == record->kind && group->first.made.function == record->made.function &&
        group->first.made.stack == record->made.stack) {
      group->count++;
      return;
    }
  }
  if (search->num_groups == MOST_GROUPS) {
    search->others++;
    return;
  }
  search->groups[search->num_groups].first = *record;
  search->groups[search->num_groups++].count = 1;
}

/* The record stays in its chain: it only changes its state. What the client owns ends with it. */
static void visit_object(pjrt_handle_record *record, void *arg) {
  leak_search *search = arg;
  if (record->state >= PJRT_HANDLE_CONSUMED || record->client_destroyed) return;
  if (search->topology != NULL ? record->owner != search->topology : record->client != search->client) return;
  if (record->kind == PJRT_HANDLE_Client || record->generation > search->generation) return; /* the call itself ends it */
  /* Events may outlive their client, and those that are pending end while it is destroyed: their callbacks destroy them. */
  if (record->kind == PJRT_HANDLE_Event) {
    if (!search->after || search->topology != NULL) return;
    add_leak(search, record);
    record->client = NULL;
    return;
  }
  if (search->topology == NULL && is_leak(record)) add_leak(search, record);
  if (record->borrowed) {
    record->state = PJRT_HANDLE_DESTROYED;
    record->ended = search->ended;
  } else {
    record->client = NULL;
    record->client_destroyed = true;
    record->ended = search->ended;
  }
}

static void report(pjrt_check *check, const leak_search *search) {
  for (size_t i = 0; i < search->num_groups; i++) {
    const leak_group *group = &search->groups[i];
    const bool is_event = group->first.kind == PJRT_HANDLE_Event;
    pjrt_found(check, is_event ? PJRT_RULE_EVENT_LEFT : PJRT_RULE_LEAK, "client", &group->first,
               "%" PRIu64 " %s of this client, made by %s, %s not destroyed", group->count,
               pjrt_handles[group->first.kind].name, pjrt_call_name(group->first.made.function),
               group->count == 1 ? "was" : "were");
  }
  if (search->others != 0)
    pjrt_found(check, PJRT_RULE_LEAK, "client", NULL, "%" PRIu64 " more objects were not destroyed", search->others);
}

static void end_objects(pjrt_check *check, const void *client, const void *topology, bool after) {
  leak_search *search = calloc(1, sizeof *search);
  if (search == NULL) return;
  search->client = client;
  search->topology = topology;
  search->after = after;
  search->generation = check->generation;
  search->ended = pjrt_call_site_of(check);
  pjrt_handles_visit(&check->validate->handles, visit_object, search);
  atomic_fetch_add(&check->validate->handles.owners_ended, 1);
  report(check, search);
  free(search);
}

void pjrt_end_client(pjrt_check *check, void *client) {
  check->generation = atomic_load(&check->validate->handles.generations);
  end_objects(check, client, NULL, false);
}

void pjrt_client_ended(pjrt_check *check, void *client) { end_objects(check, client, NULL, true); }

static void visit_client(pjrt_handle_record *record, void *arg) {
  leak_search *search = arg;
  if (record->kind != PJRT_HANDLE_Client || record->state >= PJRT_HANDLE_CONSUMED) return;
  if (search->num_groups < MOST_GROUPS) search->groups[search->num_groups++].first = *record;
}

void pjrt_process_ends(pjrt_validate *validate) {
  pjrt_frame frame = {validate->stack, &pjrt_functions[PJRT_FUNCTION_Client_Destroy], PJRT_FUNCTION_Client_Destroy,
                      -1, false, NULL};
  pjrt_check check = {.validate = validate, .frame = &frame, .element = -1};
  leak_search *search = calloc(1, sizeof *search);
  if (search == NULL) return;
  pjrt_handles_visit(&validate->handles, visit_client, search);
  for (size_t i = 0; i < search->num_groups; i++)
    pjrt_found(&check, PJRT_RULE_CLIENT_LEFT, "client", &search->groups[i].first, "it was not called before the process ended");
  free(search);
}

void pjrt_end_topology(pjrt_check *check, void *topology) {
  check->generation = UINT32_MAX;
  end_objects(check, NULL, topology, true);
}
