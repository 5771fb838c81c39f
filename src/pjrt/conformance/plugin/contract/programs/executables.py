"""Checks of executables: what they answer about themselves, loaded ones and their end, and analyses of programs."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from pjrt.abi.schema import FUNCTIONS
from pjrt.api.compile_options import DeviceAssignment
from pjrt.api.element_type import ElementType
from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Result, Struct
from pjrt.capi.raw.struct import StructReader
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.executions.launch import Launch, PendingBuffer
from pjrt.conformance.plugin.contract.programs.compilation import compile_code, device_ids, expect_sum
from pjrt.conformance.plugin.samples import MANY
from pjrt.conformance.plugin.subject import Subject

# Bytes that a plugin hands out with a deleter, and answers that are read a second time.

_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def delete(deleter: int, holder: int) -> None:
    """Call the deleter that a plugin has returned on what it is for."""
    _Deleter(deleter)(holder)


def reread(result: Result) -> Struct:
    """Read the struct of a call again: its pointers are those of then, and what they point to is that of now."""
    memory = ctypes.create_string_buffer(result.struct_bytes)
    return StructReader().read(FUNCTIONS[result.function].args, ctypes.addressof(memory))


# What an executable answers about itself: names, numbers, types, shapes, memory kinds, fingerprints.

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


@check("executable.name", calls=("PJRT_Executable_Name",))
def _name(subject: Subject) -> None:
    """PJRT_Executable_Name returns a string that identifies the executable; the executable owns it."""
    handle = executable_of(subject, "add")
    first = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    second = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    subject.expect(bool(first), "a name", "an empty name")
    subject.expect(first == second, f"the same name again, {first!r}", repr(second))


@check("executable.num_replicas_and_partitions", calls=("PJRT_Executable_NumReplicas", "PJRT_Executable_NumPartitions"))
def _counts(subject: Subject) -> None:
    """A program that is compiled for one device has one replica and one partition."""
    handle = executable_of(subject, "add")
    replicas = subject.call("PJRT_Executable_NumReplicas", executable=handle).num_replicas
    partitions = subject.call("PJRT_Executable_NumPartitions", executable=handle).num_partitions
    subject.expect((replicas, partitions) == (1, 1), "1 replica and 1 partition", f"{replicas} and {partitions}")


@check(
    "executable.num_outputs",
    calls=("PJRT_Executable_NumOutputs",),
    over={"none": ("no_results", 0), "one": ("add", 1), "three": ("mixed_results", 3), "many": ("many_results", MANY)},
)
def _num_outputs(subject: Subject, case: tuple[str, int]) -> None:
    """PJRT_Executable_NumOutputs is the number of results on each device."""
    sample, count = case
    found = subject.call("PJRT_Executable_NumOutputs", executable=executable_of(subject, sample)).num_outputs
    subject.expect(found == count, f"{count} results", str(found))


@check("executable.output_element_types", calls=("PJRT_Executable_OutputElementTypes",))
def _types(subject: Subject) -> None:
    """PJRT_Executable_OutputElementTypes has the element type of each result, in order."""
    answer = answer_of(
        subject, "PJRT_Executable_OutputElementTypes", executable=executable_of(subject, "mixed_results")
    )
    found = [int(each) for each in answer.output_types]
    subject.expect(
        found == _MIXED_TYPES, f"{[each.name for each in _MIXED_TYPES]}", f"{found} ({answer.num_output_types})"
    )


@check("executable.output_dimensions", calls=("PJRT_Executable_OutputDimensions",))
def _dimensions(subject: Subject) -> None:
    """PJRT_Executable_OutputDimensions has the dimensions of all results in a row, and the rank of each."""
    answer = answer_of(subject, "PJRT_Executable_OutputDimensions", executable=executable_of(subject, "mixed_results"))
    ranks = [int(each) for each in answer.dim_sizes or ()]
    subject.expect(ranks == [len(shape) for shape in _MIXED_SHAPES], "the ranks 1, 2 and 0", str(ranks))
    dims = [int(each) for each in answer.dims or ()]
    subject.expect(dims == [dim for shape in _MIXED_SHAPES for dim in shape], "the dimensions 4, 2, 3", str(dims))


@check(
    "executable.outputs_of_no_results", calls=("PJRT_Executable_OutputElementTypes", "PJRT_Executable_OutputDimensions")
)
def _no_results(subject: Subject) -> None:
    """A program without results has lists of length 0."""
    handle = executable_of(subject, "no_results")
    types = answer_of(subject, "PJRT_Executable_OutputElementTypes", executable=handle).num_output_types
    count = answer_of(subject, "PJRT_Executable_OutputDimensions", executable=handle).num_outputs
    subject.expect((types, count) == (0, 0), "0 types and 0 shapes", f"{types} and {count}")


@check("executable.output_memory_kinds", calls=("PJRT_Executable_OutputMemoryKinds", "PJRT_Memory_Kind"))
def _output_kinds(subject: Subject) -> None:
    """PJRT_Executable_OutputMemoryKinds has the memory kind of each result, one of the devices' kinds."""
    answer = answer_of(subject, "PJRT_Executable_OutputMemoryKinds", executable=executable_of(subject, "mixed_results"))
    _expect_kinds(subject, answer.memory_kinds, answer.num_outputs, 3)


@check("executable.parameter_memory_kinds", calls=("PJRT_Executable_ParameterMemoryKinds", "PJRT_Memory_Kind"))
def _parameter_kinds(subject: Subject) -> None:
    """PJRT_Executable_ParameterMemoryKinds has the memory kind of each parameter, one of the devices' kinds."""
    answer = answer_of(subject, "PJRT_Executable_ParameterMemoryKinds", executable=executable_of(subject, "add"))
    _expect_kinds(subject, answer.memory_kinds, answer.num_parameters, 2)


def _expect_kinds(subject: Subject, kinds: Any, number: int, count: int) -> None:
    subject.expect(number == count and len(kinds) == count, f"{count} kinds", f"{number}: {kinds}")
    memories = subject.call("PJRT_Device_AddressableMemories", device=subject.device).memories
    known = {bytes(subject.call("PJRT_Memory_Kind", memory=memory).kind) for memory in memories}
    for kind in kinds:
        subject.expect(bytes(kind) in known, f"one of the kinds {known}", repr(kind))


@check("executable.fingerprint", calls=("PJRT_Executable_Fingerprint",))
def _fingerprint(subject: Subject) -> None:
    """Executables of the same program and options have the same fingerprint; it identifies the executable."""
    first, second, other = (_fingerprint_of(subject, sample) for sample in ("add", "add", "mixed_results"))
    subject.expect(bool(first), "a fingerprint", "an empty one")
    subject.expect(first == second, f"the same fingerprint, {first!r}", repr(second))
    subject.expect(first != other, "another fingerprint for another program", repr(other))


def _fingerprint_of(subject: Subject, sample: str) -> Any:
    handle = executable_of(subject, sample)
    return answer_of(subject, "PJRT_Executable_Fingerprint", executable=handle).executable_fingerprint


@check(
    "executable.fingerprint_of_the_loaded", calls=("PJRT_Executable_Fingerprint", "PJRT_LoadedExecutable_Fingerprint")
)
def _loaded_fingerprint(subject: Subject) -> None:
    """PJRT_LoadedExecutable_Fingerprint is the older name of PJRT_Executable_Fingerprint, with the same rule."""
    loaded = [subject.compile(sample) for sample in ("add", "add", "mixed_results")]
    first, second, other = (
        answer_of(subject, "PJRT_LoadedExecutable_Fingerprint", executable=each).executable_fingerprint
        for each in loaded
    )
    subject.expect(first == second, f"the same fingerprint, {first!r}", repr(second))
    subject.expect(not first or first != other, "another fingerprint for another program", repr(other))


@check("executable.size_of_generated_code", calls=("PJRT_Executable_SizeOfGeneratedCodeInBytes",))
def _code_size(subject: Subject) -> None:
    """The size of the generated code is in bytes; −1 means that it is unknown."""
    handle = executable_of(subject, "add")
    size = answer_of(subject, "PJRT_Executable_SizeOfGeneratedCodeInBytes", executable=handle).size_in_bytes
    subject.expect(-1 <= size < 1 << 32, "a size in bytes", str(size))


@check(
    "executable.answers_live_as_long_as_it",
    calls=("PJRT_Executable_Name", "PJRT_Executable_OutputDimensions", "PJRT_LoadedExecutable_Destroy"),
)
def _answers_live(subject: Subject) -> None:
    """What an executable answers lives as long as the executable, whatever is asked in between."""
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


@check("executable.destroy_null", calls=("PJRT_Executable_Destroy",))
def _executable_destroy_null(subject: Subject) -> None:
    """The executable of PJRT_Executable_Destroy may be null."""
    subject.call("PJRT_Executable_Destroy", executable=0)


@check("executable.compile_options", calls=("PJRT_Executable_GetCompileOptions",))
def _options(subject: Subject) -> None:
    """PJRT_Executable_GetCompileOptions returns the options that the program was compiled with; its deleter frees
    them.
    """
    from pjrt.api.compile_options import CompileOptions

    answer = answer_of(subject, "PJRT_Executable_GetCompileOptions", executable=executable_of(subject, "add"))
    options = CompileOptions.from_proto(bytes(answer.serialized_bytes))
    counts = options.num_replicas, options.num_partitions
    subject.expect(counts == (1, 1), "the options of 1 replica and 1 partition", str(counts))
    delete(answer.serialized_compile_options_deleter, answer.serialized_compile_options)


@check(
    "executable.compile_options_can_be_used_again", calls=("PJRT_Executable_GetCompileOptions", "PJRT_Client_Compile")
)
def _options_again(subject: Subject) -> None:
    """The options of an executable are those that it was compiled with: the program compiles with them again."""
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


# Loaded executables: their devices, deleting, destroying, and the handles made from them.

_X = np.arange(4, dtype=np.float32)


def _is_deleted(subject: Subject, executable: int) -> bool:
    return bool(subject.call("PJRT_LoadedExecutable_IsDeleted", executable=executable).is_deleted)


@check("loaded_executable.addressable_devices", calls=("PJRT_LoadedExecutable_AddressableDevices",))
def _devices(subject: Subject) -> None:
    """The addressable devices are those on which the executable runs; they are devices of the client."""
    answer = subject.call("PJRT_LoadedExecutable_AddressableDevices", executable=subject.compile("add"))
    devices = list(answer.addressable_devices)
    subject.expect(len(devices) == 1, "1 device", str(len(devices)))
    subject.expect(devices[0] in subject.devices, "a device of the client", hex(devices[0]))


@check("loaded_executable.logical_ids", calls=("PJRT_LoadedExecutable_AddressableDeviceLogicalIds",))
def _logical_ids(subject: Subject) -> None:
    """The logical ids are the replica and the partition of each addressable device, in the same order."""
    answer = answer_of(subject, "PJRT_LoadedExecutable_AddressableDeviceLogicalIds", executable=subject.compile("add"))
    places = [(each.replica, each.partition) for each in answer.addressable_device_logical_ids]
    subject.expect(places == [(0, 0)], "replica 0, partition 0", str(places))


@check("loaded_executable.device_assignment", calls=("PJRT_LoadedExecutable_GetDeviceAssignment",))
def _assignment(subject: Subject) -> None:
    """PJRT_LoadedExecutable_GetDeviceAssignment returns a serialized DeviceAssignmentProto with the ids of the devices,
    and a deleter.
    """
    loaded = subject.compile("add")
    answer = answer_of(subject, "PJRT_LoadedExecutable_GetDeviceAssignment", executable=loaded)
    subject.expect(bool(answer.serialized_device_assignment_deleter), "a deleter", "null")
    rows = DeviceAssignment.from_proto(bytes(answer.serialized_bytes)).device_ids
    subject.expect(rows == ((device_ids(subject)[0],),), "the first device", str(rows))
    delete(answer.serialized_device_assignment_deleter, answer.serialized_device_assignment)


@check(
    "loaded_executable.device_assignment_outlives_it",
    calls=("PJRT_LoadedExecutable_GetDeviceAssignment", "PJRT_LoadedExecutable_Destroy"),
)
def _assignment_outlives(subject: Subject) -> None:
    """The bytes of a device assignment live until their deleter is called."""
    loaded = subject.compile("add")
    answer = answer_of(subject, "PJRT_LoadedExecutable_GetDeviceAssignment", executable=loaded)
    before = bytes(answer.serialized_bytes)
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    after = bytes(reread(answer).serialized_bytes)
    subject.expect(after == before, f"the same bytes, {before!r}", repr(after))
    delete(answer.serialized_device_assignment_deleter, answer.serialized_device_assignment)


@check("loaded_executable.is_deleted", calls=("PJRT_LoadedExecutable_IsDeleted", "PJRT_LoadedExecutable_Delete"))
def _deleted(subject: Subject) -> None:
    """PJRT_LoadedExecutable_IsDeleted is true if and only if PJRT_LoadedExecutable_Delete was called."""
    loaded = subject.compile("add")
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one")
    expect_sum(subject, loaded)
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one after it ran")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.expect(_is_deleted(subject, loaded), "a deleted executable", "one that is not deleted")


@check("loaded_executable.delete_twice", calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_IsDeleted"))
def _delete_twice(subject: Subject) -> None:
    """Deleting a deleted executable may fail, and changes nothing."""
    loaded = subject.compile("add")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.attempt("PJRT_LoadedExecutable_Delete", executable=loaded)
    subject.expect(_is_deleted(subject, loaded), "a deleted executable", "one that is not deleted")


@check(
    "loaded_executable.execute_after_delete", calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_Execute")
)
def _execute_deleted(subject: Subject) -> None:
    """A deleted executable cannot be executed: the call or the results have an error."""
    loaded = subject.compile("add")
    subject.call("PJRT_LoadedExecutable_Delete", executable=loaded)
    Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]]).expect_error()
    expect_sum(subject, subject.compile("add"))


@check(
    "loaded_executable.delete_during_execution",
    calls=("PJRT_LoadedExecutable_Delete", "PJRT_LoadedExecutable_Execute"),
    over={"delete": "PJRT_LoadedExecutable_Delete", "destroy": "PJRT_LoadedExecutable_Destroy"},
)
def _delete_during(subject: Subject, function: str) -> None:
    """An execution that has begun goes on when its executable is deleted; the code is freed after it."""
    loaded = subject.compile("add")
    pending = PendingBuffer(subject)
    launch = Launch(subject, loaded, [[pending.handle, subject.buffer(_X)]]).succeeded()
    subject.call(function, executable=loaded)
    pending.fulfil(_X)
    launch.expect(2 * _X)


@check(
    "loaded_executable.results_outlive_it",
    calls=("PJRT_LoadedExecutable_Destroy", "PJRT_LoadedExecutable_Execute", "PJRT_Buffer_ToHostBuffer"),
)
def _results_outlive(subject: Subject) -> None:
    """Results belong to the caller, and live on when the executable is destroyed."""
    loaded = subject.compile("add")
    launch = Launch(subject, loaded, [[subject.buffer(_X), subject.buffer(_X)]]).succeeded()
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    launch.expect(2 * _X)


@check("loaded_executable.destroy_null", calls=("PJRT_LoadedExecutable_Destroy",))
def _loaded_executable_destroy_null(subject: Subject) -> None:
    """The executable of PJRT_LoadedExecutable_Destroy may be null."""
    subject.call("PJRT_LoadedExecutable_Destroy", executable=0)


@check(
    "loaded_executable.executable_outlives_it",
    calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_LoadedExecutable_Destroy", "PJRT_Executable_NumOutputs"),
)
def _executable_outlives(subject: Subject) -> None:
    """The handle of PJRT_LoadedExecutable_GetExecutable belongs to the caller, and lives until it is destroyed."""
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    name = subject.call("PJRT_Executable_Name", executable=handle).executable_name
    count = subject.call("PJRT_Executable_NumOutputs", executable=handle).num_outputs
    subject.expect(bool(name) and count == 1, "a name and 1 result", f"{name!r} and {count}")
    subject.call("PJRT_Executable_Destroy", executable=handle)


@check(
    "loaded_executable.get_executable_twice", calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_Executable_Destroy")
)
def _get_twice(subject: Subject) -> None:
    """Each call of PJRT_LoadedExecutable_GetExecutable returns a handle that is destroyed on its own."""
    loaded = subject.compile("add")
    first, second = (
        subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable for _ in range(2)
    )
    subject.call("PJRT_Executable_Destroy", executable=first)
    count = subject.call("PJRT_Executable_NumOutputs", executable=second).num_outputs
    subject.expect(count == 1, "1 result", str(count))
    subject.call("PJRT_Executable_Destroy", executable=second)
    expect_sum(subject, loaded)


@check(
    "loaded_executable.destroying_the_executable_leaves_it",
    calls=("PJRT_LoadedExecutable_GetExecutable", "PJRT_Executable_Destroy", "PJRT_LoadedExecutable_Execute"),
)
def _handle_destroyed(subject: Subject) -> None:
    """The loaded executable lives on when a handle of PJRT_LoadedExecutable_GetExecutable is destroyed."""
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_Executable_Destroy", executable=handle)
    expect_sum(subject, loaded)
    subject.expect(not _is_deleted(subject, loaded), "an executable that is not deleted", "a deleted one")


# The optimized program, the cost analysis and the memory statistics of executables.

_CALLS = ("PJRT_Executable_OptimizedProgram",)
_SIZES = (
    "generated_code_size_in_bytes",
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
)
_HOST_SIZES = tuple(f"host_{name}" for name in _SIZES)


class _OptimizedProgram:
    """The two calls that give the optimized program of an executable."""

    def __init__(self, subject: Subject, executable: int) -> None:
        self._subject, self._executable = subject, executable
        answer = self._call(0, 0)
        if answer.error is not None and answer.error.code == StatusCode.UNIMPLEMENTED:
            raise Unsupported(f"PJRT_Executable_OptimizedProgram: {answer.error}")
        subject.expect(answer.error is None, "the size of the program", str(answer.error))
        self.format, self.size = _format(answer), int(answer.program.code_size)

    def fill(self, room: int) -> tuple[Result, ctypes.Array[ctypes.c_char]]:
        """Ask for the program, with memory for this many bytes."""
        memory = ctypes.create_string_buffer(b"\xa5" * (room + 64), room + 64)
        return self._call(ctypes.addressof(memory), room), memory

    def _call(self, code: int, size: int) -> Result:
        program = Struct("PJRT_Program", code=code, code_size=size, format=0, format_size=0)
        return self._subject.attempt("PJRT_Executable_OptimizedProgram", executable=self._executable, program=program)


def _format(answer: Result) -> str:
    name = answer.program.format
    return name.decode() if isinstance(name, bytes) else str(name)


@check("optimized_program.size", calls=_CALLS)
def _size(subject: Subject) -> None:
    """With code null the plugin sets code_size to the bytes that the program needs, and the format."""
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    subject.expect(program.size > 0, "a size above 0", str(program.size))
    subject.expect(bool(program.format), "the name of a format", repr(program.format))


@check("optimized_program.code", calls=_CALLS)
def _code(subject: Subject) -> None:
    """With memory of that size the plugin fills it with the program, and writes nothing behind it."""
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    answer, memory = program.fill(program.size)
    subject.expect(answer.error is None, "the program", str(answer.error))
    code, behind = memory.raw[: program.size], memory.raw[program.size :]
    subject.expect(code != b"\xa5" * program.size, "the code of a program", "memory that was not written")
    subject.expect(behind == b"\xa5" * 64, "memory behind the code as it was", "memory that was written")
    subject.expect(_format(answer) == program.format, f"the format {program.format!r}", _format(answer))
    again = program.fill(program.size)[1].raw[: program.size]
    subject.expect(len(again) == len(code), "a program of the same size", str(len(again)))


@check("optimized_program.little_room", calls=_CALLS)
def _little_room(subject: Subject) -> None:
    """code_size must be at least the size of the program; with less the call fails, and writes nothing behind the
    memory.
    """
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    room = program.size // 2
    answer, memory = program.fill(room)
    subject.expect(answer.error is not None, "an error", f"success with memory for {room} of {program.size} bytes")
    subject.expect(memory.raw[room:] == b"\xa5" * 64, "memory behind it as it was", "memory that was written")


@check("optimized_program.compiles_again", calls=(*_CALLS, "PJRT_LoadedExecutable_Destroy"))
def _outlives_loaded(subject: Subject) -> None:
    """The optimized program can be asked for when the loaded executable is destroyed."""
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    program = _OptimizedProgram(subject, handle)
    answer, _ = program.fill(program.size)
    subject.expect(answer.error is None, "the program", str(answer.error))


@check("cost_analysis.properties", calls=("PJRT_Executable_GetCostAnalysis",))
def _costs(subject: Subject) -> None:
    """The cost analysis is an array of named values, each with its own name and a type of PJRT_NamedValue_Type."""
    answer = answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=executable_of(subject, "add"))
    properties = answer.properties or []
    names = [bytes(each.name) for each in properties]
    subject.expect(len(names) == answer.num_properties, f"{answer.num_properties} properties", str(len(names)))
    subject.expect(len(set(names)) == len(names) and b"" not in names, "names that are unique", str(names))
    for each in properties:
        subject.expect(each.type in range(5), f"a type of PJRT_NamedValue_Type for {each.name!r}", str(each.type))
        wrong = isinstance(each.value, float) and not math.isfinite(each.value)
        subject.expect(not wrong, f"a number for {each.name!r}", str(each.value))


@check("cost_analysis.lives_as_long_as_the_executable", calls=("PJRT_Executable_GetCostAnalysis",))
def _costs_live(subject: Subject) -> None:
    """The properties and what they hold live as long as the executable; asking again does not change them."""
    handle = executable_of(subject, "add")
    first = answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=handle)
    before = [(bytes(each.name), each.value) for each in first.properties or ()]
    other = executable_of(subject, "mixed_results")
    for _ in range(4):
        for executable in (handle, other):
            answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=executable)
    after = [(bytes(each.name), each.value) for each in reread(first).properties or ()]
    subject.expect(after == before, str(before), str(after))


_MOST = 1 << 16
"""The most bytes that four numbers may take, with tiles and padding."""


@check("memory_stats.sizes", calls=("PJRT_Executable_GetCompiledMemoryStats",))
def _memory(subject: Subject) -> None:
    """The memory statistics are sizes in bytes: none is negative, and arguments and results are counted."""
    answer = answer_of(subject, "PJRT_Executable_GetCompiledMemoryStats", executable=executable_of(subject, "add"))
    sizes = {name: getattr(answer, name) for name in (*_SIZES, *_HOST_SIZES)}
    subject.expect(all(size >= 0 for size in sizes.values()), "no negative size", str(sizes))
    arguments = sizes["argument_size_in_bytes"] + sizes["host_argument_size_in_bytes"]
    results = sizes["output_size_in_bytes"] + sizes["host_output_size_in_bytes"]
    subject.expect(arguments in (0, *range(32, _MOST)), "32 bytes of arguments or more", str(arguments))
    subject.expect(results in (0, *range(16, _MOST)), "16 bytes of results or more", str(results))


@check("memory_stats.aliased", calls=("PJRT_Executable_GetCompiledMemoryStats",))
def _aliased(subject: Subject) -> None:
    """alias_size_in_bytes is how much memory of arguments the results reuse: no more than there is of either."""
    handle = executable_of(subject, "donates_first")
    answer = answer_of(subject, "PJRT_Executable_GetCompiledMemoryStats", executable=handle)
    alias = answer.alias_size_in_bytes
    least = min(answer.argument_size_in_bytes, answer.output_size_in_bytes)
    subject.expect(0 <= alias <= least, f"at most {least} bytes", str(alias))
