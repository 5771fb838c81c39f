"""Straight lines: a program as one list of operations, which takes each part of its weights where it is used.

Functions that are called are inlined. A loop over the layers of a model, as JAX's ``scan`` writes it, takes a slice of
stacked weights in each iteration; it is unrolled, and each slice becomes an argument of its own. So do the slices that
a program takes of weights outside of loops, and the large constants inside of the program. A ``Source`` tells which
part of which array such an argument is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pjrt.api.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.api.program import AnyProgram, Program
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute_of, decode_dense
from pjrt.stablehlo.ir.mlir_module import walk
from pjrt.stablehlo.ir.types import TensorType, decode_type
from pjrt.stablehlo.reading.conversion import to_module
from pjrt.stablehlo.reading.reader import read
from pjrt.stablehlo.transforms.cutting import ABOUT_ONE_SIGNATURE


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """The origin of an argument of a straight line.

    Attributes:
        name: the name, such as ``params['layers']['w'][3]``.
        argument: the argument of the program that it is, or is a part of; None for a constant of the program.
        offset: the index of its first element in the array, in row-major order.
        shape: its shape. Its elements follow one another in the array.
        value: the array, if it is a constant.
    """

    name: str
    argument: int | None
    offset: int = 0
    shape: tuple[int, ...] = ()
    value: npt.NDArray[Any] | None = None

    def of(self, arrays: Mapping[int, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the constant, or the part of an argument's array; it shares the memory of a row-major array.

        Args:
            arrays: the arrays of arguments, by their index.
        """
        whole = self.value if self.argument is None else arrays[self.argument]
        assert whole is not None
        return whole.reshape(-1)[self.offset : self.offset + math.prod(self.shape)].reshape(self.shape)

    def part(self, starts: Sequence[int], sizes: Sequence[int]) -> Source | None:
        """Return a part of it; None if its elements do not follow one another."""
        partial = [index for index, pair in enumerate(zip(sizes, self.shape, strict=True)) if pair[0] != pair[1]]
        if any(size != 1 for size in sizes[: max(partial, default=0)]):
            return None
        offset = self.offset
        for dimension, start in enumerate(starts):
            offset += start * math.prod(self.shape[dimension + 1 :])
        label = ",".join(
            str(starts[index]) if sizes[index] == 1 else f"{starts[index]}:{starts[index] + sizes[index]}"
            for index in partial
        )
        return replace(self, name=f"{self.name}[{label}]" if partial else self.name, offset=offset, shape=tuple(sizes))


class View:
    """An argument of a program, a part of one, or a large constant, as it is known before the program runs.

    Attributes:
        source: the array that it is.
        type: the type of the value in MLIR.
        declared: the type of the whole argument or constant in MLIR.
    """

    __slots__ = ("declared", "source", "type", "whole")

    def __init__(self, source: Source, type_: Any, whole: Source, declared: Any) -> None:
        self.source = source
        self.type = type_
        self.whole = whole
        self.declared = declared

    @staticmethod
    def of_whole(source: Source, type_: Any) -> View:
        """Return the view of a whole array."""
        return View(source, type_, source, type_)

    @property
    def is_part(self) -> bool:
        """Whether it is smaller than the whole."""
        return math.prod(self.source.shape) < math.prod(self.whole.shape)

    def part(self, starts: Sequence[int], sizes: Sequence[int], type_: Any) -> View | None:
        """Return the view of a part; None if its elements do not follow one another."""
        source = self.source.part(starts, sizes)
        return None if source is None else View(source, type_, self.whole, self.declared)

    def reshaped(self, sizes: Sequence[int], type_: Any) -> View:
        """Return the view of the same elements in another shape."""
        return View(replace(self.source, shape=tuple(sizes)), type_, self.whole, self.declared)


Scalar = Any
"""A numpy array without dimensions, of an integer type or bool."""

_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
    "EQ": np.equal,
    "NE": np.not_equal,
}
_UNARY = frozenset(("convert", "reshape"))
_OTHER = frozenset(("compare", "select", "clamp", "negate", "not"))
FOLDED = frozenset(f"stablehlo.{name}" for name in (*_BINARY, *_UNARY, *_OTHER))
"""The operations that ``fold`` computes."""


class Known:
    """A scalar whose value is known.

    Attributes:
        varies: whether it depends on the iteration of a loop. It is then an argument, so that the operations of all
            iterations are the same; otherwise a constant.
    """

    def __init__(self, value: Scalar, type_: Any, varies: bool) -> None:
        self.value = value
        self.type = type_
        self.varies = varies
        self.native: Any = None


def is_scalar(type_: Any) -> bool:
    """Whether a type of MLIR's is that of an integer or bool without dimensions."""
    text = str(type_)
    return text.startswith(("tensor<i", "tensor<ui")) and "x" not in text


def scalar(value: Any, type_: Any) -> Scalar:
    """Return a number as an array without dimensions, of the numpy type of MLIR's type."""
    decoded = decode_type(type_)
    assert isinstance(decoded, TensorType)
    array = np.asarray(value).astype(decoded.dtype).reshape(())
    array.setflags(write=False)
    return array


def fold(operation: Any, operands: Sequence[Scalar]) -> Scalar:
    """Return the result of an operation of ``FOLDED`` on known scalars; integers wrap around."""
    name = operation.name.removeprefix("stablehlo.")
    with np.errstate(over="ignore"):
        return scalar(_value(operation, name, operands), operation.results[0].type)


def _value(operation: Any, name: str, operands: Sequence[Scalar]) -> Any:
    if name in _BINARY:
        return _BINARY[name](*operands)
    if name in _UNARY:
        return operands[0]
    if name == "compare":
        return _COMPARISONS[str(decode_attribute_of(operation, "comparison_direction"))](*operands)
    if name == "select":
        return operands[1] if operands[0] else operands[2]
    if name == "clamp":
        low, value, high = operands
        return np.minimum(np.maximum(value, low), high)
    return np.negative(operands[0]) if name == "negate" else np.invert(operands[0])


LARGE_CONSTANT = 64 << 10
"""Constants of as many bytes become arguments."""

MOST_ITERATIONS = 2_000
"""A loop with more iterations is not unrolled."""

FIRST_OF_LOOP = "pjrt_first_of_loop"
"""The frontend attribute (``mhlo.frontend_attributes``) of an operation whose result a loop began with."""

_PURPOSE = "take a program apart"
_FRONTEND = "mhlo.frontend_attributes"


@dataclass(frozen=True, slots=True)
class StraightLine:
    """A program whose entry function calls nothing and loops over no weights.

    Attributes:
        program: the program. Its function ``main`` has the results of the original program.
        sources: the origin of each argument of ``main``; arguments without a use are left out.
    """

    program: Program
    sources: tuple[Source, ...]


def straighten(program: AnyProgram, weights: Collection[int], *, trusted: bool = False) -> StraightLine:
    """Return a program as a straight line.

    Args:
        program: a program in any encoding.
        weights: the arguments whose values are known, by their index.
        trusted: as for ``parse``.

    Raises:
        NotFoundError: the program has no function main, and not one public function.
        PjrtError: as for ``parse``.
    """
    module = to_module(read(program), trusted=trusted)
    with module as mlir:
        line = _Line(mlir, frozenset(weights))
        return StraightLine(Program(mlir_module.bytecode_of(line.run())), tuple(line.sources))


_OPAQUE = object()
"""The handle of a value that is known only when the program runs, while the iterations of a loop are counted."""

_Environment = dict[Any, Any]
"""The handle of each value of the old program: a value of the new one, a ``Known`` or a ``View``."""


class _Line:
    """The new module, while the operations of the entry function are copied to it one after the other."""

    def __init__(self, module: Any, weights: frozenset[int]) -> None:
        self._ir = jaxlib.load("mlir.ir", _PURPOSE)
        self._old = module
        self._weights = weights
        self._functions = {
            each.operation.attributes["sym_name"].value: each.operation
            for each in module.body.operations
            if each.operation.name == "func.func"
        }
        self._entry = _entry(self._functions)
        self._block: Any = None
        self._arguments: dict[Any, Any] = {}
        self._counting = False
        self._slices_by_iteration = False
        self.sources: list[Source] = []

    def run(self) -> Any:
        """Return the new module's operation."""
        ir = self._ir
        with self._entry.location:
            module = ir.Module.create()
            for name in self._old.operation.attributes:
                if name not in ABOUT_ONE_SIGNATURE:
                    module.operation.attributes[name] = self._old.operation.attributes[name]
            for each in self._old.body.operations:
                if each.operation != self._entry:
                    module.body.append(each.operation.clone())
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get("main"),
                    "sym_visibility": ir.StringAttr.get("public"),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get([], [])),
                },
                regions=1,
            )
            module.body.append(function)
            self._block = ir.Block.create_at_start(function.regions[0], [])
            body = self._entry.regions[0].blocks[0]
            environment = {value: self._argument(index, value) for index, value in enumerate(body.arguments)}
            results = [self._value(each) for each in self._copy(body, environment)]
            ir.Operation.create("func.return", operands=results, ip=ir.InsertionPoint(self._block))
            types = [value.type for value in self._block.arguments], [value.type for value in results]
            function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(*types))
        return module.operation

    def _argument(self, index: int, value: Any) -> View:
        name = Location(str(value.location)).name or f"argument {index}"
        return View.of_whole(Source(name, index, 0, _sizes(value.type)), value.type)

    def _value(self, handle: Any) -> Any:
        """Return a handle's value in the new module."""
        if self._counting or not isinstance(handle, Known | View):
            return handle
        if isinstance(handle, View):
            return self._view_value(handle)
        if handle.native is None:
            if handle.varies:
                source = Source(f"counter {handle.value} of a loop", None, value=handle.value)
                handle.native = self._new_argument(source, handle.type)
            else:
                text = str(handle.value).lower()
                attributes = {"value": self._ir.Attribute.parse(f"dense<{text}> : {handle.type}")}
                handle.native = self._ir.Operation.create(
                    "stablehlo.constant", results=[handle.type], attributes=attributes, ip=self._end
                ).results[0]
        return handle.native

    def _view_value(self, view: View) -> Any:
        source, type_ = (view.source, view.type) if view.is_part else (view.whole, view.declared)
        key = (source.argument, source.offset, source.shape, id(source.value))
        if key not in self._arguments:
            self._arguments[key] = self._new_argument(source, type_)
        value = self._arguments[key]
        if type_ == view.type:
            return value
        return self._ir.Operation.create(
            "stablehlo.reshape", results=[view.type], operands=[value], ip=self._end
        ).results[0]

    @property
    def _end(self) -> Any:
        return self._ir.InsertionPoint(self._block)

    def _new_argument(self, source: Source, type_: Any) -> Any:
        self.sources.append(source)
        return self._block.add_argument(type_, self._ir.Location.name(source.name))

    # Operations.

    def _copy(self, block: Any, environment: _Environment) -> list[Any]:
        """Copy the operations of a block, and return the handles of its outputs."""
        for inner in block.operations:
            operation = inner.operation
            operands = [environment[value] for value in operation.operands]
            if operation.name in ("func.return", "stablehlo.return"):
                return operands
            results = self._known_or_view(operation, operands)
            if results is None and operation.name in ("func.call", "call"):
                callee = self._functions[operation.attributes["callee"].value].regions[0].blocks[0]
                results = self._copy(callee, dict(zip(callee.arguments, operands, strict=True)))
            if results is None and operation.name == "stablehlo.while":
                results = self._unrolled(operation, operands, environment)
            if results is None:
                results = self._copied(operation, operands, environment)
            environment.update(zip(operation.results, results, strict=True))
        raise InvalidArgumentError("expected a block that ends with a return, found one without")

    def _copied(self, operation: Any, operands: Sequence[Any], environment: _Environment) -> list[Any]:
        if self._counting:
            return [_OPAQUE] * len(operation.results)
        values = [self._value(each) for each in operands]
        captured = {
            value: self._value(environment[value])
            for each in (walk(operation) if len(operation.regions) else ())
            if each != operation
            for value in each.operands
            if value in environment
        }
        with operation.location:
            copy = operation.clone(self._end).operation
        for number, value in enumerate(values):
            copy.operands[number] = value
        for each in walk(copy) if captured else ():
            for number, value in enumerate(each.operands):
                if value in captured:
                    each.operands[number] = captured[value]
        return list(copy.results)

    def _known_or_view(self, operation: Any, operands: Sequence[Any]) -> list[Any] | None:
        """Return the result of an operation that need not be run; None for any other."""
        name = operation.name
        if name == "stablehlo.constant":
            return self._constant(operation)
        if not operands or not isinstance(operands[0], Known | View):
            return None
        type_ = operation.results[0].type if len(operation.results) else None
        if name in FOLDED and is_scalar(type_) and all(isinstance(each, Known) for each in operands):
            value = fold(operation, [each.value for each in operands])
            return [Known(value, type_, any(each.varies for each in operands))]
        view = operands[0]
        if not isinstance(view, View) or not self._is_host(view):
            return None
        part = None
        if name == "stablehlo.slice" and all(step == 1 for step in decode_attribute_of(operation, "strides")):
            part = view.part(decode_attribute_of(operation, "start_indices"), _sizes(type_), type_)
        elif name == "stablehlo.dynamic_slice" and all(isinstance(each, Known) for each in operands[1:]):
            sizes = _sizes(type_)
            starts = [
                min(max(int(each.value), 0), whole - size)
                for each, whole, size in zip(operands[1:], view.source.shape, sizes, strict=True)
            ]
            part = view.part(starts, sizes, type_)
            self._slices_by_iteration |= part is not None and any(each.varies for each in operands[1:])
        elif name == "stablehlo.reshape":
            part = view.reshaped(_sizes(type_), type_)
        return None if part is None else [part]

    def _is_host(self, view: View) -> bool:
        return view.source.argument is None or view.source.argument in self._weights

    def _constant(self, operation: Any) -> list[Any] | None:
        type_ = operation.results[0].type
        if is_scalar(type_):
            return [Known(decode_dense(operation.attributes["value"]).reshape(()), type_, False)]
        decoded = decode_type(type_)
        attribute = operation.attributes["value"]
        is_splat = getattr(attribute, "is_splat", False)
        if not isinstance(decoded, TensorType) or decoded.nbytes < LARGE_CONSTANT or is_splat:
            return None
        key = ("constant", operation)
        if key not in self._arguments:
            self._arguments[key] = decode_dense(attribute)
        name = f"constant at {Location(str(operation.location))}"
        return [View.of_whole(Source(name, None, 0, decoded.sizes, self._arguments[key]), type_)]

    # Loops.

    def _unrolled(self, operation: Any, operands: Sequence[Any], environment: _Environment) -> list[Any] | None:
        """Return the results of a loop whose iterations were copied; None for a loop that takes no slices of weights,
        or whose number of iterations is not known.
        """
        if self._iterations(operation, operands, environment) is None:
            return None
        carried = list(operands)
        for each in carried:
            self._mark(each)
        while self._goes_on(operation, carried, environment):
            carried = self._iteration(operation, carried, environment)
        return [each if not isinstance(each, Known) else Known(each.value, each.type, True) for each in carried]

    def _mark(self, handle: Any) -> None:
        """State on the operation of a loop's first value that it is one: every iteration then takes it in one way."""
        if self._counting or isinstance(handle, Known | View) or isinstance(handle.owner, self._ir.Block):
            return
        attributes = handle.owner.operation.attributes
        old = {each.name: each.attr for each in attributes[_FRONTEND]} if _FRONTEND in attributes else {}
        attributes[_FRONTEND] = self._ir.DictAttr.get({**old, FIRST_OF_LOOP: self._ir.StringAttr.get("true")})

    def _iterations(self, operation: Any, operands: Sequence[Any], environment: _Environment) -> int | None:
        was_counting, had_slices = self._counting, self._slices_by_iteration
        self._counting, self._slices_by_iteration = True, False
        try:
            carried = list(operands)
            for count in range(MOST_ITERATIONS):
                goes_on = self._goes_on(operation, carried, environment)
                if goes_on is None:
                    return None
                if not goes_on:
                    return count
                carried = self._iteration(operation, carried, environment)
                if not self._slices_by_iteration:
                    return None
            return None
        finally:
            self._counting = was_counting
            self._slices_by_iteration |= had_slices

    def _goes_on(self, operation: Any, carried: Sequence[Any], environment: _Environment) -> bool | None:
        """Return whether a loop has one more iteration; None if that is not known before it runs."""
        counting, self._counting = self._counting, True
        try:
            (goes_on,) = self._run_region(operation.regions[0], carried, environment)
        finally:
            self._counting = counting
        return bool(goes_on.value) if isinstance(goes_on, Known) else None

    def _iteration(self, operation: Any, carried: Sequence[Any], environment: _Environment) -> list[Any]:
        inputs = [Known(each.value, each.type, True) if isinstance(each, Known) else each for each in carried]
        return self._run_region(operation.regions[1], inputs, environment)

    def _run_region(self, region: Any, inputs: Sequence[Any], environment: _Environment) -> list[Any]:
        block = region.blocks[0]
        return self._copy(block, {**environment, **dict(zip(block.arguments, inputs, strict=True))})


def _sizes(type_: Any) -> tuple[int, ...]:
    decoded = decode_type(type_)
    if not isinstance(decoded, TensorType):
        raise UnimplementedError(f"expected a program on tensors, found a value of the type {decoded}")
    if not decoded.is_static:
        raise UnimplementedError(f"expected static shapes, found {decoded}; refine the program to the shapes first")
    return decoded.sizes


def _entry(functions: Mapping[str, Any]) -> Any:
    """Return the function that is run, as ``ParsedProgram.entry`` does."""
    public = [
        each
        for each in functions.values()
        if "sym_visibility" not in each.attributes or each.attributes["sym_visibility"].value != "private"
    ]
    entry = functions.get("main") or (public[0] if len(public) == 1 else None)
    if entry is None:
        raise NotFoundError("expected a function main or one public function to run, found neither")
    return entry
