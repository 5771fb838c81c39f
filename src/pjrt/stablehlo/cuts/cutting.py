"""Cuts: programs made of some operations of a program, to run a part of it on its own.

A cut computes some values of the program from others. Values have the names that ``parse`` gives them, such as ``%3``;
they are unique in a function, its regions included. All that a cut does not need is left out, and the rest stays as it
is: constants, private functions, regions, types, source locations, meshes and shardings.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pjrt.api.compile_options import Partitioning
from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo import _mlir, jaxlib
from pjrt.stablehlo._mlir import MlirModule
from pjrt.stablehlo.conversion import to_module
from pjrt.stablehlo.cuts._module_cut import ModuleCut, function_named, values_by_name
from pjrt.stablehlo.operation import Operation, ParsedProgram, Value
from pjrt.stablehlo.parser import parse_module
from pjrt.stablehlo.reader import read
from pjrt.stablehlo.shardings.stated_partitioning import partitioning_of

_PURPOSE = "cut a program"


@dataclass(frozen=True, slots=True)
class Cut:
    """A program that computes some values of another program.

    Attributes:
        program: the program. Its function ``main`` takes ``arguments`` and returns ``results``.
        arguments: the names of the values that it takes.
        results: the names of the values that it returns.
    """

    program: Program
    arguments: tuple[str, ...]
    results: tuple[str, ...]


def cut(
    program: AnyProgram,
    results: Iterable[str | Value],
    *,
    arguments: Iterable[str | Value] | None = None,
    function: str | None = None,
    trusted: bool = False,
) -> Cut:
    """Return the part of a program that computes some values; see ``Cutter.cut``.

    Args:
        program: a program in any encoding.
        results: the values to compute.
        arguments: the values to compute them from.
        function: the function that has these values; default: the entry function.
        trusted: as for ``parse``.

    Raises:
        PjrtError: as for ``Cutter.cut`` and ``parse``.
    """
    return Cutter(program, trusted=trusted).cut(results, arguments=arguments, function=function)


class Cutter:
    """A program that is parsed once and cut many times. Any thread may use it.

    Args:
        program: a program in any encoding.
        trusted: as for ``parse``.

    Raises:
        PjrtError: as for ``parse``.
    """

    def __init__(self, program: AnyProgram, *, trusted: bool = False) -> None:
        program = read(program)
        self._module = to_module(program, trusted=trusted)
        if program.format == ProgramFormat.HLO_WITH_CONFIG:
            # The configuration, which states them, is not part of the module.
            _state_counts(self._module, partitioning_of(program))

    @functools.cached_property
    def parsed(self) -> ParsedProgram:
        """The program without the values of its constants: the names of values, and the operations to choose from."""
        return parse_module(self._module, largest_constant=0)

    @property
    def module(self) -> MlirModule:
        """The program as MLIR; do not change it."""
        return self._module

    def cut(
        self,
        results: Iterable[str | Value],
        *,
        arguments: Iterable[str | Value] | None = None,
        function: str | None = None,
        aliases: Mapping[int, int] | None = None,
    ) -> Cut:
        """Return the part of the program that computes some values.

        All results are of one block: a function's body, or a region of an operation such as ``while``. Operations of
        other blocks are not entered: a call or a ``while`` that a result depends on is in the cut as a whole. Effects
        that no result depends on, such as an outfeed, are left out.

        Args:
            results: the values to compute. Values of the blocks around are allowed beside them.
            arguments: the values to compute them from. What uses such a value uses the argument; if the value is a
                result too, the cut returns what its operation computes. A value that is needed and can only come from
                outside becomes an argument, too, after those named here: an argument of the block, or a value of the
                blocks around. Constants of the blocks around are copied. By default, the arguments of a function's
                body are all those of the function, and of a region those that are needed.
            function: the function that has these values; default: the entry function.
            aliases: the result that takes over the memory of an argument, by the indices of both: these arguments are
                donated. A cut donates no others.

        Raises:
            NotFoundError: the program has no such function, or the function has no such value.
            InvalidArgumentError: the results are of several blocks, or there is none.
            UnimplementedError: the values are those of one device, in a ``sdy.manual_computation``; partition the
                program first.
        """
        name = self._entry if function is None else function
        result_names = tuple(map(_name, results))
        stops = None if arguments is None else tuple(map(_name, arguments))
        if not result_names:
            raise InvalidArgumentError("expected the names of the values to compute, found none")
        with self._module as mlir:
            copy = mlir.operation.clone().operation
            cutting = ModuleCut(copy, function_named(copy, name))
            argument_names = cutting.run(result_names, stops, aliases or {})
            code = _mlir.bytecode_of(copy)
        return Cut(Program(code), argument_names, result_names)

    def cut_operations(self, operations: Iterable[Operation], *, function: str | None = None) -> Cut:
        """Return some operations, each of which takes its own operands as arguments.

        No operation gets the result of another: each operand is an argument, but for constants, which are copied. The
        results are all of theirs.

        Args:
            operations: operations of one block of ``parsed``.
            function: the function that has them; default: the entry function.

        Raises:
            PjrtError: as for ``cut``.
        """
        members = list(operations)
        operands = dict.fromkeys(value.name for operation in members for value in inputs_of(operation))
        return self.cut(
            [value for operation in members for value in operation.results], arguments=operands, function=function
        )

    def text_of(self, operation: Operation, *, function: str | None = None) -> str:
        """Return an operation that has results as MLIR spells it, with the first elements of large constants.

        Raises:
            NotFoundError: the program has no such function, or the function has no such operation.
        """
        with self._module as mlir:
            values = values_by_name(function_named(mlir.operation, self._entry if function is None else function))
            if not operation.results or operation.results[0].name not in values:
                raise NotFoundError(f"expected an operation with results of the program, found {operation}")
            owner = values[operation.results[0].name].owner.operation
            text: str = owner.get_asm(large_elements_limit=_mlir.FEW_ELEMENTS)
        return text

    @functools.cached_property
    def _entry(self) -> str:
        return self.parsed.entry.name


def _name(value: str | Value) -> str:
    return value.name if isinstance(value, Value) else value


def inputs_of(operation: Operation, *, constants: bool = False) -> Iterator[Value]:
    """Yield the values that an operation takes, and those that its regions take from around it.

    A value that is taken several times is yielded several times.

    Args:
        operation: the operation.
        constants: whether to yield results of constants, too.
    """
    inside: set[Value] = set()
    for each in (operation, *operation.walk()):
        for block in each.regions:
            inside.update(block.arguments)
        for value in each.operands:
            owner = value.owner
            is_constant = isinstance(owner, Operation) and owner.name.endswith(".constant")
            if value not in inside and (constants or not is_constant):
                yield value
        if each is not operation:
            inside.update(each.results)


def _state_counts(module: MlirModule, counts: Partitioning) -> None:
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir:
        attributes = mlir.operation.attributes
        for name, count in (("replicas", counts.num_replicas), ("partitions", counts.num_partitions)):
            attributes[f"mhlo.num_{name}"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)
