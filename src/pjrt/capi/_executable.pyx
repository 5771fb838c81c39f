"""Executables: compiled programs that are not loaded on devices."""

import functools

cimport cython
from libc.stdint cimport int64_t

from pjrt.capi._api cimport blob, count, deleter_t, function_t, start, text
from pjrt.capi._gen_abi cimport *
from pjrt.capi._getter cimport Constant, Getter
from pjrt.capi._layouts cimport output_layouts, parameter_layouts
from pjrt.capi._scope cimport Handle, Scope
from pjrt.capi._values cimport Block, read_shape

from pjrt.api.compile_options import CompileOptions
from pjrt.api.errors import InternalError
from pjrt.api.executable import CompiledMemoryStats, Executable
from pjrt.api.program import Program
from pjrt.capi._documented import documented
from pjrt.capi._parameters import parameters_of

cdef size_t _LARGEST_PROGRAM = <size_t>1 << 36
cdef Getter _COST_ANALYSIS = Getter("PJRT_Executable_GetCostAnalysis")  # Executable.cost_analysis
cdef Getter _SERIALIZED = Getter("PJRT_Executable_Serialize")  # Executable.serialize
cdef Getter _FINGERPRINT = Getter("PJRT_Executable_Fingerprint", binary=True)  # Executable.fingerprint
cdef Getter _COMPILE_OPTIONS = Getter("PJRT_Executable_GetCompileOptions")  # Executable.compile_options


@cython.no_gc_clear
cdef class ExecutableCore(Handle):
    """A ``PJRT_Executable``."""

    @property
    def output_shapes(self):
        cdef PJRT_Executable_OutputDimensions_Args args
        cdef size_t index, position = 0
        start(&args, PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_OutputDimensions, &args)
        shapes = []
        for index in range(count(args.num_outputs, args.dim_sizes, "the shapes of the results")):
            shapes.append(read_shape(args.dims + position, args.dim_sizes[index], "the shape of a result"))
            position += args.dim_sizes[index]
        return tuple(shapes)

    @property
    def output_memory_kinds(self):
        cdef PJRT_Executable_OutputMemoryKinds_Args args
        start(&args, PJRT_Executable_OutputMemoryKinds_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_OutputMemoryKinds, &args)
        return _texts(args.memory_kinds, args.memory_kind_sizes, args.num_outputs, "the memories of the results")

    @property
    def parameter_memory_kinds(self):
        cdef PJRT_Executable_ParameterMemoryKinds_Args args
        start(&args, PJRT_Executable_ParameterMemoryKinds_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_ParameterMemoryKinds, &args)
        return _texts(args.memory_kinds, args.memory_kind_sizes, args.num_parameters, "the memories of the parameters")

    @property
    def output_layouts(self):
        return output_layouts(self)

    @property
    def parameter_layouts(self):
        return parameter_layouts(self)

    @property
    def output_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_OutputShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_OutputShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Shardings_PJRT_Executable_OutputShardings, &args)
        shardings = _blobs(args.shardings, args.sharding_sizes, args.num_outputs, "the shardings of the results")
        # XLA reports the sharding of the empty tuple for a program without results.
        return [] if shardings is not None and len(shardings) == 1 and self.num_outputs == 0 else shardings

    @property
    def parameter_shardings(self):
        cdef PJRT_Shardings_PJRT_Executable_ParameterShardings_Args args
        start(&args, PJRT_Shardings_PJRT_Executable_ParameterShardings_Args_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Shardings_PJRT_Executable_ParameterShardings, &args)
        return _blobs(args.shardings, args.sharding_sizes, args.num_parameters, "the shardings of the parameters")

    def cost_analysis(self):
        return _COST_ANALYSIS.ask(self)

    def memory_stats(self):
        cdef PJRT_Executable_GetCompiledMemoryStats_Args a
        start(&a, PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE)
        a.executable = <PJRT_Executable *>self.use()
        self.call(SLOT_PJRT_Executable_GetCompiledMemoryStats, &a)
        return CompiledMemoryStats(
            generated_code_size_in_bytes=a.generated_code_size_in_bytes,
            argument_size_in_bytes=a.argument_size_in_bytes,
            output_size_in_bytes=a.output_size_in_bytes,
            alias_size_in_bytes=a.alias_size_in_bytes,
            temp_size_in_bytes=a.temp_size_in_bytes,
            host_generated_code_size_in_bytes=a.host_generated_code_size_in_bytes,
            host_argument_size_in_bytes=a.host_argument_size_in_bytes,
            host_output_size_in_bytes=a.host_output_size_in_bytes,
            host_alias_size_in_bytes=a.host_alias_size_in_bytes,
            host_temp_size_in_bytes=a.host_temp_size_in_bytes,
            peak_memory_in_bytes=a.peak_memory_in_bytes,
            total_size_in_bytes=a.total_size_in_bytes,
            total_allocation_bytes=a.total_allocation_bytes,
            indefinite_allocations=a.indefinite_allocations,
            peak_unpadded_heap_bytes=a.peak_unpadded_heap_bytes,
        )

    def optimized_program(self):
        cdef PJRT_Executable_OptimizedProgram_Args args
        cdef PJRT_Program program
        cdef Block code
        start(&args, PJRT_Executable_OptimizedProgram_Args_STRUCT_SIZE)
        start(&program, PJRT_Program_STRUCT_SIZE)
        args.executable = <PJRT_Executable *>self.use()
        args.program = &program
        # Asked twice: without memory for the code the plugin gives its size, then it fills the memory.
        self.call(SLOT_PJRT_Executable_OptimizedProgram, &args)
        if program.code_size > _LARGEST_PROGRAM:
            raise InternalError(
                f"the plugin gave an optimized program of {program.code_size} bytes, which cannot be right"
            )
        code = Block.of(program.code_size)
        program.code = <char *>code.data
        self.call(SLOT_PJRT_Executable_OptimizedProgram, &args)
        return Program(
            blob(program.code, program.code_size, "the optimized program"),
            text(program.format, program.format_size, "a program's format"),
        )

    def serialize(self):
        return _SERIALIZED.ask(self)

    def fingerprint(self):
        return _FINGERPRINT.ask(self)

    def compile_options(self):
        return CompileOptions.from_proto(_COMPILE_OPTIONS.ask(self))

    def abi_version(self):
        from pjrt.capi._abi_version import executable_version

        return executable_version(self)

    def tpu(self):
        from pjrt.capi._tpu_executable import tpu_executable

        return tpu_executable(self.scope, self.serialize())

    def metadata(self):
        cdef PJRT_ExecutableMetadata_GetExecutableMetadata_Args args
        cdef PJRT_ExecutableMetadata_DestroySerializedMetadata_Args destroy
        cdef function_t free = self.scope.api.find_in_extension(
            SLOT_PJRT_ExecutableMetadata_DestroySerializedMetadata
        )
        args.executable = <PJRT_Executable *>self.use()
        args.metadata = NULL
        self.call(SLOT_PJRT_ExecutableMetadata_GetExecutableMetadata, &args)
        if args.metadata == NULL:
            return b""
        try:
            return blob(
                args.metadata.serialized_metadata,
                args.metadata.serialized_metadata_size,
                "the metadata of an executable",
            )
        finally:
            destroy.metadata = args.metadata
            if free != NULL:
                with nogil:
                    (<deleter_t>free)(&destroy)

    def __repr__(self):
        if self.native == NULL or self.scope.is_shut():
            return f"<{type(self).__name__} of a closed client>"
        return Executable.__repr__(self)


@documented
class PluginExecutable(ExecutableCore, Executable):
    """A compiled program of a plugin, loaded nowhere (``PJRT_Executable``)."""

    name = Constant("PJRT_Executable_Name")
    num_replicas = Getter("PJRT_Executable_NumReplicas")
    num_partitions = Getter("PJRT_Executable_NumPartitions")
    num_outputs = Constant("PJRT_Executable_NumOutputs")
    size_of_generated_code = Getter("PJRT_Executable_SizeOfGeneratedCodeInBytes")
    output_element_types = Getter("PJRT_Executable_OutputElementTypes")

    @functools.cached_property
    def _parameters(self):
        return parameters_of(self)

    @property
    def parameter_specs(self):
        return tuple([parameter.spec for parameter in self._parameters])

    @property
    def parameter_names(self):
        return tuple([parameter.name for parameter in self._parameters])


cdef object new_executable(Scope scope, str platform, PJRT_Executable *native):
    """Return an executable that the plugin made, and take it over."""
    if native == NULL:
        raise InternalError("the plugin gave no executable where one was expected; report it to its vendor")
    executable = PluginExecutable()
    (<ExecutableCore>executable).platform_name = platform
    (<ExecutableCore>executable).open(scope, native, SLOT_PJRT_Executable_Destroy)  # Executable: when it is dropped
    return executable


cdef tuple _texts(const char *const *array, const size_t *sizes, size_t number, str what):
    cdef size_t index
    count(number, sizes, what)
    return tuple([text(array[index], sizes[index], what) for index in range(count(number, array, what))])


cdef object _blobs(const char *const *array, const size_t *sizes, size_t number, str what):
    """Return serialized protos; ``None`` where the plugin has none."""
    cdef size_t index
    if array == NULL:
        return None
    count(number, sizes, what)
    return tuple([blob(array[index], sizes[index], what) for index in range(count(number, array, what))])
