"""The memory that a program needs, and the arrays that fill it, before a compiler sees it.

The walk over the program is a model of what compilers do; see ``_block_peak``. Compilers differ: they pad, choose
layouts, compute things twice to save memory, and store what others do not.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from pjrt.api.compile_options import CompileOptions
from pjrt.api.program import Program
from pjrt.stablehlo.analysis._block_peak import PeakFinder
from pjrt.stablehlo.analysis._work import nbytes
from pjrt.stablehlo.analysis.cost_analysis import counted_program
from pjrt.stablehlo.entry_signature import signature_of
from pjrt.stablehlo.location import Location
from pjrt.stablehlo.operation import Operation, ParsedProgram, Value
from pjrt.stablehlo.types import TensorType, ValueType


class ArrayRole(enum.StrEnum):
    """The role of an array in memory in the program."""

    ARGUMENT = "argument"
    RESULT = "result"
    TEMPORARY = "temporary"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class PeakArray:
    """An array in memory.

    Attributes:
        name: the parameter's name, such as ``weights['w']``, or ``argument 3``; otherwise the operation's name.
        role: whether it is an argument, a result, a temporary or a constant.
        type: its type, as one device has it.
        nbytes: its size in bytes.
        location: the source location of the operation that computes it; unknown for an argument.
        value: the value that it holds.
        is_donated: whether it is an argument whose memory the program may reuse.
    """

    name: str
    role: ArrayRole
    type: ValueType
    nbytes: int
    location: Location
    value: Value = field(repr=False)
    is_donated: bool = False

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape, as one device has it; empty for what is not a tensor."""
        return self.type.shape if isinstance(self.type, TensorType) else ()

    def __str__(self) -> str:
        return f"{self.name}: {self.type}, {self.nbytes} bytes"


@dataclass(frozen=True, slots=True)
class MemoryStep:
    """One operation on the way through a program.

    Attributes:
        operation: the operation.
        nbytes: the most bytes in use while it runs, arguments and results included.
    """

    operation: Operation = field(repr=False)
    nbytes: int


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The memory of one device when one run of a program needs the most.

    Attributes:
        nbytes: the bytes in use, arguments and results included.
        argument_nbytes: the bytes of all arguments.
        result_nbytes: the bytes of all results, those in the memory of a donated argument included.
        operation: the operation that runs then; None if it is the end of the program.
        arrays: the arrays in memory then, the largest first.
        steps: the memory at each operation, in the order in which they end; those of called functions and of regions
            are listed before the operation that runs them, of a loop those of one iteration.
    """

    nbytes: int
    argument_nbytes: int
    result_nbytes: int
    operation: Operation | None = field(repr=False)
    arrays: tuple[PeakArray, ...] = field(repr=False)
    steps: tuple[MemoryStep, ...] = field(repr=False)


def peak_memory(
    program: Program | ParsedProgram | str | bytes, options: CompileOptions | None = None, *, trusted: bool = False
) -> PeakMemory:
    """Return the most memory that one run of a program needs on one device, and the arrays that are in it.

    It is an estimate that needs no compiler for the device. Where there is one, ``Executable.memory_stats`` has its own
    numbers.

    Args:
        program: the program. One for several partitions is partitioned first; a parsed program is taken as it stands.
        options: the compile options: how many partitions there are, where the program leaves that open.
        trusted: as for ``parse``.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs, or XLA cannot partition it.
        InvalidArgumentError: a function calls itself, or is only declared.
        NotFoundError: the program has no function to run.
        PjrtError: as for ``parse``.
    """
    parsed = counted_program(program, options, trusted=trusted)
    entry = parsed.entry
    assert entry.body is not None
    signature = signature_of(parsed)
    donated = [each.is_donor or each.aliases_output is not None for each in signature.arguments]
    peak = PeakFinder(parsed.functions).of_block(entry.body, donated, copied=True)
    sizes = [nbytes(type_) for type_ in entry.type.arguments]
    arrays = [
        PeakArray(
            each.name or f"argument {index}",
            ArrayRole.ARGUMENT,
            each.type,
            sizes[index],
            Location(""),
            entry.arguments[index],
            donated[index],
        )
        for index, each in enumerate(signature.arguments)
        if index not in peak.freed
    ]
    names = {id(value): name for value, name in zip(entry.arguments, entry.argument_names, strict=True)}
    arrays += [_array(value, size, is_output, names) for value, size, is_output in peak.arrays]
    return PeakMemory(
        sum(sizes) + peak.nbytes,
        sum(sizes),
        sum(nbytes(type_) for type_ in entry.type.results),
        peak.operation,
        tuple(sorted(arrays, key=lambda array: -array.nbytes)),
        tuple(MemoryStep(operation, sum(sizes) + size) for operation, size in peak.steps),
    )


def _array(value: Value, size: int, is_output: bool, names: Mapping[int, str]) -> PeakArray:
    operation = value.owner
    if not isinstance(operation, Operation):
        name = f"copy of {names.get(id(value), '') or f'argument {value.index}'}"
        return PeakArray(
            name, ArrayRole.RESULT if is_output else ArrayRole.TEMPORARY, value.type, size, Location(""), value
        )
    is_constant = operation.name.endswith(".constant")
    role = ArrayRole.RESULT if is_output else ArrayRole.CONSTANT if is_constant else ArrayRole.TEMPORARY
    return PeakArray(operation.name, role, value.type, size, operation.location, value)
