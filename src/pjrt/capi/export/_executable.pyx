"""Executables shown to a framework: the properties of a compiled program, without its devices."""

cimport cython
from libc.stdint cimport int64_t
from libc.string cimport memcpy

from pjrt.abi.generated.declarations cimport *
from pjrt.capi._api cimport NamedValues
from pjrt.capi.export._gen_handles cimport ExecutableHandle
from pjrt.capi.export._handle_data cimport HandleData
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._program cimport check_program_size
from pjrt.capi.export._trampolines cimport has_field, keep, put, trampoline

from pjrt import stablehlo
from pjrt.api.errors import InvalidArgumentError, UnimplementedError
from pjrt.api.program import ProgramFormat


cdef class ExecutableRecord:
    @staticmethod
    cdef ExecutableRecord of(executable):
        cdef ExecutableRecord record = ExecutableRecord.__new__(ExecutableRecord)
        cdef ExecutableHandle *handle = &record.handle
        record.executable = executable
        record.data = HandleData()
        record.lists = {}
        handle.record = <void *>record
        record.data.add_string(executable.name, &handle.executable_name, &handle.executable_name_size)
        handle.num_replicas = executable.num_replicas
        handle.num_partitions = executable.num_partitions
        handle.num_outputs = executable.num_outputs
        return record

    cdef void *give(self) noexcept:
        """Return the handle, which is the framework's from now on until it destroys it."""
        keep(self)
        return &self.handle


cdef ExecutableRecord executable_record(const PJRT_Executable *executable):
    """Return the record behind an executable's handle."""
    if executable == NULL:
        raise InvalidArgumentError("expected an executable, found a null pointer")
    return <ExecutableRecord>(<ExecutableHandle *>executable).record


# The other properties are read when a framework first asks for them: a client may lack some.

cdef class _StringList:
    cdef const char *const *starts
    cdef const size_t *sizes
    cdef size_t number


cdef int string_list(
    ExecutableRecord record, str attribute, size_t *number, const char *const **starts, const size_t **sizes
) except -1:
    """Set three fields to one of the executable's lists of strings."""
    cdef _StringList strings = record.lists.get(attribute)
    if strings is None:
        strings = _StringList()
        record.data.add_strings(
            getattr(record.executable, attribute), &strings.starts, &strings.sizes, &strings.number
        )
        strings = record.lists.setdefault(attribute, strings)
    starts[0], sizes[0], number[0] = strings.starts, strings.sizes, strings.number


cdef int _size_of_generated_code(void *raw) except -1:
    args = <PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *>raw
    args.size_in_bytes = executable_record(args.executable).executable.size_of_generated_code


cdef int _fingerprint(void *raw) except -1:
    args = <PJRT_Executable_Fingerprint_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    cdef bytes fingerprint
    if record.fingerprint is None:
        fingerprint = bytes(record.executable.fingerprint())
        with cython.critical_section(record):
            if record.fingerprint is None:  # set once: frameworks have the address of its bytes
                record.fingerprint = fingerprint
    args.executable_fingerprint = record.fingerprint
    args.executable_fingerprint_size = len(record.fingerprint)


cdef int _cost_analysis(void *raw) except -1:
    args = <PJRT_Executable_GetCostAnalysis_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    cdef NamedValues costs
    if record.costs is None:
        costs = NamedValues(dict(record.executable.cost_analysis()), "the cost analysis")
        with cython.critical_section(record):
            if record.costs is None:
                record.costs = costs
    args.properties = record.costs.data
    args.num_properties = record.costs.size


cdef int _memory_stats(void *raw) except -1:
    args = <PJRT_Executable_GetCompiledMemoryStats_Args *>raw
    stats = executable_record(args.executable).executable.memory_stats()
    cdef int64_t *field = &args.generated_code_size_in_bytes
    for value in (
        stats.generated_code_size_in_bytes,
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.host_generated_code_size_in_bytes,
        stats.host_argument_size_in_bytes,
        stats.host_output_size_in_bytes,
        stats.host_alias_size_in_bytes,
        stats.host_temp_size_in_bytes,
        stats.peak_memory_in_bytes,
        stats.total_size_in_bytes,
        stats.total_allocation_bytes,
        stats.indefinite_allocations,
        stats.peak_unpadded_heap_bytes,
    ):
        # The struct has grown over the years, and an older caller's ends earlier.
        if not has_field(args, field, sizeof(int64_t)):
            break
        field[0] = value
        field += 1


cdef int _output_element_types(void *raw) except -1:
    args = <PJRT_Executable_OutputElementTypes_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    cdef const int *types
    cdef size_t number
    if record.output_types == NULL:
        record.data.add_ints(record.executable.output_element_types, &types, &number)
        with cython.critical_section(record):
            record.num_output_types = number
            record.output_types = types
    args.output_types = <PJRT_Buffer_Type *>record.output_types
    args.num_output_types = record.num_output_types


cdef int _output_dimensions(void *raw) except -1:
    args = <PJRT_Executable_OutputDimensions_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    cdef size_t number
    cdef const int64_t *dims
    cdef const int64_t *ranks
    if record.output_dims == NULL:
        shapes = list(record.executable.output_shapes)
        record.data.add_int64s([len(shape) for shape in shapes], &ranks, &number)
        record.data.add_int64s([size for shape in shapes for size in shape], &dims, &number)
        with cython.critical_section(record):
            record.output_ranks = ranks
            record.output_dims = dims
    args.num_outputs = record.handle.num_outputs
    args.dims = record.output_dims
    args.dim_sizes = <const size_t *>record.output_ranks


cdef int _output_memory_kinds(void *raw) except -1:
    args = <PJRT_Executable_OutputMemoryKinds_Args *>raw
    record = executable_record(args.executable)
    string_list(record, "output_memory_kinds", &args.num_outputs, &args.memory_kinds, &args.memory_kind_sizes)


cdef int _parameter_memory_kinds(void *raw) except -1:
    args = <PJRT_Executable_ParameterMemoryKinds_Args *>raw
    record = executable_record(args.executable)
    string_list(record, "parameter_memory_kinds", &args.num_parameters, &args.memory_kinds, &args.memory_kind_sizes)


cdef object _for_frameworks(executable):
    """Return the optimized program in one of the two formats that frameworks read: ``mlir`` or ``hlo_with_config``.

    An XLA without the Shardings extension, as PyTorch/XLA has it, reads the shardings of an executable in this program.
    Where it finds none, it takes the shard of one device for the whole of a result.
    """
    program = executable.optimized_program()
    parameter_shardings, output_shardings = (
        _shardings(executable, name) for name in ("parameter_shardings", "output_shardings")
    )
    if parameter_shardings or output_shardings:
        from pjrt.stablehlo.shardings.partitioner import with_shardings  # programs of one device need none of it

        return with_shardings(program, parameter_shardings, output_shardings)
    return stablehlo.to_hlo(program, with_config=True) if program.format == ProgramFormat.HLO else program


cdef object _shardings(executable, name):
    try:
        return getattr(executable, name)
    except UnimplementedError:
        return None


cdef int _optimized_program(void *raw) except -1:
    args = <PJRT_Executable_OptimizedProgram_Args *>raw
    cdef PJRT_Program *target = args.program
    check_program_size(target)
    cdef ExecutableRecord record = executable_record(args.executable)
    # Called twice: for the size with no memory to write to, then with memory of that size.
    if record.optimized is None:
        optimized = _for_frameworks(record.executable)
        optimized_format = str(optimized.format).encode()
        with cython.critical_section(record):
            if record.optimized is None:
                record.optimized_format = optimized_format
                record.optimized = optimized
    cdef bytes code = record.optimized.code
    target.format = record.optimized_format
    target.format_size = len(record.optimized_format)
    if target.code != NULL:
        if target.code_size < <size_t>len(code):
            raise InvalidArgumentError(f"the optimized program needs {len(code)} bytes, found {target.code_size}")
        memcpy(target.code, <const char *>code, len(code))
    target.code_size = len(code)


cdef int _serialize(void *raw) except -1:
    args = <PJRT_Executable_Serialize_Args *>raw
    give_bytes(executable_record(args.executable).executable.serialize(), &args.serialized_bytes)


cdef int _compile_options(void *raw) except -1:
    args = <PJRT_Executable_GetCompileOptions_Args *>raw
    options = executable_record(args.executable).executable.compile_options()
    give_bytes(options.to_proto(), &args.serialized_bytes)


cdef int fill_table(PJRT_Api *table) except -1:
    """Set the functions of executables, but for their getters."""
    put(&table.PJRT_Executable_SizeOfGeneratedCodeInBytes, trampoline(_size_of_generated_code))
    put(&table.PJRT_Executable_Fingerprint, trampoline(_fingerprint))
    put(&table.PJRT_Executable_GetCostAnalysis, trampoline(_cost_analysis))
    put(&table.PJRT_Executable_GetCompiledMemoryStats, trampoline(_memory_stats))
    put(&table.PJRT_Executable_OutputElementTypes, trampoline(_output_element_types))
    put(&table.PJRT_Executable_OutputDimensions, trampoline(_output_dimensions))
    put(&table.PJRT_Executable_OutputMemoryKinds, trampoline(_output_memory_kinds))
    put(&table.PJRT_Executable_ParameterMemoryKinds, trampoline(_parameter_memory_kinds))
    put(&table.PJRT_Executable_OptimizedProgram, trampoline(_optimized_program))
    put(&table.PJRT_Executable_Serialize, trampoline(_serialize))
    put(&table.PJRT_Executable_GetCompileOptions, trampoline(_compile_options))
