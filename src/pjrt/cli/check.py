"""``pjrt check``: whether devices can run a program, and why not."""

from __future__ import annotations

from typing import Any, TypeAlias

import click

import pjrt
from pjrt import plugins
from pjrt.api.errors import naming
from pjrt.cli._console import echo, fail, one_line, print_json, progress, single_line
from pjrt.cli._options import (
    client_options,
    devices_option,
    json_option,
    partitioning_options,
    shapes_option,
    targets_of,
    time_limit_option,
    topologies_option,
)
from pjrt.cli._program import check_first, program_argument, read_model_file
from pjrt.plugins import subprocess_support

YES, NO, MAYBE = 0, 1, 3
"""The exit codes; 2 is an error, as for all subcommands."""

_Answer: TypeAlias = pjrt.Support | pjrt.PjrtError

_EXAMPLES = """
\b
Examples:
  pjrt check model.mlir --device cpu --device reference
  pjrt check model.stablehlo --topology tpu:v5e:2x2
  pjrt check model.mlir --device mydevice --effort ops --json
  pjrt check exported.bin --device cpu --shape b=8
  pjrt check step.mlir -t cuda:h100

\b
Exit code:
  0  every device can run it
  1  at least one cannot
  2  an error, of the command or of one device
  3  at least one is a maybe, and none a no
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@devices_option
@topologies_option
@client_options
@click.option(
    "--effort",
    type=click.Choice([effort.value for effort in pjrt.Effort]),
    help="Check the names of operations, types and attributes too, or compile. The default is the least that decides.",
)
@shapes_option
@partitioning_options
@time_limit_option(subprocess_support.TIME_LIMIT, "each device may")
@json_option
def check(
    program: str,
    devices: tuple[str, ...],
    topologies: tuple[str, ...],
    options: dict[str, Any],
    effort: str | None,
    shapes: dict[str, tuple[int, ...]] | None,
    partitioning: pjrt.CompileOptions,
    time_limit: float,
    as_json: bool,
) -> None:
    """Check whether devices can run PROGRAM: yes, no or maybe, with the operations, types or versions that decide.

    A saved executable is loaded on the device.
    """
    targets = targets_of(devices, topologies, options) or [
        subprocess_support.Target(plugins.default(), options=options)
    ]
    if len(targets) == 1:  # of several, one that is not there has no verdict
        check_first([targets[0].plugin])
    file = read_model_file(program)
    how = partitioning.completed(file.partitioning)
    chosen = None if effort is None else pjrt.Effort(effort)
    answers: list[tuple[subprocess_support.Target, _Answer]] = []
    for target in targets:
        with progress(f"asking {target}"):
            with naming(program):
                code = file.executable or file.program_for(target.plugin, shapes)
            answers.append((target, _ask(target, code, how, chosen, time_limit)))
    failed = [target for target, answer in answers if isinstance(answer, pjrt.PjrtError)]
    verdict = None if failed else _worst([answer.verdict for _, answer in answers if isinstance(answer, pjrt.Support)])
    if as_json:
        print_json({"program": program, "verdict": verdict, "devices": [_as_dict(*each, program) for each in answers]})
    for target, answer in answers:
        if isinstance(answer, pjrt.PjrtError) and len(answers) == 1:
            if as_json:
                fail(one_line(answer))
            raise answer
        if not as_json:
            _print(target, answer, program, "by loading it" if file.executable else "")
    if verdict is None:
        who = ", ".join(map(str, failed))
        fail(f"{len(failed)} of {len(answers)} gave no verdict: {who}")
    raise SystemExit({pjrt.Verdict.YES: YES, pjrt.Verdict.NO: NO, pjrt.Verdict.MAYBE: MAYBE}[verdict])


def _ask(
    target: subprocess_support.Target,
    program: pjrt.Program | pjrt.SavedExecutable,
    options: pjrt.CompileOptions,
    effort: pjrt.Effort | None,
    limit: float,
) -> _Answer:
    """Return a device's answer, or the error: it must not keep the other devices from an answer."""
    try:
        return subprocess_support.support_of(target, program, options, effort=effort, time_limit=limit)
    except pjrt.PjrtError as error:
        return error


def _worst(verdicts: list[pjrt.Verdict]) -> pjrt.Verdict:
    """Return the worst of several verdicts."""
    return next((worst for worst in (pjrt.Verdict.NO, pjrt.Verdict.MAYBE) if worst in verdicts), pjrt.Verdict.YES)


_METHODS = {
    pjrt.Effort.OPS: "by the names of its operations",
    pjrt.Effort.TYPES: "by types and attributes",
    pjrt.Effort.COMPILE: "by compiling",
}


def _print(target: subprocess_support.Target, support: _Answer, program: str, method: str) -> None:
    if isinstance(support, pjrt.PjrtError):
        echo(f"{target}: error\n  {one_line(support)}")
        return
    echo(f"{target}: {support.verdict.value} ({method or _METHODS[support.effort]})")
    for reason in support.reasons:
        kind = reason.kind.value + ("" if reason.verdict is pjrt.Verdict.NO else "?")
        echo(f"  {kind:<10}  {single_line(reason.message)}")
        if reason.locations:
            places = ", ".join(str(_in_file(place, program)) for place in reason.locations)
            more = reason.count - len(reason.locations)
            echo(f"              at {places}{f' and {more} more' if more > 0 else ''}")


def _as_dict(target: subprocess_support.Target, support: _Answer, program: str) -> dict[str, Any]:
    if isinstance(support, pjrt.PjrtError):
        error = {"code": support.code.name, "message": support.message}
        return {"device": str(target), "verdict": None, "error": error}
    plain = support.as_dict()
    for reason, entry in zip(support.reasons, plain["reasons"], strict=True):
        entry["locations"] = [_in_file(place, program)._asdict() for place in reason.locations]
    return {"device": str(target), **plain}


def _in_file(place: pjrt.SourceLocation, program: str) -> pjrt.SourceLocation:
    """Return a location in the program's own text with the name of its file."""
    return place._replace(file=program) if place.file == "-" else place
