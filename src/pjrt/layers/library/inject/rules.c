/* The rules of the inject layer: options of the form key=value,key=value, in which call and memory begin a rule. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inject.h"

enum { KEY_SIZE = 64, VALUE_SIZE = 1024 };

typedef struct reader {
  inject_plan *plan;
  inject_rule *rule; /* the one that is being read; null before the first */
  const char *key, *value;
  unsigned seen; /* the keys of this rule: a bit for each of KEYS */
  char *problem;
  size_t problem_size;
} reader;

enum { CALL, MEMORY, NTH, FROM, EVERY, TIMES, CHANCE, SEED, CLIENT, THREAD, SLOW, ERROR, MESSAGE, READY, FLIP, NUM_KEYS };
static const char *const KEYS[NUM_KEYS] = {"call",   "memory", "nth",  "from",  "every",   "times", "chance", "seed",
                                           "client", "thread", "slow", "error", "message", "ready", "flip"};

#define FAIL(...) return snprintf(reader->problem, reader->problem_size, "inject: " __VA_ARGS__), false
#define HAS(key) (reader->seen >> (key) & 1)

/* ---- names --------------------------------------------------------------------------------------------------------*/
static bool has_wildcard(const char *pattern, size_t length) {
  return memchr(pattern, '*', length) != NULL || memchr(pattern, '?', length) != NULL;
}

/* Marks the functions that a list of names and patterns means. Patterns leave out the functions of errors: without them
 * no error can be read. */
static bool read_functions(reader *reader) {
  inject_rule *rule = reader->rule;
  for (const char *pattern = reader->value;;) {
    const size_t length = strcspn(pattern, "|");
    const bool wildcard = has_wildcard(pattern, length);
    bool any = false;
    for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
      const char *name = pjrt_functions[i].name;
      if (!pjrt_names_function(pattern, pattern + length, name)) continue;
      any = true;
      if (!wildcard || strncmp(name, "PJRT_Error_", 11) != 0) rule->functions[i] = true;
    }
    if (!any) {
      const int used = snprintf(reader->problem, reader->problem_size, "inject: ");
      pjrt_unknown_function(pattern, pattern + length, reader->problem + used, reader->problem_size - (size_t)used);
      return false;
    }
    if (!pattern[length]) return true;
    pattern += length + 1;
  }
}

static bool read_code(reader *reader, PJRT_Error_Code *code) {
  const pjrt_enum *codes = &pjrt_enums[PJRT_ENUM_Error_Code];
  char *end;
  const long number = strtol(reader->value, &end, 10);
  for (int i = 0; i < codes->num_names; i++) {
    const bool same = strcmp(codes->names[i].name, reader->value) == 0 ||
                      (end != reader->value && *end == 0 && number == codes->names[i].value);
    if (!same || codes->names[i].value == PJRT_Error_Code_OK) continue;
    *code = (PJRT_Error_Code)codes->names[i].value;
    return true;
  }
  size_t used = (size_t)snprintf(reader->problem, reader->problem_size, "inject: expected %s to be one of",
                                 reader->key);
  for (int i = 0; i < codes->num_names && used < reader->problem_size; i++) {
    if (codes->names[i].value != PJRT_Error_Code_OK)
      used += (size_t)snprintf(reader->problem + used, reader->problem_size - used, " %s", codes->names[i].name);
  }
  if (used < reader->problem_size)
    snprintf(reader->problem + used, reader->problem_size - used, "%s, found %s",
             strcmp(reader->key, "ready") == 0 ? ", or never" : "", reader->value);
  return false;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------*/
static bool read_number(reader *reader, uint64_t smallest_value, uint64_t *number) {
  char *end;
  *number = strtoull(reader->value, &end, 10);
  if (*reader->value >= '0' && *reader->value <= '9' && *end == 0 && *number >= smallest_value) return true;
  FAIL("expected %s to be a whole number from %" PRIu64 " on, found %s", reader->key, smallest_value, reader->value);
}

static bool read_value(reader *reader, int key) {
  inject_rule *rule = reader->rule;
  uint64_t number;
  double chance;
  char *end;
  switch (key) {
    case CALL: return read_functions(reader);
    case MEMORY:
      rule->limits_memory = true;
      if (pjrt_read_size(reader->value, &rule->limit)) return true;
      FAIL("expected memory to be a size, such as 64m (k, m, g), found %s", reader->value);
    case NTH: return read_number(reader, 1, &rule->nth);
    case FROM: return read_number(reader, 1, &rule->from);
    case EVERY: return read_number(reader, 1, &rule->every);
    case TIMES: return read_number(reader, 1, &rule->times);
    case CHANCE:
      chance = strtod(reader->value, &end);
      if (end == reader->value || *end != 0 || !(chance > 0 && chance <= 1))
        FAIL("expected chance to be a probability above 0 and up to 1, found %s", reader->value);
      rule->by_chance = true;
      rule->chance = chance < 1 ? (uint64_t)(chance * 18446744073709551616.0) : UINT64_MAX;
      return true;
    case SEED: return read_number(reader, 0, &rule->seed);
    case CLIENT:
      if (!read_number(reader, 0, &number)) return false;
      rule->client = (int64_t)number;
      return true;
    case THREAD:
      rule->thread = strcmp(reader->value, "main") == 0 ? INJECT_MAIN_THREAD : INJECT_OTHER_THREADS;
      if (rule->thread == INJECT_MAIN_THREAD || strcmp(reader->value, "others") == 0) return true;
      FAIL("expected thread to be main or others, found %s", reader->value);
    case SLOW:
      if (pjrt_read_time(reader->value, &rule->slow)) return true;
      FAIL("expected slow to be a time with a unit (ns, us, ms, s), such as 10ms, found %s", reader->value);
    case ERROR: rule->fails = true; return read_code(reader, &rule->code);
    case MESSAGE: snprintf(rule->message, sizeof rule->message, "%.*s", INJECT_TEXT - 1, reader->value); return true;
    case READY:
      rule->fate = strcmp(reader->value, "never") == 0 ? INJECT_NEVER_READY : INJECT_READY_WITH_ERROR;
      return rule->fate == INJECT_NEVER_READY || read_code(reader, &rule->code);
    default: rule->fate = INJECT_FLIPPED; return read_number(reader, 0, &rule->bit);
  }
}

/* ---- rules --------------------------------------------------------------------------------------------------------*/
/* Leaves out the functions of a rule to which its fault cannot happen; an error if none is left. */
static bool keep_functions(reader *reader, bool (*possible)(int function), const char *key, const char *reason) {
  int left = 0, last = 0;
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    if (!reader->rule->functions[i]) continue;
    last = i;
    reader->rule->functions[i] = possible(i);
    left += reader->rule->functions[i];
  }
  if (left > 0) return true;
  FAIL("rule %d (%s): %s is impossible for %s: %s", reader->rule->number, reader->rule->text, key,
       pjrt_functions[last].name, reason);
}

static bool finish_rule(reader *reader) {
  static const int contradictions[][2] = {{NTH, FROM},   {NTH, EVERY},  {NTH, TIMES},    {NTH, CHANCE},
                                          {EVERY, CHANCE}, {ERROR, READY}, {ERROR, FLIP}, {READY, FLIP}};
  static const int not_with_memory[] = {NTH, FROM, EVERY, TIMES, CHANCE, SEED, SLOW, ERROR, READY, FLIP};
  inject_rule *rule = reader->rule;
  if (rule == NULL) return true;
  for (size_t i = 0; i < sizeof contradictions / sizeof *contradictions; i++) {
    const int one = contradictions[i][0], other = contradictions[i][1];
    if (HAS(one) && HAS(other))
      FAIL("rule %d (%s): %s and %s contradict each other; keep one, or write two rules", rule->number, rule->text,
           KEYS[one], KEYS[other]);
  }
  for (size_t i = 0; HAS(MEMORY) && i < sizeof not_with_memory / sizeof *not_with_memory; i++) {
    if (HAS(not_with_memory[i]))
      FAIL("rule %d (%s): a limit of memory has no %s; it needs only client, thread and message", rule->number,
           rule->text, KEYS[not_with_memory[i]]);
  }
  if (HAS(SEED) && !HAS(CHANCE)) FAIL("rule %d (%s): seed needs chance", rule->number, rule->text);
  if (HAS(MESSAGE) && !rule->fails && rule->fate != INJECT_READY_WITH_ERROR && !HAS(MEMORY))
    FAIL("rule %d (%s): message needs error, ready with a code, or memory", rule->number, rule->text);
  if (HAS(CALL) && !rule->fails && rule->fate == INJECT_NO_FATE && !HAS(SLOW))
    FAIL("rule %d (%s): expected a fault: error, slow, ready or flip", rule->number, rule->text);
  if (rule->fails && !keep_functions(reader, inject_can_fail, "error", "it returns no PJRT_Error")) return false;
  if (rule->fate == INJECT_FLIPPED && !keep_functions(reader, inject_reads, "flip", "it reads no data of a buffer"))
    return false;
  return rule->fate == INJECT_NO_FATE || rule->fate == INJECT_FLIPPED ||
         keep_functions(reader, inject_makes_ready, "ready", "it makes no event and no buffer");
}

static bool begin_rule(reader *reader) {
  if (!finish_rule(reader)) return false;
  if (reader->plan->num_rules == INJECT_MAX_RULES) FAIL("expected at most %d rules, found more", INJECT_MAX_RULES);
  reader->rule = &reader->plan->rules[reader->plan->num_rules++];
  reader->rule->number = reader->plan->num_rules;
  reader->rule->client = -1;
  reader->seen = 0;
  return true;
}

static bool read_rules(reader *reader, const char *options, char *key, char *value) {
  for (const char *rest = options; pjrt_next_option(&rest, key, KEY_SIZE, value, VALUE_SIZE);) {
    int index = 0;
    while (index < NUM_KEYS && strcmp(KEYS[index], key) != 0) index++;
    if (index == NUM_KEYS)
      FAIL("there is no option %s; the options are call, memory, nth, from, every, times, chance, seed, client, "
           "thread, slow, error, message, ready and flip",
           key);
    if ((index == CALL || index == MEMORY) && !begin_rule(reader)) return false;
    if (reader->rule == NULL) FAIL("expected call or memory, which begin a rule, before %s", key);
    if (HAS(index)) FAIL("rule %d has %s twice; begin another rule with call", reader->rule->number, key);
    reader->seen |= 1u << index;
    char *text = reader->rule->text;
    const size_t used = strlen(text);
    snprintf(text + used, INJECT_TEXT - used, "%s%s=%s", used ? "," : "", key, value);
    if (!read_value(reader, index)) return false;
  }
  return finish_rule(reader);
}

static bool has_handles(const pjrt_struct *type) {
  for (int i = 0; i < type->num_fields; i++) {
    const pjrt_field *field = &type->fields[i];
    if (field->kind == PJRT_KIND_HANDLE || field->element == PJRT_KIND_HANDLE) return true;
  }
  return false;
}

/* Notes which parts of the layer look at which functions. */
static void finish_plan(inject_plan *plan) {
  for (int k = 0; k < plan->num_rules; k++) {
    const inject_rule *rule = &plan->rules[k];
    plan->limits_memory |= rule->limits_memory;
    plan->follows_objects |= rule->limits_memory || rule->fate != INJECT_NO_FATE || rule->client >= 0;
  }
  for (int i = 0; i < PJRT_NUM_FUNCTIONS; i++) {
    const pjrt_function *function = &pjrt_functions[i];
    for (int k = 0; k < plan->num_rules; k++)
      if (plan->rules[k].functions[i]) plan->parts[i] |= INJECT_BY_RULES;
    if (plan->follows_objects && strncmp(function->name, "PJRT_Error_", 11) != 0 && has_handles(function->args))
      plan->parts[i] |= INJECT_BY_OBJECTS;
    if (plan->limits_memory && inject_concerns_memory(i)) plan->parts[i] |= INJECT_BY_MEMORY;
  }
}

inject_plan *inject_read_rules(const char *options, char *problem, size_t problem_size) {
  char key[KEY_SIZE], value[VALUE_SIZE];
  inject_plan *plan = calloc(1, sizeof *plan);
  inject_rule *rules = calloc(INJECT_MAX_RULES, sizeof *rules);
  reader reader = {.plan = plan, .key = key, .value = value, .problem = problem, .problem_size = problem_size};
  bool success = plan != NULL && rules != NULL;
  if (!success) snprintf(problem, problem_size, "inject: no memory is left");
  if (success) {
    plan->rules = rules;
    success = read_rules(&reader, options, key, value);
  }
  if (!success) {
    free(rules);
    free(plan);
    return NULL;
  }
  inject_rule *fewer = realloc(rules, (size_t)(plan->num_rules + 1) * sizeof *rules);
  if (fewer != NULL) plan->rules = fewer;
  finish_plan(plan);
  return plan;
}
