"""Checks of what an executable answers about itself: names, numbers, types, shapes, memory kinds, fingerprints."""

from __future__ import annotations

from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.programs.compilation import compile_code
from pjrt.conformance.plugin.contract.programs.owned_bytes import delete, reread
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

_MIXED_TYPES = [ElementType.F32, ElementType.S32, ElementType.F32]
_MIXED_SHAPES = [(4,), (2, 3), ()]


def executable_of(subject: Subject, sample: str) -> int:
    """Return the executable of a sample program."""
    loaded = subject.compile(sample)
    return int(subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable)


def answer_of(subject: Subject, name: str, **fields: Any) -> Any:
    """Call a function that a plugin may lack, or leave unimplemented; the check is unsupported then."""
    subject.require(name)
    answer = subject.attempt(name, **fields)
    if answer.error is not None and answer.error.code == StatusCode.UNIMPLEMENTED:
        raise Unsupported(f"{name}: {answer.error}")
    subject.expect(answer.error is None, f"an answer of {name}", str(answer.error))
    return answer


@check(
    "executable.name",
    calls=("PJRT_Executable_Name",),
    rule="PJRT_Executable_Name returns a string that identifies the executable; the executable owns it.",
)
def _name(subject: Subject) -> None:
    handle = executable_of(subject, "add")
    first = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    second = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    subject.expect(bool(first), "a name", "an empty name")
    subject.expect(first == second, f"the same name again, {first!r}", repr(second))


@check(
    "executable.num_replicas_and_partitions",
    calls=("PJRT_Executable_NumReplicas", "PJRT_Executable_NumPartitions"),
    rule="A program that is compiled for one device has one replica and one partition.",
)
def _counts(subject: Subject) -> None:
    handle = executable_of(subject, "add")
    replicas = subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas
    partitions = subject.call("PJRT_Executable_NumPartitions", executable=handle).num_partitions
    subject.expect((replicas, partitions) == (1, 1), "1 replica and 1 partition", f"{replicas} and {partitions}")


@check(
    "executable.num_outputs",
    calls=("PJRT_Executable_NumOutputs",),
    over={"none": ("no_results", 0), "one": ("add", 1), "three": ("mixed_results", 3), "many": ("many_results", MANY)},
    rule="PJRT_Executable_NumOutputs is the number of results on each device.",
)
def _num_outputs(subject: Subject, case: tuple[str, int]) -> None:
    sample, count = case
    found = subject.call("PJRT_Executable_NumOutputs", executable=executable_of(subject, sample)).num_outputs
    subject.expect(found == count, f"{count} results", str(found))


@check(
    "executable.output_element_types",
    calls=("PJRT_Executable_OutputElementTypes",),
    rule="PJRT_Executable_OutputElementTypes has the element type of each result, in order.",
)
def _types(subject: Subject) -> None:
    answer = answer_of(
        subject, "PJRT_Executable_OutputElementTypes", executable=executable_of(subject, "mixed_results")
    )
    found = [int(each) for each in answer.output_types]
    subject.expect(
        found == _MIXED_TYPES, f"{[each.name for each in _MIXED_TYPES]}", f"{found} ({answer.num_output_types})"
    )


@check(
    "executable.output_dimensions",
    calls=("PJRT_Executable_OutputDimensions",),
    rule="PJRT_Executable_OutputDimensions has the dimensions of all results in a row, and the rank of each.",
)
def _dimensions(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_OutputDimensions", executable=executable_of(subject, "mixed_results"))
    ranks = [int(each) for each in answer.dim_sizes or ()]
    subject.expect(ranks == [len(shape) for shape in _MIXED_SHAPES], "the ranks 1, 2 and 0", str(ranks))
    dims = [int(each) for each in answer.dims or ()]
    subject.expect(dims == [dim for shape in _MIXED_SHAPES for dim in shape], "the dimensions 4, 2, 3", str(dims))


@check(
    "executable.outputs_of_no_results",
    calls=("PJRT_Executable_OutputElementTypes", "PJRT_Executable_OutputDimensions"),
    rule="A program without results has lists of length 0.",
)
def _no_results(subject: Subject) -> None:
    handle = executable_of(subject, "no_results")
    types = answer_of(subject, "PJRT_Executable_OutputElementTypes", executable=handle).num_output_types
    count = answer_of(subject, "PJRT_Executable_OutputDimensions", executable=handle).num_outputs
    subject.expect((types, count) == (0, 0), "0 types and 0 shapes", f"{types} and {count}")


@check(
    "executable.output_memory_kinds",
    calls=("PJRT_Executable_OutputMemoryKinds", "PJRT_Memory_Kind"),
    rule="PJRT_Executable_OutputMemoryKinds has the memory kind of each result, one of the devices' kinds.",
)
def _output_kinds(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_OutputMemoryKinds", executable=executable_of(subject, "mixed_results"))
    _expect_kinds(subject, answer.memory_kinds, answer.num_outputs, 3)


@check(
    "executable.parameter_memory_kinds",
    calls=("PJRT_Executable_ParameterMemoryKinds", "PJRT_Memory_Kind"),
    rule="PJRT_Executable_ParameterMemoryKinds has the memory kind of each parameter, one of the devices' kinds.",
)
def _parameter_kinds(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_ParameterMemoryKinds", executable=executable_of(subject, "add"))
    _expect_kinds(subject, answer.memory_kinds, answer.num_parameters, 2)


def _expect_kinds(subject: Subject, kinds: Any, number: int, count: int) -> None:
    subject.expect(number == count and len(kinds) == count, f"{count} kinds", f"{number}: {kinds}")
    memories = subject.call("PJRT_Device_AddressableMemories", device=subject.device).memories
    known = {bytes(subject.call("PJRT_Memory_Kind", memory=memory).kind) for memory in memories}
    for kind in kinds:
        subject.expect(bytes(kind) in known, f"one of the kinds {known}", repr(kind))


@check(
    "executable.fingerprint",
    calls=("PJRT_Executable_Fingerprint",),
    rule="Executables of the same program and options have the same fingerprint; it identifies the executable.",
)
def _fingerprint(subject: Subject) -> None:
    first, second, other = (_fingerprint_of(subject, sample) for sample in ("add", "add", "mixed_results"))
    subject.expect(bool(first), "a fingerprint", "an empty one")
    subject.expect(first == second, f"the same fingerprint, {first!r}", repr(second))
    subject.expect(first != other, "another fingerprint for another program", repr(other))


def _fingerprint_of(subject: Subject, sample: str) -> Any:
    handle = executable_of(subject, sample)
    return answer_of(subject, "PJRT_Executable_Fingerprint", executable=handle).executable_fingerprint


@check(
    "executable.fingerprint_of_the_loaded",
    calls=("PJRT_Executable_Fingerprint", "PJRT_LoadedExecutable_Fingerprint"),
    rule="PJRT_LoadedExecutable_Fingerprint is the older name of PJRT_Executable_Fingerprint, with the same rule.",
)
def _loaded_fingerprint(subject: Subject) -> None:
    loaded = [subject.compile(sample) for sample in ("add", "add", "mixed_results")]
    first, second, other = (
        answer_of(subject, "PJRT_LoadedExecutable_Fingerprint", executable=each).executable_fingerprint
        for each in loaded
    )
    subject.expect(first == second, f"the same fingerprint, {first!r}", repr(second))
    subject.expect(not first or first != other, "another fingerprint for another program", repr(other))


@check(
    "executable.size_of_generated_code",
    calls=("PJRT_Executable_SizeOfGeneratedCodeInBytes",),
    rule="The size of the generated code is in bytes; −1 means that it is unknown.",
)
def _code_size(subject: Subject) -> None:
    handle = executable_of(subject, "add")
    size = answer_of(subject, "PJRT_Executable_SizeOfGeneratedCodeInBytes", executable=handle).size_in_bytes
    subject.expect(-1 <= size < 1 << 32, "a size in bytes", str(size))


@check(
    "executable.answers_live_as_long_as_it",
    calls=("PJRT_Executable_Name", "PJRT_Executable_OutputDimensions", "PJRT_LoadedExecutable_Destroy"),
    rule="What an executable answers lives as long as the executable, whatever is asked in between.",
)
def _answers_live(subject: Subject) -> None:
    loaded = subject.compile("mixed_results")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    name = subject.call("PJRT_Executable_Name", executable=handle)
    shapes = answer_of(subject, "PJRT_Executable_OutputDimensions", executable=handle)
    before = (name.executable_name, shapes.dims, shapes.dim_sizes)
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    other = executable_of(subject, "add")
    for _ in range(8):
        answer_of(subject, "PJRT_Executable_OutputDimensions", executable=other)
    after = reread(name).executable_name, reread(shapes).dims, shapes.dim_sizes
    subject.expect(after == before, f"the same answers, {before}", str(after))


@check(
    "executable.destroy_null",
    calls=("PJRT_Executable_Destroy",),
    rule="The executable of PJRT_Executable_Destroy may be null.",
)
def _destroy_null(subject: Subject) -> None:
    subject.call("PJRT_Executable_Destroy", executable=0)


@check(
    "executable.compile_options",
    calls=("PJRT_Executable_GetCompileOptions",),
    rule="PJRT_Executable_GetCompileOptions returns the options that the program was compiled with; its deleter frees "
    "them.",
)
def _options(subject: Subject) -> None:
    from pjrt.api.compile_options import CompileOptions

    answer = answer_of(subject, "PJRT_Executable_GetCompileOptions", executable=executable_of(subject, "add"))
    options = CompileOptions.from_proto(bytes(answer.serialized_bytes))
    counts = options.num_replicas, options.num_partitions
    subject.expect(counts == (1, 1), "the options of 1 replica and 1 partition", str(counts))
    delete(answer.serialized_compile_options_deleter, answer.serialized_compile_options)


@check(
    "executable.compile_options_can_be_used_again",
    calls=("PJRT_Executable_GetCompileOptions", "PJRT_Client_Compile"),
    rule="The options of an executable are those that it was compiled with: the program compiles with them again.",
)
def _options_again(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_GetCompileOptions", executable=executable_of(subject, "add"))
    program = subject.program("add")
    again = compile_code(subject, program.code, program.format, bytes(answer.serialized_bytes))
    subject.expect(again.error is None, "a compiled program", str(again.error))
    delete(answer.serialized_compile_options_deleter, answer.serialized_compile_options)
    handles = [
        subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
        for loaded in (again.executable, subject.compile("add"))
    ]
    counts = [subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas for handle in handles]
    subject.expect(counts == [1, 1], "1 replica each", str(counts))
