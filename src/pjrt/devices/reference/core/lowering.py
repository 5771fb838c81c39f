"""From an MLIR module to blocks: every op is checked and compiled here, once.

A function or a region becomes a flat list of steps. Ops whose operands are constants run now and leave only their
result. What a region uses from the block around it becomes a pair of slots, copied when the region is entered.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.reference.core import mlir, registry
from pjrt.devices.reference.core.block import Block, Kernel, Step
from pjrt.devices.reference.core.liveness import Pending, assemble
from pjrt.devices.reference.core.locations import describe
from pjrt.devices.reference.core.op_view import LazyAttributes, OpView
from pjrt.devices.reference.core.region import Region
from pjrt.devices.reference.core.registry import Rule
from pjrt.devices.reference.core.values import EXPECTED, unknown_type
from pjrt.devices.reference.fast.fusion import fuse
from pjrt.stablehlo.mlir_attributes import decode_attribute, decode_type
from pjrt.stablehlo.types import TensorType, TokenType, ValueType

_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return", "chlo.return", "mhlo.return"})
_CONSTANTS = frozenset({"stablehlo.constant", "chlo.constant", "sdy.constant"})
_SHAPING = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.broadcast", "stablehlo.transpose"})
"""Ops that do nothing to a scalar, and so are harmless in a body that is evaluated on whole arrays."""

_VIEWS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.broadcast"})
"""Ops whose result, however large, is a view that takes no memory."""

INLINE_LIMIT = 64
"""Functions of up to this many ops take the place of their calls; larger ones would only be compiled many times."""

FOLD_LIMIT = 1 << 16
"""Results of up to this many elements are computed at compile time where they can be; larger ones would only hold
memory.
"""


class ModuleLowering:
    """Compiles the functions of a module, each at most once."""

    def __init__(self, module: Any, *, fold: bool = True, handlers: Collection[str] = ()) -> None:
        importlib.import_module("pjrt.devices.reference.ops")  # registers the ops; not at the top: they need the core
        self.fold = fold
        self.handlers = handlers
        self._root = mlir.decompose(module, lambda name: registry.find(name) is not None)
        self.ops: set[str] = set()
        self._operations = {
            str(item.operation.attributes["sym_name"].value): item.operation
            for item in self._root.regions[0].blocks[0].operations
            if item.operation.name == "func.func"
        }
        self._compiled: dict[str, Region] = {}
        self._open: list[str] = []

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of all functions."""
        return tuple(self._operations)

    def symbol(self, name: str) -> LazyAttributes:
        """The attributes of a named op of the module that is not a function.

        Raises:
            InvalidArgumentError: there is none.
        """
        for item in self._root.regions[0].blocks[0].operations:
            named = item.operation.attributes
            if "sym_name" in named and str(named["sym_name"].value) == name:
                return LazyAttributes(item.operation)
        raise InvalidArgumentError(f"expected {name} in the module, found nothing of that name")

    def operation(self, name: str) -> Any:
        """The MLIR operation of a function.

        Raises:
            InvalidArgumentError: there is no such function.
        """
        if name not in self._operations:
            known = ", ".join(self._operations) or "none"
            raise InvalidArgumentError(f"expected a function {name} in the module, found {known}")
        return self._operations[name]

    def function(self, name: str) -> Region:
        """A function, compiled.

        Raises:
            UnimplementedError: regions and calls are nested deeper than Python's stack is.
        """
        if name not in self._compiled:
            try:
                with self.entered(name) as block:
                    self._compiled[name] = BlockLowering(self, block, name, None).region()
            except RecursionError as error:
                raise UnimplementedError(
                    f"{name}: regions and calls are nested too deep for Python's stack of {sys.getrecursionlimit()} "
                    "calls: expected fewer levels, or a higher sys.setrecursionlimit"
                ) from error
        return self._compiled[name]

    def can_enter(self, name: str) -> bool:
        """Whether there is a function that can be compiled now, that is, from where it is called."""
        return name not in self._open and len(self.operation(name).regions[0].blocks) == 1

    @contextmanager
    def entered(self, name: str) -> Iterator[Any]:
        """The MLIR block of a function, while it is being compiled.

        Raises:
            UnimplementedError: it is being compiled already.
            InvalidArgumentError: there is no such function, or only its declaration.
        """
        operation = self.operation(name)
        if name in self._open:
            raise UnimplementedError(f"the function {name} calls itself: recursion is not part of StableHLO")
        if not operation.regions[0].blocks:
            raise InvalidArgumentError(f"the function {name} has no body: link the module it comes from")
        self._open.append(name)
        yield operation.regions[0].blocks[0]
        self._open.pop()


class BlockLowering:
    """Compiles one block of MLIR."""

    def __init__(self, module: ModuleLowering, block: Any, name: str, parent: BlockLowering | None) -> None:
        self._module = module
        self._name = name
        self._parent = parent
        self._template: list[Any] = [None]  # slot 0: the context
        self._types: list[ValueType] = [TokenType()]  # of what is in each slot
        self._constant: set[int] = set()
        self._slots: dict[Any, int] = {}
        self._captures: dict[int, int] = {}
        self._pending: list[Pending] = []
        self._outputs: tuple[int, ...] = ()
        self._results: tuple[ValueType, ...] = ()
        self._elementwise = True
        self._arguments = tuple(decode_type(argument.type) for argument in block.arguments)
        self._check_scalar(self._arguments)
        for argument, type_ in zip(block.arguments, self._arguments, strict=True):
            if (unknown := unknown_type((type_,))) is not None:
                place = describe(argument.location)
                raise UnimplementedError(f"{name}: {EXPECTED} as arguments, found {unknown} [{place}]")
            self._slots[argument] = self._new_slot(type_)
        for view in block.operations:
            self._add(view.operation)

    def region(self) -> Region:
        """The finished block."""
        pending = self._pending
        if self._module.fold:
            pending = fuse(pending, self._outputs, self._template, self._constant)
        block = assemble(
            Block(
                name=self._name,
                arguments=self._arguments,
                results=self._results,
                template=self._template,
                code=(),
                steps=(),
                outputs=self._outputs,
                captures=tuple(self._captures.items()),
            ),
            pending,
            self._constant,
        )
        return Region(block, self._elementwise)

    def slot(self, value: Any) -> int:
        """The slot of an MLIR value; a value of the block around is captured."""
        if value in self._slots:
            return self._slots[value]
        if self._parent is None:
            raise InternalError(f"the value {value} is used before it is defined")
        outside = self._parent.slot(value)
        type_ = self._parent._types[outside]
        self._slots[value] = inside = self._new_slot(type_)
        if outside in self._parent._constant:
            self._set_constant(inside, self._parent._template[outside])
        else:
            self._captures[outside] = inside
            self._check_scalar([type_])
        return inside

    def _new_slot(self, type_: ValueType) -> int:
        self._template.append(None)
        self._types.append(type_)
        return len(self._template) - 1

    def _set_constant(self, slot: int, value: Any) -> None:
        if isinstance(value, np.ndarray):
            value.flags.writeable = False
        self._template[slot] = value
        self._constant.add(slot)

    def _check_scalar(self, types: Sequence[ValueType]) -> None:
        self._elementwise = self._elementwise and all(isinstance(t, TensorType) and t.rank == 0 for t in types)

    def _add(self, operation: Any) -> None:
        name: str = operation.name
        inputs = tuple(self.slot(value) for value in operation.operands)
        operand_types = tuple(self._types[slot] for slot in inputs)
        if name in _TERMINATORS:
            self._outputs, self._results = inputs, operand_types
            return
        if name == "func.call" and self._inline(operation, inputs):
            return
        view = self._view(operation, operand_types)
        self._module.ops.add(name)
        rule = registry.find(name)
        if rule is None:
            raise view.unimplemented("the reference device does not know this op")
        if (unknown := unknown_type(view.results)) is not None:
            raise view.unimplemented(f"{EXPECTED}, found {unknown}")
        kernel, elementwise = self._compile(rule, view)
        self._elementwise = self._elementwise and elementwise
        self._check_scalar(view.results)
        outputs = tuple(self._new_slot(type_) for type_ in view.results)
        self._slots.update(zip(operation.results, outputs, strict=True))
        environment = rule.environment or bool(view.regions)
        if not environment and self._fold(rule, kernel, inputs, outputs, view):
            return
        captured = tuple(outside for region in view.regions for outside, _ in region.block.captures)
        blocks = tuple(region.block for region in (*view.regions, *view.called))
        flops = getattr(kernel, "flops", None)
        step = Step(name, view.location, inputs, outputs, view.operands, view.results, blocks, flops)
        self._pending.append(Pending(kernel, step, inputs + captured, environment, elementwise, rule.foldable))

    def _inline(self, call: Any, inputs: tuple[int, ...]) -> bool:
        """Puts the steps of a small function in the place of a call: no block to enter at each run, constants are known
        to more of the program, and so is who reads a value last. Tells whether it did.
        """
        name = decode_attribute(call.attributes["callee"])
        if not (self._module.fold and self._module.can_enter(name)):
            return False
        with self._module.entered(name) as block:
            operations = [item.operation for item in block.operations]
            if len(operations) <= INLINE_LIMIT:
                self._slots.update(zip(block.arguments, inputs, strict=True))
                for operation in operations[:-1]:
                    self._add(operation)
                returned = [self.slot(value) for value in operations[-1].operands]
                self._slots.update(zip(call.results, returned, strict=True))
        return len(operations) <= INLINE_LIMIT

    def _view(self, operation: Any, operand_types: tuple[ValueType, ...]) -> OpView:
        name: str = operation.name
        regions = [
            BlockLowering(self._module, region.blocks[0], f"{name} of {self._name}", self).region()
            for region in operation.regions
            if len(region.blocks)
        ]
        return OpView(
            name=name,
            operands=operand_types,
            results=tuple(decode_type(value.type) for value in operation.results),
            attributes=LazyAttributes(operation),
            regions=regions,
            location=describe(operation.location),
            module=self._module,
            source=lambda index: _attributes_of_owner(operation.operands[index]),
        )

    def _compile(self, rule: Rule, view: OpView) -> tuple[Kernel, bool]:
        """The kernel of an op, and whether it works element by element."""
        types = [t for t in view.operands + view.results if isinstance(t, TensorType)]
        try:
            if rule.name in _SHAPING and all(t.rank == 0 for t in types):
                return _identity, True
            if any(t.quantization for t in types) and not rule.quantized:
                from pjrt.devices.reference.ops.quantization import on_expressed_types

                return on_expressed_types(view, rule), False
            kernel = rule.compile(view)
        except PjrtError as error:
            raise view.explain(error) from error
        except RecursionError:  # of the whole program, see ``function``
            raise
        except Exception as error:
            raise view.explain(PjrtError.wrap(error)) from error
        return kernel, rule.elementwise or getattr(kernel, "elementwise", False)

    def _fold(
        self, rule: Rule, kernel: Kernel, inputs: tuple[int, ...], outputs: tuple[int, ...], view: OpView
    ) -> bool:
        """Runs an op now where its operands are known; tells whether it did."""
        if not rule.foldable or not self._constant.issuperset(inputs):
            return False
        is_view = rule.name in _VIEWS
        if rule.name not in _CONSTANTS and not (self._module.fold and (is_view or _is_small(view.results))):
            return False
        try:
            with np.errstate(all="ignore"):
                value = kernel(*(self._template[slot] for slot in inputs))
        except Exception:  # an op that fails here fails when it runs, if it runs: that is where the error belongs
            return False
        for slot, item in zip(outputs, (value,) if len(outputs) == 1 else value, strict=True):
            self._set_constant(slot, item)
        return True


def function_attributes(operation: Any, which: str) -> list[dict[str, Any]]:
    """The attributes of a function's arguments (``arg_attrs``) or results (``res_attrs``), a dictionary each."""
    count = len(
        operation.attributes["function_type"].value.inputs
        if which == "arg_attrs"
        else operation.attributes["function_type"].value.results
    )
    if which not in operation.attributes:
        return [{} for _ in range(count)]
    return list(decode_attribute(operation.attributes[which]))


def _attributes_of_owner(value: Any) -> Mapping[str, Any] | None:
    """The attributes of the operation that makes a value, or of a function's argument; None for another argument."""
    owner = getattr(value.owner, "operation", value.owner)
    if hasattr(owner, "attributes"):
        return LazyAttributes(owner)
    function = getattr(owner.owner, "operation", owner.owner)
    if "arg_attrs" not in function.attributes:
        return None
    return function_attributes(function, "arg_attrs")[list(owner.arguments).index(value)]


def _identity(value: Any) -> Any:
    return value


def _is_small(types: Sequence[ValueType]) -> bool:
    return all(isinstance(t, TensorType) and t.is_static and t.size <= FOLD_LIMIT for t in types)
