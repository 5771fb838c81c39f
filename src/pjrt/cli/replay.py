"""``pjrt replay``: a recording of the layer ``record``, made again on another plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import pjrt
from pjrt.cli._console import echo, print_facts, print_json, progress
from pjrt.cli._differences import DIFFER, tolerance_options
from pjrt.cli._options import client_options, complete_device, complete_file, json_option, time_limit_option
from pjrt.host_memory.tolerance import Tolerance

if TYPE_CHECKING:
    from pjrt.layers.replay import Reduction, ReplayResult

_TIME_LIMIT = 120.0
_MOST_FINDINGS = 20

_EXAMPLES = """
\b
Examples:
  PJRT_LAYERS=record PJRT_RECORD=file=step.rec python train.py
  pjrt replay step.rec --list
  pjrt replay step.rec --plugin ./plugin.so
  pjrt replay step.rec --plugin cuda --compare exact --stop-at 120
  pjrt replay step.rec --plugin ./plugin.so --layer validate
  pjrt replay step.rec --plugin ./plugin.so --reduce -o small.rec
"""


@click.command(epilog=_EXAMPLES)
@click.argument("file", shell_complete=complete_file)
@click.option(
    "--plugin",
    "-p",
    metavar="NAME",
    shell_complete=complete_device,
    help="The plugin: a name, the path of its library, or FILE.py:FUNCTION of a function that makes clients.",
)
@click.option("--list", "as_list", is_flag=True, help="Print the calls of the recording, and make none.")
@client_options
@click.option("--no-recorded-options", is_flag=True, help="Make clients without the options of the recording.")
@click.option(
    "--compare",
    "exactness",
    type=click.Choice(["close", "exact"]),
    default="close",
    show_default=True,
    help="Whether floating-point results may differ by a tolerance.",
)
@tolerance_options
@click.option("--stop-at", type=click.IntRange(min=1), metavar="N", help="The number of the last call to make.")
@click.option(
    "--seed", type=int, default=0, show_default=True, metavar="N", help="The seed of host data that was not recorded."
)
@click.option("--layer", "-l", "layers", multiple=True, metavar="NAME", help="A layer before the plugin: validate.")
@time_limit_option(_TIME_LIMIT, "one call may")
@click.option("--reduce", "do_reduce", is_flag=True, help="Cut the recording down to the calls that still fail.")
@click.option("--output", "-o", metavar="PATH", shell_complete=complete_file, help="The reduced recording.")
@click.option(
    "--reduce-time",
    type=click.FloatRange(min=1),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the reduction may take; then it ends with what it has.",
)
@json_option
def replay(
    file: str,
    plugin: str | None,
    as_list: bool,
    options: dict[str, Any],
    no_recorded_options: bool,
    exactness: str,
    tolerance: Tolerance,
    stop_at: int | None,
    seed: int,
    layers: tuple[str, ...],
    time_limit: float,
    do_reduce: bool,
    output: str | None,
    reduce_time: float,
    as_json: bool,
) -> None:
    """Make the calls of a recording FILE to another plugin, and compare the results; no framework is needed.

    The exit code is 0 if the plugin does what the recording has, 1 if it does not. The plugin runs in a subprocess: a
    crash and a hang are results, with the call that did it.
    """
    if as_list:
        _list(file)
        return
    if plugin is None:
        raise click.UsageError("name the plugin with --plugin, or print the calls with --list")
    if do_reduce != (output is not None):
        raise click.UsageError("--reduce and --output PATH go together")
    from pjrt.layers.replay import PluginOpener, Settings, reduce_recording
    from pjrt.layers.replay import replay as replay_recording

    exact = Tolerance(0.0, 0.0) if exactness == "exact" else tolerance
    settings = Settings(exact, stop_at or 0, seed, options, not no_recorded_options)
    _check_plugin(plugin)
    opener = PluginOpener(plugin, layers)
    if output is not None:
        with progress("reducing"):
            reduction = reduce_recording(file, opener, output, settings, time_limit=time_limit, total_limit=reduce_time)
        _print_reduction(reduction, output, as_json)
        sys.exit(DIFFER)
    with progress("replaying"):
        result = replay_recording(file, opener, settings, time_limit=time_limit)
    _print_result(result, plugin, as_json, with_output=bool(layers))
    sys.exit(0 if result.agrees else DIFFER)


def _check_plugin(name: str) -> None:
    """Refuse a plugin that does not exist: a wrong name is no difference between plugins."""
    from pjrt.plugins import registry

    declaration = registry.declaration(name)
    declaration.check_usable()
    if declaration.library is not None and not Path(declaration.library).exists():
        raise pjrt.NotFoundError(f"{name}: there is no such file; give the path of the plugin's shared library")


def _list(file: str) -> None:
    from pjrt.layers.recording import Recording, lines_of

    recording = Recording.open(file)
    for line in lines_of(recording):
        echo(line)
    if recording.problem:
        echo(f"# {recording.problem}", err=True)


def _print_result(result: ReplayResult, plugin: str, as_json: bool, *, with_output: bool) -> None:
    if as_json:
        findings = [each.as_dict() for each in result.findings]
        numbers = {"agrees": result.agrees, "calls": result.calls, "skipped": result.skipped, "seconds": result.seconds}
        print_json(
            {"plugin": plugin, **numbers, "problem": result.problem, "findings": findings, "notes": dict(result.notes)}
        )
        return
    if with_output and result.printed:
        echo(result.printed.rstrip())
    for finding in result.findings[:_MOST_FINDINGS]:
        echo(str(finding))
    if len(result.findings) > _MOST_FINDINGS:
        echo(f"{len(result.findings) - _MOST_FINDINGS} more findings; --json has all")
    skipped = f", {result.skipped} not made since an earlier one failed" if result.skipped else ""
    facts: list[tuple[str, object]] = [("calls", f"{result.calls} made{skipped}")]
    if result.problem:
        facts.append(("recording", result.problem))
    if result.notes:
        facts.append(("differ lawfully", f"the results of {len(result.notes)} functions, such as {_example(result)}"))
    facts.append(("result", f"{plugin} {'does what the recording has' if result.agrees else 'differs'}"))
    print_facts(facts)


def _example(result: ReplayResult) -> str:
    function, text = next(iter(result.notes.items()))
    return f"{function}.{text}"


def _print_reduction(reduction: Reduction, output: str, as_json: bool) -> None:
    if as_json:
        numbers = {"calls": reduction.calls, "of": reduction.of, "replays": reduction.replays}
        facts = {"left_out": reduction.left_out, "complete": reduction.complete, "written": output}
        print_json({"finding": reduction.finding.as_dict(), **numbers, **facts})
        return
    echo(str(reduction.finding))
    rows: list[tuple[str, object]] = [
        ("calls", f"{reduction.calls} of {reduction.of}, after {reduction.replays} replays")
    ]
    if reduction.left_out:
        rows.append(("host data", f"{reduction.left_out} arrays left out, whose contents do not matter"))
    if not reduction.complete:
        rows.append(("time", "was up; fewer calls may do with a larger --reduce-time"))
    print_facts([*rows, ("written", output)])
