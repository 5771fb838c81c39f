"""The evaluator: a compiled program that runs without a client."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from pjrt.api.errors import InvalidArgumentError
from pjrt.devices.reference.core import registry
from pjrt.devices.reference.core.block import TOKEN, Context, run_fast
from pjrt.devices.reference.core.module_compiler import Author, ModuleCompiler, function_attributes
from pjrt.devices.reference.fast.module_compiler import FastModuleCompiler
from pjrt.devices.reference.spmd import GroupFinder
from pjrt.host import Allocation
from pjrt.stablehlo.facts.signatures import free_transposes
from pjrt.stablehlo.ir.sharding_parser import shardings_of
from pjrt.stablehlo.ir.types import TensorType, TokenType, TupleType, ValueType

_OPEN = frozenset(("stablehlo.while", "sdy.manual_computation"))
"""Ops that ask their run something: whether it goes on, and which partition it is."""


class Evaluator:
    """A StableHLO module, checked and compiled for numpy.

    Args:
        module: a ``jaxlib.mlir.ir.Module``; it is not changed, and not used after this returns.
        entry: the function to run.
        optimize: use the optimizations of ``pjrt.devices.reference.fast``.
        fold: let the optimizations change the steps of the program: constants are computed, small functions inlined,
            chains run in chunks. Without it every step is an op as the program has it.
        handlers: names of functions of the host that custom calls may call, besides the built-in ones.
        author: the author of a device, whose kernels take the place of the interpreter's.

    Raises:
        UnimplementedError: an op, type or attribute is unsupported; the message names it and its place in the source.
        InvalidArgumentError: the module breaks a rule of the specification.

    ``arguments`` and ``results`` are the types; ``argument_attributes`` and ``result_attributes`` the program's
    attributes of each (names, aliases), ``argument_shardings`` and ``result_shardings`` how each is cut for the
    partitions (None where the program does not state it), ``ops`` the names of all ops and custom calls in it,
    ``meetings`` the group finders of those by which devices meet.
    """

    def __init__(
        self,
        module: Any,
        *,
        entry: str = "main",
        optimize: bool = True,
        fold: bool = True,
        handlers: Collection[str] = (),
        author: Author | None = None,
    ) -> None:
        compiler = (
            FastModuleCompiler(module, fold=fold, handlers=handlers, author=author)
            if optimize
            else ModuleCompiler(module, handlers=handlers, author=author)
        )
        operation = compiler.operation(entry)
        self.region = compiler.function(entry)
        self.arguments: tuple[ValueType, ...] = self.region.arguments
        self.results: tuple[ValueType, ...] = self.region.results
        self.argument_attributes = function_attributes(operation, "arg_attrs")
        results = function_attributes(operation, "res_attrs")
        self.result_attributes = free_transposes(operation, self.argument_attributes, results)
        self.ops = frozenset(compiler.ops)
        self._has_author = author is not None
        self.meetings: Sequence[GroupFinder] = compiler.meetings
        self.argument_shardings = shardings_of(self.argument_attributes, self.arguments, compiler.symbol)
        self.result_shardings = shardings_of(self.result_attributes, self.results, compiler.symbol)

    def run(self, args: Sequence[Any], context: Context | None = None) -> list[Any]:
        """Return the results of the program for these arguments.

        Args:
            args: an array (or anything that ``numpy.asarray`` takes) for each argument, a tuple for a tuple type,
                anything for a token.
            context: replica, partition, the loop to use; those of a single device by default.

        Returns:
            Arrays, C-contiguous, that share no memory with the arguments or the program.

        Raises:
            InvalidArgumentError: number, shape or type of the arguments do not match the program.
        """
        if len(args) != len(self.arguments):
            raise InvalidArgumentError(f"expected {len(self.arguments)} arguments, found {len(args)}")
        values = [check(arg, t, i) for i, (arg, t) in enumerate(zip(args, self.arguments, strict=True))]
        with np.errstate(all="ignore"):
            results = self.region.block.run([context or Context(run_fast)], values)
        held = {id(value) for value in values}
        return [own(value, t, held) for value, t in zip(results, self.results, strict=True)]

    @property
    def is_plain(self) -> bool:
        """Whether all arguments and results are arrays: ``run_checked`` takes the program."""
        return all(isinstance(each, TensorType) for each in (*self.arguments, *self.results))

    @property
    def is_closed(self) -> bool:
        """Whether the values of the arguments alone decide what it computes, and their types how long that takes."""
        if self._has_author or self.meetings or not self.ops.isdisjoint(_OPEN):
            return False
        return all(rule is not None and rule.foldable for rule in map(registry.find, self.ops))

    def run_checked(self, args: Sequence[Any], context: Context) -> list[Any]:
        """Do as ``run`` with arguments that are known to be right, and leave it to the caller to own the results."""
        with np.errstate(all="ignore"):
            results = self.region.block.run([context], args)
        return [
            value if type(value) is np.ndarray else np.asarray(value, type_.dtype)  # type: ignore[union-attr]
            for value, type_ in zip(results, self.results, strict=True)
        ]

    def __call__(self, *args: Any) -> list[Any]:
        """Return the results for these arguments on one device."""
        return self.run(args)


def check(value: Any, type_: ValueType, index: int) -> Any:
    """Return an argument as a value of its type.

    Raises:
        InvalidArgumentError: the argument has another shape or element type.
    """
    if isinstance(type_, TokenType):
        return TOKEN
    if isinstance(type_, TupleType):
        return tuple(check(item, t, index) for item, t in zip(value, type_.elements, strict=True))
    if isinstance(value, Allocation):  # the host runtime has checked its type
        return value
    if not isinstance(type_, TensorType):
        raise InvalidArgumentError(f"expected a tensor, tuple or token as argument {index}, found {type_}")
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
    """Return a result for the caller: a writable array that nothing else holds. ``held`` has the ids of arrays that
    something else holds.
    """
    if isinstance(type_, TupleType):
        return tuple(own(item, t, held) for item, t in zip(value, type_.elements, strict=True))
    if not isinstance(type_, TensorType) or isinstance(value, Allocation):
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
