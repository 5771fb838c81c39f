"""Checks of the optimized program, the cost analysis and the memory statistics of executables."""

from __future__ import annotations

import ctypes
import math

from pjrt.api.errors import StatusCode
from pjrt.capi.raw import Result, Struct
from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.programs.executables import answer_of, executable_of
from pjrt.conformance.plugin.contract.programs.owned_bytes import reread
from pjrt.conformance.plugin.subject import Subject

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


@check(
    "optimized_program.size",
    calls=_CALLS,
    rule="With code null the plugin sets code_size to the bytes that the program needs, and the format.",
)
def _size(subject: Subject) -> None:
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    subject.expect(program.size > 0, "a size above 0", str(program.size))
    subject.expect(bool(program.format), "the name of a format", repr(program.format))


@check(
    "optimized_program.code",
    calls=_CALLS,
    rule="With memory of that size the plugin fills it with the program, and writes nothing behind it.",
)
def _code(subject: Subject) -> None:
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    answer, memory = program.fill(program.size)
    subject.expect(answer.error is None, "the program", str(answer.error))
    code, behind = memory.raw[: program.size], memory.raw[program.size :]
    subject.expect(code != b"\xa5" * program.size, "the code of a program", "memory that was not written")
    subject.expect(behind == b"\xa5" * 64, "memory behind the code as it was", "memory that was written")
    subject.expect(_format(answer) == program.format, f"the format {program.format!r}", _format(answer))
    again = program.fill(program.size)[1].raw[: program.size]
    subject.expect(len(again) == len(code), "a program of the same size", str(len(again)))


@check(
    "optimized_program.little_room",
    calls=_CALLS,
    rule="code_size must be at least the size of the program; with less the call fails, and writes nothing behind the "
    "memory.",
)
def _little_room(subject: Subject) -> None:
    program = _OptimizedProgram(subject, executable_of(subject, "add"))
    room = program.size // 2
    answer, memory = program.fill(room)
    subject.expect(answer.error is not None, "an error", f"success with memory for {room} of {program.size} bytes")
    subject.expect(memory.raw[room:] == b"\xa5" * 64, "memory behind it as it was", "memory that was written")


@check(
    "optimized_program.compiles_again",
    calls=(*_CALLS, "PJRT_LoadedExecutable_Destroy"),
    rule="The optimized program can be asked for when the loaded executable is destroyed.",
)
def _outlives_loaded(subject: Subject) -> None:
    loaded = subject.compile("add")
    handle = subject.call("PJRT_LoadedExecutable_GetExecutable", loaded_executable=loaded).executable
    subject.call("PJRT_LoadedExecutable_Destroy", executable=loaded)
    program = _OptimizedProgram(subject, handle)
    answer, _ = program.fill(program.size)
    subject.expect(answer.error is None, "the program", str(answer.error))


@check(
    "cost_analysis.properties",
    calls=("PJRT_Executable_GetCostAnalysis",),
    rule="The cost analysis is an array of named values, each with its own name and a type of PJRT_NamedValue_Type.",
)
def _costs(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=executable_of(subject, "add"))
    properties = answer.properties or []
    names = [bytes(each.name) for each in properties]
    subject.expect(len(names) == answer.num_properties, f"{answer.num_properties} properties", str(len(names)))
    subject.expect(len(set(names)) == len(names) and b"" not in names, "names that are unique", str(names))
    for each in properties:
        subject.expect(each.type in range(5), f"a type of PJRT_NamedValue_Type for {each.name!r}", str(each.type))
        wrong = isinstance(each.value, float) and not math.isfinite(each.value)
        subject.expect(not wrong, f"a number for {each.name!r}", str(each.value))


@check(
    "cost_analysis.lives_as_long_as_the_executable",
    calls=("PJRT_Executable_GetCostAnalysis",),
    rule="The properties and what they hold live as long as the executable; asking again does not change them.",
)
def _costs_live(subject: Subject) -> None:
    handle = executable_of(subject, "add")
    first = answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=handle)
    before = [(bytes(each.name), each.value) for each in first.properties or ()]
    other = executable_of(subject, "mixed_results")
    for _ in range(4):
        for executable in (handle, other):
            answer_of(subject, "PJRT_Executable_GetCostAnalysis", executable=executable)
    after = [(bytes(each.name), each.value) for each in reread(first).properties or ()]
    subject.expect(after == before, str(before), str(after))


@check(
    "memory_stats.sizes",
    calls=("PJRT_Executable_GetCompiledMemoryStats",),
    rule="The memory statistics are sizes in bytes: none is negative, and arguments and results are counted.",
)
def _memory(subject: Subject) -> None:
    answer = answer_of(subject, "PJRT_Executable_GetCompiledMemoryStats", executable=executable_of(subject, "add"))
    sizes = {name: getattr(answer, name) for name in (*_SIZES, *_HOST_SIZES)}
    subject.expect(all(size >= 0 for size in sizes.values()), "no negative size", str(sizes))
    arguments = sizes["argument_size_in_bytes"] + sizes["host_argument_size_in_bytes"]
    results = sizes["output_size_in_bytes"] + sizes["host_output_size_in_bytes"]
    subject.expect(arguments in (0, *range(32, 4096)), "32 bytes of arguments or more", str(arguments))
    subject.expect(results in (0, *range(16, 4096)), "16 bytes of results or more", str(results))


@check(
    "memory_stats.aliased",
    calls=("PJRT_Executable_GetCompiledMemoryStats",),
    rule="alias_size_in_bytes is how much memory of arguments the results reuse: no more than there is of either.",
)
def _aliased(subject: Subject) -> None:
    handle = executable_of(subject, "donates_first")
    answer = answer_of(subject, "PJRT_Executable_GetCompiledMemoryStats", executable=handle)
    alias = answer.alias_size_in_bytes
    least = min(answer.argument_size_in_bytes, answer.output_size_in_bytes)
    subject.expect(0 <= alias <= least, f"at most {least} bytes", str(alias))
