"""The tensors of an operation, as the helpers need them: with static shapes."""

from __future__ import annotations

from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo.operation import Operation, Value
from pjrt.stablehlo.types import TensorType

Shape = tuple[int, ...]


def expect_operation(operation: Operation, *names: str) -> None:
    """Check the name of an operation.

    Raises:
        InvalidArgumentError: the operation is another one.
    """
    if operation.name not in names:
        raise InvalidArgumentError(f"expected {' or '.join(names)}, found {operation.name}")


def sizes(value: Value) -> Shape:
    """Return the static shape of a value.

    Raises:
        InvalidArgumentError: the value is no tensor.
        UnimplementedError: a size is known only when the program runs.
    """
    if not isinstance(value.type, TensorType):
        raise InvalidArgumentError(f"expected a tensor, found {value}")
    return value.type.sizes


def inverse(permutation: Shape) -> Shape:
    """Return the permutation that undoes another one."""
    undone = [0] * len(permutation)
    for position, dimension in enumerate(permutation):
        undone[dimension] = position
    return tuple(undone)
