"""The graph of a program, as a page and as text for Graphviz."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.errors import InvalidArgumentError, PjrtError, naming
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes, format_shape
from pjrt.models.model_file import ModelFile
from pjrt.models.report.page import page
from pjrt.stablehlo import Block, Function, Operation, ParsedProgram, TensorType, Value, ValueType, to_module
from pjrt.stablehlo.analysis.cost_analysis import OperationCost, cost
from pjrt.stablehlo.analysis.memory_analysis import PeakArray, peak_memory
from pjrt.stablehlo.facts.outline import COLLECTIVES
from pjrt.stablehlo.ir.location import PROGRAM_TEXT
from pjrt.stablehlo.reading.parser import parse_module

ARGUMENT, RESULTS = "argument", "results"
"""The names of the nodes that are no operations."""

_MOST_ATTRIBUTE_CHARACTERS = 500
_PLACES = ("sdy.sharding", "mhlo.sharding", "sharding", "out_shardings")
_RETURNS = frozenset({"func.return", "stablehlo.return", "sdy.return"})

_RUN_REGIONS = frozenset(
    ("stablehlo.case", "stablehlo.if", "stablehlo.while", "stablehlo.async_start", "sdy.manual_computation")
)
"""Operations whose regions compute arrays; the regions of the others, such as ``reduce``, compute single elements."""

_KINDS = {
    "contraction": "convolution dot dot_general ragged_dot",
    "reduction": "reduce reduce_window reduce_precision select_and_scatter sort top_k",
    "movement": (
        "bitcast_convert broadcast broadcast_in_dim concatenate copy dynamic_broadcast_in_dim dynamic_gather "
        "dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice gather pad reshape reverse scatter slice "
        "transpose"
    ),
    "constant": "constant create_token dynamic_iota iota partition_id replica_id",
    "control": "call case composite if while return optimization_barrier async_start async_done after_all",
    "custom": "custom_call",
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the graph.

    Attributes:
        index: its number.
        name: the operation's name with its dialect; ``argument`` or ``results``.
        label: the names of its values, such as ``%3``, or the argument's name.
        kind: the kind of its work, such as ``contraction``.
        function: the name of its function.
        parent: the number of the operation whose region it is in; -1 for none.
        types: the type of each result.
        operands: the numbers of the nodes that its operands come from; ``parent`` for an argument of the region.
        scope: the names of the author's scopes around it, such as ``layer_0/attention``.
        file: the source file; empty if unknown.
        line: the line in it.
        location: the places that it comes from, the innermost first.
        attributes: its attributes as text, shortened.
        sharding: its sharding as the program spells it; empty if it states none.
        nbytes: the bytes of its results; None if a shape is dynamic.
        flops: the arithmetic operations of all its runs; None if they were not counted.
        bytes_accessed: the bytes that it reads and writes in all its runs; None if they were not counted.
        times: how often it runs; None if that was not counted.
        note: a remark about its cost.
    """

    index: int
    name: str
    label: str
    kind: str
    function: str
    parent: int
    types: tuple[str, ...]
    operands: tuple[int, ...]
    scope: str
    file: str
    line: int
    location: str
    attributes: str
    sharding: str
    nbytes: int | None
    flops: int | None
    bytes_accessed: int | None
    times: int | None
    note: str

    @property
    def short_name(self) -> str:
        """The name without the dialect of StableHLO."""
        return self.name.removeprefix("stablehlo.")


class ProgramGraph:
    """The nodes of a program, in the order of its text.

    Args:
        program: the program.
        names: names for arguments of the entry function, by position, that the program itself does not name.

    Attributes:
        nodes: the nodes; the operands of a node come before it, except in called functions.
        cost_note: why the cost is unknown; empty if it was counted.
        flops: the arithmetic operations of one run; None if they were not counted.
        bytes_accessed: the bytes read and written; None if they were not counted.
    """

    def __init__(self, program: ParsedProgram, names: Mapping[int, str]) -> None:
        self.program = program
        self._names = names
        self.nodes: list[Node] = []
        self.flops: int | None = None
        self.bytes_accessed: int | None = None
        self.cost_note = ""
        self._node_of_value: dict[int, int] = {}
        self._node_of_operation: dict[int, int] = {}
        self._costs = self._counted()
        for function in program.functions.values():
            self._add_function(function)

    def node_of(self, owner: Operation | Value) -> Node | None:
        """Return the node of an operation or of a value; None for those inside regions of single elements."""
        table = self._node_of_operation if isinstance(owner, Operation) else self._node_of_value
        index = table.get(id(owner))
        return None if index is None else self.nodes[index]

    def _counted(self) -> dict[int, OperationCost]:
        try:
            counted = cost(self.program)
        except PjrtError as error:
            self.cost_note = error.message
            return {}
        self.flops, self.bytes_accessed = counted.flops, counted.bytes_accessed
        return {id(each.operation): each for each in counted.operations}

    def _add_function(self, function: Function) -> None:
        names = self._names if function is self.program.entry else {}
        rows = zip(function.arguments, function.argument_names, function.argument_attributes, strict=False)
        for position, (value, name, attributes) in enumerate(rows):
            self._node_of_value[id(value)] = len(self.nodes)
            self._add(
                name=ARGUMENT,
                label=name or names.get(position) or value.name,
                function=function.name,
                types=[value.type],
                sharding=_sharding(attributes),
                attributes=_attributes(attributes),
            )
        if function.body is not None:
            self._add_block(function.body, function.name, -1)

    def _add_block(self, block: Block, function: str, parent: int) -> None:
        for operation in block.operations:
            index = len(self.nodes)
            self._node_of_operation[id(operation)] = index
            for value in operation.results:
                self._node_of_value[id(value)] = index
            self._add_operation(operation, function, parent)
            for region in operation.regions if operation.name in _RUN_REGIONS else ():
                for value in region.arguments:
                    self._node_of_value[id(value)] = index
                self._add_block(region, function, index)

    def _add_operation(self, operation: Operation, function: str, parent: int) -> None:
        counted = self._costs.get(id(operation))
        location = operation.location
        is_return = operation.name in _RETURNS
        target = operation.attributes.get("call_target_name") or operation.attributes.get("callee")
        self._add(
            name=RESULTS if is_return else operation.name,
            label=f"@{target}" if target else ", ".join(value.name for value in operation.results),
            function=function,
            parent=parent,
            types=[value.type for value in (operation.operands if is_return else operation.results)],
            operands=self._operands(operation),
            scope=location.name.rpartition("/")[0],
            file="<program>" if location.file == PROGRAM_TEXT else location.file,
            line=location.line,
            location="\n".join(map(str, location.places)),
            attributes=_attributes(operation.attributes, operation.regions),
            sharding=_sharding(operation.attributes),
            cost=counted,
        )

    def _operands(self, operation: Operation) -> tuple[int, ...]:
        """Return the nodes that an operation reads, those that its regions of single elements read among them."""
        readers: list[Operation] = [operation]
        if operation.name not in _RUN_REGIONS:
            readers += operation.walk()
        nodes = (self._node_of_value.get(id(value)) for reader in readers for value in reader.operands)
        return tuple(dict.fromkeys(node for node in nodes if node is not None))

    def _add(
        self,
        *,
        name: str,
        label: str,
        function: str,
        types: Sequence[ValueType],
        parent: int = -1,
        operands: tuple[int, ...] = (),
        scope: str = "",
        file: str = "",
        line: int = 0,
        location: str = "",
        attributes: str = "",
        sharding: str = "",
        cost: OperationCost | None = None,
    ) -> None:
        sizes = [_nbytes(type_) for type_ in types]
        self.nodes.append(
            Node(
                index=len(self.nodes),
                name=name,
                label=label,
                kind=_kind(name),
                function=function,
                parent=parent,
                types=tuple(map(type_text, types)),
                operands=operands,
                scope=scope,
                file=file,
                line=line,
                location=location,
                attributes=attributes,
                sharding=sharding,
                nbytes=None if None in sizes else sum(size for size in sizes if size is not None),
                flops=None if cost is None else cost.flops,
                bytes_accessed=None if cost is None else cost.bytes_accessed,
                times=None if cost is None else cost.times,
                note="" if cost is None else cost.note,
            )
        )


def program_of(model: ModelFile, shapes: Shapes | None) -> Program:
    """Return the program of a file; one with dynamic shapes as it is for some shapes, where they are known.

    Raises:
        InvalidArgumentError: the file has no program, but an executable; or the shapes do not fit.
    """
    if model.program is None:
        raise InvalidArgumentError(f"{model.source}: expected a file with a program, found a {model.kind}")
    return model.program if shapes is None else model.program_for("cpu", shapes)


def parsed_without_constants(program: Program) -> ParsedProgram:
    """Return a program, parsed, without the values of large constants."""
    return parse_module(to_module(program), largest_constant=1)


def argument_names(model: ModelFile) -> dict[int, str]:
    """Return the names of the program's arguments, as the caller of the model knows them, by position."""
    try:
        parameters = model.parameters
    except PjrtError:  # a token, which no caller passes
        return {}
    return {each.argument: each.name for each in parameters if each.argument is not None and each.name}


def type_text(type_: ValueType) -> str:
    """Return a type as people write it: ``f32[8,?]`` for a tensor."""
    if isinstance(type_, TensorType) and type_.quantization is None:
        if type_.is_static:
            return format_shape(type_.element, type_.sizes)
        sizes = ",".join("?" if size is None else str(size) for size in type_.shape)
        return f"{type_.element.name.lower()}[{sizes}]"
    return str(type_)


def _nbytes(type_: ValueType) -> int | None:
    if isinstance(type_, TensorType):
        return type_.nbytes if type_.is_static else None
    return 0


def _kind(name: str) -> str:
    if name in (ARGUMENT, RESULTS):
        return "argument"
    if name in COLLECTIVES:
        return "collective"
    return _KIND_OF.get(name.rpartition(".")[2], "elementwise")


def _sharding(attributes: Any) -> str:
    return next((_text(attributes[key]) for key in _PLACES if key in attributes), "")


def _attributes(attributes: Any, regions: Sequence[Block] = ()) -> str:
    lines = [f"{key} = {_text(value)}" for key, value in attributes.items() if key not in _PLACES]
    lines += list(_bodies(regions))
    return "\n".join(line[:_MOST_ATTRIBUTE_CHARACTERS] for line in lines)


def _bodies(regions: Sequence[Block]) -> Iterator[str]:
    for region in regions:
        names = [operation.name.rpartition(".")[2] for operation in region.operations[:-1]]
        if names:
            yield f"region: {', '.join(names)}"


def _text(value: Any) -> str:
    if value is None:
        return "…"
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else " ".join(str(value).split())


# The graph as text for Graphviz (the DOT language).

_COLOURS = {
    "argument": "#dcfce7",
    "collective": "#fce7f3",
    "constant": "#f1f5f9",
    "contraction": "#ffedd5",
    "control": "#fef9c3",
    "custom": "#fee2e2",
    "elementwise": "#dbeafe",
    "movement": "#e2e8f0",
    "reduction": "#ede9fe",
}


def program_dot(model: ModelFile | Program | str | bytes | os.PathLike[str], shapes: Shapes | None = None) -> str:
    """Return the graph of a program as DOT text: a cluster for each function and each operation with regions that run.

    Args:
        model: the path of a model file, or a program.
        shapes: the shapes of the arguments, as for ``program_page``.

    Raises:
        InvalidArgumentError: the file has no program, but an executable; or the shapes do not fit.
        PjrtError: the program does not parse.
    """
    file = ModelFile.of(model)
    with naming(file.source):
        program = parsed_without_constants(program_of(file, shapes))
    return _dot(ProgramGraph(program, argument_names(file)))


def _dot(graph: ProgramGraph) -> str:
    lines = [
        f"digraph {_quoted(graph.program.name or 'program')} {{",
        '  graph [fontname="sans-serif", compound=true];',
        '  node [shape=box, style="filled,rounded", fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=8];',
    ]
    inner: dict[int, list[Node]] = {}
    for node in graph.nodes:
        inner.setdefault(node.parent, []).append(node)
    for number, function in enumerate(graph.program.functions):
        lines += [f"  subgraph cluster_function_{number} {{", f"    label={_quoted('@' + function)};"]
        lines += _nodes([node for node in inner.get(-1, ()) if node.function == function], inner, "    ")
        lines.append("  }")
    for node in graph.nodes:
        for operand in node.operands:
            if operand != node.parent:
                types = ", ".join(graph.nodes[operand].types)
                lines.append(f"  n{operand} -> n{node.index} [label={_quoted(types)}];")
    return "\n".join([*lines, "}", ""])


def _nodes(nodes: list[Node], inner: dict[int, list[Node]], indent: str) -> Iterator[str]:
    for node in nodes:
        yield f"{indent}n{node.index} [label={_quoted(_label(node))}, fillcolor={_quoted(_COLOURS[node.kind])}];"
        if node.index in inner:
            yield f"{indent}subgraph cluster_region_{node.index} {{"
            yield f"{indent}  label={_quoted(f'{node.short_name} {node.label}')};"
            yield from _nodes(inner[node.index], inner, indent + "  ")
            yield f"{indent}}}"


def _label(node: Node) -> str:
    name = node.label if node.name == ARGUMENT else f"{node.short_name} {node.label}".rstrip()
    lines = [name, ", ".join(node.types), node.sharding]
    if node.file:
        lines.append(f"{node.file}:{node.line}")
    return "\n".join(line for line in lines if line)


def _quoted(text: str) -> str:
    """Return a text as a string of the DOT language, in which only quotes and backslashes have a meaning."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\0", "")
    return f'"{escaped}"'


# The page.

_SCRIPTS = ("elements.js", "layout.js", "groups.js", "graph.js", "memory.js", "program.js")

_MOST_CHARACTERS = 300
"""The length of a message on the page: the compiler's own ones may quote the program."""

_FIELDS = tuple(each.name for each in dataclasses.fields(Node))


def program_page(model: ModelFile | Program | str | bytes | os.PathLike[str], shapes: Shapes | None = None) -> str:
    """Return the page of a program as HTML.

    Args:
        model: the path of a model file, or a program.
        shapes: the shapes of the arguments, as for ``pjrt.stablehlo.refine``: the cost and the memory of a program with
            dynamic shapes are known only for given ones.

    Raises:
        InvalidArgumentError: the file has no program, but an executable; or the shapes do not fit.
        PjrtError: the program does not parse.
    """
    file = ModelFile.of(model)
    with naming(file.source):
        program = program_of(file, shapes)
        parsed = parsed_without_constants(program)
    title = file.source or parsed.name or "program"
    return page(f"{title} - pjrt", _data(file, program, parsed), _SCRIPTS)


def _data(model: ModelFile, program: Program, parsed: ParsedProgram) -> dict[str, Any]:
    graph = ProgramGraph(parsed, argument_names(model))
    strings: dict[str, int] = {}
    nodes = [[_packed(getattr(node, name), strings) for name in _FIELDS] for node in graph.nodes]
    return {
        "name": parsed.name,
        "source": model.source,
        "format": model.kind,
        "entry": parsed.entry.name,
        "partitions": parsed.num_partitions,
        "replicas": parsed.num_replicas,
        "flops": graph.flops,
        "bytes": graph.bytes_accessed,
        "cost_note": graph.cost_note,
        "fields": list(_FIELDS),
        "nodes": nodes,
        "strings": list(strings),
        "memory": _memory(program, graph),
        "parameters": list(_signature(model, "parameters")),
        "results": list(_signature(model, "results")),
    }


def _packed(value: Any, strings: dict[str, int]) -> Any:
    """Return a field of a node for JSON: texts as numbers, because many nodes share them."""
    if isinstance(value, str):
        return strings.setdefault(value, len(strings))
    if isinstance(value, tuple):
        return [_packed(each, strings) for each in value]
    return value


def _memory(program: Program, graph: ProgramGraph) -> dict[str, Any]:
    """Return the memory along the program on one device; operations of a partitioned program have no node."""
    try:
        memory = peak_memory(graph.program if graph.program.num_partitions == 1 else program)
    except PjrtError as error:
        return {
            "note": f"The memory is unknown: {error.message[:_MOST_CHARACTERS]}",
            "steps": [],
            "arrays": [],
            "peak_bytes": None,
        }
    nodes = [graph.node_of(step.operation) for step in memory.steps]
    return {
        "note": "",
        "peak_bytes": memory.nbytes,
        "argument_bytes": memory.argument_nbytes,
        "steps": [
            [-1 if node is None else node.index, step.nbytes] for node, step in zip(nodes, memory.steps, strict=True)
        ],
        "arrays": list(map(functools.partial(_array, graph), memory.arrays)),
    }


def _array(graph: ProgramGraph, array: PeakArray) -> list[Any]:
    node = graph.node_of(array.value)
    location = array.location
    place = f"{location.file}:{location.line}" if location.file else location.name
    name = node.label if node is not None and node.name == ARGUMENT else array.name
    return [-1 if node is None else node.index, name, type_text(array.type), array.nbytes, str(array.role), place]


def _signature(model: ModelFile, which: str) -> Iterator[dict[str, Any]]:
    try:
        values = getattr(model, which)
    except PjrtError:  # a token, which has no array
        return
    for value in values:
        sizes = ",".join("?" if size is None else str(size) for size in value.shape)
        yield {
            "name": value.name,
            "type": f"{value.element_type.name.lower()}[{sizes}]",
            "sharding": value.sharding,
            "donated": getattr(value, "donated", False),
        }
