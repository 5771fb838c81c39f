/* TpuExecutable: the contents of serialized TPU executables, and the settings of the TPU compiler. Results live
 * until the caller calls the deleter on the pointer that comes with them. */
#ifndef PJRT_ABI_EXTENSIONS_TPU_EXECUTABLE_H_
#define PJRT_ABI_EXTENSIONS_TPU_EXECUTABLE_H_

#include "../base.h"

typedef struct PJRT_TpuExecutable_TargetArguments PJRT_TpuExecutable_TargetArguments;
typedef struct PJRT_TpuExecutable_HloModuleWithConfig PJRT_TpuExecutable_HloModuleWithConfig;
typedef struct PJRT_TpuExecutable_CompiledMemoryStats PJRT_TpuExecutable_CompiledMemoryStats;
typedef struct PJRT_TpuExecutable_CostAnalysisResult PJRT_TpuExecutable_CostAnalysisResult;
typedef struct PJRT_TpuExecutable_CompilationEnvironments PJRT_TpuExecutable_CompilationEnvironments;
typedef struct PJRT_TpuExecutable_FieldValue PJRT_TpuExecutable_FieldValue;

/* The serialized target that the executable was compiled for. */
typedef struct PJRT_TpuExecutable_GetTargetArguments_Args {
  size_t struct_size;
  const char *serialized_executable;
  size_t serialized_executable_size;
  const char *target_arguments;  /* out, bytes */
  size_t target_arguments_size;  /* out */
  PJRT_TpuExecutable_TargetArguments *target_arguments_ptr;  /* out */
  void (*target_arguments_deleter)(PJRT_TpuExecutable_TargetArguments *args);  /* out */
} PJRT_TpuExecutable_GetTargetArguments_Args;

/* A serialized xla.HloModuleProtoWithConfig. */
typedef struct PJRT_TpuExecutable_GetHloModuleWithConfig_Args {
  size_t struct_size;
  const char *serialized_executable;
  size_t serialized_executable_size;
  const char *hlo_module_with_config;  /* out, bytes */
  size_t hlo_module_with_config_size;  /* out */
  PJRT_TpuExecutable_HloModuleWithConfig *hlo_module_with_config_ptr;  /* out */
  void (*hlo_module_with_config_deleter)(PJRT_TpuExecutable_HloModuleWithConfig *module);  /* out */
} PJRT_TpuExecutable_GetHloModuleWithConfig_Args;

/* A serialized xla.CompiledMemoryStatsProto. */
typedef struct PJRT_TpuExecutable_GetCompiledMemoryStats_Args {
  size_t struct_size;
  const char *serialized_executable;
  size_t serialized_executable_size;
  const char *compiled_memory_stats;  /* out, bytes */
  size_t compiled_memory_stats_size;  /* out */
  PJRT_TpuExecutable_CompiledMemoryStats *compiled_memory_stats_ptr;  /* out */
  void (*compiled_memory_stats_deleter)(PJRT_TpuExecutable_CompiledMemoryStats *stats);  /* out */
} PJRT_TpuExecutable_GetCompiledMemoryStats_Args;

/* Takes the target arguments and the modules (each a serialized xla.HloModuleProtoWithConfig) of executables. */
typedef struct PJRT_TpuExecutable_RunHloCostAnalysis_Args {
  size_t struct_size;
  const char *target_arguments;  /* bytes */
  size_t target_arguments_size;
  const char **hlo_module;  /* count num_hlo_modules, bytes */
  size_t *hlo_module_size;  /* count num_hlo_modules */
  size_t num_hlo_modules;
  const PJRT_NamedValue *analysis_results;  /* out */
  size_t num_analysis_results;  /* out */
  PJRT_TpuExecutable_CostAnalysisResult *analysis_results_ptr;  /* out */
  void (*analysis_results_deleter)(PJRT_TpuExecutable_CostAnalysisResult *results);  /* out */
} PJRT_TpuExecutable_RunHloCostAnalysis_Args;

/* Adds the settings of the TPU compiler to a serialized xla.CompilationEnvironmentsProto. */
typedef struct PJRT_TpuExecutable_SetTpuCompilationEnv_Args {
  size_t struct_size;
  const char *serialized_compilation_environments;
  size_t serialized_compilation_environments_size;
  const char *result_compilation_environments;  /* out */
  size_t result_compilation_environments_size;  /* out */
  PJRT_TpuExecutable_CompilationEnvironments *result_compilation_environments_ptr;  /* out */
  void (*result_compilation_environments_deleter)(PJRT_TpuExecutable_CompilationEnvironments *envs);  /* out */
} PJRT_TpuExecutable_SetTpuCompilationEnv_Args;

typedef struct PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args {
  size_t struct_size;
  const char *serialized_compilation_environments;
  size_t serialized_compilation_environments_size;
  const char *field_name;
  size_t field_name_size;
  const char *field_value;  /* out */
  size_t field_value_size;  /* out */
  PJRT_TpuExecutable_FieldValue *field_value_ptr;  /* out */
  void (*field_value_deleter)(PJRT_TpuExecutable_FieldValue *value);  /* out */
} PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args;

/* Whether an error of a run only follows from an error elsewhere. */
typedef struct PJRT_TpuExecutable_IsTpuPredeterminedError_Args {
  size_t struct_size;
  const char *serialized_status;
  size_t serialized_status_size;
  bool is_predetermined;  /* out */
} PJRT_TpuExecutable_IsTpuPredeterminedError_Args;

/* get_core_program_abi_version is null in newer plugins. A plugin since 0.116 has one more function at the end, whose
 * arguments no public header states: PJRT_TpuExecutable_IsTpuCancellationPlaceholderError. */
typedef struct PJRT_TpuExecutable_Extension {
  PJRT_Extension_Base base;
  PJRT_Error *(*get_target_arguments)(PJRT_TpuExecutable_GetTargetArguments_Args *args);
  PJRT_Error *(*get_hlo_module_with_config)(PJRT_TpuExecutable_GetHloModuleWithConfig_Args *args);
  void *get_core_program_abi_version;
  PJRT_Error *(*get_compiled_memory_stats)(PJRT_TpuExecutable_GetCompiledMemoryStats_Args *args);
  PJRT_Error *(*run_hlo_cost_analysis)(PJRT_TpuExecutable_RunHloCostAnalysis_Args *args);
  PJRT_Error *(*set_tpu_compilation_env)(PJRT_TpuExecutable_SetTpuCompilationEnv_Args *args);
  PJRT_Error *(*get_tpu_compilation_env_field_as_string)(
      PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args *args);
  PJRT_Error *(*is_tpu_predetermined_error)(PJRT_TpuExecutable_IsTpuPredeterminedError_Args *args);
} PJRT_TpuExecutable_Extension;

#endif  /* PJRT_ABI_EXTENSIONS_TPU_EXECUTABLE_H_ */
