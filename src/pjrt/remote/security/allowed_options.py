"""The compile options that a server takes from its clients: those that concern the client's program alone.

XLA has hundreds of options. Some write or read files of the server, end its process, or leave out the checks that keep
a program inside of its own memory. So the harmless ones are named here, and all others are refused, whichever way they
come: by name in ``env_option_overrides``, as fields of ``debug_options``, or as other fields of the compile options.

JAX sends all of its debug options with each program. Those that have the default of some version of JAX are no wish of
the client, and pass. So do those that JAX sets by itself to paths on the client's machine; the server leaves them out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import PermissionDeniedError
from pjrt.remote.security._gen_debug_options import DEFAULTS, NAMES
from pjrt.stablehlo.encodings.hlo_proto import BYTES, FIXED32, FIXED64, VARINT, fields, message

ALLOWED_OPTIONS = frozenset(
    (
        # What a program computes, and how fast.
        *("xla_allow_excess_precision", "xla_backend_optimization_level", "xla_eliminate_hlo_implicit_broadcast"),
        *("xla_embed_ir_in_executable", "xla_enable_fast_math", "xla_hlo_evaluator_use_fast_path"),
        *("xla_llvm_disable_expensive_passes", "xla_llvm_enable_alias_scope_metadata"),
        *("xla_llvm_enable_invariant_load_metadata", "xla_llvm_enable_noalias_metadata"),
        # On CPUs.
        *("xla_cpu_copy_insertion_use_region_analysis", "xla_cpu_enable_concurrency_optimized_scheduler"),
        *("xla_cpu_enable_fast_math", "xla_cpu_enable_fast_min_max", "xla_cpu_enable_platform_dependent_math"),
        *("xla_cpu_fast_math_honor_division", "xla_cpu_fast_math_honor_functions", "xla_cpu_fast_math_honor_infs"),
        *("xla_cpu_fast_math_honor_nans", "xla_cpu_ftz", "xla_cpu_multi_thread_eigen", "xla_cpu_opt_preset"),
        *("xla_cpu_prefer_vector_width", "xla_cpu_scheduler_type", "xla_cpu_strict_dot_conv_math", "xla_cpu_use_acl"),
        *("xla_cpu_use_fusion_emitters", "xla_cpu_use_onednn", "xla_cpu_use_xnnpack"),
        "xla_force_host_platform_device_count",  # of the client's own CPU; a compiler does not look at it
        # On GPUs.
        *("xla_gpu_all_gather_combine_threshold_bytes", "xla_gpu_all_reduce_combine_threshold_bytes"),
        *("xla_gpu_async_dot", "xla_gpu_autotune_level", "xla_gpu_collective_permute_combine_threshold_bytes"),
        *("xla_gpu_cublas_fallback", "xla_gpu_cudnn_gemm_fusion_level", "xla_gpu_deterministic_ops"),
        *("xla_gpu_enable_all_gather_combine_by_dim", "xla_gpu_enable_command_buffer", "xla_gpu_enable_cublaslt"),
        *("xla_gpu_enable_cudnn_layer_norm", "xla_gpu_enable_fast_min_max"),
        *("xla_gpu_enable_highest_priority_async_stream", "xla_gpu_enable_latency_hiding_scheduler"),
        *("xla_gpu_enable_pipelined_all_gather", "xla_gpu_enable_pipelined_all_reduce"),
        *("xla_gpu_enable_pipelined_collectives", "xla_gpu_enable_pipelined_p2p"),
        *("xla_gpu_enable_pipelined_reduce_scatter", "xla_gpu_enable_reduce_scatter_combine_by_dim"),
        *("xla_gpu_enable_triton_gemm", "xla_gpu_enable_while_loop_double_buffering"),
        *("xla_gpu_enable_while_loop_unrolling", "xla_gpu_exclude_nondeterministic_ops"),
        *("xla_gpu_force_conv_nchw", "xla_gpu_force_conv_nhwc", "xla_gpu_ftz", "xla_gpu_graph_min_graph_size"),
        *("xla_gpu_memory_limit_slop_factor", "xla_gpu_multi_streamed_windowed_einsum"),
        *("xla_gpu_reduce_scatter_combine_threshold_bytes", "xla_gpu_threshold_for_windowed_einsum_mib"),
        *("xla_gpu_triton_gemm_any", "xla_gpu_use_runtime_fusion"),
    )
)
"""The options that every client may set, by their names in XLA."""

_SET_BY_JAX = {
    "xla_disable_hlo_passes": b"rematerialization",  # by jax_compiler_enable_remat_pass
    "xla_gpu_enable_llvm_module_compilation_parallelism": 1,  # with jax_compilation_cache_dir
    "xla_gpu_experimental_autotune_cache_mode": 2,
}
"""Values that JAX's own settings give to options which clients may not set to others."""

_LEFT_OUT = {
    61: b"./cuda_sdk_lib",  # xla_gpu_cuda_data_dir, where JAX has CUDA
    306: b"",  # xla_gpu_kernel_cache_file, in jax_compilation_cache_dir
    310: b"",  # xla_gpu_per_fusion_autotune_cache_dir, in the same folder
}
"""The numbers of the paths that JAX sets by itself, and XLA's defaults for them."""

_BUILD_OPTIONS, _OVERRIDES = 3, 7
_DEBUG_OPTIONS = 3
_TOP_FIELDS = {
    1: "argument_layouts",
    2: "parameter_is_tupled_arguments",
    4: "compile_portable_executable",
    5: "profile_version",
    9: "allow_in_place_mlir_modification",
    10: "matrix_unit_operand_precision",
    12: "individually_defined_output_indices",
}
"""The fields of ``CompileOptionsProto`` that concern the program."""

_BUILD_FIELDS = {
    1: "device_ordinal",
    2: "result_layout",
    4: "num_replicas",
    5: "num_partitions",
    6: "use_spmd_partitioning",
    7: "use_auto_spmd_partitioning",
    8: "deduplicate_hlo",
    9: "device_assignment",
    10: "alias_passthrough_params",
    12: "allow_spmd_sharding_propagation_to_output",
    14: "fdo_profile",
    15: "device_memory_size",
    16: "auto_spmd_partitioning_mesh_shape",
    17: "auto_spmd_partitioning_mesh_ids",
    18: "allow_spmd_sharding_propagation_to_parameters",
    19: "use_shardy_partitioner",
    20: "exec_time_optimization_effort",
    21: "memory_fitting_effort",
    22: "process_index",
    23: "process_count",
    24: "optimization_level",
    25: "memory_fitting_level",
    26: "slice_size",
}
"""The fields of ``ExecutableBuildOptionsProto`` that concern the program."""

_OTHER_TOP_FIELDS = {6: "serialized_multi_slice_config", 8: "target_config", 11: "compiler_variant"}
_OTHER_BUILD_FIELDS = {11: "run_backend_only", 13: "comp_envs", 27: "gpu_topology"}


def taken_options(options: CompileOptions, more: Collection[str] = ()) -> CompileOptions:
    """Return compile options of a client without the paths that JAX sets by itself.

    Args:
        options: the options.
        more: the names of further options that this server takes, as the error names them.

    Raises:
        PermissionDeniedError: the server does not take an option from clients.
    """
    stated = set(_stated(options)) - ALLOWED_OPTIONS - set(more)
    left_out = [number for number in _LEFT_OUT if NAMES[number] in stated - options.option_overrides.keys()]
    if refused := sorted(stated - {NAMES[number] for number in left_out}):
        raise PermissionDeniedError(
            f"this server takes no compile option {', '.join(map(repr, refused))} from its clients: expected options "
            "that concern the program alone, as the page on remote devices lists them; leave it out (JAX also sends "
            f"what XLA_FLAGS has), or start the server with --allow-option {refused[0]} if you trust all of its clients"
        )
    if not left_out:
        return options
    # Of several messages one behind the other, the last value of a field counts.
    defaults = b"".join(message(number, _LEFT_OUT[number]) for number in left_out)
    return replace(options, base=options.base + message(_BUILD_OPTIONS, message(_DEBUG_OPTIONS, defaults)))


def _stated(options: CompileOptions) -> Iterator[str]:
    """Yield the names of the options that are stated, but for the fields that concern the program."""
    yield from options.option_overrides
    proto = options.to_proto()
    for number, kind, begin, end in fields(proto):
        if number == _BUILD_OPTIONS and kind == BYTES:
            yield from _stated_build_options(proto, begin, end)
        elif number not in _TOP_FIELDS and number != _OVERRIDES and _is_stated(kind, begin, end):
            yield _OTHER_TOP_FIELDS.get(number, f"compile_options.{number}")


def _stated_build_options(proto: bytes, begin: int, end: int) -> Iterator[str]:
    for number, kind, first, last in fields(proto, begin, end):
        if number == _DEBUG_OPTIONS and kind == BYTES:
            yield from _stated_debug_options(proto, first, last)
        elif number not in _BUILD_FIELDS and _is_stated(kind, first, last):
            yield _OTHER_BUILD_FIELDS.get(number, f"executable_build_options.{number}")


def _stated_debug_options(proto: bytes, begin: int, end: int) -> Iterator[str]:
    for number, kind, first, last in fields(proto, begin, end):
        value: int | bytes = first if kind == VARINT else proto[first:last]
        if kind in (FIXED32, FIXED64) and not any(proto[first:last]):
            continue
        name = NAMES.get(number, f"debug_options.{number}")
        if value and value not in DEFAULTS.get(number, ()) and value != _SET_BY_JAX.get(name):
            yield name


def _is_stated(kind: int, begin: int, end: int) -> bool:
    return begin != 0 if kind == VARINT else end > begin
