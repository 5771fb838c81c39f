"""``pjrt inspect``: the content of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from pjrt import stablehlo
from pjrt.api.errors import naming
from pjrt.api.printable import readable_bytes
from pjrt.api.program import Program
from pjrt.cli._console import echo, print_facts, print_json, print_table, progress
from pjrt.cli._inspection import (
    SignatureRow,
    argument_rows,
    executable_as_dict,
    is_partitioned,
    mesh_dict,
    print_executable,
    result_rows,
    sharding_cells,
    sharding_dict,
    spelled_mesh,
)
from pjrt.cli._options import complete_file, json_option, shapes_option
from pjrt.cli._program import program_argument, read_model_file
from pjrt.models.model_file import ModelFile
from pjrt.models.output_path import check_output_path
from pjrt.stablehlo.encodings import jaxlib
from pjrt.stablehlo.facts.signatures import ArgumentInfo, ResultInfo
from pjrt.stablehlo.ir.argument_shapes import spelled_shape
from pjrt.stablehlo.reading.plain_signature import can_read

_EXAMPLES = """
\b
Examples:
  pjrt inspect model.stablehlo
  pjrt inspect model.hlo --json
  pjrt inspect model.stablehlo --text --locations > model.mlir
  pjrt inspect model.stablehlo --html report.html
  pjrt inspect exported.bin --html report.html --shape b=8
  pjrt inspect model.stablehlo --dot | dot -Tsvg > model.svg
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@json_option
@click.option("--text", "as_text", is_flag=True, help="Print the program as MLIR text instead.")
@click.option("--locations", is_flag=True, help="With --text: print source locations too.")
@click.option("--dot", "as_dot", is_flag=True, help="Print the graph of operations for Graphviz instead.")
@click.option(
    "--html",
    metavar="PATH",
    shell_complete=complete_file,
    help="Write a page with the graph, the cost and the memory of the program.",
)
@shapes_option
def inspect(
    program: str,
    as_json: bool,
    as_text: bool,
    locations: bool,
    as_dot: bool,
    html: str | None,
    shapes: dict[str, tuple[int, ...]] | None,
) -> None:
    """Show the types, operations, versions and size of PROGRAM (StableHLO text, bytecode, portable artifact, HLO
    proto).
    """
    forms = [
        name for name, value in (("--json", as_json), ("--text", as_text), ("--dot", as_dot), ("--html", html)) if value
    ]
    if len(forms) > 1:
        raise click.UsageError(f"expected one of --json, --text, --dot and --html, found {' and '.join(forms)}")
    if locations and not as_text:
        raise click.UsageError("expected --text with --locations: tables show locations anyway")
    is_drawn = as_dot or html is not None
    if shapes is not None and not is_drawn:
        raise click.UsageError("expected --html or --dot with --shape: tables show the program as it is written")
    if html is not None:
        check_output_path(html, option="--html")
    file = read_model_file(program)
    if is_drawn:
        _draw(file, html, shapes)
        return
    if file.executable is not None:
        if as_text:
            raise click.UsageError("expected a program with --text, found a saved executable, which has no text")
        if as_json:
            print_json(executable_as_dict(file.executable))
        else:
            print_executable(file.executable)
        return
    assert file.program is not None
    read = file.program
    if as_text:
        with progress("reading the program"), naming(program):
            text = stablehlo.to_text(read, locations=locations)
        echo(text)
        return
    if not jaxlib.is_installed() and can_read(read):
        _print_signature(file, read, as_json)
        return
    with progress("reading the program"), naming(program):
        info = stablehlo.inspect(read)
    if as_json:
        print_json({**_as_dict(info, file), "platforms": list(file.platforms), "writer": file.writer or None})
        return
    _print(info, file)


def _print_signature(file: ModelFile, program: Program, as_json: bool) -> None:
    """Print the arguments and results of a program, which need no jaxlib."""
    with progress("reading the program"), naming(file.source):
        found = stablehlo.signature(program)
    listed: dict[str, Sequence[ArgumentInfo | ResultInfo]] = {"argument": found.arguments, "result": found.results}
    echo("pjrt: note: jaxlib is needed for more than arguments and results: pip install 'pjrt[xla]'", err=True)
    if as_json:
        rows = {f"{kind}s": [{"name": each.name, "type": str(each.type)} for each in listed[kind]] for kind in listed}
        print_json({"encoding": file.kind, "size": len(program), **rows})
        return
    print_facts([("written as", file.kind), ("size", readable_bytes(len(program)))])
    for kind, values in listed.items():
        print_table([kind, "name", "type"], [[i, each.name, each.type] for i, each in enumerate(values)], right=[kind])


def _draw(file: ModelFile, html: str | None, shapes: dict[str, tuple[int, ...]] | None) -> None:
    """Write a page, or print the graph if there is no path."""
    # Only pages and graphs need the costs of the program and its layout.
    from pjrt.models.report.page import write_page
    from pjrt.models.report.program_page import program_dot, program_page

    with progress("drawing the program"):
        text = program_dot(file, shapes) if html is None else program_page(file, shapes)
    if html is None:
        echo(text, nl=False)
        return
    write_page(html, text)
    print_facts([("written to", html), ("size", readable_bytes(len(text)))])


def _print(info: stablehlo.ProgramInfo, file: ModelFile) -> None:
    facts = _facts(info, _encoding(info, file))
    if file.platforms:
        facts.append(("exported for", ", ".join(file.platforms)))
    if file.writer:
        facts.append(("exported by", file.writer))
    print_facts(facts)
    # What a caller gives comes before what the file has.
    _print_rows("argument", sorted(argument_rows(file, info), key=lambda row: row.index is None), info)
    _print_rows("result", result_rows(file, info), info)
    print_table(
        ["operation", "count", "first seen at"],
        [[o.name, o.count, ", ".join(map(str, o.locations))] for o in info.operations],
        right=["count"],
    )


def _print_rows(kind: str, rows: Sequence[SignatureRow], info: stablehlo.ProgramInfo) -> None:
    is_cut = is_partitioned(info)
    print_table(
        [kind, "name", "type", *(["sharding", "of each device"] if is_cut else []), "notes"],
        [
            [
                "" if row.index is None else row.index,
                row.name,
                row.info.type,
                *((sharding_cells(row.info, row.shape, info.meshes) if row.needed else ["", ""]) if is_cut else ()),
                _notes(row),
            ]
            for row in rows
        ],
        right=[kind],
    )


def _encoding(info: stablehlo.ProgramInfo, file: ModelFile) -> str:
    """Return how the program is written in its file."""
    return str(info.encoding) if file.contents is not None else file.kind


def _facts(info: stablehlo.ProgramInfo, encoding: str) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("program", info.name or "without a name"),
        ("written as", f"{encoding} {info.version}" if info.version else encoding),
        ("needs", f"StableHLO {info.needed_version}" if info.needed_version else info.not_portable_because),
        ("size", f"{readable_bytes(info.size)}, constants {readable_bytes(info.constant_bytes)}"),
        *([("left out", f"the values of {info.constants_left_out} constants")] if info.constants_left_out else []),
        ("made for", f"{info.num_replicas} replicas, {info.num_partitions} partitions"),
        *((_mesh_name(name), spelled_mesh(mesh)) for name, mesh in info.meshes.items() if mesh.axes),
        ("entry", f"{info.entry}, of {len(info.functions)} functions, {info.num_operations} operations"),
        ("dynamic shapes", "yes" if info.has_dynamic_shapes else "no"),
    ]
    if info.collectives:
        facts.append(("collectives", ", ".join(info.collectives)))
    if info.side_effects:
        facts.append(("side effects", ", ".join(info.side_effects)))
    if info.custom_calls:
        called = (f"{target} ({count})" for target, count in sorted(info.custom_calls.items()))
        facts.append(("custom calls", ", ".join(called)))
    return facts


def _notes(row: SignatureRow) -> str:
    notes = [] if row.needed else ["not needed"]
    if isinstance(row.info, stablehlo.ArgumentInfo):
        if row.info.aliases_output is not None:
            notes.append(f"donated to result {row.info.aliases_output}")
        if row.info.is_donor:
            notes.append("donated")
    if any(isinstance(size, str) for size in row.shape):
        notes.append(f"shape {spelled_shape(row.shape)}")
    placement = (("layout", row.info.layout), ("memory", row.info.memory_kind))
    return ", ".join([*notes, *(f"{name} {text}" for name, text in placement if text)])


def _as_dict(info: stablehlo.ProgramInfo, file: ModelFile) -> dict[str, Any]:
    return {
        "name": info.name,
        "entry": info.entry,
        "encoding": _encoding(info, file),
        "format": str(info.encoding.program_format),
        "size": info.size,
        "version": str(info.version) if info.version else None,
        "needed_version": str(info.needed_version) if info.needed_version else None,
        "not_portable_because": info.not_portable_because or None,
        "num_replicas": info.num_replicas,
        "num_partitions": info.num_partitions,
        "meshes": {name: mesh_dict(mesh) for name, mesh in info.meshes.items()},
        "constant_bytes": info.constant_bytes,
        "constants_left_out": info.constants_left_out,
        "has_dynamic_shapes": info.has_dynamic_shapes,
        "functions": list(info.functions),
        "collectives": list(info.collectives),
        "side_effects": list(info.side_effects),
        "custom_calls": dict(info.custom_calls),
        "arguments": [_row_dict(row, info) for row in argument_rows(file, info)],
        "results": [_row_dict(row, info) for row in result_rows(file, info)],
        "operations": [
            {"name": o.name, "count": o.count, "locations": list(map(str, o.locations))} for o in info.operations
        ],
    }


def _row_dict(row: SignatureRow, info: stablehlo.ProgramInfo) -> dict[str, Any]:
    value = row.info
    facts: dict[str, Any] = {"index": row.index, "name": row.name, "type": str(value.type), "shape": list(row.shape)}
    if isinstance(value, stablehlo.ArgumentInfo):
        facts |= {"aliases_output": value.aliases_output, "is_donor": value.is_donor, "needed": row.needed}
    sharding = sharding_dict(value, row.shape, info.meshes)
    return {**facts, **sharding, "layout": value.layout, "memory_kind": value.memory_kind}


def _mesh_name(name: str) -> str:
    return "mesh" if name == "mesh" else f"mesh {name}"
