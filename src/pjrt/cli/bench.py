"""``pjrt bench``: the times of a program on one or several devices, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

import pjrt
from pjrt.api.printable import readable_bytes
from pjrt.cli._console import console, echo, print_facts, print_json, print_table, progress, readable
from pjrt.cli._options import call_options, complete_file, devices_option, json_option
from pjrt.cli._program import check_first, check_needs_no_infeed, printing_warnings, program_argument, read_model_file
from pjrt.models.benchmark import (
    DEFAULT_ROUNDS,
    DEFAULT_SECONDS,
    SUFFIXES,
    Benchmark,
    DeviceBenchmark,
    benchmark_page,
    plan_of,
    write_times,
)
from pjrt.models.benchmark import bench as measure
from pjrt.models.measurement import PERCENTILES, Latencies
from pjrt.models.output_path import check_output_path
from pjrt.models.report.page import write_page

# Plots in plain characters.

_BINS = 12
_EIGHTHS = " ▏▎▍▌▋▊▉"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def histogram(latencies: Latencies, width: int) -> Iterator[str]:
    """Yield the lines of a histogram; the bars are as long as the terminal allows."""
    if latencies.minimum == latencies.maximum:
        yield f"{readable(latencies.minimum)}, {latencies.count} times"
        return
    contents = latencies.histogram(min(_BINS, latencies.count))
    rows = [(readable(edge), count) for edge, count in zip(contents.edges, contents.counts, strict=False)]
    rows.append((f"> {readable(contents.edges[-1])}", contents.longer))
    labels, counts = max(len(label) for label, _ in rows), max(len(str(count)) for _, count in rows)
    longest = max(count for _, count in rows)
    space = max(width - labels - counts - 4, 10)
    for label, count in rows:
        yield f"{label:>{labels}}  {_bar(count / longest * space):<{space}}  {count:>{counts}}".rstrip()


def timeline(latencies: Latencies, width: int) -> Iterator[str]:
    """Yield two lines: the times in their order as columns, each the median of a span, and the scale."""
    medians = [median for median, _ in latencies.over_time(width)]
    low, high = min(medians), max(medians)
    yield "".join(_HEIGHTS[_height(value, low, high)] for value in medians)
    yield f"{_HEIGHTS[0]} {readable(low)}   {_HEIGHTS[-1]} {readable(high)}   {latencies.count} runs from left to right"


def _bar(length: float) -> str:
    full, rest = divmod(int(length * 8), 8)
    return ("█" * full + _EIGHTHS[rest]).rstrip()


def _height(value: float, low: float, high: float) -> int:
    return round((value - low) / (high - low) * (len(_HEIGHTS) - 1)) if high > low else 0


# The command.

_EXAMPLES = """
\b
Examples:
  pjrt bench model.stablehlo --input random:0
  pjrt bench model.mlir -i random:0 -d cpu -d reference -d ./plugin.so
  pjrt bench model.mlir -i weights.npz -i images.npy --in-flight 4
  pjrt bench model.mlir -i random:0 --count 1000 --plot --html times.html
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@devices_option
@call_options
@click.option("--count", "-n", type=int, metavar="N", help="Measure N executions on each device.")
@click.option(
    "--seconds",
    "-s",
    type=float,
    metavar="S",
    help=f"Measure for S seconds on each device instead. The default is {DEFAULT_SECONDS:g} seconds.",
)
@click.option("--warm-up", type=int, metavar="N", help="Run N times before. The default is as often as 0.3 s allow.")
@click.option(
    "--in-flight", type=int, default=1, metavar="N", help="Measure the throughput with N executions in flight."
)
@click.option(
    "--rounds",
    type=int,
    default=DEFAULT_ROUNDS,
    show_default=True,
    metavar="N",
    help="Divide the measurement into N rounds, in each of which all devices have a turn.",
)
@click.option(
    "--times",
    metavar="PATH",
    shell_complete=complete_file,
    help="Write every measured time to a .json, .csv or .npz file.",
)
@click.option("--html", metavar="PATH", shell_complete=complete_file, help="Write a page with tables and plots.")
@click.option("--plot", is_flag=True, help="Draw a histogram, and the times in their order, for each device.")
@json_option
def bench(
    program: str,
    devices: tuple[str, ...],
    options: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None,
    partitioning: pjrt.CompileOptions,
    inputs: tuple[str, ...],
    count: int | None,
    seconds: float | None,
    warm_up: int | None,
    in_flight: int,
    rounds: int,
    times: str | None,
    html: str | None,
    plot: bool,
    as_json: bool,
) -> None:
    """Measure how long PROGRAM takes on each device.

    Compiling, the first execution, executions, and the transfers of arguments and results are timed apart. For a device
    that cannot run PROGRAM, the reason is printed instead.
    """
    plan_of(count, seconds, warm_up, in_flight, rounds)
    if times is not None:
        check_output_path(times, SUFFIXES, option="--times")
    if html is not None:
        check_output_path(html, option="--html")
    check_first(devices, inputs)
    with printing_warnings(), progress("measuring"):
        benchmark = measure(
            check_needs_no_infeed(read_model_file(program, devices[0] if devices else None, options)),
            devices or (None,),
            inputs,
            shapes=shapes,
            count=count,
            seconds=seconds,
            warm_up=warm_up,
            in_flight=in_flight,
            rounds=rounds,
            compile_options=partitioning,
            client_options=options,
        )
    if times is not None:
        write_times(benchmark, times)
    if html is not None:
        write_page(html, benchmark_page(benchmark))
    if as_json:
        print_json({**benchmark.as_dict(), "times": times, "html": html})
        return
    _print(benchmark)
    print_facts([(name, path) for name, path in (("times", times), ("page", html)) if path is not None])
    if plot:
        for device in benchmark.devices:
            _plot(device)


def _print(benchmark: Benchmark) -> None:
    first = benchmark.devices[0]
    counts = ", ".join(str(device.execute.count) for device in benchmark.devices)
    print_facts(
        [
            ("program", benchmark.program),
            ("arguments", readable_bytes(first.argument_bytes)),
            ("results", readable_bytes(first.result_bytes)),
            ("measured", f"{counts} executions in {benchmark.rounds} rounds"),
            ("in flight", first.in_flight),
        ]
    )
    columns = ["execute", *(f"{percent:g}%" for percent in PERCENTILES), "max", "a second", "ratio", "in rounds"]
    rows = [
        [
            device.label,
            *(readable(device.execute.percentile(percent)) for percent in PERCENTILES),
            readable(device.execute.maximum),
            f"{device.throughput:.4g}",
            f"{ratio.median:.3g}",
            "" if device is first else f"{ratio.low:.3g} to {ratio.high:.3g}",
        ]
        for device, ratio in zip(benchmark.devices, benchmark.ratios(), strict=True)
    ]
    rows += [[label, "failed", *([""] * (len(columns) - 2))] for label in benchmark.errors]
    print_table(columns, rows, right=columns[1:])
    columns = ["other parts", "compile", "first run", "to device", "from device", "memory peak"]
    rows = [_others(device) for device in benchmark.devices]
    if any(device.operations is not None for device in benchmark.devices):
        columns.insert(-1, "on the fallback")
        for row, device in zip(rows, benchmark.devices, strict=True):
            row.insert(-1, _on_fallback(device))
    print_table(columns, rows, right=columns[1:-1])
    for device in benchmark.devices:
        if device.fallback:
            names = ", ".join(f"{count} {name}" for name, count in device.fallback.items())
            echo(f"{device.label}: the fallback runs {names}")
    for error in benchmark.errors.values():
        echo(error.message)


def _others(device: DeviceBenchmark) -> list[str]:
    return [
        device.label,
        readable(device.compile_seconds),
        readable(device.first_run_seconds),
        readable(device.put.median),
        readable(device.fetch.median),
        _peak(device),
    ]


def _on_fallback(device: DeviceBenchmark) -> str:
    return "" if device.operations is None else f"{sum(device.fallback.values())} of {device.operations}"


def _peak(device: DeviceBenchmark) -> str:
    peak = device.memory_peak
    if peak is None:
        return "unknown"
    return f"{readable_bytes(peak.nbytes)} of {'a device' if peak.source == 'device' else 'this process'}"


def _plot(device: DeviceBenchmark) -> None:
    width = min(console().width, 100)
    echo(f"\n{device.label}: executions by time")
    for line in histogram(device.execute, width):
        echo(f"  {line}")
    echo(f"\n{device.label}: executions in their order")
    for line in timeline(device.execute, width - 2):
        echo(f"  {line}")
