"""The evaluator: a compiled program and how to run it, without a client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core.block import run_fast
from pjrt.devices.reference.core.context import Context
from pjrt.devices.reference.core.lowering import ModuleLowering, function_attributes
from pjrt.devices.reference.core.values import TOKEN
from pjrt.devices.reference.spmd.sharding_parser import shardings_of
from pjrt.stablehlo.types import TensorType, TokenType, TupleType, ValueType


class Evaluator:
    """A StableHLO module, checked and compiled for numpy.

    Args:
        module: a ``jaxlib.mlir.ir.Module``; it is not needed, nor changed, after this returns.
        entry: the function to run.
        fold: compute at compile time what depends on constants only. Off where every op is to be seen running.

        handlers: names of functions of the host that custom calls may call, besides those that are built in.

    Raises:
        UnimplementedError: an op, type or attribute that this device does not do; says which, and where in the source.
        InvalidArgumentError: the module breaks a rule of the specification.

    ``arguments`` and ``results`` are the types; ``argument_attributes`` and ``result_attributes`` what the program says
    of each (names, aliases), ``argument_shardings`` and ``result_shardings`` how each is spread over the partitions
    (None where that is not said), ``ops`` the names of all ops and custom calls in it.
    """

    def __init__(self, module: Any, *, entry: str = "main", fold: bool = True, handlers: Collection[str] = ()) -> None:
        lowering = ModuleLowering(module, fold=fold, handlers=handlers)
        operation = lowering.operation(entry)
        self.region = lowering.function(entry)
        self.arguments: tuple[ValueType, ...] = self.region.arguments
        self.results: tuple[ValueType, ...] = self.region.results
        self.argument_attributes = function_attributes(operation, "arg_attrs")
        self.result_attributes = function_attributes(operation, "res_attrs")
        self.ops = frozenset(lowering.ops)
        self.argument_shardings = shardings_of(self.argument_attributes, self.arguments, lowering.symbol)
        self.result_shardings = shardings_of(self.result_attributes, self.results, lowering.symbol)

    def run(self, args: Sequence[Any], context: Context | None = None) -> list[Any]:
        """The results of the program for these arguments.

        Args:
            args: one array (or anything ``numpy.asarray`` takes) an argument, a tuple for a tuple type, anything for a
                token.
            context: replica, partition, the loop to use; a single device's fast run by default.

        Returns:
            Arrays of their own, C-contiguous, that share no memory with the arguments or the program.

        Raises:
            InvalidArgumentError: number, shape or type of the arguments do not fit.
        """
        if len(args) != len(self.arguments):
            raise InvalidArgumentError(f"expected {len(self.arguments)} arguments, found {len(args)}")
        values = [check(arg, t, i) for i, (arg, t) in enumerate(zip(args, self.arguments, strict=True))]
        with np.errstate(all="ignore"):
            found = self.region.block.run([context or Context(run_fast)], values)
        held = {id(value) for value in values}
        return [own(value, t, held) for value, t in zip(found, self.results, strict=True)]

    def __call__(self, *args: Any) -> list[Any]:
        """``run`` on one device."""
        return self.run(args)


def check(value: Any, type_: ValueType, index: int) -> Any:
    """An argument as a value of its type.

    Raises:
        InvalidArgumentError: it does not fit.
    """
    if isinstance(type_, TokenType):
        return TOKEN
    if isinstance(type_, TupleType):
        return tuple(check(item, t, index) for item, t in zip(value, type_.elements, strict=True))
    if not isinstance(type_, TensorType):
        raise InvalidArgumentError(f"argument {index} cannot be given from outside: its type is {type_}")
    array = np.asarray(value)
    if array.dtype != type_.dtype:
        raise InvalidArgumentError(f"expected {type_} as argument {index}, found an array of {array.dtype}")
    fits = array.ndim == type_.rank and all(
        want in (None, have) for want, have in zip(type_.shape, array.shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(f"expected {type_} as argument {index}, found an array of shape {array.shape}")
    return array


def own(value: Any, type_: ValueType, held: set[int]) -> Any:
    """A result as its caller gets it: a writable array that nothing else holds. ``held`` has the ids of those that
    someone does.
    """
    if isinstance(type_, TupleType):
        return tuple(own(item, t, held) for item, t in zip(value, type_.elements, strict=True))
    if not isinstance(type_, TensorType):
        return value
    flags = value.flags
    if (
        id(value) not in held
        and isinstance(value, np.ndarray)
        and value.base is None
        and flags.c_contiguous
        and flags.writeable
    ):
        held.add(id(value))
        return value
    return np.array(value, type_.dtype, order="C")
