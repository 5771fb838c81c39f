"""Executables shown to a framework: what a compiled program is, without its devices."""

from libc.stdint cimport int64_t
from libc.string cimport memcpy

from pjrt.capi._gen_abi cimport *
from pjrt.capi._values cimport Block, NamedValues, int64_block
from pjrt.capi.export._trampolines cimport drop, trampoline, has_field, keep, put
from pjrt.capi.export._owned_bytes cimport give_bytes
from pjrt.capi.export._strings cimport String, Strings

from pjrt import stablehlo
from pjrt.api.errors import InvalidArgumentError
from pjrt.api.program import ProgramFormat


cdef class ExecutableRecord:
    @staticmethod
    cdef ExecutableRecord of(executable):
        cdef ExecutableRecord record = ExecutableRecord.__new__(ExecutableRecord)
        record.executable = executable
        record.strings = Strings()
        record.lists = {}
        record.handle.record = <void *>record
        record.handle.name = record.strings.add(executable.name)
        record.handle.num_replicas = executable.num_replicas
        record.handle.num_partitions = executable.num_partitions
        record.handle.num_outputs = executable.num_outputs
        return record

    cdef void *give(self) noexcept:
        """The handle, which now is the framework's until it destroys it."""
        keep(self)
        return &self.handle


cdef class _StringList:
    """Strings as the ABI gives lists of them: an array of starts and one of sizes."""

    cdef Strings strings
    cdef Block starts
    cdef Block sizes
    cdef size_t length


cdef int string_list(
    ExecutableRecord record, str attribute, size_t *length, const char *const **starts, const size_t **sizes
) except -1:
    """One of the executable's lists of strings, read once and kept for as long as the executable lives."""
    cdef _StringList found = record.lists.get(attribute)
    cdef size_t index
    cdef String text
    if found is None:
        values = list(getattr(record.executable, attribute))
        found = _StringList()
        found.strings = Strings()
        found.length = len(values)
        found.starts = Block.of(found.length * sizeof(char *))
        found.sizes = Block.of(found.length * sizeof(size_t))
        for index in range(found.length):
            text = found.strings.add(values[index])
            (<const char **>found.starts.data)[index] = text.data
            (<size_t *>found.sizes.data)[index] = text.size
        record.lists[attribute] = found
    length[0] = found.length
    starts[0] = <const char *const *>found.starts.data
    sizes[0] = <size_t *>found.sizes.data
    return 0


cdef ExecutableRecord executable_record(const PJRT_Executable *executable):
    """The record behind an executable's handle."""
    if executable == NULL:
        raise InvalidArgumentError("expected an executable, found a null pointer")
    return <ExecutableRecord>(<ExecutableHandle *>executable).record


cdef PJRT_Error *_destroy(PJRT_Executable_Destroy_Args *args) noexcept nogil:
    if args.executable != NULL:
        drop((<ExecutableHandle *>args.executable).record)
    return NULL


cdef PJRT_Error *_name(PJRT_Executable_Name_Args *args) noexcept nogil:
    args.executable_name = (<ExecutableHandle *>args.executable).name.data
    args.executable_name_size = (<ExecutableHandle *>args.executable).name.size
    return NULL


cdef PJRT_Error *_num_replicas(PJRT_Executable_NumReplicas_Args *args) noexcept nogil:
    args.num_replicas = (<ExecutableHandle *>args.executable).num_replicas
    return NULL


cdef PJRT_Error *_num_partitions(PJRT_Executable_NumPartitions_Args *args) noexcept nogil:
    args.num_partitions = (<ExecutableHandle *>args.executable).num_partitions
    return NULL


cdef PJRT_Error *_num_outputs(PJRT_Executable_NumOutputs_Args *args) noexcept nogil:
    args.num_outputs = (<ExecutableHandle *>args.executable).num_outputs
    return NULL


cdef int _size_of_generated_code(void *raw) except -1:
    args = <PJRT_Executable_SizeOfGeneratedCodeInBytes_Args *>raw
    args.size_in_bytes = executable_record(args.executable).executable.size_of_generated_code
    return 0


cdef int _fingerprint(void *raw) except -1:
    args = <PJRT_Executable_Fingerprint_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    if record.fingerprint.data == NULL:
        record.fingerprint = record.strings.add(bytes(record.executable.fingerprint()))
    args.executable_fingerprint = record.fingerprint.data
    args.executable_fingerprint_size = record.fingerprint.size
    return 0


cdef int _cost_analysis(void *raw) except -1:
    args = <PJRT_Executable_GetCostAnalysis_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    if record.costs is None:
        record.costs = NamedValues(dict(record.executable.cost_analysis()), "the cost analysis")
    args.properties = record.costs.data
    args.num_properties = record.costs.size
    return 0


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
    return 0


cdef int _output_element_types(void *raw) except -1:
    args = <PJRT_Executable_OutputElementTypes_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    cdef size_t index
    cdef Block block
    if record.element_types is None:
        types = list(record.executable.output_element_types)
        block = Block.of(len(types) * sizeof(PJRT_Buffer_Type))
        for index in range(<size_t>len(types)):
            (<PJRT_Buffer_Type *>block.data)[index] = <PJRT_Buffer_Type><int>types[index]
        record.element_types = block
    args.output_types = <PJRT_Buffer_Type *>record.element_types.data
    args.num_output_types = record.handle.num_outputs
    return 0


cdef int _output_dimensions(void *raw) except -1:
    args = <PJRT_Executable_OutputDimensions_Args *>raw
    cdef ExecutableRecord record = executable_record(args.executable)
    if record.dimensions is None:
        shapes = list(record.executable.output_shapes)
        record.ranks = int64_block([len(shape) for shape in shapes])
        record.dimensions = int64_block([size for shape in shapes for size in shape])
    args.num_outputs = record.handle.num_outputs
    args.dims = <int64_t *>record.dimensions.data
    args.dim_sizes = <size_t *>record.ranks.data
    return 0


cdef int _output_memory_kinds(void *raw) except -1:
    args = <PJRT_Executable_OutputMemoryKinds_Args *>raw
    return string_list(
        executable_record(args.executable),
        "output_memory_kinds",
        &args.num_outputs,
        &args.memory_kinds,
        &args.memory_kind_sizes,
    )


cdef int _parameter_memory_kinds(void *raw) except -1:
    args = <PJRT_Executable_ParameterMemoryKinds_Args *>raw
    return string_list(
        executable_record(args.executable),
        "parameter_memory_kinds",
        &args.num_parameters,
        &args.memory_kinds,
        &args.memory_kind_sizes,
    )


cdef object _for_frameworks(program):
    """An optimized program in one of the two formats that frameworks take: ``mlir`` or ``hlo_with_config``."""
    if program.format != ProgramFormat.HLO:
        return program
    return stablehlo.to_hlo(program, with_config=True)


cdef int _optimized_program(void *raw) except -1:
    args = <PJRT_Executable_OptimizedProgram_Args *>raw
    cdef PJRT_Program *target = args.program
    cdef bytes code
    cdef ExecutableRecord record = executable_record(args.executable)
    # Asked twice: for the size with no memory to write to, then with memory of that size.
    if record.optimized is None:
        record.optimized = _for_frameworks(record.executable.optimized_program())
        record.optimized_format = record.strings.add(str(record.optimized.format))
    code = record.optimized.code
    target.format = record.optimized_format.data
    target.format_size = record.optimized_format.size
    if target.code == NULL:
        target.code_size = len(code)
        return 0
    if target.code_size < <size_t>len(code):
        raise InvalidArgumentError(f"the optimized program needs {len(code)} bytes, found room for {target.code_size}")
    target.code_size = len(code)
    memcpy(target.code, <const char *>code, len(code))
    return 0


cdef int _serialize(void *raw) except -1:
    args = <PJRT_Executable_Serialize_Args *>raw
    return give_bytes(
        executable_record(args.executable).executable.serialize(),
        &args.serialized_bytes,
        &args.serialized_bytes_size,
        <void **>&args.serialized_executable,
        <void **>&args.serialized_executable_deleter,
    )


cdef int _compile_options(void *raw) except -1:
    args = <PJRT_Executable_GetCompileOptions_Args *>raw
    return give_bytes(
        executable_record(args.executable).executable.compile_options().to_proto(),
        &args.serialized_bytes,
        &args.serialized_bytes_size,
        <void **>&args.serialized_compile_options,
        <void **>&args.serialized_compile_options_deleter,
    )


cdef int fill_table(PJRT_Api *table) except -1:
    """The functions of executables."""
    table.PJRT_Executable_Destroy = _destroy
    table.PJRT_Executable_Name = _name
    table.PJRT_Executable_NumReplicas = _num_replicas
    table.PJRT_Executable_NumPartitions = _num_partitions
    table.PJRT_Executable_NumOutputs = _num_outputs
    put(table, SLOT_PJRT_Executable_SizeOfGeneratedCodeInBytes, trampoline(_size_of_generated_code))
    put(table, SLOT_PJRT_Executable_Fingerprint, trampoline(_fingerprint))
    put(table, SLOT_PJRT_Executable_GetCostAnalysis, trampoline(_cost_analysis))
    put(table, SLOT_PJRT_Executable_GetCompiledMemoryStats, trampoline(_memory_stats))
    put(table, SLOT_PJRT_Executable_OutputElementTypes, trampoline(_output_element_types))
    put(table, SLOT_PJRT_Executable_OutputDimensions, trampoline(_output_dimensions))
    put(table, SLOT_PJRT_Executable_OutputMemoryKinds, trampoline(_output_memory_kinds))
    put(table, SLOT_PJRT_Executable_ParameterMemoryKinds, trampoline(_parameter_memory_kinds))
    put(table, SLOT_PJRT_Executable_OptimizedProgram, trampoline(_optimized_program))
    put(table, SLOT_PJRT_Executable_Serialize, trampoline(_serialize))
    put(table, SLOT_PJRT_Executable_GetCompileOptions, trampoline(_compile_options))
    return 0
