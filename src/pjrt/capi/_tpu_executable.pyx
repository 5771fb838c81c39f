"""The TpuExecutable extension: the contents of serialized TPU executables, and the settings of the TPU compiler."""

from pjrt.capi._api cimport deleter_t, start, take_blob
from pjrt.capi._gen_abi cimport *
from pjrt.capi._scope cimport Scope, free_scope
from pjrt.capi._values cimport read_named_values

from pjrt.api.checks import expect, expect_bytes
from pjrt.api.program import Program
from pjrt.api.executable import TpuExecutable
from pjrt.capi._documented import documented


cdef class TpuExecutableCore:
    """The bytes of a TPU executable, which the plugin parses anew for each call."""

    cdef Scope scope
    cdef bytes serialized

    def target_arguments(self):
        cdef PJRT_TpuExecutable_GetTargetArguments_Args args
        start(&args, PJRT_TpuExecutable_GetTargetArguments_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetTargetArguments, &args)
        return take_blob(
            args.target_arguments,
            args.target_arguments_size,
            "the target of a TPU executable",
            args.target_arguments_ptr,
            <deleter_t>args.target_arguments_deleter,
        )

    def hlo_module(self):
        cdef PJRT_TpuExecutable_GetHloModuleWithConfig_Args args
        start(&args, PJRT_TpuExecutable_GetHloModuleWithConfig_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetHloModuleWithConfig, &args)
        module = take_blob(
            args.hlo_module_with_config,
            args.hlo_module_with_config_size,
            "the module of an executable",
            args.hlo_module_with_config_ptr,
            <deleter_t>args.hlo_module_with_config_deleter,
        )
        return Program(module, "hlo_with_config")

    def memory_stats(self):
        cdef PJRT_TpuExecutable_GetCompiledMemoryStats_Args args
        start(&args, PJRT_TpuExecutable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        args.serialized_executable = self.serialized
        args.serialized_executable_size = len(self.serialized)
        self.scope.call(SLOT_PJRT_TpuExecutable_GetCompiledMemoryStats, &args)
        return take_blob(
            args.compiled_memory_stats,
            args.compiled_memory_stats_size,
            "the memory of an executable",
            args.compiled_memory_stats_ptr,
            <deleter_t>args.compiled_memory_stats_deleter,
        )

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
        self.scope.call(SLOT_PJRT_TpuExecutable_RunHloCostAnalysis, &args)
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
    scope.api.extension(PJRT_Extension_Type_TpuExecutable, sizeof(PJRT_Extension_Base))
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
    scope.call(SLOT_PJRT_TpuExecutable_SetTpuCompilationEnv, &args)
    return take_blob(
        args.result_compilation_environments,
        args.result_compilation_environments_size,
        "the compilation environments",
        args.result_compilation_environments_ptr,
        <deleter_t>args.result_compilation_environments_deleter,
    )


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
    scope.call(SLOT_PJRT_TpuExecutable_GetTpuCompilationEnvFieldAsString, &args)
    return take_blob(
        args.field_value,
        args.field_value_size,
        "a setting of the compiler",
        args.field_value_ptr,
        <deleter_t>args.field_value_deleter,
    ).decode(errors="replace")
