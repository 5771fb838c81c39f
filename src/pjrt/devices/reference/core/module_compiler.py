"""From an MLIR module to blocks: every op is checked and compiled here, once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from pjrt.api.errors import InternalError, InvalidArgumentError, PjrtError, UnimplementedError
from pjrt.devices.reference.core import mlir, registry
from pjrt.devices.reference.core.block import EXPECTED, Block, Kernel, Pending, Step, assemble, unknown_type
from pjrt.devices.reference.core.mlir import describe
from pjrt.devices.reference.core.op_view import LazyAttributes, OpView, Region, on_expressed_types
from pjrt.devices.reference.core.registry import Rule
from pjrt.stablehlo.ir.mlir_attributes import decode_attribute
from pjrt.stablehlo.ir.operation import Operation, Value
from pjrt.stablehlo.ir.types import TensorType, TokenType, ValueType, decode_type
from pjrt.stablehlo.reading.parser import OperationParser

CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.if", "stablehlo.case", "sdy.manual_computation"})
"""Ops whose regions are parts of the program like any other, so that the author's code computes operations in them too.
The regions of other ops, such as a reducer or a comparator, belong to their op.
"""


class Author(Protocol):
    """The author's code, asked while a program is compiled."""

    def wants(self, name: str) -> bool:
        """Whether the author may compute operations of a name; only these are parsed."""

    def kernel(
        self,
        operation: Operation,
        interpreted: Callable[[], Kernel],
        environment: bool,
        constants: Collection[int],
        captured: Sequence[int],
    ) -> Kernel:
        """Return the kernel of an operation: the author's, or the interpreter's.

        If it has an attribute ``environment``, this says whether it takes the environment first.

        Args:
            operation: the operation.
            interpreted: returns the interpreter's kernel; raises the error of an op that the interpreter lacks.
            environment: whether the interpreter's kernel takes the environment first.
            constants: the positions of operands that are the same in every run.
            captured: the slots that regions of the operation read.
        """

    def hosted(self, name: str, kernel: Kernel, environment: bool, captured: Sequence[int]) -> Kernel:
        """Return an interpreter's kernel in a form that takes values of the author's device, too.

        Args:
            name: the name of the op.
            kernel: the kernel.
            environment: whether the kernel takes the environment first.
            captured: the slots that regions of the op read.
        """

    def combine(
        self,
        pending: Sequence[Pending],
        outputs: Sequence[int],
        template: Sequence[Any],
        constant: Collection[int],
    ) -> list[Pending]:
        """Return the steps of a block, with one step in place of each run of operations that the author takes whole.

        Args:
            pending: the steps; those of operations that the author wants have their ``operation``.
            outputs: the slots of the block's results.
            template: the values in the slots of constants.
            constant: the slots of constants.
        """


# A function or a region becomes a flat list of steps, in the order of the program. A value that a region uses from the
# block around it becomes a pair of slots, copied when the region is entered.

_TERMINATORS = frozenset({"func.return", "stablehlo.return", "sdy.return", "chlo.return", "mhlo.return"})
_CONSTANTS = frozenset({"stablehlo.constant", "chlo.constant", "sdy.constant"})
_SHAPING = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim", "stablehlo.broadcast", "stablehlo.transpose"})
"""Ops that do nothing to a scalar, and so are harmless in a body that is evaluated on whole arrays."""


class ModuleCompiler:
    """The compiler of a module: compiles each function at most once."""

    def __init__(self, module: Any, *, handlers: Collection[str] = (), author: Author | None = None) -> None:
        registry.load_chapters()
        self.handlers = handlers
        self.author = author
        self.meetings: list[Any] = []
        self.parser = OperationParser()
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
        """Return the attributes of a named op of the module that is not a function.

        Raises:
            InvalidArgumentError: the module has no op of that name.
        """
        for item in self._root.regions[0].blocks[0].operations:
            named = item.operation.attributes
            if "sym_name" in named and str(named["sym_name"].value) == name:
                return LazyAttributes(item.operation)
        raise InvalidArgumentError(f"expected {name} in the module, found nothing of that name")

    def operation(self, name: str) -> Any:
        """Return the MLIR operation of a function.

        Raises:
            InvalidArgumentError: the module has no function of that name.
        """
        if name not in self._operations:
            names = ", ".join(self._operations) or "none"
            raise InvalidArgumentError(f"expected a function {name} in the module, found {names}")
        return self._operations[name]

    def function(self, name: str) -> Region:
        """Return a function, compiled.

        Raises:
            UnimplementedError: regions and calls are nested deeper than Python's stack is.
        """
        if name not in self._compiled:
            try:
                with self.entered(name) as block:
                    self._compiled[name] = self.compile_block(block, name, None).region()
            except RecursionError as error:
                raise UnimplementedError(
                    f"{name}: regions and calls are nested too deep for Python's stack of {sys.getrecursionlimit()} "
                    "calls: expected fewer levels, or a higher sys.setrecursionlimit"
                ) from error
        return self._compiled[name]

    def can_enter(self, name: str) -> bool:
        """Whether a function has a body and is not being compiled already, which would be recursion."""
        return name not in self._open and len(self.operation(name).regions[0].blocks) == 1

    @contextmanager
    def entered(self, name: str) -> Iterator[Any]:
        """Give the MLIR block of a function, while it is being compiled.

        Raises:
            UnimplementedError: the function is being compiled already.
            InvalidArgumentError: the module has no function of that name, or only its declaration.
        """
        operation = self.operation(name)
        if name in self._open:
            raise UnimplementedError(f"the function {name} calls itself: recursion is not part of StableHLO")
        if not operation.regions[0].blocks:
            raise InvalidArgumentError(f"the function {name} has no body: link the module it comes from")
        self._open.append(name)
        yield operation.regions[0].blocks[0]
        self._open.pop()

    def compile_block(self, block: Any, name: str, parent: BlockCompiler | None) -> BlockCompiler:
        """Compile one block of MLIR."""
        return BlockCompiler(self, block, name, parent)

    def compile(self, view: OpView) -> Kernel:
        """Return the kernel of an op.

        Raises:
            UnimplementedError: no op of that name is registered, or it does not take these types or attributes.
            InvalidArgumentError: the op breaks a rule of the specification.
        """
        rule = registry.find(view.name)
        if rule is None:
            raise view.unimplemented("the reference device does not know this op")
        types = [t for t in view.operands + view.results if isinstance(t, TensorType)]
        if any(t.quantization for t in types) and not rule.quantized:
            return on_expressed_types(view, rule.environment or bool(view.regions))
        return self.kernel(rule, view)

    def kernel(self, rule: Rule, view: OpView) -> Kernel:
        """Return the kernel that a rule makes for an op."""
        return rule.compile(view)


class BlockCompiler:
    """The compiler of one block of MLIR."""

    def __init__(self, module: ModuleCompiler, block: Any, name: str, parent: BlockCompiler | None) -> None:
        self._module = module
        self._name = name
        self._parent = parent
        self._author = module.author if parent is None or name.partition(" ")[0] in CONTROL_FLOW else None
        if parent is not None and parent._author is None:
            self._author = None
        self._template: list[Any] = [None]  # slot 0: the context
        self._types: list[ValueType] = [TokenType()]  # of the value in each slot
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
        """Return the finished block."""
        self._combine()
        block = Block(
            name=self._name,
            arguments=self._arguments,
            results=self._results,
            template=self._template,
            code=(),
            steps=(),
            outputs=self._outputs,
            captures=tuple(self._captures.items()),
        )
        return Region(assemble(block, self._pending, self._constant), self._elementwise)

    def _combine(self) -> None:
        """Put single steps in place of several, before the steps are final."""
        if self._author is not None:
            self._pending = self._author.combine(self._pending, self._outputs, self._template, self._constant)

    def slot(self, value: Any) -> int:
        """Return the slot of an MLIR value; a value of the block around is captured."""
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
        """Add an op of the program to the block."""
        inputs = tuple(self.slot(value) for value in operation.operands)
        operand_types = tuple(self._types[slot] for slot in inputs)
        if operation.name in _TERMINATORS:
            self._outputs, self._results = inputs, operand_types
            return
        view = self._view(operation, operand_types)
        self._module.ops.add(view.name)
        if view.name == "stablehlo.custom_call":
            self._module.ops.add(view.attr("call_target_name"))
        if (unknown := unknown_type(view.results)) is not None:
            raise view.unimplemented(f"{EXPECTED}, found {unknown}")
        rule = registry.find(view.name)
        environment = bool(view.regions) or (rule is not None and rule.environment)
        captured = tuple(outside for region in view.regions for outside, _ in region.block.captures)
        parsed = None
        values: dict[int, Value] = {}
        author = None if view.name in _CONSTANTS else self._author
        if author is not None and author.wants(view.name):
            operands = [Value(type_, f"%{slot}", None, 0) for slot, type_ in zip(inputs, operand_types, strict=True)]
            parsed = self._module.parser.parse(operation, operands, lambda value: self._captured_value(value, values))
            constants = [position for position, slot in enumerate(inputs) if slot in self._constant]
            kernel = author.kernel(parsed, lambda: self._compile(view), environment, constants, captured)
        elif author is not None:
            kernel = author.hosted(view.name, self._compile(view), environment, captured)
        else:
            kernel = self._compile(view)
        environment = getattr(kernel, "environment", environment)
        outputs = tuple(self._new_slot(type_) for type_ in view.results)
        self._slots.update(zip(operation.results, outputs, strict=True))
        runner = kernel if hasattr(kernel, "device") else None
        # The author's kernels are made for the types in the program.
        elementwise = getattr(kernel, "elementwise", runner is None and rule is not None and rule.elementwise)
        pure = rule is not None and rule.foldable
        self._elementwise = self._elementwise and elementwise
        self._check_scalar(view.results)
        if view.name in _CONSTANTS:
            self._set_constant(outputs[0], kernel())
            return
        blocks = tuple(region.block for region in (*view.regions, *view.called))
        step = Step(view.name, view.location, inputs, outputs, view.operands, view.results, blocks, runner)
        self._append(Pending(kernel, step, inputs + captured, environment, elementwise, pure, parsed, values))

    def _captured_value(self, native: Any, values: dict[int, Value]) -> Value:
        """Return the value that stands for one of this block's in a region of a parsed operation."""
        slot = self._slots[native]
        if slot not in values:
            values[slot] = Value(self._types[slot], f"%{slot}", None, 0)
        return values[slot]

    def _append(self, pending: Pending) -> None:
        self._pending.append(pending)

    def _view(self, operation: Any, operand_types: tuple[ValueType, ...]) -> OpView:
        name: str = operation.name
        regions = [
            self._module.compile_block(region.blocks[0], f"{name} of {self._name}", self).region()
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

    def _compile(self, view: OpView) -> Kernel:
        """Return the kernel of an op; errors name the op and its place."""
        types = [t for t in view.operands + view.results if isinstance(t, TensorType)]
        if view.name in _SHAPING and all(t.rank == 0 for t in types):
            return _same_scalar
        try:
            return self._module.compile(view)
        except PjrtError as error:
            raise view.explain(error) from error
        except RecursionError:  # of the whole program, see ``function``
            raise
        except Exception as error:
            raise view.explain(PjrtError.wrap(error)) from error


def _same_scalar(value: Any) -> Any:
    return value


_same_scalar.elementwise = True  # type: ignore[attr-defined]


def function_attributes(operation: Any, which: str) -> list[dict[str, Any]]:
    """Return the attributes of a function's arguments (``arg_attrs``) or results (``res_attrs``), a dictionary each."""
    count = len(
        operation.attributes["function_type"].value.inputs
        if which == "arg_attrs"
        else operation.attributes["function_type"].value.results
    )
    if which not in operation.attributes:
        return [{} for _ in range(count)]
    return list(decode_attribute(operation.attributes[which]))


def _attributes_of_owner(value: Any) -> Mapping[str, Any] | None:
    """Return the attributes of the operation that makes a value, or of a function's argument; None for others."""
    owner = getattr(value.owner, "operation", value.owner)
    if hasattr(owner, "attributes"):
        return LazyAttributes(owner)
    function = getattr(owner.owner, "operation", owner.owner)
    if "arg_attrs" not in function.attributes:
        return None
    return function_attributes(function, "arg_attrs")[list(owner.arguments).index(value)]
