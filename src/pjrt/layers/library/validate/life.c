/* Handles in arguments and results: whether they live, what they belong to, who uses them. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include <inttypes.h>

#include "validate.h"

#define F(name) PJRT_FUNCTION_##name

/* ---- what is allowed in a state -----------------------------------------------------------------------------------*/
/* Functions that need the contents of a buffer or an executable. */
static bool needs_contents(int function) {
  switch (function) {
    case F(Buffer_ToHostBuffer):
    case F(Buffer_CopyRawToHost):
    case F(Buffer_CopyRawToHostFuture):
    case F(Buffer_CopyToDevice):
    case F(Buffer_CopyToMemory):
    case F(Buffer_Bitcast):
    case F(Buffer_UnsafePointer):
    case F(Buffer_OpaqueDeviceMemoryDataPointer):
    case F(Buffer_IncreaseExternalReferenceCount):
    case F(Buffer_DonateWithControlDependency):
    case F(LoadedExecutable_Execute):
    case F(RawBuffer_CreateRawAliasOfBuffer):
    case F(Transfers_PJRT_Buffer_CopyToRemoteDevice):
    case F(Transfers_PJRT_Client_CrossHostSendBuffers): return true;
    default: return false;
  }
}

static bool is_allowed_after_donation(int function) {
  return function == F(Buffer_Destroy) || function == F(Buffer_Delete) || function == F(Buffer_IsDeleted) ||
         function == F(Buffer_DecreaseExternalReferenceCount);
}

/* Whether the call destroys the handle. Functions that start and stop a profiler share the struct of the one that does. */
bool pjrt_destroys(const pjrt_check *check, const pjrt_field *field) {
  if (!(field->marks & PJRT_MARK_DESTROYS)) return false;
  const int16_t destroyer = pjrt_handles[field->type].destroyed_by;
  return check->callback || destroyer < 0 || destroyer == (int16_t)check->frame->index;
}

/* The rule that a use of this handle breaks; PJRT_NUM_RULES: none. */
static pjrt_rule_id broken_rule(const pjrt_check *check, const pjrt_handle_record *record, bool destroys) {
  const int function = check->callback ? -1 : check->frame->index;
  switch (record->state) {
    case PJRT_HANDLE_DESTROYED: return destroys ? PJRT_RULE_DOUBLE_DESTROY : PJRT_RULE_USE_AFTER_DESTROY;
    case PJRT_HANDLE_CONSUMED:
      /* The plugin destroys an event that it was given for a remote copy, but the caller sets it. */
      if (function == F(Event_Set)) break;
      return PJRT_RULE_USE_AFTER_CONSUME;
    case PJRT_HANDLE_DONATED:
      if (!is_allowed_after_donation(function)) return PJRT_RULE_USE_AFTER_DONATION;
      break;
    case PJRT_HANDLE_DELETED:
      if (needs_contents(function) && record->references == 0) return PJRT_RULE_USE_AFTER_DELETE;
      break;
    default: break;
  }
  if (destroys && record->borrowed) return PJRT_RULE_DESTROYS_BORROWED;
  if (record->client_destroyed && !destroys) return PJRT_RULE_USE_AFTER_CLIENT;
  return PJRT_NUM_RULES;
}

/* ---- unknown handles ----------------------------------------------------------------------------------------------*/
/* Whether any function gives out handles of this kind; others come from the framework. */
static bool is_given_out(int16_t kind) {
  static _Atomic uint64_t known;
  if (atomic_load(&known) == 0) {
    uint64_t bits = UINT64_C(1) << 63;
    for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
      const pjrt_struct *type = pjrt_functions[i].args;
      for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
        const bool handles = field->kind == PJRT_KIND_HANDLE || field->element == PJRT_KIND_HANDLE;
        if (handles && (field->direction != PJRT_IN || (field->marks & PJRT_MARK_FILLS))) bits |= UINT64_C(1) << field->type;
      }
    }
    atomic_store(&known, bits);
  }
  return atomic_load(&known) >> kind & 1;
}
_Static_assert(PJRT_NUM_HANDLES < 63, "the kinds of handles must fit into the bits of is_given_out");

static bool belongs_to_another(pjrt_check *check, void *handle, int16_t kind, pjrt_handle_record *copy) {
  for (pjrt_validate *each = pjrt_first_validate(); each != NULL; each = each->next) {
    if (each == check->validate) continue;
    pjrt_handle_shard *shard = pjrt_handles_lock(&each->handles, handle);
    const pjrt_handle_record *record = pjrt_handles_find(shard, handle, kind);
    const bool live = record != NULL && record->state < PJRT_HANDLE_CONSUMED;
    if (live) *copy = *record;
    pjrt_handles_unlock(shard);
    if (live) return true;
  }
  return false;
}

static void report_unknown(pjrt_check *check, const pjrt_field *field, const char *name, void *handle,
                           const pjrt_handle_record *other) {
  const char *kind = pjrt_handles[field->type].name;
  pjrt_handle_record copy;
  if (other != NULL && other->state < PJRT_HANDLE_CONSUMED) {
    pjrt_found(check, PJRT_RULE_WRONG_KIND, name, other, "expected a %s, got a %s", kind,
               pjrt_handles[other->kind].name);
    return;
  }
  if (belongs_to_another(check, handle, field->type, &copy)) {
    pjrt_found(check, PJRT_RULE_FOREIGN_PLUGIN, name, &copy, "the %s at 0x%" PRIxPTR " is of another plugin", kind,
               (uintptr_t)handle);
    return;
  }
  /* Errors that callbacks make with PJRT_CallbackError, and handles of extensions without a description, are not seen. */
  const bool unseen = field->type == PJRT_HANDLE_Error || !is_given_out(field->type) ||
                      !check->validate->knows_every_extension;
  const pjrt_memory_range first = {handle, sizeof(void *)};
  if (unseen && pjrt_readable(&first, 1)) return;
  pjrt_found(check, PJRT_RULE_UNKNOWN_HANDLE, name, NULL, "0x%" PRIxPTR " was never returned as a %s by this plugin",
             (uintptr_t)handle, kind);
}

/* ---- handles in arguments -----------------------------------------------------------------------------------------*/
/* Calls in which another thread may destroy the handle: the callback of OnReady does so, and may run during OnReady. */
static bool keeps_alive(const pjrt_check *check) {
  return !check->callback && check->frame->index != F(Event_OnReady);
}

static void note_use(pjrt_check *check, pjrt_handle_record *record) {
  if (check->num_uses == PJRT_MOST_USES || !keeps_alive(check)) return;
  atomic_fetch_add_explicit(&record->uses, 1, memory_order_relaxed);
  record->used = (pjrt_call_site){(int16_t)check->frame->index, 0, pjrt_thread_id()};
  check->uses[check->num_uses++] = record;
}

void pjrt_release_uses(pjrt_check *check) {
  for (uint16_t i = 0; i < check->num_uses; i++)
    atomic_fetch_sub_explicit(&check->uses[i]->uses, 1, memory_order_release);
  check->num_uses = 0;
}

static const char *with_element(const pjrt_check *check, const char *name, char *buffer, size_t size) {
  if (check->element < 0) return name;
  snprintf(buffer, size, "%s[%" PRId64 "]", name, check->element);
  return buffer;
}

static void check_client(pjrt_check *check, const pjrt_field *field, const char *name,
                         const pjrt_handle_record *record) {
  if (record->client == NULL) return;
  if (check->client == NULL) {
    check->client = record->client;
    check->client_field = field->name;
  } else if (check->client != record->client) {
    pjrt_found(check, PJRT_RULE_FOREIGN_CLIENT, name, record,
               "it is of client 0x%" PRIxPTR ", but %s is of client 0x%" PRIxPTR, (uintptr_t)record->client,
               check->client_field, (uintptr_t)check->client);
  }
}

static void report_state(pjrt_check *check, pjrt_rule_id rule, const char *name, const pjrt_handle_record *record) {
  static const char *const ends[] = {"outlived its client, which ended with", "was deleted by", "was donated to",
                                     "was taken over by", "was destroyed by"};
  const char *kind = pjrt_handles[record->kind].name;
  if (rule == PJRT_RULE_DESTROYS_BORROWED)
    pjrt_found(check, rule, name, record, "the %s at 0x%" PRIxPTR " of %s belongs to another object", kind,
               (uintptr_t)record->address, pjrt_call_name(record->made.function));
  else
    pjrt_found(check, rule, name, record, "the %s at 0x%" PRIxPTR " of %s %s %s", kind, (uintptr_t)record->address,
               pjrt_call_name(record->made.function),
               ends[rule == PJRT_RULE_USE_AFTER_CLIENT ? PJRT_HANDLE_LIVE : record->state],
               pjrt_call_name(record->ended.function));
}

void pjrt_check_handle(pjrt_check *check, const pjrt_field *field, const char *name, void *handle) {
  const bool destroys = pjrt_destroys(check, field);
  char buffer[256];
  if (handle == NULL) {
    if (!(field->marks & PJRT_MARK_NULLABLE) || check->element >= 0)
      pjrt_found(check, PJRT_RULE_NULL_HANDLE, with_element(check, name, buffer, sizeof buffer), NULL, "it is null");
    return;
  }
  if (field->type == PJRT_HANDLE_Error && pjrt_is_layer_error(handle)) return;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, handle);
  pjrt_handle_record *record = pjrt_handles_find(shard, handle, field->type);
  pjrt_handle_record copy;
  if (record == NULL) {
    const pjrt_handle_record *other = pjrt_handles_find_other(shard, handle, field->type);
    if (other != NULL) copy = *other;
    pjrt_handles_unlock(shard);
    report_unknown(check, field, with_element(check, name, buffer, sizeof buffer), handle, other ? &copy : NULL);
    return;
  }
  const pjrt_rule_id rule = broken_rule(check, record, destroys);
  const bool foreign = record->client != NULL && check->client != NULL && record->client != check->client;
  const bool busy = destroys && atomic_load_explicit(&record->uses, memory_order_acquire) > 0 &&
                    record->used.thread != pjrt_thread_id() && record->state < PJRT_HANDLE_CONSUMED;
  if (rule == PJRT_NUM_RULES && !foreign && !busy) {
    if (check->client == NULL) check_client(check, field, name, record);
    if (!destroys) note_use(check, record);
    pjrt_handles_unlock(shard);
    return;
  }
  copy = *record;
  pjrt_handles_unlock(shard);
  name = with_element(check, name, buffer, sizeof buffer);
  if (rule != PJRT_NUM_RULES)
    report_state(check, rule, name, &copy);
  else if (busy)
    pjrt_found(check, PJRT_RULE_DESTROYED_DURING_CALL, name, &copy, "thread %" PRIu64 " is in %s with it",
               copy.used.thread, pjrt_call_name(copy.used.function));
  check_client(check, field, name, &copy);
}

void pjrt_end_handle(pjrt_check *check, void *handle, int kind, pjrt_handle_state state) {
  if (handle == NULL) return;
  const pjrt_call_site site = pjrt_call_site_of(check);
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, handle);
  pjrt_handle_record *record = pjrt_handles_find(shard, handle, kind);
  if (record != NULL && record->state < PJRT_HANDLE_CONSUMED && record->state < state) {
    if (state >= PJRT_HANDLE_CONSUMED) {
      pjrt_handles_end(shard, record, state, site);
    } else {
      record->state = (uint8_t)state;
      record->ended = site;
    }
  }
  pjrt_handles_unlock(shard);
}

/* ---- handles in results -------------------------------------------------------------------------------------------*/
static const void *topology_of(const pjrt_check *check) {
  const pjrt_function *function = check->frame->function;
  if (check->callback || function->handle < 0) return NULL;
  const pjrt_field *field = &function->args->fields[function->handle];
  if (field->type != PJRT_HANDLE_TopologyDescription) return NULL;
  return pjrt_pointer_in(field, check->args);
}

/* Errors may be destroyed by their own function table, and objects with a deleter by it: no layer sees that. */
static bool is_seen_to_end(int16_t kind) { return kind != PJRT_HANDLE_Error && pjrt_handles[kind].destroyed_by >= 0; }

void pjrt_note_handle(pjrt_check *check, const pjrt_field *field, const char *name, void *handle) {
  const bool borrowed = field->marks & PJRT_MARK_BORROWS;
  pjrt_handle_record copy;
  bool twice = false;
  if (handle == NULL || (field->type == PJRT_HANDLE_Error && pjrt_is_layer_error(handle))) return;
  pjrt_handle_shard *shard = pjrt_handles_lock(&check->validate->handles, handle);
  pjrt_handle_record *record = pjrt_handles_find(shard, handle, field->type);
  const bool live = record != NULL && record->state < PJRT_HANDLE_CONSUMED;
  if (live && borrowed) {
    pjrt_handles_unlock(shard);
    return;
  }
  /* What was borrowed may have ended with its owner, which no layer sees. */
  if (live && !record->borrowed && is_seen_to_end(field->type)) {
    twice = true;
    copy = *record;
  }
  pjrt_handles_unlock(shard);
  const pjrt_call_site site = pjrt_call_site_of(check); /* enters Python's code, so not with the lock */
  shard = pjrt_handles_lock(&check->validate->handles, handle);
  record = pjrt_handles_add(&check->validate->handles, shard, handle, field->type, site);
  if (record != NULL) {
    record->borrowed = borrowed;
    record->client = field->type == PJRT_HANDLE_Client ? handle : check->client;
    record->owner = borrowed ? topology_of(check) : NULL;
    record->settable = !check->callback && check->frame->index == F(Event_Create);
  }
  pjrt_handles_unlock(shard);
  if (twice)
    pjrt_found(check, PJRT_RULE_RETURNED_TWICE, name, &copy, "0x%" PRIxPTR " is returned as a new %s", (uintptr_t)handle,
               pjrt_handles[field->type].name);
}
