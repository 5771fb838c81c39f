"""``pjrt compile``: ahead-of-time compilation for devices that need not exist on this machine."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt.artifacts.compilation_cache import CompilationCache
from pjrt.cli._compilation import Compilation, Count, compile_for, print_cost, print_largest, print_one, print_several
from pjrt.cli._console import EXIT_CODE, echo, error_as_dict, fail, note_overwriting, one_line, print_json, progress
from pjrt.cli._options import (
    cache_option,
    client_options,
    complete_file,
    complete_topology,
    json_option,
    partitioning_options,
    shapes_option,
    split_place,
)
from pjrt.cli._program import program_argument, read_model_file
from pjrt.models.model_file import ModelFile
from pjrt.models.output_path import check_output_path
from pjrt.plugins.discovery import wheels
from pjrt.plugins.env_vars import option_value
from pjrt.stablehlo.facts.signatures import CallSignature

_LARGEST = 10
"""The number of arrays that are listed when a program does not fit."""

_EXAMPLES = """
\b
Examples:
  pjrt compile model.stablehlo --topology tpu:v5e:2x2
  pjrt compile sharded.mlir --topology tpu:v5e:2x2 -o sharded.bin
  pjrt compile model.mlir -t cuda:h100:1x1x4 --largest 20
  pjrt compile model.mlir -t tpu:v5e:2x2,tpu:v5e:4x4,cuda:h200
  pjrt compile exported.bin --topology tpu:v5e:2x2 --shape b=8
  pjrt compile model.mlir --topology /path/to/plugin.so:2x2 --json
"""


@click.command("compile", epilog=_EXAMPLES)
@program_argument
@click.option(
    "--topology",
    "-t",
    "places",
    required=True,
    multiple=True,
    metavar="PLUGIN[:NAME],…",
    shell_complete=complete_topology,
    help="A plugin's name or library and the name of a topology, such as tpu:v5e:2x2. Several, separated by commas or "
    "given one by one, are compared in a table.",
)
@client_options
@shapes_option
@partitioning_options
@click.option("--compiler-option", "-C", "flags", multiple=True, metavar="KEY=VALUE", help="A flag of the compiler.")
@click.option(
    "--output",
    "-o",
    metavar="PATH",
    shell_complete=complete_file,
    help="Save the executable, for pjrt.load_executable.",
)
@click.option(
    "--largest",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Print the N largest arrays in memory. Without this {_LARGEST} are printed if the program does not fit.",
)
@cache_option
@json_option
def compile_(
    program: str,
    places: tuple[str, ...],
    options: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None,
    partitioning: pjrt.CompileOptions,
    flags: tuple[str, ...],
    output: str | None,
    largest: int | None,
    cache: CompilationCache | None,
    as_json: bool,
) -> None:
    """Compile PROGRAM for a topology and show the memory, operations and bytes moved of one run.

    A program that needs more memory than a device has is an error, and is not saved. With several topologies the exit
    code is 0 if the program fits everywhere, 1 if it does not fit somewhere, and 2 if there is another error.
    """
    topologies = [place.strip() for each in places for place in each.split(",") if place.strip()]
    if not topologies:
        raise click.BadParameter("expected PLUGIN[:NAME], found nothing", param_hint="--topology")
    if output is not None and len(topologies) > 1:
        raise click.BadParameter(f"expected one --topology, found {len(topologies)}", param_hint="--output")
    if output is not None:
        check_output_path(output, option="--output")
        note_overwriting(output)
    missing = None
    if len(topologies) == 1:  # of several, one that is impossible has a row
        plugin, name = split_place(topologies[0])
        try:
            pjrt.topology(plugin, name, **options)
        except pjrt.NotFoundError as error:
            if plugin not in wheels.vendors():
                raise
            missing = error
            echo(f"pjrt: error: {one_line(error)}", err=True)  # now: to read the program may take long
    file = read_model_file(program)
    with progress("reading the program"):
        how = dataclasses.replace(partitioning, option_overrides=_overrides(flags)).completed(file.partitioning)
    if missing is not None:
        _report_count(missing, Count.of(file.program_for(plugin, shapes), how), largest or _LARGEST, as_json)
        sys.exit(EXIT_CODE)
    compilations = [
        compile_for(place, options, how, program, lambda platform: file.program_for(platform, shapes), cache)
        for place in topologies
    ]
    if len(compilations) == 1:
        _report_one(compilations[0], file, how, output, largest, as_json)
    else:
        _report_several(compilations, how, largest, as_json)


def _report_count(error: pjrt.PjrtError, count: Count, most: int, as_json: bool) -> None:
    """Print what the program itself tells, where the compiler of its device is not there."""
    if as_json:
        print_json({**error_as_dict(error), "counted": count.as_dict()})
    else:
        print_cost(None, count)
        print_largest(count, most)


def _report_one(
    compilation: Compilation,
    file: ModelFile,
    how: pjrt.CompileOptions,
    output: str | None,
    largest: int | None,
    as_json: bool,
) -> None:
    error, facts = compilation.error, compilation.facts
    if error is not None and compilation.fits is None:
        raise error
    compiled = compilation.executable is not None
    is_counted = bool(largest or error or how.partitioning.num_devices > 1 or not facts["cost"])
    code = compilation.code if is_counted else None
    count = None if code is None else Count.of(code, how, compilation.topology)
    if output is not None and error is None and compilation.executable is not None:
        names = _signature(file, compilation)
        pjrt.save_executable(
            compilation.executable,
            output,
            compiled_for=compilation.topology,
            program=names,
            weights=None if names is None else file.weights,
        )
        facts |= {"output": output, "output_size_in_bytes": Path(output).stat().st_size}
    most = largest or (_LARGEST if error is not None else 0)
    if as_json:
        print_json({**compilation.as_dict(), **({} if count is None else {"counted": count.as_dict()})})
    else:
        if compiled:
            print_one(facts, count)
        if count is not None and most:
            print_largest(count, most)
    if error is not None:
        fail(one_line(error))


def _signature(file: ModelFile, compilation: Compilation) -> CallSignature | None:
    """Return the names and types to save with an executable; None for a program with arguments that are not arrays."""
    assert compilation.code is not None
    try:
        return file.compiled_signature(compilation.code)
    except pjrt.UnimplementedError:
        return None


def _report_several(
    compilations: list[Compilation], how: pjrt.CompileOptions, largest: int | None, as_json: bool
) -> None:
    is_too_large = any(each.fits is False for each in compilations)
    is_wrong = any(each.error is not None and each.fits is None for each in compilations)
    most = largest or (_LARGEST if is_too_large else 0)
    code = next((each.code for each in compilations if each.code is not None), None)
    count = Count.of(code, how) if most and code is not None else None
    if as_json:
        rows = [{"topology": each.place, "fits": each.fits, **each.as_dict()} for each in compilations]
        print_json({"topologies": rows, **({} if count is None else {"counted": count.as_dict()})})
    else:
        print_several(compilations)
        if count is not None:
            print_largest(count, most)
    sys.exit(EXIT_CODE if is_wrong else 1 if is_too_large else 0)


def _overrides(flags: tuple[str, ...]) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for flag in flags:
        name, equals, text = flag.partition("=")
        value = option_value(text)
        if not equals or not name or isinstance(value, tuple):
            raise click.BadParameter(
                f"expected KEY=VALUE with one value, found {flag!r}", param_hint="--compiler-option"
            )
        overrides[name] = value
    return overrides
