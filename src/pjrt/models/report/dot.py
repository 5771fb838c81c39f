"""The graph of a program as text for Graphviz (the DOT language)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from pjrt.api.errors import naming
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes
from pjrt.models.model_file import ModelFile
from pjrt.models.report.program_graph import (
    ARGUMENT,
    Node,
    ProgramGraph,
    argument_names,
    parsed_without_constants,
    program_of,
)

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
