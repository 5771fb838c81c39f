"""The types, attributes and regions of an op as its compilation reads them, and quantized types as real numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol, TypeVar

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.reference.core.block import Block, Environment, Kernel
from pjrt.devices.reference.numerics.element_types import compute_dtype, converter
from pjrt.devices.reference.numerics.indexing import CHUNK, chunks
from pjrt.stablehlo.ir.attributes import Opaque
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute_of
from pjrt.stablehlo.ir.types import Quantization, TensorType, ValueType

_COMMUTATIVE = {f"stablehlo.{name}": name for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")}


class Region:
    """A compiled region or function.

    A call runs it: ``region(environment, *args)`` returns a list of its results. The environment is the first argument
    of the kernel of the op that has the region. ``elementwise`` is True where every op in it works element by element
    on scalars, so that ``vectorized`` costs one pass over arrays.
    """

    def __init__(self, block: Block, elementwise: bool) -> None:
        self.block = block
        self.elementwise = elementwise

    @property
    def arguments(self) -> tuple[ValueType, ...]:
        """The types of its arguments."""
        return self.block.arguments

    @property
    def results(self) -> tuple[ValueType, ...]:
        """The types of its results."""
        return self.block.results

    def __call__(self, environment: Environment, *args: Any) -> list[Any]:
        return self.block.run(environment, args)

    def run(self, environment: Environment, args: Any) -> list[Any]:
        """Return the results for arguments in a sequence."""
        return self.block.run(environment, args)

    def consume(self, environment: Environment, args: list[Any]) -> list[Any]:
        """Do as ``run``, and empty the list of arguments (see ``Block.consume``)."""
        return self.block.consume(environment, args)

    @cached_property
    def pattern(self) -> str | None:
        """The common function that the body computes, if it is one.

        ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"`` for that op of its two
        arguments in either order; ``"first"`` and ``"second"`` for returning that one of two arguments; else None. The
        element type of the body, that of ``arguments[0]``, can be wider than the operand's: then the caller converts.
        """
        block = self.block
        if len(block.arguments) != 2 or len(block.outputs) != 1 or block.captures:
            return None
        if not block.code:
            return {1: "first", 2: "second"}.get(block.outputs[0])
        if len(block.steps) != 1:
            return None
        step = block.steps[0]
        if set(step.inputs) != {1, 2} or step.outputs != block.outputs:
            return None
        return _COMMUTATIVE.get(step.name)

    def vectorized(self, environment: Environment, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """Return the results of the scalar body at each position of arrays that broadcast together: one array of the
        common shape for each result.

        Where the body is ``elementwise`` it takes one pass over whole arrays; otherwise it runs for each position.
        """
        if not self.elementwise:
            return self._position_by_position(environment, arrays)
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
        if math.prod(shape) > 2 * CHUNK and not self._is_one_ufunc:
            return self._by_chunks(environment, [np.broadcast_to(a, shape) for a in arrays])
        results = self.block.run(environment, arrays)
        return [r if np.shape(r) == shape else np.broadcast_to(r, shape) for r in results]

    @cached_property
    def _is_one_ufunc(self) -> bool:
        """Whether the body is one function of numpy, which holds nothing but its result."""
        return len(self.block.code) == 1 and isinstance(self.block.code[0][0], np.ufunc)

    def _by_chunks(self, environment: Environment, arrays: list[Any]) -> list[np.ndarray[Any, Any]]:
        """Do as ``vectorized``, with only chunks of the values between the body's operations."""
        shape = arrays[0].shape
        outs = [np.empty(shape, t.dtype) for t in self.results if isinstance(t, TensorType)]
        for part in chunks(shape[0], math.prod(shape[1:])):
            for out, value in zip(outs, self.block.run(environment, [a[part] for a in arrays]), strict=True):
                out[part] = value
        return outs

    def _position_by_position(self, environment: Environment, arrays: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
        spread = np.broadcast_arrays(*arrays)
        shape = spread[0].shape
        flats = [a.reshape(-1) for a in spread]
        outs = [np.empty(flats[0].size, t.dtype) for t in self.results if isinstance(t, TensorType)]
        run = self.block.run
        for i, items in enumerate(zip(*flats, strict=True)):
            for out, value in zip(outs, run(environment, items), strict=True):
                out[i] = value
        return [out.reshape(shape) for out in outs]


_REQUIRED = object()


class Module(Protocol):
    """The part of the module that an op may use. ``handlers`` are the names of the host's functions that custom calls
    may call, ``meetings`` the group finders of the ops by which devices meet.
    """

    handlers: Collection[str]
    meetings: list[Any]

    def compile(self, view: OpView) -> Kernel:
        """Return the kernel of an op."""

    def function(self, name: str) -> Region:
        """Return a function, compiled."""

    def symbol(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of a named op that is not a function."""


class OpView:
    """One op of the program, being compiled.

    ``operands`` and ``results`` are the types of its values, ``regions`` its compiled regions, ``location`` its place
    in the source.
    """

    def __init__(
        self,
        name: str,
        operands: Sequence[ValueType],
        results: Sequence[ValueType],
        attributes: Mapping[str, Any],
        regions: Sequence[Region] = (),
        location: str = "",
        module: Module | None = None,
        source: Callable[[int], Mapping[str, Any] | None] | None = None,
    ) -> None:
        self.name = name
        self.operands = tuple(operands)
        self.results = tuple(results)
        self.regions = tuple(regions)
        self.location = location
        self.attributes = attributes
        self._module = module
        self._source = source
        self.called: list[Region] = []

    def operand(self, index: int = 0) -> TensorType:
        """Return the type of an operand that must be a tensor."""
        return self._tensor(self.operands[index], f"operand {index}")

    def result(self, index: int = 0) -> TensorType:
        """Return the type of a result that must be a tensor."""
        return self._tensor(self.results[index], f"result {index}")

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute as a Python value (see ``pjrt.stablehlo.ir.attributes``).

        Raises:
            InvalidArgumentError: the op does not have the attribute, and the call names no default.
        """
        try:
            return self.attributes[name]
        except KeyError:
            if default is _REQUIRED:
                raise self.invalid(f"expected an attribute {name}, found none") from None
            return default

    def constant(self) -> Any:
        """Return the array in an op's ``value``, in the type of its result: MLIR stores a quantized one without a sign.

        Raises:
            UnimplementedError: MLIR stores the elements in a way that cannot be read.
            InvalidArgumentError: they were left out when the program was written.
        """
        value = self.attr("value")
        if not isinstance(value, np.ndarray):
            text = value.text[:80] if isinstance(value, Opaque) else repr(value)
            if text.startswith("dense_resource<"):
                raise self.invalid(
                    "expected the values of a constant, which were left out when the program was written; write it "
                    "with all elements of its constants"
                )
            raise self.unimplemented(f"expected the elements of a constant, found {text}")
        convert = converter(ElementType.of(value.dtype), self.result().element)
        if any(value.strides) or value.size <= 1:
            return convert(value)
        return np.broadcast_to(convert(value[(slice(1),) * value.ndim]), value.shape)  # of equal elements one is kept

    def function(self, name: str) -> Region:
        """Return a function of the module, for calls: a region without captured values."""
        region = self._whole_module().function(name)
        self.called.append(region)
        return region

    def symbol(self, name: str) -> Mapping[str, Any]:
        """Return the attributes of another named op of the module, such as a mesh."""
        return self._whole_module().symbol(name)

    def meeting(self, find: Any) -> int:
        """Note that devices meet at this op; return its number among such ops: the same in each process.

        Args:
            find: finds the group of a process.
        """
        if self._module is None:
            return 0
        self._module.meetings.append(find)
        return len(self._module.meetings)

    def has_handler(self, name: str) -> bool:
        """Whether the client has a function of the host for custom calls of a name."""
        return self._module is not None and name in self._module.handlers

    def source(self, index: int) -> Mapping[str, Any] | None:
        """Return the attributes of the op that makes an operand, or of the function's argument that it is, if any."""
        return self._source(index) if self._source is not None else None

    def _whole_module(self) -> Module:
        if self._module is None:
            raise self.invalid("the op refers to another part of its module, and was compiled without a module")
        return self._module

    def derive(self, **changes: Any) -> OpView:
        """Return the view with other values for some of ``name``, ``operands``, ``results``, ``attributes`` and
        ``regions``: for a rule that reduces its op to another one.
        """
        fields = {field: getattr(self, field) for field in ("name", "operands", "results", "attributes", "regions")}
        view = OpView(**{**fields, **changes}, location=self.location, module=self._module, source=self._source)
        view.called = self.called
        return view

    def compile(self) -> Kernel:
        """Return the kernel of the op, for a rule that reduces its op to this one."""
        return self._whole_module().compile(self)

    def fitted(self, kernel: Callable[..., Any]) -> Kernel:
        """Return a kernel whose result has the sizes that the program states, for an op that computes its sizes.

        The kernel raises an ``InvalidArgumentError`` where they differ: what follows would take other arrays than the
        program says.
        """
        stated = self.result().shape

        def run(*operands: Any) -> Any:
            result = kernel(*operands)
            if len(stated) != len(result.shape) or any(
                size not in (None, computed) for size, computed in zip(stated, result.shape, strict=True)
            ):
                raise InvalidArgumentError(
                    f"expected operands that give {self.result()}, as the program states, found a result of shape "
                    f"{list(result.shape)}"
                )
            return result

        return run

    def unimplemented(self, reason: str) -> UnimplementedError:
        """Return the error for an unsupported op, type or attribute: it names the op, its types and its place."""
        return _with_place(UnimplementedError(self._explain(reason)))

    def invalid(self, reason: str) -> InvalidArgumentError:
        """Return the error for an op that breaks a rule of the specification."""
        return _with_place(InvalidArgumentError(self._explain(reason)))

    def explain(self, error: PjrtError) -> PjrtError:
        """Return the error with op, types and place in its message; one that names an inner op stays as it is."""
        if getattr(error, "_has_place", False):
            return error
        return _with_place(PjrtError.of(error.code, self._explain(error.message), error.payloads))

    @property
    def types(self) -> str:
        """The types as MLIR writes them: ``(tensor<2xf32>) -> (tensor<2xf32>)``."""
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"

    def _explain(self, reason: str) -> str:
        return f"{self.name} {self.types}: {reason} [{self.location}]"

    def _tensor(self, type_: ValueType, what: str) -> TensorType:
        if not isinstance(type_, TensorType):
            raise self.invalid(f"expected a tensor as {what}, found {type_}")
        return type_


class LazyAttributes(Mapping[str, Any]):
    """The attributes of an MLIR operation, each decoded once, when it is first read."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation
        self._decoded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._decoded:
            self._decoded[name] = decode_attribute_of(self._operation, name)
        return self._decoded[name]

    def __iter__(self) -> Any:
        return iter(item.name for item in self._operation.attributes)

    def __len__(self) -> int:
        return len(self._operation.attributes)


Error = TypeVar("Error", bound=PjrtError)


def _with_place(error: Error) -> Error:
    """Mark an error whose message names the op and its place."""
    error._has_place = True  # type: ignore[attr-defined]
    return error


Convert = Callable[[Any], Any]


def on_expressed_types(view: OpView, environment: bool) -> Kernel:
    """Return the kernel of an op on quantized types, as the specification defines it: on the expressed types, between
    two conversions. With ``environment`` the op's kernel takes the environment first.
    """
    plain = view.derive(operands=[expressed(t) for t in view.operands], results=[expressed(t) for t in view.results])
    kernel = plain.compile()
    opening = [conversion(t, dequantizer) for t in view.operands]
    closing = [conversion(t, quantizer) for t in view.results]
    skipped = 1 if environment else 0

    def run(*args: Any) -> Any:
        wide = [convert(arg) for convert, arg in zip(opening, args[skipped:], strict=True)]
        values = kernel(*args[:skipped], *wide)
        if len(closing) == 1:
            return closing[0](values)
        return [convert(value) for convert, value in zip(closing, values, strict=True)]

    run.elementwise = False  # type: ignore[attr-defined]
    return run


def expressed(type_: ValueType) -> ValueType:
    """Return the type of the real numbers that a quantized type stands for; other types as they are."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return TensorType(type_.shape, type_.quantization.expressed, None, type_.bounds)
    return type_


def dequantizer(type_: TensorType, quantization: Quantization) -> Convert:
    """Return the function from stored integers to real numbers: ``(stored - zero_point) * scale``."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    dtype = quantization.expressed.dtype

    def run(x: Any) -> Any:
        value = np.array(x, wide)
        value -= zeros
        value *= scales
        return value.astype(dtype, copy=False)

    return run


def quantizer(type_: TensorType, quantization: Quantization) -> Convert:
    """Return the function from real numbers to stored integers: the nearest in the storage's range, ties to even."""
    wide = compute_dtype(quantization.expressed)
    scales, zeros = _parameters(type_, quantization, wide)
    storage, low, high = quantization.storage.dtype, quantization.storage_min, quantization.storage_max
    narrow = np.int64 if quantization.storage.bits >= 32 else np.int32
    exact = np.float64 if quantization.storage.bits >= 32 else wide  # f32 rounds the ends of the range of 32 bits

    def run(x: Any) -> Any:
        value = np.array(x, wide)
        value /= scales
        np.rint(value, out=value)
        value += zeros
        value = value.astype(exact, copy=False)
        np.clip(value, low, high, out=value)
        return value.astype(narrow).astype(storage)

    return run


def _parameters(type_: TensorType, quantization: Quantization, wide: Any) -> tuple[Any, Any]:
    """Return scales and zero points in a shape that broadcasts against the tensor."""
    scales, zeros = np.array(quantization.scales, wide), np.array(quantization.zero_points, wide)
    if quantization.axis is None:
        return scales[0], zeros[0]
    shape = [1] * type_.rank
    shape[quantization.axis] = len(scales)
    return scales.reshape(shape), zeros.reshape(shape)


def conversion(type_: ValueType, make: Callable[[TensorType, Quantization], Convert]) -> Convert:
    """Return ``make``'s function for a quantized type, and one that changes nothing for other types."""
    if isinstance(type_, TensorType) and type_.quantization is not None:
        return make(type_, type_.quantization)
    return lambda value: value
