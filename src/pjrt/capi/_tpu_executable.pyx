"""The TpuExecutable extension: what serialized TPU executables hold, and the settings of the TPU compiler."""

from pjrt.capi._api cimport blob, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope, free_scope
from pjrt.capi._values cimport read_named_values

from pjrt.api.checks import expect, expect_bytes
from pjrt.api.program import Program
from pjrt.api.tpu_executable import TpuExecutable
from pjrt.capi._documented import documented


cdef int _call(Scope scope, size_t at, void *args, str name) except -1:
    return scope.call_extension(
        scope.api.extension_function(PJRT_Extension_Type_TpuExecutable, at, "TpuExecutable"), args, name
    )


cdef class TpuExecutableCore:
    """The bytes of a TPU executable, which the plugin reads anew for each question."""

    cdef Scope scope
    cdef bytes serialized

    def target_arguments(self):
        cdef PJRT_TpuExecutable_GetTargetArguments_Args args
        start(&args, PJRT_TpuExecutable_GetTargetArguments_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        _call(
            self.scope, AT_TpuExecutable_get_target_arguments, &args, "PJRT_TpuExecutable_GetTargetArguments"
        )
        try:
            return blob(args.target_arguments, args.target_arguments_size, "the target of a TPU executable")
        finally:
            if args.target_arguments_deleter != NULL:
                with nogil:
                    args.target_arguments_deleter(args.target_arguments_ptr)

    def hlo_module(self):
        cdef PJRT_TpuExecutable_GetHloModuleWithConfig_Args args
        start(&args, PJRT_TpuExecutable_GetHloModuleWithConfig_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        _call(
            self.scope,
            AT_TpuExecutable_get_hlo_module_with_config,
            &args,
            "PJRT_TpuExecutable_GetHloModuleWithConfig",
        )
        try:
            module = blob(args.hlo_module_with_config, args.hlo_module_with_config_size, "the module of an executable")
        finally:
            if args.hlo_module_with_config_deleter != NULL:
                with nogil:
                    args.hlo_module_with_config_deleter(args.hlo_module_with_config_ptr)
        return Program(module, "hlo_with_config")

    def memory_stats(self):
        cdef PJRT_TpuExecutable_GetCompiledMemoryStats_Args args
        start(&args, PJRT_TpuExecutable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        _call(
            self.scope,
            AT_TpuExecutable_get_compiled_memory_stats,
            &args,
            "PJRT_TpuExecutable_GetCompiledMemoryStats",
        )
        try:
            return blob(args.compiled_memory_stats, args.compiled_memory_stats_size, "the memory of an executable")
        finally:
            if args.compiled_memory_stats_deleter != NULL:
                with nogil:
                    args.compiled_memory_stats_deleter(args.compiled_memory_stats_ptr)

    def cost_analysis(self):
        cdef PJRT_TpuExecutable_RunHloCostAnalysis_Args args
        cdef bytes target = self.target_arguments()
        cdef bytes module = self.hlo_module().code
        cdef const char *module_data = module
        cdef size_t module_size = len(module)
        start(&args, PJRT_TpuExecutable_RunHloCostAnalysis_Args_STRUCT_SIZE)
        args.target_arguments = target
        args.target_arguments_size = len(target)
        args.hlo_module = &module_data
        args.hlo_module_size = &module_size
        args.num_hlo_modules = 1
        _call(
            self.scope, AT_TpuExecutable_run_hlo_cost_analysis, &args, "PJRT_TpuExecutable_RunHloCostAnalysis"
        )
        try:
            return read_named_values(args.analysis_results, args.num_analysis_results, "the cost analysis")
        finally:
            if args.analysis_results_deleter != NULL:
                with nogil:
                    args.analysis_results_deleter(args.analysis_results_ptr)


@documented
class PluginTpuExecutable(TpuExecutableCore, TpuExecutable):
    """A serialized TPU executable, read by its plugin."""

    __slots__ = ()


def tpu_executable(Scope scope, serialized):
    """``Plugin.tpu_executable``, ``Executable.tpu``."""
    scope.api.extension(PJRT_Extension_Type_TpuExecutable, sizeof(PJRT_Extension_Base), "TpuExecutable")
    executable = PluginTpuExecutable()
    (<TpuExecutableCore>executable).scope = free_scope(scope)
    (<TpuExecutableCore>executable).serialized = expect_bytes(serialized, "a serialized executable as bytes")
    return executable


def compilation_environments(Scope scope, serialized):
    """``Plugin.tpu_compilation_environments``."""
    cdef PJRT_TpuExecutable_SetTpuCompilationEnv_Args args
    cdef bytes data = expect_bytes(serialized, "serialized compilation environments as bytes")
    start(&args, PJRT_TpuExecutable_SetTpuCompilationEnv_Args_STRUCT_SIZE)
    args.serialized_compilation_environments = data
    args.serialized_compilation_environments_size = len(data)
    _call(scope, AT_TpuExecutable_set_tpu_compilation_env, &args, "PJRT_TpuExecutable_SetTpuCompilationEnv")
    try:
        return blob(
            args.result_compilation_environments,
            args.result_compilation_environments_size,
            "the compilation environments",
        )
    finally:
        if args.result_compilation_environments_deleter != NULL:
            with nogil:
                args.result_compilation_environments_deleter(args.result_compilation_environments_ptr)


def compiler_setting(Scope scope, name, serialized):
    """``Plugin.tpu_compiler_setting``."""
    cdef PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args args
    cdef bytes data = expect_bytes(serialized, "serialized compilation environments as bytes")
    cdef bytes field = expect(name, str, "the name of a setting as a str").encode()
    start(&args, PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString_Args_STRUCT_SIZE)
    args.serialized_compilation_environments = data
    args.serialized_compilation_environments_size = len(data)
    args.field_name = field
    args.field_name_size = len(field)
    _call(
        scope,
        AT_TpuExecutable_get_tpu_compilation_env_field_as_string,
        &args,
        "PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString",
    )
    try:
        return text(args.field_value, args.field_value_size, "a setting of the compiler")
    finally:
        if args.field_value_deleter != NULL:
            with nogil:
                args.field_value_deleter(args.field_value_ptr)
