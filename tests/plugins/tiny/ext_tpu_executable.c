/* The TpuExecutable extension: what a serialized tiny executable says of itself, and a compiler with one setting. */
#include "tiny.h"

#define MAGIC "TINY"

static void forget(void *data) {
  free(data);
  live_add(LIVE_SERIALIZED, -1);
}
static void forget_target(PJRT_TpuExecutable_TargetArguments *each) { forget(each); }
static void forget_module(PJRT_TpuExecutable_HloModuleWithConfig *each) { forget(each); }
static void forget_stats(PJRT_TpuExecutable_CompiledMemoryStats *each) { forget(each); }
static void forget_costs(PJRT_TpuExecutable_CostAnalysisResult *each) { forget(each); }
static void forget_environments(PJRT_TpuExecutable_CompilationEnvironments *each) { forget(each); }
static void forget_value(PJRT_TpuExecutable_FieldValue *each) { forget(each); }

static char *keep(const char *text) {
  live_add(LIVE_SERIALIZED, 1);
  return tiny_memdup(text, strlen(text));
}

static PJRT_Error *check(const char *data, size_t size) {
  if (size < strlen(MAGIC) || memcmp(data, MAGIC, strlen(MAGIC)) != 0)
    return error_make(INVALID, "These %zu bytes are no tiny executable", size);
  return NULL;
}

static PJRT_Error *target_arguments(PJRT_TpuExecutable_GetTargetArguments_Args *args) {
  TINY_GUARD(TpuExecutable_GetTargetArguments, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->target_arguments = keep("tiny target");
  args->target_arguments_size = strlen(args->target_arguments);
  args->target_arguments_ptr = (PJRT_TpuExecutable_TargetArguments *)args->target_arguments;
  args->target_arguments_deleter = forget_target;
  return NULL;
}

static PJRT_Error *hlo_module(PJRT_TpuExecutable_GetHloModuleWithConfig_Args *args) {
  TINY_GUARD(TpuExecutable_GetHloModuleWithConfig, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->hlo_module_with_config = keep("tiny module");
  args->hlo_module_with_config_size = strlen(args->hlo_module_with_config);
  args->hlo_module_with_config_ptr = (PJRT_TpuExecutable_HloModuleWithConfig *)args->hlo_module_with_config;
  args->hlo_module_with_config_deleter = forget_module;
  return NULL;
}

static PJRT_Error *memory_stats(PJRT_TpuExecutable_GetCompiledMemoryStats_Args *args) {
  TINY_GUARD(TpuExecutable_GetCompiledMemoryStats, args);
  PJRT_Error *error = check(args->serialized_executable, args->serialized_executable_size);
  if (error) return error;
  args->compiled_memory_stats = keep("tiny stats");
  args->compiled_memory_stats_size = strlen(args->compiled_memory_stats);
  args->compiled_memory_stats_ptr = (PJRT_TpuExecutable_CompiledMemoryStats *)args->compiled_memory_stats;
  args->compiled_memory_stats_deleter = forget_stats;
  return NULL;
}

static PJRT_Error *cost_analysis(PJRT_TpuExecutable_RunHloCostAnalysis_Args *args) {
  TINY_GUARD(TpuExecutable_RunHloCostAnalysis, args);
  size_t size = 0;
  for (size_t i = 0; i < args->num_hlo_modules; ++i) size += args->hlo_module_size[i];
  PJRT_NamedValue *results = tiny_calloc(1, sizeof *results);
  *results = (PJRT_NamedValue){.struct_size = PJRT_NamedValue_STRUCT_SIZE, .name = "flops", .name_size = 5,
                               .type = PJRT_NamedValue_kFloat, .float_value = (float)(size + args->target_arguments_size),
                               .value_size = 1};
  live_add(LIVE_SERIALIZED, 1);
  args->analysis_results = results;
  args->num_analysis_results = 1;
  args->analysis_results_ptr = (PJRT_TpuExecutable_CostAnalysisResult *)results;
  args->analysis_results_deleter = forget_costs;
  return NULL;
}

static PJRT_Error *set_environment(PJRT_TpuExecutable_SetTpuCompilationEnv_Args *args) {
  TINY_GUARD(TpuExecutable_SetTpuCompilationEnv, args);
  args->result_compilation_environments = keep(args->serialized_compilation_environments_size ? "given" : "default");
  args->result_compilation_environments_size = strlen(args->result_compilation_environments);
  args->result_compilation_environments_ptr =
      (PJRT_TpuExecutable_CompilationEnvironments *)args->result_compilation_environments;
  args->result_compilation_environments_deleter = forget_environments;
  return NULL;
}

static PJRT_Error *field_as_string(PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args *args) {
  TINY_GUARD(TpuExecutable_GetTpuCompilationEnvFieldAsString, args);
  if (args->field_name_size != 4 || memcmp(args->field_name, "warp", 4) != 0)
    return error_make(PJRT_Error_Code_NOT_FOUND, "There is no setting %.*s", (int)args->field_name_size,
                      args->field_name);
  args->field_value = keep(args->serialized_compilation_environments_size ? "9" : "1");
  args->field_value_size = 1;
  args->field_value_ptr = (PJRT_TpuExecutable_FieldValue *)args->field_value;
  args->field_value_deleter = forget_value;
  return NULL;
}

PJRT_TpuExecutable_Extension tpu_executable_extension = {
    TINY_EXTENSION(PJRT_TpuExecutable_Extension, TpuExecutable),
    .get_target_arguments = target_arguments,
    .get_hlo_module_with_config = hlo_module,
    .get_compiled_memory_stats = memory_stats,
    .run_hlo_cost_analysis = cost_analysis,
    .set_tpu_compilation_env = set_environment,
    .get_tpu_compilation_env_field_as_string = field_as_string,
};
