"""The page of a program: its graph, costs, and the memory along it."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator
from typing import Any

from pjrt.api.errors import PjrtError, naming
from pjrt.api.program import Program
from pjrt.api.shape_spec import Shapes
from pjrt.models.model_file import ModelFile
from pjrt.models.report.page import page
from pjrt.models.report.program_graph import (
    ARGUMENT,
    Node,
    ProgramGraph,
    argument_names,
    parsed_without_constants,
    program_of,
    type_text,
)
from pjrt.stablehlo import ParsedProgram
from pjrt.stablehlo.analysis.memory_analysis import PeakArray, peak_memory

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
