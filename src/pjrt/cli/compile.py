"""``pjrt compile``: ahead-of-time compilation for devices that need not exist on this machine."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt import stablehlo
from pjrt.api.compatibility import check_memory
from pjrt.api.partitioning import Partitioning
from pjrt.cli._console import console, print_facts, print_json, print_table, progress, readable_bytes
from pjrt.cli._failures import error_as_dict, fail, naming, one_line
from pjrt.cli._options import client_options, partitioning_options
from pjrt.cli._timing import readable
from pjrt.plugins.env_vars import option_value

_BAR_WIDTH = 40
_BESIDE_BAR = 50
"""The width of the memory table without its bars."""

_EXAMPLES = """
\b
Examples:
  pjrt compile model.stablehlo --topology tpu:v5e:2x2
  pjrt compile sharded.mlir --topology tpu:v5e:2x2 -o sharded.bin
  pjrt compile model.mlir -t cuda:h100:1x1x4
  pjrt compile model.mlir --topology /path/to/plugin.so:2x2 --json
"""


@click.command("compile", short_help="Compile a program for devices that need not be here.", epilog=_EXAMPLES)
@click.argument("program", type=click.Path())
@click.option(
    "--topology",
    "-t",
    "place",
    required=True,
    metavar="PLUGIN[:NAME]",
    help="A plugin's name or library and the name of a topology, such as tpu:v5e:2x2.",
)
@client_options
@partitioning_options
@click.option("--compiler-option", "-C", "flags", multiple=True, metavar="KEY=VALUE", help="A flag of the compiler.")
@click.option("--output", "-o", metavar="PATH", help="Save the executable, for pjrt.load_executable.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def compile_(
    program: str,
    place: str,
    options: dict[str, Any],
    partitioning: pjrt.CompileOptions,
    flags: tuple[str, ...],
    output: str | None,
    as_json: bool,
) -> None:
    """Compile PROGRAM for a topology and show the memory, operations and bytes moved of one run.

    A program that needs more memory than a device has is an error, and is not saved.
    """
    read = stablehlo.read_file(program)
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise pjrt.NotFoundError(f"--output {output}: there is no folder {str(Path(output).parent)!r}")
    overrides = _overrides(flags)
    with progress("reading the program"), naming(program):
        how = stablehlo.with_partitioning(read, dataclasses.replace(partitioning, option_overrides=overrides))
    plugin, _, name = place.partition(":")
    with progress(f"asking {plugin} for the topology"):
        topology = pjrt.topology(plugin, name, **options)
    _check_size(topology, how.partitioning)
    begin = time.perf_counter()
    with progress(f"compiling for {topology.device_descriptions[0].kind}"), naming(program):
        executable = topology.compile(read, how)
    facts = _facts(topology, executable, time.perf_counter() - begin)
    too_large = _too_large(executable, facts["memory_limit_in_bytes"])
    if output is not None and too_large is None:
        pjrt.save_executable(executable, output, compiled_for=topology)
        facts |= {"output": output, "output_size_in_bytes": Path(output).stat().st_size}
    if as_json:
        print_json(facts if too_large is None else {**facts, **error_as_dict(too_large)})
    else:
        _print(facts)
    if too_large is not None:
        fail(one_line(too_large))


def _too_large(executable: pjrt.Executable, limit: int | None) -> pjrt.PjrtError | None:
    try:
        check_memory(executable, limit)
    except pjrt.ResourceExhaustedError as error:
        return error
    return None


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


def _check_size(topology: pjrt.TopologyDescription, partitioning: Partitioning) -> None:
    available = len(topology.device_descriptions)
    if partitioning.num_devices > available:
        raise pjrt.InvalidArgumentError(
            f"{partitioning} need {partitioning.num_devices} devices, the topology has {available}; choose a larger one"
        )


def _facts(topology: pjrt.TopologyDescription, executable: pjrt.Executable, seconds: float) -> dict[str, Any]:
    device = topology.device_descriptions[0]
    stats = _if_offered(executable.memory_stats)
    memory = None if stats is None else {name: getattr(stats, name) for name in stats.__dataclass_fields__}
    return {
        "platform": topology.platform_name,
        "platform_version": topology.platform_version,
        "device_kind": device.kind,
        "num_devices": len(topology.device_descriptions),
        "executable": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "compile_seconds": seconds,
        "memory_limit_in_bytes": device.memory_limit_in_bytes,
        "memory_needed_in_bytes": None if stats is None else stats.needed_in_bytes,
        "memory": memory,
        "cost": _if_offered(lambda: dict(executable.cost_analysis())),
    }


def _if_offered(question: Any) -> Any:
    """Return the answer to a question, or ``None`` if the compiler does not answer it."""
    try:
        return question()
    except pjrt.UnimplementedError:
        return None


_PARTS = (
    ("arguments", "argument_size_in_bytes"),
    ("results", "output_size_in_bytes"),
    ("temporaries", "temp_size_in_bytes"),
    ("code", "generated_code_size_in_bytes"),
)


def _print(facts: dict[str, Any]) -> None:
    replicas, partitions = facts["num_replicas"], facts["num_partitions"]
    lines: list[tuple[str, object]] = [
        ("program", facts["executable"]),
        ("topology", f"{facts['num_devices']} × {facts['device_kind']} ({facts['platform']})"),
        ("runs on", f"{replicas * partitions} of them: {replicas} replicas × {partitions} partitions"),
        ("compiled in", readable(facts["compile_seconds"])),
    ]
    if "output" in facts:
        lines.append(("saved as", f"{facts['output']} ({readable_bytes(facts['output_size_in_bytes'])})"))
    print_facts(lines)
    _print_memory(facts["memory"], facts["memory_needed_in_bytes"], facts["memory_limit_in_bytes"])
    _print_cost(facts["cost"])


def _print_memory(memory: dict[str, int] | None, needed: int | None, limit: int | None) -> None:
    if memory is None or needed is None:
        click.echo("\nThis compiler does not report the memory that the program needs.")
        return
    of = f"of {readable_bytes(limit)}" if limit else "of what it needs"
    whole, width = limit or needed, min(_BAR_WIDTH, console().width - _BESIDE_BAR)
    rows = [(label, readable_bytes(memory[field]), *_bar(memory[field], whole, width)) for label, field in _PARTS]
    if memory["alias_size_in_bytes"]:
        rows.insert(2, ("both at once", readable_bytes(memory["alias_size_in_bytes"]), "", ""))
    rows.append(("needed", readable_bytes(needed), *_bar(needed, whole, width)))
    print_table(["memory of each device", "size", of, "share"], rows, right=["size", "share"])
    if needed != sum(memory[field] for _, field in _PARTS) - memory["alias_size_in_bytes"]:
        click.echo("'needed' is the compiler's peak, the most memory in use at one time, not the sum of the rows.")


def _print_cost(cost: dict[str, float] | None) -> None:
    shown = [
        ("FLOPs", "flops", _readable_count),
        ("transcendentals", "transcendentals", _readable_count),
        ("bytes moved", "bytes accessed", readable_bytes),
        ("time at best", "optimal_seconds", readable),
    ]
    rows = [(label, convert(cost[key])) for label, key, convert in shown if cost and key in cost]
    if rows:
        print_table(["work of each device", "a run"], rows, right=["a run"])
    else:
        click.echo("This compiler does not report the work of the program.")


def _bar(amount: int, whole: int, width: int) -> tuple[str, str]:
    """Return a part as a bar and as a percentage; a part above zero has at least one mark."""
    share = amount / whole if whole else 0.0
    filled = min(width, max(round(share * width), 1 if amount else 0))
    percent = "<0.1%" if 0 < share < 0.001 else f"{share:.1%}"
    return "█" * filled + "░" * (width - filled), percent


def _readable_count(count: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"
