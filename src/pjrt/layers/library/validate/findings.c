/* Findings: one JSON object or a few lines of text each. */
#include "pjrt_support/inspection.h" /* first: it asks the system's headers for everything */

#include <stdarg.h>
#include <time.h>

#include "validate.h"
#include "backtraces.h"

#define RULE_ROW(identifier, name, severity, forwarded, description, requirement) \
  {name, PJRT_SEVERITY_##severity, forwarded, description, requirement},
const pjrt_rule pjrt_rules[PJRT_NUM_RULES] = {PJRT_VALIDATE_RULES(RULE_ROW)};

static const char *const severities[] = {"error", "fault", "leak", "advice"};
static const char *const states[] = {"live", "deleted", "donated", "consumed", "destroyed"};

/* ---- calls --------------------------------------------------------------------------------------------------------*/
const char *pjrt_call_name(int16_t function) {
  if (function == -1) return "?";
  return function >= 0 ? pjrt_functions[function].name : pjrt_callbacks[-2 - function].name;
}

static int16_t number_of(const pjrt_check *check) {
  const int16_t index = (int16_t)check->frame->index;
  return check->callback ? (int16_t)(-2 - index) : index;
}

pjrt_call_site pjrt_call_site_of(const pjrt_check *check) {
  const uint32_t stack = check->validate->stacks == PJRT_STACKS_ALL ? pjrt_backtrace_take() : 0;
  const pjrt_call_site site = {number_of(check), stack, pjrt_thread_id()};
  return site;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/
static void write_site(pjrt_json *json, const char *what, const pjrt_call_site *site) {
  char key[32];
  if (site->function == -1) return;
  snprintf(key, sizeof key, "%s_by", what);
  pjrt_json_member(json, key, pjrt_call_name(site->function));
  snprintf(key, sizeof key, "%s_thread", what);
  pjrt_json_key(json, key);
  pjrt_json_print(json, "%llu", (unsigned long long)site->thread);
  snprintf(key, sizeof key, "%s_stack", what);
  pjrt_json_key(json, key);
  pjrt_backtrace_write(json, site->stack);
}

static void write_handle(pjrt_json *json, const pjrt_handle_record *record) {
  pjrt_json_key(json, "handle");
  pjrt_json_write(json, "{");
  pjrt_json_key(json, "address");
  pjrt_json_print(json, "\"0x%llx\"", (unsigned long long)(uintptr_t)record->address);
  pjrt_json_member(json, "kind", pjrt_handles[record->kind].name);
  pjrt_json_member(json, "state", states[record->state]);
  write_site(json, "made", &record->made);
  write_site(json, "ended", &record->ended);
  pjrt_json_write(json, "}");
}

typedef struct pjrt_finding {
  const pjrt_rule *rule;
  const char *function, *field, *message, *plugin;
  const pjrt_handle_record *record;
  uint64_t thread, count;
  uint32_t stack;
} pjrt_finding;

static void write_json(pjrt_json *json, const pjrt_finding *finding) {
  pjrt_json_write(json, "{");
  pjrt_json_member(json, "rule", finding->rule->name);
  pjrt_json_member(json, "severity", severities[finding->rule->severity]);
  pjrt_json_member(json, "function", finding->function);
  if (finding->field != NULL) pjrt_json_member(json, "argument", finding->field);
  pjrt_json_member(json, "message", finding->message);
  pjrt_json_member(json, "requirement", finding->rule->requirement);
  pjrt_json_member(json, "plugin", finding->plugin);
  pjrt_json_key(json, "thread");
  pjrt_json_print(json, "%llu", (unsigned long long)finding->thread);
  pjrt_json_key(json, "time");
  pjrt_json_print(json, "%.6f", pjrt_seconds());
  pjrt_json_key(json, "stack");
  pjrt_backtrace_write(json, finding->stack);
  if (finding->record != NULL) write_handle(json, finding->record);
  pjrt_json_write(json, "}");
}

static void print_site(pjrt_json *text, const char *what, const pjrt_call_site *site) {
  if (site->function == -1) return;
  pjrt_json_print(text, "    %s by %s on thread %llu\n", what, pjrt_call_name(site->function),
                  (unsigned long long)site->thread);
  pjrt_backtrace_print(text, site->stack, "      at ");
}

static void print_text(pjrt_json *text, const pjrt_finding *finding, bool stacks) {
  pjrt_json_print(text, "pjrt validate: %s (%s): %s", finding->rule->name, severities[finding->rule->severity],
                  finding->function);
  if (finding->field != NULL) pjrt_json_print(text, ", argument %s", finding->field);
  pjrt_json_print(text, ": %s\n", finding->message);
  pjrt_json_print(text, "  required: %s\n", finding->rule->requirement);
  pjrt_json_print(text, "  on thread %llu, plugin %s\n", (unsigned long long)finding->thread, finding->plugin);
  pjrt_backtrace_print(text, finding->stack, "    at ");
  const pjrt_handle_record *record = finding->record;
  if (record == NULL) return;
  pjrt_json_print(text, "  handle %s 0x%llx, %s\n", pjrt_handles[record->kind].name,
                  (unsigned long long)(uintptr_t)record->address, states[record->state]);
  print_site(text, "made", &record->made);
  print_site(text, "ended", &record->ended);
  if (stacks && record->made.stack == 0) pjrt_json_write(text, "    for its call stacks set the option stacks=all\n");
}

static void keep(pjrt_validate *validate, pjrt_json *json) {
  if (validate->num_kept == PJRT_MOST_KEPT_FINDINGS || json->failed) {
    free(json->text);
    return;
  }
  validate->kept[validate->num_kept++] = *json;
}

/* The stream of the option `file`; opened at the first finding, so that a run without findings leaves no file. */
static FILE *stream_of(pjrt_validate *validate) {
  if (validate->file[0] == 0) return stderr;
  if (validate->stream == NULL) validate->stream = fopen(validate->file, "a");
  if (validate->stream != NULL) return validate->stream;
  fprintf(stderr, "pjrt validate: %s cannot be opened for writing; findings go to the error stream\n", validate->file);
  validate->file[0] = 0;
  return stderr;
}

static void write_finding(pjrt_validate *validate, const pjrt_finding *finding, bool is_last) {
  pjrt_json json = {0}, text = {0};
  write_json(&json, finding);
  FILE *stream = stream_of(validate);
  if (stream == stderr) {
    print_text(&text, finding, validate->stacks != PJRT_STACKS_OFF);
    if (is_last) pjrt_json_print(&text, "  more findings of this rule and function are not written (option limit=)\n");
  } else if (json.text != NULL) {
    pjrt_json_add(&text, json.text, json.size);
    pjrt_json_write(&text, "\n");
  }
  if (text.text != NULL) fwrite(text.text, 1, text.size, stream);
  fflush(stream); /* the next call may end the process */
  free(text.text);
  keep(validate, &json);
}

void pjrt_findings_flush(pjrt_validate *validate) {
  pjrt_mutex_lock(&validate->mutex);
  if (validate->stream != NULL) fflush(validate->stream);
  pjrt_mutex_unlock(&validate->mutex);
}

/* ---- finding ------------------------------------------------------------------------------------------------------*/
static void refuse(pjrt_check *check, const pjrt_finding *finding) {
  const bool second = finding->rule == &pjrt_rules[PJRT_RULE_DOUBLE_DESTROY] ||
                      finding->rule == &pjrt_rules[PJRT_RULE_DESTROYS_BORROWED];
  check->refused = true;
  if (check->error != NULL || check->callback || check->failed) return;
  /* What was to be destroyed is gone already: a caller that is only observed may take that for success. */
  if (second && check->validate->action == PJRT_ACTION_REPORT) return;
  if (check->frame->function->result != PJRT_RESULT_ERROR) return;
  const bool fault = finding->rule->severity == PJRT_SEVERITY_FAULT;
  check->error = pjrt_make_error(fault ? PJRT_Error_Code_INTERNAL : PJRT_Error_Code_FAILED_PRECONDITION,
                                 "%s%s%s: %s (rule %s of the validate layer: %s)", finding->function,
                                 finding->field != NULL ? ", argument " : "",
                                 finding->field != NULL ? finding->field : "", finding->message, finding->rule->name,
                                 finding->rule->requirement);
}

void pjrt_found(pjrt_check *check, pjrt_rule_id id, const char *field, const pjrt_handle_record *record,
                const char *format, ...) {
  pjrt_validate *validate = check->validate;
  const pjrt_rule *rule = &pjrt_rules[id];
  char message[1024];
  va_list list;
  if (rule->severity == PJRT_SEVERITY_ADVICE && !validate->advice) return;
  va_start(list, format);
  vsnprintf(message, sizeof message, format, list);
  va_end(list);
  const int16_t number = number_of(check);
  pjrt_finding finding = {rule, pjrt_call_name(number), field, message, validate->stack->name, record,
                          pjrt_thread_id(), 0, 0};
  pjrt_mutex_lock(&validate->mutex);
  uint32_t *count = &validate->counts[id][number >= 0 ? number : PJRT_NUM_FUNCTIONS - 2 - number];
  validate->num_findings++;
  const bool written = ++*count <= validate->limit || validate->action == PJRT_ACTION_ABORT;
  const bool is_last = *count == validate->limit;
  pjrt_mutex_unlock(&validate->mutex);
  if (written) {
    if (validate->stacks != PJRT_STACKS_OFF) finding.stack = pjrt_backtrace_take();
    pjrt_mutex_lock(&validate->mutex);
    write_finding(validate, &finding, is_last);
    pjrt_mutex_unlock(&validate->mutex);
  }
  const bool counts = rule->severity == PJRT_SEVERITY_ERROR || rule->severity == PJRT_SEVERITY_FAULT;
  if (validate->action == PJRT_ACTION_ABORT && counts) abort();
  if (!rule->forwarded || (validate->action == PJRT_ACTION_ERROR && counts)) refuse(check, &finding);
}

/* ---- for Python ---------------------------------------------------------------------------------------------------*/
PJRT_EXPORTED const pjrt_rule *pjrt_validate_rule(int number) {
  return number >= 0 && number < PJRT_NUM_RULES ? &pjrt_rules[number] : NULL;
}

/* The state of the layer in a wrapped table; null if the table has none. */
static pjrt_validate *state_of(const PJRT_Api *table) {
  for (pjrt_validate *each = pjrt_first_validate(); each != NULL; each = each->next) {
    if (each->stack->table == table) return each;
  }
  return NULL;
}

/* How many findings there were, also of those that were not written or kept; -1 if the table has no such layer. */
PJRT_EXPORTED int64_t pjrt_validate_count(const PJRT_Api *table) {
  pjrt_validate *validate = state_of(table);
  if (validate == NULL) return -1;
  pjrt_mutex_lock(&validate->mutex);
  const uint64_t count = validate->num_findings;
  pjrt_mutex_unlock(&validate->mutex);
  return (int64_t)count;
}

/* A finding as JSON, which is never changed or freed; null behind the last one that was kept. */
PJRT_EXPORTED const char *pjrt_validate_finding(const PJRT_Api *table, size_t number) {
  pjrt_validate *validate = state_of(table);
  if (validate == NULL) return NULL;
  pjrt_mutex_lock(&validate->mutex);
  const char *text = number < validate->num_kept ? validate->kept[number].text : NULL;
  pjrt_mutex_unlock(&validate->mutex);
  return text;
}
