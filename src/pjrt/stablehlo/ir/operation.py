"""A parsed program: functions, blocks, operations and values as plain Python objects.

Nothing of MLIR is alive behind them, so any thread may use them, and they may be kept. Do not change them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pjrt.api.errors import InternalError, InvalidArgumentError, NotFoundError, PjrtError, in_operation
from pjrt.api.program import Program
from pjrt.stablehlo.ir.location import Location
from pjrt.stablehlo.ir.sharding import Mesh, Sharding
from pjrt.stablehlo.ir.sharding_parser import parse_mesh, parse_mesh_axes, sharding_of, shardings_of
from pjrt.stablehlo.ir.types import FunctionType, ValueType

_REQUIRED = object()

_WHOLE_VALUES = frozenset(("Sharding", "SPMDShardToFullShape"))
"""The custom calls whose sharding is that of a whole value."""


@dataclass(slots=True, eq=False, repr=False)
class Value:
    """A result of an operation or an argument of a block; two values are equal only if they are the same one.

    Attributes:
        type: its type.
        name: a name that is unique in its function, such as ``%3``, ``%3#1`` (the second result of one operation) or
            ``%arg0``.
        owner: the operation that it is a result of, or the block that it is an argument of.
        index: its index among the results or arguments.
    """

    type: ValueType
    name: str
    owner: Operation | Block | None
    index: int

    def __repr__(self) -> str:
        return f"{self.name}: {self.type}"


@dataclass(slots=True, eq=False, repr=False)
class Operation:
    """One operation.

    Attributes:
        name: its name with its dialect, such as ``stablehlo.add``.
        operands: the values that it takes.
        results: the values that it gives.
        attributes: its attributes by name, as plain Python values (see ``attributes``).
        regions: the block of each of its regions.
        location: its source location.
    """

    name: str
    operands: tuple[Value, ...]
    attributes: Mapping[str, Any]
    location: Location
    results: tuple[Value, ...] = ()
    regions: tuple[Block, ...] = ()

    def attribute(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return an attribute by its name.

        Raises:
            InvalidArgumentError: the operation has no attribute of that name, and no default is given.
        """
        value = self.attributes.get(name, default)
        if value is _REQUIRED:
            raise InvalidArgumentError(f"{self}: expected an attribute {name}, found none [{self.location}]")
        return value

    @property
    def call_target(self) -> str:
        """The name of the function that a custom call calls; empty for other operations."""
        return str(self.attributes.get("call_target_name", "")) if self.name == "stablehlo.custom_call" else ""

    @property
    def call_attributes(self) -> Mapping[str, Any]:
        """The attributes of a custom call by name: the keywords of ``jax.ffi.ffi_call``. Empty for other operations,
        and for a call whose ``backend_config`` is text.
        """
        for name in ("backend_config", "mhlo.backend_config"):
            config = self.attributes.get(name) if self.call_target else None
            if isinstance(config, Mapping):
                return config
        return {}

    def failed(self, error: BaseException | str) -> PjrtError:
        """Return the error for a failure of this operation: its message names the operation, and the user's line.

        Args:
            error: what an author's code raised, or the text of a driver, with the driver's code.
        """
        called = f" @{self.call_target}" if self.call_target else ""
        operands, results = (", ".join(str(value.type) for value in each) for each in (self.operands, self.results))
        description = f"{self.name}{called} ({operands}) -> ({results}) [{self.location}]"
        return in_operation(InternalError(error) if isinstance(error, str) else error, description)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run code of this operation: exceptions come out as ``failed`` makes them."""
        try:
            yield
        except Exception as error:
            raise self.failed(error) from error

    def walk(self) -> Iterator[Operation]:
        """Yield the operations in its regions, each followed by those in its own regions."""
        for block in self.regions:
            yield from block.walk()

    def __repr__(self) -> str:
        results = ", ".join(value.name for value in self.results)
        operands = ", ".join(value.name for value in self.operands)
        signature = FunctionType(tuple(v.type for v in self.operands), tuple(v.type for v in self.results))
        return f"{results}{' = ' if results else ''}{self.name} {operands} : {signature}"


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A list of operations that run one after the other: a function's body or a region of an operation.

    Attributes:
        arguments: the values that it takes.
        operations: its operations; the operands of the last one are the block's outputs.
    """

    arguments: tuple[Value, ...] = ()
    operations: tuple[Operation, ...] = ()

    @property
    def outputs(self) -> tuple[Value, ...]:
        """The block's results: the operands of its last operation."""
        return self.operations[-1].operands if self.operations else ()

    def walk(self) -> Iterator[Operation]:
        """Yield its operations, each followed by those in its regions."""
        for operation in self.operations:
            yield operation
            yield from operation.walk()

    def renamed(self, names: Mapping[int, Value]) -> Block:
        """Return a copy with other values in place of some that it takes from outside, or of its arguments' uses.

        Args:
            names: the other values, by the ids of those that they replace.
        """
        copy, inside = Block(), dict(names)
        copy.arguments = tuple(Value(each.type, each.name, copy, number) for number, each in enumerate(self.arguments))
        for argument, own in zip(self.arguments, copy.arguments, strict=True):
            inside.setdefault(id(argument), own)
        operations = []
        for source in self.operations:
            operands = tuple(inside.get(id(value), value) for value in source.operands)
            regions = tuple(region.renamed(inside) for region in source.regions)
            operation = Operation(source.name, operands, source.attributes, source.location, (), regions)
            operation.results = tuple(
                Value(each.type, each.name, operation, number) for number, each in enumerate(source.results)
            )
            inside.update(zip(map(id, source.results), operation.results, strict=True))
            operations.append(operation)
        copy.operations = tuple(operations)
        return copy

    def __repr__(self) -> str:
        return f"Block({len(self.arguments)} arguments, {len(self.operations)} operations)"


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of a program.

    Attributes:
        name: its name, without ``@``.
        type: the types of its arguments and results.
        is_public: whether it can be called from outside.
        argument_names: what its author calls the arguments; empty strings where that is not known.
        argument_attributes: the attributes of each argument.
        result_attributes: the attributes of each result.
        body: its operations; None for a function that is only declared.
        location: where it comes from.
    """

    name: str
    type: FunctionType
    is_public: bool
    argument_names: tuple[str, ...]
    argument_attributes: tuple[Mapping[str, Any], ...]
    result_attributes: tuple[Mapping[str, Any], ...]
    body: Block | None = field(repr=False)
    location: Location = field(repr=False)

    @property
    def arguments(self) -> tuple[Value, ...]:
        """The values that it takes; none for a function that is only declared."""
        return self.body.arguments if self.body is not None else ()


@dataclass(frozen=True, slots=True, eq=False)
class ParsedProgram:
    """A program, parsed.

    Attributes:
        name: the module's name; empty if it has none.
        functions: its functions by name, in the order of the program.
        attributes: the module's attributes.
        declarations: the other operations in the module, such as the device meshes that shardings name (``sdy.mesh``).
        source: the program that was parsed, where it is kept; parts of it are cut out and evaluated from it.
    """

    name: str
    functions: Mapping[str, Function]
    attributes: Mapping[str, Any]
    declarations: tuple[Operation, ...] = ()
    source: Program | None = field(default=None, repr=False)

    @property
    def meshes(self) -> Mapping[str, Mesh]:
        """Shardy's meshes by their names."""
        return {
            operation.attribute("sym_name"): parse_mesh(operation.attribute("mesh").text)
            for operation in self.declarations
            if operation.name == "sdy.mesh"
        }

    def device_groups(self, operation: Operation) -> list[list[int]] | None:
        """Return the groups of a collective operation that are stated as axes of a mesh, device by device.

        Returns:
            None where the operation lists its groups, or has none.

        Raises:
            InvalidArgumentError: the program lacks the mesh, or the mesh the axes.
        """
        text = getattr(operation.attributes.get("replica_groups"), "text", None)
        if text is None:
            return None
        return parse_mesh_axes(text, lambda name: parse_mesh(self._symbol(name)["mesh"].text))

    def argument_shardings(self, function: Function | None = None) -> list[Sharding | None]:
        """Return the sharding of each argument of a function; None where the program states none.

        Args:
            function: the function; by default the entry.
        """
        function = function or self.entry
        return shardings_of(function.argument_attributes, function.type.arguments, self._symbol)

    def result_shardings(self, function: Function | None = None, *, settled: bool = False) -> list[Sharding | None]:
        """Return the sharding of each result of a function; None where the program states none.

        Args:
            function: the function; by default the entry.
            settled: whether a result without a sharding has that of the value which is returned, once its terms are
                added, where the value has one.
        """
        function = function or self.entry
        stated = shardings_of(function.result_attributes, function.type.results, self._symbol)
        if not settled or function.body is None:
            return stated
        values = zip(stated, function.body.outputs, strict=True)
        return [self._settled(value, function) if sharding is None else sharding for sharding, value in values]

    def _settled(self, value: Value, function: Function) -> Sharding | None:
        """Return the sharding of a value in a function that its operation states, with all terms added."""
        owner = value.owner
        if owner is function.body:
            return self.argument_shardings(function)[value.index]
        if not isinstance(owner, Operation):
            return None
        if owner.name == "func.call" and owner.attribute("callee") in self.functions:
            callee = self.functions[owner.attribute("callee")]
            return None if callee.body is None else self._settled(callee.body.outputs[value.index], callee)
        stated = owner.attributes
        if owner.name.startswith("sdy."):
            found = [stated[name] for name in ("out_shardings", "out_sharding", "sharding") if name in stated]
            stated = {"sdy.sharding": found[0]} if found else stated
        elif owner.name == "stablehlo.custom_call" and stated.get("call_target_name") not in _WHOLE_VALUES:
            return None
        sharding = sharding_of(stated, value.type, self._symbol, value.index)
        return None if sharding is None else replace(sharding, terms=(), reduction="sum")

    @property
    def entry(self) -> Function:
        """The function that is run: ``main``, or else the only public one.

        Raises:
            NotFoundError: the program has no such function, or several.
        """
        main = self.functions.get("main")
        if main is not None:
            return main
        public = [function for function in self.functions.values() if function.is_public]
        if len(public) == 1:
            return public[0]
        names = ", ".join(function.name for function in public) or "none"
        raise NotFoundError(f"expected a function main or one public function to run, found as public ones: {names}")

    @property
    def num_replicas(self) -> int:
        """The number of replicas that the program states; 1 if it states none."""
        return self._count("mhlo.num_replicas")

    @property
    def num_partitions(self) -> int:
        """The number of partitions that the program states; 1 if it states none."""
        return self._count("mhlo.num_partitions")

    def walk(self) -> Iterator[Operation]:
        """Yield every operation of every function, each followed by those in its regions."""
        for function in self.functions.values():
            if function.body is not None:
                yield from function.body.walk()

    def _symbol(self, name: str) -> Mapping[str, Any]:
        for operation in self.declarations:
            if operation.attributes.get("sym_name") == name:
                return operation.attributes
        raise InvalidArgumentError(f"expected {name} in the program, found nothing of that name")

    def _count(self, name: str) -> int:
        count = self.attributes.get(name, 1)
        if not isinstance(count, int) or count < 1:
            raise InvalidArgumentError(f"expected {name} to be a number from 1, found {count!r}")
        return count
