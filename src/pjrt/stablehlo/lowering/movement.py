"""Operations that move elements, in the steps that other libraries have."""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.stablehlo.lowering._types import Shape, expect_operation, sizes
from pjrt.stablehlo.operation import Operation


@dataclass(frozen=True, slots=True)
class Broadcast:
    """A broadcast in three steps: transpose by ``permutation``, reshape to ``shape``, expand to ``result_shape``.

    Attributes:
        permutation: the dimensions of the operand in the order in which the result has them.
        shape: as many dimensions as the result; 1 where the operand is expanded.
        result_shape: the shape of the result.
    """

    permutation: Shape
    shape: Shape
    result_shape: Shape


def broadcast(operation: Operation) -> Broadcast:
    """Return ``stablehlo.broadcast_in_dim`` in three steps."""
    expect_operation(operation, "stablehlo.broadcast_in_dim")
    operand, result = sizes(operation.operands[0]), sizes(operation.results[0])
    places = tuple(operation.attribute("broadcast_dimensions"))
    shape = [1] * len(result)
    for dimension, place in enumerate(places):
        shape[place] = operand[dimension]
    permutation = tuple(sorted(range(len(places)), key=lambda dimension: places[dimension]))
    return Broadcast(permutation, tuple(shape), result)


@dataclass(frozen=True, slots=True)
class Pad:
    """A padding in three steps: spread the elements, cut, and pad with the value.

    Attributes:
        interior: the elements of the padding value between neighbouring elements, for each dimension.
        cut: the elements to cut off before and after each dimension, after they were spread.
        padding: the elements of the padding value before and after each dimension, after the cut.
    """

    interior: Shape
    cut: tuple[tuple[int, int], ...]
    padding: tuple[tuple[int, int], ...]


def pad(operation: Operation) -> Pad:
    """Return ``stablehlo.pad`` with its negative amounts as cuts."""
    expect_operation(operation, "stablehlo.pad")
    low, high = operation.attribute("edge_padding_low"), operation.attribute("edge_padding_high")
    edges = [(int(before), int(after)) for before, after in zip(low, high, strict=True)]
    return Pad(
        interior=tuple(map(int, operation.attribute("interior_padding"))),
        cut=tuple((max(-before, 0), max(-after, 0)) for before, after in edges),
        padding=tuple((max(before, 0), max(after, 0)) for before, after in edges),
    )
