"""Cuts of a module of MLIR: what ``cutting`` does, on MLIR's objects. The module is entered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pjrt.api.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.stablehlo import jaxlib
from pjrt.stablehlo.mlir_walk import symbols, walk

_PURPOSE = "cut a program"


def function_named(module: Any, name: str) -> Any:
    for inner in module.regions[0].blocks[0].operations:
        operation = inner.operation
        if operation.name == "func.func" and operation.attributes["sym_name"].value == name:
            if not len(operation.regions[0].blocks):
                raise NotFoundError(f"expected a function with operations, found that {name} is only declared")
            return operation
    raise NotFoundError(f"expected the name of a function of the program, found {name!r}")


def values_by_name(function: Any) -> dict[str, Any]:
    """Return the values of a function of an MLIR module, by the names that ``parse`` gives them."""
    values: dict[str, Any] = {}
    counts = {"argument": 0, "result": 0}

    def visit(block: Any) -> None:
        for argument in block.arguments:
            values[f"%arg{counts['argument']}"] = argument
            counts["argument"] += 1
        for inner in block.operations:
            operation = inner.operation
            results = list(operation.results)
            if results:
                prefix = f"%{counts['result']}"
                counts["result"] += 1
                for index, result in enumerate(results):
                    values[f"{prefix}#{index}" if len(results) > 1 else prefix] = result
            for region in operation.regions:
                for nested in region.blocks:
                    visit(nested)

    visit(function.regions[0].blocks[0])
    return values


_TOKEN = "!stablehlo.token"
ABOUT_ONE_SIGNATURE = (
    "mhlo.input_output_alias",
    "mhlo.buffer_donor",
    "mhlo.spmd_parameters_shardings",
    "mhlo.spmd_output_sharding",
    "mhlo.xla_entry_computation_parameter_layouts",
    "mhlo.xla_entry_computation_parameter_tiles",
    "mhlo.xla_entry_computation_result_layout",
    "mhlo.xla_entry_computation_result_tiles",
)
"""Attributes of a module that are wrong for other arguments and results."""
_DONATION = ("tf.aliasing_output", "jax.buffer_donor")


class ModuleCut:
    """One cut of a copy of a module, which it changes."""

    def __init__(self, module: Any, function: Any) -> None:
        self._ir = jaxlib.load("mlir.ir", _PURPOSE)
        self._module = module
        self._function = function
        self._values = values_by_name(function)
        self._names = {value: name for name, value in self._values.items()}

    def run(
        self, results: Sequence[str], arguments: Sequence[str] | None, aliases: Mapping[int, int]
    ) -> tuple[str, ...]:
        """Make the module a cut, and return the names of its arguments."""
        targets = [self._value(name) for name in results]
        block = self._block_of(targets)
        body = self._function.regions[0].blocks[0]
        if arguments is not None:
            stops = [self._value(name) for name in arguments]
        else:
            stops = list(body.arguments) if block == body else []
        needed, outside, constants = self._slice(block, targets, stops)
        inputs = [*stops, *outside]
        # A device takes no token as an argument, and in a part of the program there is nothing before it to wait for.
        tokens = [value for value in inputs if str(value.type) == _TOKEN and not _is_argument_of(value, body)]
        parameters = [value for value in inputs if value not in tokens]
        names = tuple(self._names[value] for value in parameters)
        self._build(parameters, tokens, targets, [*constants, *needed], aliases)
        self._clean()
        return names

    def _value(self, name: str) -> Any:
        value = self._values.get(name)
        if value is None:
            function = self._function.attributes["sym_name"].value
            raise NotFoundError(
                f"expected the name of a value in the function {function}, found {name!r}; "
                "pjrt.stablehlo.parse shows the names"
            )
        return value

    def _block_of(self, values: Sequence[Any]) -> Any:
        """Return the innermost block of the values; the other blocks must be around it."""
        blocks = [_block(value) for value in values]
        chains = [_chain(block) for block in blocks]
        longest = max(chains, key=len)
        for chain, value in zip(chains, values, strict=True):
            if longest[: len(chain)] != chain:
                raise InvalidArgumentError(
                    f"expected values of one block, found {self._names[value]}, which is not in the block of the "
                    "others or around it; make a cut for each"
                )
        for each in longest[1:]:
            if each.owner.operation.name == "sdy.manual_computation":
                raise UnimplementedError(
                    "a cut cannot have values from inside a sdy.manual_computation, which are parts of one device; "
                    "cut the whole operation, or partition the program first with pjrt.stablehlo.partition"
                )
        return longest[-1]

    def _slice(
        self, block: Any, targets: Sequence[Any], stops: Sequence[Any]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the operations of a block that are needed, the values from outside, and constants to copy."""
        is_stop = set(stops)
        operations: dict[Any, None] = {}
        outside: dict[Any, None] = {}
        constants: dict[Any, None] = {}
        pending: list[Any] = []

        def need(value: Any) -> None:
            owner = value.owner
            if not isinstance(owner, self._ir.Block) and owner.operation.block == block:
                if owner.operation not in operations:
                    operations[owner.operation] = None
                    pending.append(owner.operation)
            elif value in is_stop:
                return
            elif isinstance(owner, self._ir.Block) or not owner.operation.name.endswith(".constant"):
                outside[value] = None
            else:
                constants[owner.operation] = None

        for value in targets:
            need(value)
        while pending:
            for value in _inputs_of(pending.pop()):
                if value not in is_stop:
                    need(value)
        order = {name: number for number, name in enumerate(self._values)}
        in_order = [each.operation for each in block.operations if each.operation in operations]
        return in_order, sorted(outside, key=lambda value: order[self._names[value]]), list(constants)

    def _build(
        self,
        arguments: Sequence[Any],
        tokens: Sequence[Any],
        results: Sequence[Any],
        operations: Sequence[Any],
        aliases: Mapping[int, int],
    ) -> None:
        """Move the operations to a new function main, and erase the function that had them."""
        ir = self._ir
        attributes = [self._attributes_of(value, aliases.get(index)) for index, value in enumerate(arguments)]
        types, locations = [value.type for value in arguments], [value.location for value in arguments]
        # Decided before operations move: the bindings' objects of an operation are not equal before and after that.
        own = set(operations)
        is_computed = [_owner_operation(value) in own for value in results]
        with self._function.location:
            function = ir.Operation.create(
                "func.func",
                attributes={
                    "sym_name": ir.StringAttr.get("main"),
                    "sym_visibility": ir.StringAttr.get("public"),
                    "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [value.type for value in results])),
                    "arg_attrs": ir.ArrayAttr.get(attributes),
                },
                regions=1,
            )
            body = ir.Block.create_at_start(function.regions[0], types, locations)
            new = dict(zip(arguments, body.arguments, strict=True))
            for token in tokens:
                operation = ir.Operation.create(
                    "stablehlo.after_all", results=[token.type], operands=[], ip=ir.InsertionPoint(body)
                )
                new[token] = operation.results[0]
            for old, value in new.items():
                old.replace_all_uses_with(value)
            for operation in operations:
                body.append(operation)
            returned = [
                value if computed else new.get(value, value)
                for value, computed in zip(results, is_computed, strict=True)
            ]
            ir.Operation.create("func.return", operands=returned, ip=ir.InsertionPoint(body))
        self._values, self._names = {}, {}
        self._function.erase()
        for inner in self._module.regions[0].blocks[0].operations:
            if inner.operation.name == "func.func" and inner.operation.attributes["sym_name"].value == "main":
                inner.operation.erase()
                break
        self._module.regions[0].blocks[0].append(function)

    def _attributes_of(self, value: Any, aliased_result: int | None) -> Any:
        """Return the attributes of a value as an argument: its sharding, and what its function states about it."""
        stated = dict(self._stated_about(value))
        if aliased_result is not None:
            number = self._ir.IntegerAttr.get(self._ir.IntegerType.get_signless(32), aliased_result)
            stated[_DONATION[0]] = number
        return self._ir.DictAttr.get(stated)

    def _stated_about(self, value: Any) -> Mapping[str, Any]:
        owner = value.owner
        attributes = self._function.attributes
        if not isinstance(owner, self._ir.Block):
            return _sharding_of(owner.operation, _index(value, owner.operation.results))
        if owner.owner.operation == self._function:
            row = attributes["arg_attrs"][_index(value, owner.arguments)] if "arg_attrs" in attributes else ()
            return {each.name: each.attr for each in row if each.name not in _DONATION}
        parent = owner.owner.operation
        return _sharding_of(parent, _index(value, owner.arguments)) if parent.name == "stablehlo.while" else {}

    def _clean(self) -> None:
        """Remove functions that the cut does not call, and what the module states about other arguments."""
        attributes = self._module.attributes
        for name in ABOUT_ONE_SIGNATURE:
            if name in attributes:
                del attributes[name]
        functions = {
            inner.operation.attributes["sym_name"].value: inner.operation
            for inner in self._module.regions[0].blocks[0].operations
            if inner.operation.name == "func.func"
        }
        reached: set[str] = set()
        pending = ["main"]
        while pending:
            name = pending.pop()
            if name in functions and name not in reached:
                reached.add(name)
                pending += _symbols_in(functions[name])
        for name, function in functions.items():
            if name not in reached:
                function.erase()


def _is_argument_of(value: Any, block: Any) -> bool:
    return bool(value.owner == block)


def _index(value: Any, values: Any) -> int:
    """Return the index of a value; operands of older jaxlib do not have it."""
    return list(values).index(value)


def _block(value: Any) -> Any:
    owner = value.owner
    return owner.operation.block if hasattr(owner, "operation") else owner


def _owner_operation(value: Any) -> Any:
    return getattr(value.owner, "operation", None)


def _chain(block: Any) -> list[Any]:
    """Return the blocks from a function's body down to a block."""
    chain = [block]
    while (owner := chain[0].owner.operation).name != "func.func":
        chain.insert(0, owner.block)
    return chain


def _inputs_of(operation: Any) -> Iterator[Any]:
    """Yield the operands of an operation, and the values that its regions take from around it."""
    yield from operation.operands
    if not len(operation.regions):
        return
    inside: set[Any] = set()
    for each in walk(operation):
        for region in each.regions:
            for block in region.blocks:
                inside.update(block.arguments)
        if each != operation:
            yield from (value for value in each.operands if value not in inside)
            inside.update(each.results)


def _sharding_of(operation: Any, index: int) -> Mapping[str, Any]:
    """Return the sharding that an operation states about one of its results, as an attribute of an argument."""
    attributes = operation.attributes
    if "sdy.sharding" in attributes:
        sdy = jaxlib.dialect("sdy")
        return {"sdy.sharding": sdy.TensorShardingPerValueAttr(attributes["sdy.sharding"]).shardings[index]}
    if "mhlo.sharding" in attributes and len(operation.results) == 1:
        return {"mhlo.sharding": attributes["mhlo.sharding"]}
    return {}


def _symbols_in(operation: Any) -> Collection[str]:
    names: set[str] = set()
    for each in walk(operation):
        attributes = each.attributes
        for name in attributes:
            try:
                names.update(symbols(attributes[name]))
            except TypeError:  # the bindings have no object for a complex constant, which names no function
                continue
    return names
