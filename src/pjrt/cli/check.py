"""``pjrt check``: whether devices can run a program, and what decides it."""

from __future__ import annotations

from typing import Any, TypeAlias

import click

import pjrt
from pjrt import plugins, stablehlo
from pjrt.cli._console import print_json, progress
from pjrt.cli._failures import fail, one_line
from pjrt.cli._options import client_options, partitioning_options, time_limit_option, topologies_option
from pjrt.plugins import subprocess_support

YES, NO, MAYBE = 0, 1, 3
"""The exit codes; 2 is an error, as everywhere."""

_Answer: TypeAlias = pjrt.Support | pjrt.PjrtError

_EXAMPLES = """
\b
Examples:
  pjrt check model.mlir --device cpu --device reference
  pjrt check model.stablehlo --topology tpu:v5e:2x2
  pjrt check model.mlir --device mydevice --effort ops --json
  pjrt check step.mlir -t cuda:cuda -O topology=1x1x1 -O target_config=@h100

\b
Exit code:
  0  every device can run it
  1  one cannot
  2  an error, also of one device; the others are asked all the same
  3  none is known not to, but of one it is not known
"""


@click.command(short_help="Tell whether devices can run a program, and why not.", epilog=_EXAMPLES)
@click.argument("program", type=click.Path())
@click.option(
    "--device",
    "-d",
    "devices",
    multiple=True,
    metavar="NAME",
    help="A device in the box, a plugin's name or the path of a plugin's library. May be given several times.",
)
@topologies_option
@client_options
@click.option(
    "--effort",
    type=click.Choice([effort.value for effort in pjrt.Effort]),
    help="Look at the names of operations, at types and attributes too, or compile; as much as is needed if not said.",
)
@partitioning_options
@time_limit_option(subprocess_support.TIME_LIMIT, "each device may")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def check(
    program: str,
    devices: tuple[str, ...],
    topologies: tuple[str, ...],
    options: dict[str, Any],
    effort: str | None,
    partitioning: pjrt.CompileOptions,
    time_limit: float,
    as_json: bool,
) -> None:
    """Tell whether devices can run PROGRAM: yes, no or maybe, and which operations, types or versions decide it."""
    read = stablehlo.read_file(program)
    targets = targets_of(devices, topologies, options) or [
        subprocess_support.Target(plugins.default(), options=options)
    ]
    chosen = None if effort is None else pjrt.Effort(effort)
    found: list[tuple[subprocess_support.Target, _Answer]] = []
    for target in targets:
        with progress(f"asking {target}"):
            found.append((target, _asked(target, read, partitioning, chosen, time_limit)))
    failed = [target for target, answer in found if isinstance(answer, pjrt.PjrtError)]
    whole = None if failed else _whole([answer.verdict for _, answer in found if isinstance(answer, pjrt.Support)])
    if as_json:
        print_json({"program": program, "verdict": whole, "devices": [_as_dict(*each, program) for each in found]})
    for target, answer in found:
        if isinstance(answer, pjrt.PjrtError) and len(found) == 1:
            if as_json:
                fail(one_line(answer))
            raise answer
        if not as_json:
            _print(target, answer, program)
    if whole is None:
        who = ", ".join(map(str, failed))
        fail(f"{len(failed)} of {len(found)} gave no verdict: {who}")
    raise SystemExit({pjrt.Verdict.YES: YES, pjrt.Verdict.NO: NO, pjrt.Verdict.MAYBE: MAYBE}[whole])


def _asked(
    target: subprocess_support.Target,
    program: pjrt.Program,
    options: pjrt.CompileOptions,
    effort: pjrt.Effort | None,
    limit: float,
) -> _Answer:
    """What a device answers; one that cannot be asked must not keep the others from it."""
    try:
        return subprocess_support.support_of(target, program, options, effort=effort, time_limit=limit)
    except pjrt.PjrtError as error:
        return error


def targets_of(
    devices: tuple[str, ...], topologies: tuple[str, ...], options: dict[str, Any]
) -> list[subprocess_support.Target]:
    """Whom to ask, by what the options ``--device`` and ``--topology`` name."""
    split = [place.partition(":") for place in topologies]
    return [
        *(subprocess_support.Target(name, options=options) for name in devices),
        *(subprocess_support.Target(plugin, name, options) for plugin, _, name in split),
    ]


def _whole(verdicts: list[pjrt.Verdict]) -> pjrt.Verdict:
    """One verdict for all: what the worst of them is."""
    for worst in (pjrt.Verdict.NO, pjrt.Verdict.MAYBE):
        if worst in verdicts:
            return worst
    return pjrt.Verdict.YES


_FOUND_BY = {
    pjrt.Effort.OPS: "by the names of its operations",
    pjrt.Effort.TYPES: "by types and attributes",
    pjrt.Effort.COMPILE: "by compiling",
}


def _print(target: subprocess_support.Target, support: _Answer, program: str) -> None:
    if isinstance(support, pjrt.PjrtError):
        click.echo(f"{target}: error\n  {one_line(support)}")
        return
    click.echo(f"{target}: {support.verdict.value} ({_FOUND_BY[support.effort]})")
    for reason in support.reasons:
        kind = reason.kind.value + ("" if reason.verdict is pjrt.Verdict.NO else "?")
        click.echo(f"  {kind:<10}  {' '.join(reason.message.split())}")
        if reason.locations:
            places = ", ".join(str(_in_file(place, program)) for place in reason.locations)
            more = reason.count - len(reason.locations)
            click.echo(f"              at {places}{f' and {more} more' if more > 0 else ''}")


def _as_dict(target: subprocess_support.Target, support: _Answer, program: str) -> dict[str, Any]:
    if isinstance(support, pjrt.PjrtError):
        told = {"code": support.code.name, "message": support.message}
        return {"device": str(target), "verdict": None, "error": told}
    plain = support.as_dict()
    for reason, told in zip(support.reasons, plain["reasons"], strict=True):
        told["locations"] = [_in_file(place, program)._asdict() for place in reason.locations]
    return {"device": str(target), **plain}


def _in_file(place: pjrt.SourceLocation, program: str) -> pjrt.SourceLocation:
    """A place in the program's own text as one in its file."""
    return place._replace(file=program) if place.file == "-" else place
