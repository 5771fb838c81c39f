"""An op as the function that compiles it sees it: types, attributes, regions and its place in the source, in Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.numerics.rounding import converter
from pjrt.stablehlo.attributes import Opaque
from pjrt.stablehlo.mlir_attributes import decode_attribute_of
from pjrt.stablehlo.types import TensorType, ValueType

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
        """Return an attribute as a Python value (see ``pjrt.stablehlo.attributes``).

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
