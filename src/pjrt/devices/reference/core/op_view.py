"""An op as its compile function sees it: types, attributes, regions and its place in the source, all in Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from pjrt.api.element_type import ElementType
from pjrt.api.errors import InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.numerics.rounding import converter
from pjrt.stablehlo.attributes import Opaque
from pjrt.stablehlo.mlir_attributes import decode_attribute_of
from pjrt.stablehlo.types import TensorType, ValueType

_REQUIRED = object()


class Module(Protocol):
    """The part of the module that an op may read.

    ``ops`` are the names of all ops compiled so far, ``handlers`` those of the host's functions that custom calls may
    call.
    """

    ops: set[str]
    handlers: Collection[str]

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
        """The type of an operand that must be a tensor."""
        return self._tensor(self.operands[index], f"operand {index}")

    def result(self, index: int = 0) -> TensorType:
        """The type of a result that must be a tensor."""
        return self._tensor(self.results[index], f"result {index}")

    def attr(self, name: str, default: Any = _REQUIRED) -> Any:
        """An attribute as a Python value (see ``pjrt.stablehlo.attributes``).

        Raises:
            InvalidArgumentError: the op does not have it, and no default is given.
        """
        try:
            return self.attributes[name]
        except KeyError:
            if default is _REQUIRED:
                raise self.invalid(f"expected an attribute {name}, found none") from None
            return default

    def constant(self) -> Any:
        """The array that an op's ``value`` is, in the type of its result: MLIR stores a quantized one without a sign.

        Raises:
            UnimplementedError: it is stored in a way that cannot be read.
        """
        value = self.attr("value")
        if not isinstance(value, np.ndarray):
            found = value.text[:80] if isinstance(value, Opaque) else repr(value)
            raise self.unimplemented(f"expected the elements of a constant, found {found}")
        return converter(ElementType.of(value.dtype), self.result().element)(value)

    def function(self, name: str) -> Region:
        """A function of the module as a region without captured values: what calls, composites and custom calls run."""
        found = self._whole_module().function(name)
        self.called.append(found)
        return found

    def symbol(self, name: str) -> Mapping[str, Any]:
        """The attributes of another named op of the module, such as a mesh."""
        return self._whole_module().symbol(name)

    def note(self, name: str) -> None:
        """Adds a name to those of the ops that the program uses: of what a custom call calls."""
        if self._module is not None:
            self._module.ops.add(name)

    def has_handler(self, name: str) -> bool:
        """Whether the client has a function of the host for custom calls of a name."""
        return self._module is not None and name in self._module.handlers

    def source(self, index: int) -> Mapping[str, Any] | None:
        """The attributes of the op that makes an operand, or of the function's argument that it is, if any."""
        return self._source(index) if self._source is not None else None

    def _whole_module(self) -> Module:
        if self._module is None:
            raise self.invalid("it refers to another part of the module, and there is none")
        return self._module

    def with_types(
        self, operands: Sequence[ValueType], results: Sequence[ValueType], name: str | None = None
    ) -> OpView:
        """The same op on other types: for a rule that reduces its op to a simpler one."""
        made = OpView(
            name or self.name,
            operands,
            results,
            self.attributes,
            self.regions,
            self.location,
            self._module,
            self._source,
        )
        made.called = self.called
        return made

    def unimplemented(self, reason: str) -> UnimplementedError:
        """The error for what this device does not do: names the op, its types and its place."""
        return _told(UnimplementedError(self._explain(reason)))

    def invalid(self, reason: str) -> InvalidArgumentError:
        """The error for what the specification does not allow."""
        return _told(InvalidArgumentError(self._explain(reason)))

    def explain(self, error: PjrtError) -> PjrtError:
        """The same error with op, types and place in its message; one that has those of an inner op stays as it is."""
        if getattr(error, "_told", False):
            return error
        return _told(PjrtError.of(error.code, self._explain(error.message), error.payloads))

    @property
    def signature(self) -> str:
        """The types as MLIR writes them: ``(tensor<2xf32>) -> tensor<2xf32>``."""
        return f"({', '.join(map(str, self.operands))}) -> ({', '.join(map(str, self.results))})"

    def _explain(self, reason: str) -> str:
        return f"{self.name} {self.signature}: {reason} [{self.location}]"

    def _tensor(self, type_: ValueType, what: str) -> TensorType:
        if not isinstance(type_, TensorType):
            raise self.invalid(f"expected a tensor as {what}, found {type_}")
        return type_


class LazyAttributes(Mapping[str, Any]):
    """The attributes of an MLIR operation, decoded when asked for, once each."""

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


Told = TypeVar("Told", bound=PjrtError)


def _told(error: Told) -> Told:
    """Marks an error whose message says which op it is about."""
    error._told = True  # type: ignore[attr-defined]
    return error
