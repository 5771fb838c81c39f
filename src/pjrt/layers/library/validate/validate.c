/* The validate layer: checks every call against the rules of the ABI, and what the plugin returns. */
#include "validate.h"

#include <unistd.h>

#define F(name) PJRT_FUNCTION_##name

static pjrt_mutex all_mutex = PJRT_MUTEX_INITIALIZER;
static pjrt_validate *_Atomic all; /* of this process; none is ever removed */

pjrt_validate *pjrt_first_validate(void) { return atomic_load(&all); }

/* ---- options ------------------------------------------------------------------------------------------------------*/
/* The place of a value among the names, or -1, with the problem described. A missing key leaves `number` alone. */
static bool choose(const char *options, const char *key, const char *const *names, int *number, char *problem,
                   size_t size) {
  char value[64];
  if (!pjrt_option(options, key, value, sizeof value)) return true;
  for (int i = 0; names[i] != NULL; i++) {
    if (strcmp(names[i], value) != 0) continue;
    *number = i;
    return true;
  }
  int used = snprintf(problem, size, "validate: %s is \"%s\", expected one of", key, value);
  for (int i = 0; names[i] != NULL && used > 0 && (size_t)used < size; i++)
    used += snprintf(problem + used, size - (size_t)used, " %s", names[i]);
  return false;
}

static bool read_options(pjrt_validate *validate, const char *options, char *problem, size_t size) {
  static const char *const keys[] = {"action", "stacks", "advice", "checksums", "limit", "file", NULL};
  static const char *const actions[] = {"report", "error", "abort", NULL};
  static const char *const stacks[] = {"off", "findings", "all", NULL};
  static const char *const switches[] = {"off", "on", "0", "1", NULL}; /* the places of "on" and "1" are odd */
  int action = PJRT_ACTION_REPORT, stack = PJRT_STACKS_FINDINGS, advice = 0, checksums = 0;
  char text[64];
  if (pjrt_unknown_option(options, keys, text, sizeof text)) {
    snprintf(problem, size, "validate: unknown option \"%s\", expected action, stacks, advice, checksums, limit or file",
             text);
    return false;
  }
  if (!choose(options, "action", actions, &action, problem, size) ||
      !choose(options, "stacks", stacks, &stack, problem, size) ||
      !choose(options, "advice", switches, &advice, problem, size) ||
      !choose(options, "checksums", switches, &checksums, problem, size))
    return false;
  validate->limit = 10;
  if (pjrt_option(options, "limit", text, sizeof text)) {
    char *end;
    validate->limit = strtoul(text, &end, 10);
    if (end == text || *end != 0 || validate->limit == 0) {
      snprintf(problem, size, "validate: limit is \"%s\", expected a number of findings, at least 1", text);
      return false;
    }
  }
  pjrt_option(options, "file", validate->file, sizeof validate->file);
  validate->action = (pjrt_action)action;
  validate->stacks = (pjrt_stacks)stack;
  validate->advice = advice & 1;
  validate->checksums = checksums & 1;
  return true;
}

/* Extensions whose functions register code and give out no handles. */
static bool gives_no_handles(const PJRT_Extension_Base *link) {
  return link->struct_size <= PJRT_Extension_Base_STRUCT_SIZE || link->type == PJRT_Extension_Type_Gpu_Custom_Call ||
         link->type == PJRT_Extension_Type_XlaTransform;
}

/* Whether the schema describes every extension that may give out handles. */
static bool knows_every_extension(const PJRT_Api *plugin) {
  for (const PJRT_Extension_Base *link = plugin->extension_start; link != NULL; link = link->next) {
    bool known = gives_no_handles(link);
    for (int i = 0; i < PJRT_NUM_FUNCTIONS && !known; i++) known = pjrt_functions[i].extension == (int16_t)link->type;
    if (!known) return false;
  }
  return true;
}

static void *open_layer(pjrt_stack *stack, const char *options, char *problem, size_t problem_size) {
  pjrt_validate *validate = calloc(1, sizeof *validate);
  if (validate == NULL || !pjrt_handles_open(&validate->handles)) {
    snprintf(problem, problem_size, "validate: no memory is left");
    return NULL; /* what was allocated is lost: the process is about to end */
  }
  if (!read_options(validate, options, problem, problem_size)) {
    free(validate);
    return NULL;
  }
  pjrt_mutex_init(&validate->mutex);
  validate->stack = stack;
  validate->process = (long)getpid();
  validate->knows_every_extension = knows_every_extension(stack->plugin);
  pjrt_mutex_lock(&all_mutex);
  validate->next = atomic_load(&all);
  atomic_store(&all, validate);
  pjrt_mutex_unlock(&all_mutex);
  return validate;
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/
static bool is_event_call(int index) {
  return index == F(Event_Destroy) || index == F(Event_Error) || index == F(Event_Await) || index == F(Event_IsReady) ||
         index == F(Event_OnReady) || index == F(Event_Set);
}

/* Ends the handles in arguments that the call destroys, deletes or takes over. */
static void end_handles(pjrt_check *check, bool before) {
  const pjrt_struct *type = check->frame->function->args;
  const uint16_t wanted = before ? PJRT_MARK_DESTROYS | PJRT_MARK_CONSUMES : PJRT_MARK_DELETES;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->kind != PJRT_KIND_HANDLE || !(field->marks & wanted) || field->direction != PJRT_IN) continue;
    if (!pjrt_has_field(type, field, check->args)) continue;
    const bool destroys = pjrt_destroys(check, field);
    if (!destroys && (field->marks & PJRT_MARK_DESTROYS)) continue;
    void *handle = pjrt_pointer_in(field, check->args);
    pjrt_end_handle(check, handle, field->type,
                    destroys                            ? PJRT_HANDLE_DESTROYED
                    : field->marks & PJRT_MARK_CONSUMES ? PJRT_HANDLE_CONSUMED
                                                        : PJRT_HANDLE_DELETED);
  }
}

static void before_call(pjrt_check *check) {
  const int index = check->frame->index;
  if (is_event_call(index)) {
    pjrt_before_event_call(check);
  } else if (index == F(LoadedExecutable_Execute)) {
    pjrt_before_execution(check);
  } else if (index == F(Client_Destroy)) {
    void *client = ((PJRT_Client_Destroy_Args *)check->args)->client;
    if (pjrt_callback_depth > 0)
      pjrt_found(check, PJRT_RULE_CLIENT_DESTROYED_IN_CALLBACK, "client", NULL, "this thread is inside of a callback");
    if (client != NULL && !check->refused) pjrt_end_client(check, client);
  } else if (index == F(TopologyDescription_Destroy)) {
    void *topology = ((PJRT_TopologyDescription_Destroy_Args *)check->args)->topology;
    if (topology != NULL) pjrt_end_topology(check, topology);
  } else {
    pjrt_before_buffer_call(check);
  }
}

static void after_call(pjrt_check *check, void *result) {
  const int index = check->frame->index;
  if (result != NULL && check->frame->function->result == PJRT_RESULT_ERROR) pjrt_check_error(check, result);
  if (is_event_call(index)) pjrt_after_event_call(check, result);
  if (result != NULL) return;
  if (index == F(Client_Destroy) && check->generation != 0)
    pjrt_client_ended(check, ((PJRT_Client_Destroy_Args *)check->args)->client);
  pjrt_check_results(check, check->frame->function->args, check->args);
  if (index == F(LoadedExecutable_Execute)) pjrt_after_execution(check);
  else pjrt_after_buffer_call(check);
  pjrt_check_counts(check);
}

/* A call that is not made: its results are empty, and it returns an error of the layer. */
static void *refused_call(pjrt_check *check) {
  const pjrt_struct *type = check->frame->function->args;
  pjrt_release_uses(check);
  if (check->unreadable) return check->error;
  pjrt_clear_outputs(type, check->args);
  return check->error;
}

static void *call(void *state, pjrt_frame *frame, void *args) {
  pjrt_check check = {.validate = state, .frame = frame, .args = args, .element = -1};
  pjrt_check_struct(&check, frame->function->args, args, "");
  if (!check.refused) before_call(&check);
  if (check.refused) return refused_call(&check);
  end_handles(&check, true);
  pjrt_clear_results(&check);
  void *result = pjrt_next(frame, args);
  pjrt_release_uses(&check);
  if (result == NULL) end_handles(&check, false);
  check.failed = result != NULL;
  after_call(&check, result);
  return result != NULL ? result : check.error;
}

/* ---- callbacks ----------------------------------------------------------------------------------------------------*/
static void *callback(void *state, pjrt_frame *frame, void *args) {
  pjrt_check check = {.validate = state, .frame = frame, .args = args, .callback = true, .element = -1};
  if (frame->up) return pjrt_pass_callback(&check);
  /* A deleter of the plugin, called by the framework. */
  const pjrt_struct *type = frame->function->args;
  for (const pjrt_field *field = type->fields; field < type->fields + type->num_fields; field++) {
    if (field->kind == PJRT_KIND_HANDLE)
      pjrt_end_handle(&check, pjrt_pointer_in(field, args), field->type, PJRT_HANDLE_DESTROYED);
  }
  return pjrt_next_callback(frame, args);
}

/* ---- the layer ----------------------------------------------------------------------------------------------------*/
static void flush(void *state) { pjrt_findings_flush(state); }

/* Threads may still be inside of a call: nothing is freed. */
static void close_layer(void *state) {
  pjrt_validate *validate = state;
  if (validate->process != (long)getpid()) return;
  pjrt_process_ends(validate);
  pjrt_findings_flush(validate);
}

const pjrt_layer pjrt_layer_validate = {"validate", open_layer, call, callback, flush, close_layer};
