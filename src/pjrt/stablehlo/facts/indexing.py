"""Arguments that choose rows of an array, such as the identifiers of tokens: how many rows there are to choose from."""

from __future__ import annotations

from pjrt.stablehlo.ir.operation import Function, Operation, ParsedProgram, Value
from pjrt.stablehlo.ir.types import TensorType

_SAME_VALUES = frozenset(
    f"stablehlo.{name}"
    for name in ("broadcast_in_dim", "concatenate", "convert", "reshape", "select", "slice", "transpose")
)
"""The operations whose results have elements of their operands alone."""

Arguments = frozenset[int]


def index_limits(program: ParsedProgram) -> dict[int, int]:
    """Return how many rows the elements of an argument choose from, by the argument's index; the fewest, of several.

    Found are arguments whose elements reach the indices of a ``stablehlo.gather`` as they are, also through calls.
    """
    walk = _Walk(program)
    walk.follow(program.entry, tuple(frozenset((number,)) for number in range(len(program.entry.type.arguments))))
    return walk.limits


class _Walk:
    """A walk through functions, each once for the same arguments."""

    def __init__(self, program: ParsedProgram) -> None:
        self._program = program
        self._known: dict[tuple[str, tuple[Arguments, ...]], list[Arguments]] = {}
        self.limits: dict[int, int] = {}

    def follow(self, function: Function, given: tuple[Arguments, ...]) -> list[Arguments]:
        """Note the limits in a function that gets elements of arguments of the program; return those in its results."""
        key = (function.name, given)
        if function.body is None or key in self._known:
            return self._known.get(key, [])
        self._known[key] = []  # for a function that calls itself
        origins: dict[Value, Arguments] = dict(zip(function.body.arguments, given, strict=True))

        def origin(value: Value) -> Arguments:
            return origins.get(value, frozenset())

        for operation in function.body.operations:
            if operation.name in _SAME_VALUES:
                origins[operation.results[0]] = frozenset[int]().union(*map(origin, operation.operands))
            elif operation.name == "func.call":
                callee = self._program.functions[operation.attribute("callee")]
                results = self.follow(callee, tuple(map(origin, operation.operands)))
                origins.update(zip(operation.results, results, strict=False))
            elif operation.name == "stablehlo.gather" and (rows := _rows(operation)) is not None:
                for number in origin(operation.operands[1]):
                    self.limits[number] = min(rows, self.limits.get(number, rows))
        self._known[key] = [origin(each) for each in function.body.outputs]
        return self._known[key]


def _rows(gather: Operation) -> int | None:
    """Return how many rows a gather chooses from, where an index is one number."""
    dimensions = gather.attribute("dimension_numbers").start_index_map
    table = gather.operands[0].type
    if len(dimensions) != 1 or not isinstance(table, TensorType):
        return None
    size = table.shape[dimensions[0]]
    return None if size is None else size - gather.attribute("slice_sizes")[dimensions[0]] + 1
