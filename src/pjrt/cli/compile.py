"""``pjrt compile``: compile ahead of time for devices that need not be here."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt import stablehlo
from pjrt.cli._console import print_facts, print_json, progress, readable_bytes
from pjrt.cli._options import client_options
from pjrt.cli._timing import readable

_BAR_WIDTH = 40

_EXAMPLES = """
\b
Examples:
  pjrt compile model.stablehlo --topology tpu:v5e:2x2
  pjrt compile model.stablehlo --topology cpu -o model.bin
  pjrt compile model.mlir --topology /path/to/plugin.so:2x2 --num-partitions 4 --json
"""


@click.command("compile", epilog=_EXAMPLES)
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
@click.option("--num-replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Copies of the program.")
@click.option("--num-partitions", type=click.IntRange(min=1), default=1, show_default=True, help="Pieces of each copy.")
@click.option("--output", "-o", metavar="PATH", help="Write the serialized executable to a file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def compile_(
    program: str,
    place: str,
    options: dict[str, Any],
    num_replicas: int,
    num_partitions: int,
    output: str | None,
    as_json: bool,
) -> None:
    """Compile PROGRAM for a topology and show what one run needs: memory, operations, bytes moved."""
    read = stablehlo.read_file(program)
    if output is not None and not Path(output).absolute().parent.is_dir():
        raise pjrt.NotFoundError(f"--output {output}: there is no folder {str(Path(output).parent)!r}")
    plugin, _, name = place.partition(":")
    with progress(f"asking {plugin} for the topology"):
        topology = pjrt.topology(plugin, name, **options)
    begin = time.perf_counter()
    with progress(f"compiling for {topology.device_descriptions[0].kind}"):
        executable = topology.compile(
            read, pjrt.CompileOptions(num_replicas=num_replicas, num_partitions=num_partitions)
        )
    seconds = time.perf_counter() - begin
    size = None if output is None else _write(executable, output)
    facts = _facts(topology, executable, seconds, size)
    if as_json:
        print_json(facts)
    else:
        _print(facts, output)


def _write(executable: pjrt.Executable, path: str) -> int:
    serialized = executable.serialize()
    try:
        Path(path).write_bytes(serialized)
    except OSError as error:
        raise pjrt.InvalidArgumentError(f"--output {path}: cannot be written: {error.strerror}") from error
    return len(serialized)


def _facts(
    topology: pjrt.TopologyDescription, executable: pjrt.Executable, seconds: float, size: int | None
) -> dict[str, Any]:
    device = topology.device_descriptions[0]
    stats = _if_offered(executable.memory_stats)
    return {
        "platform": topology.platform_name,
        "platform_version": topology.platform_version,
        "device_kind": device.kind,
        "num_devices": len(topology.device_descriptions),
        "executable": executable.name,
        "num_replicas": executable.num_replicas,
        "num_partitions": executable.num_partitions,
        "compile_seconds": seconds,
        "memory_limit_in_bytes": device.attributes.get("device_memory_bytes_limit"),
        "memory": None if stats is None else {f: getattr(stats, f) for f in stats.__dataclass_fields__},
        "cost": _if_offered(lambda: dict(executable.cost_analysis())),
        "serialized_size_in_bytes": size,
    }


def _if_offered(question: Any) -> Any:
    """The answer to a question that not every compiler answers."""
    try:
        return question()
    except pjrt.UnimplementedError:
        return None


def _print(facts: dict[str, Any], output: str | None) -> None:
    devices = f"{facts['num_devices']} × {facts['device_kind']} ({facts['platform']})"
    lines: list[tuple[str, object]] = [
        ("program", facts["executable"]),
        ("devices", devices),
        ("replicas × partitions", f"{facts['num_replicas']} × {facts['num_partitions']}"),
        ("compiled in", readable(facts["compile_seconds"])),
    ]
    lines += _memory_lines(facts["memory"], facts["memory_limit_in_bytes"])
    cost = facts["cost"] or {}
    for name, label in (("flops", "FLOPs"), ("transcendentals", "transcendentals"), ("bytes accessed", "bytes moved")):
        if name in cost:
            amount = readable_bytes(cost[name]) if name == "bytes accessed" else _readable_count(cost[name])
            lines.append((label, amount))
    if output is not None:
        lines.append(("written to", f"{output} ({readable_bytes(facts['serialized_size_in_bytes'])})"))
    print_facts(lines)


def _memory_lines(memory: dict[str, int] | None, limit: int | None) -> list[tuple[str, object]]:
    if memory is None:
        return [("memory", "this compiler does not say")]
    parts = [
        ("arguments", "argument_size_in_bytes"),
        ("results", "output_size_in_bytes"),
        ("aliased", "alias_size_in_bytes"),
        ("temporaries", "temp_size_in_bytes"),
        ("code", "generated_code_size_in_bytes"),
    ]
    lines: list[tuple[str, object]] = [(label, readable_bytes(memory[field])) for label, field in parts]
    if memory["peak_memory_in_bytes"]:
        lines.append(("peak", readable_bytes(memory["peak_memory_in_bytes"])))
    # What a result takes over from an argument is in both of them.
    total = sum(memory[field] for _, field in parts) - 2 * memory["alias_size_in_bytes"]
    lines.append(("together", _bar(total, limit)))
    return lines


def _bar(needed: int, limit: int | None) -> str:
    """An amount of memory beside what there is, as a bar."""
    if not limit:
        return readable_bytes(needed)
    share = needed / limit
    filled = min(_BAR_WIDTH, round(share * _BAR_WIDTH))
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    return f"{readable_bytes(needed)} {bar} {share:.1%} of {readable_bytes(limit)}"


def _readable_count(count: float) -> str:
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count:.0f}"
