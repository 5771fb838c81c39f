"""Cuts: programs made of some operations of a program, to run a part of it on its own.

A cut computes some values of the program from others. Values have the names that ``parse`` gives them, such as ``%3``;
they are unique in a function, its regions included. All that a cut does not need is left out, and the rest stays as it
is: constants, private functions, regions, types, source locations, meshes and shardings.

The loop of a cut can be given a limit, for its values after some of its iterations.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.compile_options import Partitioning
from pjrt.api.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from pjrt.api.program import AnyProgram, Program, ProgramFormat
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.ir import mlir_module
from pjrt.stablehlo.ir.mlir_module import MlirModule, symbols, walk
from pjrt.stablehlo.ir.operation import Operation, ParsedProgram, Value
from pjrt.stablehlo.reading.conversion import partitioning_of, to_module
from pjrt.stablehlo.reading.parser import parse_module
from pjrt.stablehlo.reading.reader import read

_PURPOSE = "cut a program"


def function_named(module: Any, name: str) -> Any:
    """Return the function of an MLIR module that has a name, and operations.

    Raises:
        NotFoundError: there is none.
    """
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


@dataclass(frozen=True, slots=True)
class Cut:
    """A program that computes some values of another program.

    Attributes:
        program: the program. Its function ``main`` takes ``arguments`` and returns ``results``.
        arguments: the names of the values that it takes.
        results: the names of the values that it returns.
    """

    program: Program
    arguments: tuple[str, ...]
    results: tuple[str, ...]


def cut(
    program: AnyProgram,
    results: Iterable[str | Value],
    *,
    arguments: Iterable[str | Value] | None = None,
    function: str | None = None,
    trusted: bool = False,
) -> Cut:
    """Return the part of a program that computes some values; see ``Cutter.cut``.

    Args:
        program: a program in any encoding.
        results: the values to compute.
        arguments: the values to compute them from.
        function: the function that has these values; default: the entry function.
        trusted: as for ``parse``.

    Raises:
        PjrtError: as for ``Cutter.cut`` and ``parse``.
    """
    return Cutter(program, trusted=trusted).cut(results, arguments=arguments, function=function)


class Cutter:
    """A program that is parsed once and cut many times. Any thread may use it.

    Args:
        program: a program in any encoding.
        trusted: as for ``parse``.

    Raises:
        PjrtError: as for ``parse``.
    """

    def __init__(self, program: AnyProgram, *, trusted: bool = False) -> None:
        program = read(program)
        self._module = to_module(program, trusted=trusted)
        if program.format == ProgramFormat.HLO_WITH_CONFIG:
            # The configuration, which states them, is not part of the module.
            _state_counts(self._module, partitioning_of(program))

    @functools.cached_property
    def parsed(self) -> ParsedProgram:
        """The program without the values of its constants: the names of values, and the operations to choose from."""
        return parse_module(self._module, largest_constant=0)

    @property
    def module(self) -> MlirModule:
        """The program as MLIR; do not change it."""
        return self._module

    def cut(
        self,
        results: Iterable[str | Value],
        *,
        arguments: Iterable[str | Value] | None = None,
        function: str | None = None,
        aliases: Mapping[int, int] | None = None,
    ) -> Cut:
        """Return the part of the program that computes some values.

        All results are of one block: a function's body, or a region of an operation such as ``while``. Operations of
        other blocks are not entered: a call or a ``while`` that a result depends on is in the cut as a whole. Effects
        that no result depends on, such as an outfeed, are left out.

        Args:
            results: the values to compute. Values of the blocks around are allowed beside them.
            arguments: the values to compute them from. What uses such a value uses the argument; if the value is a
                result too, the cut returns what its operation computes. A value that is needed and can only come from
                outside becomes an argument, too, after those named here: an argument of the block, or a value of the
                blocks around. Constants of the blocks around are copied. By default, the arguments of a function's
                body are all those of the function, and of a region those that are needed.
            function: the function that has these values; default: the entry function.
            aliases: the result that takes over the memory of an argument, by the indices of both: these arguments are
                donated. A cut donates no others.

        Raises:
            NotFoundError: the program has no such function, or the function has no such value.
            InvalidArgumentError: the results are of several blocks, or there is none.
            UnimplementedError: the values are those of one device, in a ``sdy.manual_computation``; partition the
                program first.
        """
        name = self._entry if function is None else function
        result_names = tuple(map(_name, results))
        stops = None if arguments is None else tuple(map(_name, arguments))
        if not result_names:
            raise InvalidArgumentError("expected the names of the values to compute, found none")
        with self._module as mlir:
            copy = mlir.operation.clone().operation
            cutting = ModuleCut(copy, function_named(copy, name))
            argument_names = cutting.run(result_names, stops, aliases or {})
            code = mlir_module.bytecode_of(copy)
        return Cut(Program(code), argument_names, result_names)

    def cut_operations(self, operations: Iterable[Operation], *, function: str | None = None) -> Cut:
        """Return some operations, each of which takes its own operands as arguments.

        No operation gets the result of another: each operand is an argument, but for constants, which are copied. The
        results are all of theirs.

        Args:
            operations: operations of one block of ``parsed``.
            function: the function that has them; default: the entry function.

        Raises:
            PjrtError: as for ``cut``.
        """
        members = list(operations)
        operands = dict.fromkeys(value.name for operation in members for value in inputs_of(operation))
        return self.cut(
            [value for operation in members for value in operation.results], arguments=operands, function=function
        )

    def text_of(self, operation: Operation, *, function: str | None = None) -> str:
        """Return an operation that has results as MLIR spells it, with the first elements of large constants.

        Raises:
            NotFoundError: the program has no such function, or the function has no such operation.
        """
        with self._module as mlir:
            values = values_by_name(function_named(mlir.operation, self._entry if function is None else function))
            if not operation.results or operation.results[0].name not in values:
                raise NotFoundError(f"expected an operation with results of the program, found {operation}")
            owner = values[operation.results[0].name].owner.operation
            text: str = owner.get_asm(large_elements_limit=mlir_module.FEW_ELEMENTS)
        return text

    @functools.cached_property
    def _entry(self) -> str:
        return self.parsed.entry.name


def _name(value: str | Value) -> str:
    return value.name if isinstance(value, Value) else value


def inputs_of(operation: Operation, *, constants: bool = False) -> Iterator[Value]:
    """Yield the values that an operation takes, and those that its regions take from around it.

    A value that is taken several times is yielded several times.

    Args:
        operation: the operation.
        constants: whether to yield results of constants, too.
    """
    inside: set[Value] = set()
    for each in (operation, *operation.walk()):
        for block in each.regions:
            inside.update(block.arguments)
        for value in each.operands:
            owner = value.owner
            is_constant = isinstance(owner, Operation) and owner.name.endswith(".constant")
            if value not in inside and (constants or not is_constant):
                yield value
        if each is not operation:
            inside.update(each.results)


def _state_counts(module: MlirModule, counts: Partitioning) -> None:
    ir = jaxlib.load("mlir.ir", _PURPOSE)
    with module as mlir:
        attributes = mlir.operation.attributes
        for name, count in (("replicas", counts.num_replicas), ("partitions", counts.num_partitions)):
            attributes[f"mhlo.num_{name}"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), count)


_LIMIT_PURPOSE = "limit the iterations of a loop"


def limit_iterations(program: Program | str | bytes) -> Program:
    """Return a program whose loop ends after a number of iterations that the caller gives.

    Args:
        program: a program whose function ``main`` has one ``stablehlo.while`` in its body, as ``cut_operations`` makes
            one of a loop. It is trusted as a compiler trusts it.

    Returns:
        The program with one argument more, behind the others: the most iterations (a ``tensor<i32>``). Its last result
        is one more, too: the number of iterations that were done. The results of the loop are those behind them.

    Raises:
        InvalidArgumentError: the body of ``main`` has no loop or several.
        PjrtError: the program cannot be parsed.
    """
    module = to_module(read(program), trusted=True)
    with module as mlir:
        main = next((each.operation for each in mlir.body if _symbol(each) == "main"), None)
        blocks = [] if main is None else list(main.regions[0].blocks)
        loops = [] if not blocks else [each for each in blocks[0].operations if each.operation.name == _WHILE]
        if len(loops) != 1:
            raise InvalidArgumentError(f"expected a function main with one {_WHILE} in its body, found {len(loops)}")
        _limit(main, loops[0].operation)
        return Program(mlir_module.write_bytecode(module))


_WHILE = "stablehlo.while"


def _symbol(operation: Any) -> str:
    attributes = operation.attributes
    return str(attributes["sym_name"].value) if "sym_name" in attributes else ""


def _limit(main: Any, loop: Any) -> None:
    ir = jaxlib.load("mlir.ir", _LIMIT_PURPOSE)
    body = main.regions[0].blocks[0]
    with loop.location:
        count_type, truth = ir.Type.parse("tensor<i32>"), ir.Type.parse("tensor<i1>")
        limit = body.add_argument(count_type, loop.location)
        zero = _constant(ir, count_type, 0, ir.InsertionPoint(loop))
        carried = [*loop.operands, zero, limit]
        attributes = loop.attributes
        new = ir.Operation.create(
            _WHILE,
            results=[value.type for value in carried],
            operands=carried,
            attributes={name: _for_two_more(name, attributes[name]) for name in attributes},
            regions=2,
            ip=ir.InsertionPoint(loop),
        )
        for index, region in enumerate(loop.regions):
            region.blocks[0].append_to(new.regions[index])
        condition, iteration = (region.blocks[0] for region in new.regions)

        count, most = (condition.add_argument(count_type, loop.location) for _ in range(2))
        end = condition.operations[len(condition.operations) - 1].operation
        at = ir.InsertionPoint(end)
        direction = ir.Attribute.parse("#stablehlo<comparison_direction LT>")
        less = ir.Operation.create(
            "stablehlo.compare",
            results=[truth],
            operands=[count, most],
            attributes={"comparison_direction": direction},
            ip=at,
        )
        both = ir.Operation.create("stablehlo.and", results=[truth], operands=[less.result, end.operands[0]], ip=at)
        _return(ir, end, [both.result])

        count, most = (iteration.add_argument(count_type, loop.location) for _ in range(2))
        end = iteration.operations[len(iteration.operations) - 1].operation
        at = ir.InsertionPoint(end)
        one = _constant(ir, count_type, 1, at)
        next_ = ir.Operation.create("stablehlo.add", results=[count_type], operands=[count, one], ip=at)
        _return(ir, end, [*end.operands, next_.result, most])

        results = list(new.results)
        for old, value in zip(list(loop.results), results, strict=False):
            old.replace_all_uses_with(value)
        loop.erase()
        end = body.operations[len(body.operations) - 1].operation
        returned = [*end.operands, results[-2]]
        _return(ir, end, returned)
        type_ = ir.FunctionType.get([each.type for each in body.arguments], [each.type for each in returned])
    main.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name in ("arg_attrs", "res_attrs"):
        if name in main.attributes:
            empty = ir.DictAttr.get({}, main.context)
            main.attributes[name] = ir.ArrayAttr.get([*main.attributes[name], empty], main.context)


def _constant(ir: Any, type_: Any, value: int, at: Any) -> Any:
    spelled = ir.Attribute.parse(f"dense<{value}> : tensor<i32>")
    return ir.Operation.create("stablehlo.constant", results=[type_], attributes={"value": spelled}, ip=at).result


def _return(ir: Any, end: Any, values: Sequence[Any]) -> None:
    ir.Operation.create(end.name, operands=list(values), ip=ir.InsertionPoint(end))
    end.erase()


def _for_two_more(name: str, attribute: Any) -> Any:
    """Return an attribute of the loop for two more values, which every device has whole."""
    ir = jaxlib.load("mlir.ir", _LIMIT_PURPOSE)
    if name == "sdy.sharding":
        sdy = jaxlib.dialect("sdy")
        shardings = sdy.TensorShardingPerValueAttr(attribute).shardings
        whole = sdy.TensorShardingAttr.get(sdy.TensorShardingAttr(shardings[0]).mesh_or_ref, [])
        return sdy.TensorShardingPerValueAttr.get([*shardings, whole, whole])
    if name == "mhlo.sharding":
        text = str(attribute.value)
        if text.startswith("{{"):
            return ir.StringAttr.get(f"{text[:-1]}, {{replicated}}, {{replicated}}}}")
    return attribute
