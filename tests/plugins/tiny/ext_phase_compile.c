/* The PhaseCompile extension: four phases that write what they were given into parts. "broken" and "nowhere" are phases
 * that are not listed: the first gives what is no part, the second arrays that are not there. */
#include "tiny.h"

struct PJRT_PhaseCompiler {
  int unused;
};
static const char *const phases[] = {"parse", "optimize", "lower", "link"};
#define NUM_PHASES (sizeof phases / sizeof phases[0])

typedef struct part {
  char *data;
  size_t size;
} part;
typedef struct parts {
  part *all;
  size_t count;
} parts;

static void parts_add(parts *to, tiny_bytes text, const char *producer, const char *consumer, const char *name) {
  tiny_bytes out = {0};
  proto_bytes(&out, 1, text.data, text.size);
  proto_bytes(&out, 2, "tiny", 4);
  proto_bytes(&out, 3, producer, strlen(producer));
  if (consumer) proto_bytes(&out, 4, consumer, strlen(consumer));
  proto_bytes(&out, 5, "1", 1);
  proto_bytes(&out, 6, name, strlen(name));
  part *larger = tiny_calloc(to->count + 1, sizeof *larger);
  if (to->count) memcpy(larger, to->all, to->count * sizeof *larger);
  free(to->all);
  to->all = larger;
  to->all[to->count++] = (part){out.data, out.size};
  free(text.data);
}

static void parts_free(parts *each) {
  for (size_t i = 0; i < each->count; ++i) free(each->all[i].data);
  free(each->all);
  *each = (parts){0};
}

/* The code of all parts, one a line, behind the name of the phase. */
static tiny_bytes gather(const char *phase, const parts *from) {
  tiny_bytes text = {0};
  bytes_print(&text, "%s:", phase);
  for (size_t i = 0; i < from->count; ++i) {
    const char *cursor = from->all[i].data, *end = cursor + from->all[i].size;
    tiny_field field;
    while (proto_next(&cursor, end, &field)) {
      if (field.number != 1) continue;
      bytes_add(&text, "\n", 1);
      bytes_add(&text, field.data, field.size);
    }
  }
  return text;
}

static PJRT_Error *run_one(const char *phase, const parts *from, const PJRT_PhaseCompile_Run_Phase_Args *args, parts *to) {
  if (from->count == 0) return error_make(INVALID, "The phase %s was given nothing", phase);
  tiny_bytes text = gather(phase, from);
  if (strcmp(phase, "parse") == 0) {
    parts_add(to, text, phase, "optimize", "main");
  } else if (strcmp(phase, "optimize") == 0) {
    parts_add(to, text, phase, "lower", "body");
    tiny_bytes facts = {0};
    bytes_print(&facts, "devices=%zu options=%zu", args->topology->num_descriptions, args->compile_options_size);
    parts_add(to, facts, phase, "link", "facts");
  } else if (strcmp(phase, "lower") == 0) {
    parts_add(to, text, phase, "link", "body");
  } else if (strcmp(phase, "link") == 0) {
    parts_add(to, text, phase, NULL, "executable");
  } else if (strcmp(phase, "broken") == 0) {
    parts_add(to, text, phase, NULL, "broken");
    memset(to->all[0].data, 0xff, to->all[0].size);
  } else {
    free(text.data);
    return error_make(PJRT_Error_Code_NOT_FOUND, "There is no phase %s", phase);
  }
  return NULL;
}

static PJRT_Error *get_compiler(PJRT_PhaseCompile_Get_Compiler_Args *args) {
  TINY_GUARD(PhaseCompile_Get_Compiler, args);
  args->phase_compiler = tiny_calloc(1, sizeof *args->phase_compiler);
  live_add(LIVE_PHASE_COMPILER, 1);
  return NULL;
}

static void destroy_compiler(PJRT_PhaseCompile_Destroy_Compiler_Args *args) {
  if (args->struct_size < PJRT_PhaseCompile_Destroy_Compiler_Args_FIRST_STRUCT_SIZE) return;
  if (args->phase_compiler == NULL) return;
  free((void *)args->phase_compiler);
  live_add(LIVE_PHASE_COMPILER, -1);
}

static PJRT_Error *get_phase_names(PJRT_PhaseCompile_Get_PhaseNames_Args *args) {
  TINY_GUARD(PhaseCompile_Get_PhaseNames, args);
  const char **names = tiny_calloc(NUM_PHASES, sizeof *names);
  size_t *sizes = tiny_calloc(NUM_PHASES, sizeof *sizes);
  for (size_t i = 0; i < NUM_PHASES; ++i) {
    sizes[i] = strlen(phases[i]);
    names[i] = tiny_memdup(phases[i], sizes[i]);
  }
  args->phase_names = names;
  args->phase_names_sizes = sizes;
  args->num_phase_names = NUM_PHASES;
  live_add(LIVE_PHASE_BUFFERS, 1);
  return NULL;
}

static PJRT_Error *run_phases(PJRT_PhaseCompile_Run_Phase_Args *args) {
  TINY_GUARD(PhaseCompile_Run_Phase, args);
  if (args->phase_compiler == NULL) return error_make(PJRT_Error_Code_INTERNAL, "There is no phase compiler");
  if (args->num_phases_to_run && strcmp(args->phases_to_run[0], "nowhere") == 0) {
    args->num_output_programs = 3;
    return NULL;
  }
  parts current = {0};
  current.all = tiny_calloc(args->num_input_programs, sizeof *current.all);
  for (size_t i = 0; i < args->num_input_programs; ++i)
    current.all[current.count++] = (part){tiny_memdup(args->input_programs[i], args->input_programs_sizes[i]),
                                          args->input_programs_sizes[i]};
  for (size_t i = 0; i < args->num_phases_to_run; ++i) {
    if (strlen(args->phases_to_run[i]) != args->phases_to_run_sizes[i])
      violation("the name of a phase does not end with a zero");
    parts next = {0};
    PJRT_Error *error = run_one(args->phases_to_run[i], &current, args, &next);
    parts_free(&current);
    if (error) return error;
    current = next;
  }
  const char **programs = tiny_calloc(current.count, sizeof *programs);
  size_t *sizes = tiny_calloc(current.count, sizeof *sizes);
  for (size_t i = 0; i < current.count; ++i) {
    programs[i] = current.all[i].data;
    sizes[i] = current.all[i].size;
  }
  free(current.all);
  args->output_programs = programs;
  args->output_programs_sizes = sizes;
  args->num_output_programs = current.count;
  live_add(LIVE_PHASE_BUFFERS, 1);
  return NULL;
}

static void destroy_buffers(PJRT_PhaseCompile_C_Buffers_Destroy_Args *args) {
  if (args->struct_size < PJRT_PhaseCompile_C_Buffers_Destroy_Args_FIRST_STRUCT_SIZE) return;
  if (args->char_buffers == NULL) return;
  for (size_t i = 0; i < args->num_char_buffers; ++i) free((void *)args->char_buffers[i]);
  free((void *)args->char_buffers);
  free((void *)args->char_buffer_sizes);
  live_add(LIVE_PHASE_BUFFERS, -1);
}

PJRT_PhaseCompile_Extension phase_compile_extension = {
    TINY_EXTENSION(PJRT_PhaseCompile_Extension, PhaseCompile),
    .phase_compile_get_compiler = get_compiler,
    .phase_compile_destroy_compiler = destroy_compiler,
    .phase_compile_run_phases = run_phases,
    .phase_compile_get_phase_names = get_phase_names,
    .phase_compile_c_buffers_destroy = destroy_buffers,
};
