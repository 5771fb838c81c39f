"""``pjrt conform``: whether a plugin does what the C API of PJRT requires."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from pjrt.cli._completion import complete_device
from pjrt.cli._console import print_json, progress
from pjrt.cli._options import client_options, json_option, time_limit_option

if TYPE_CHECKING:
    from pjrt.conformance.plugin.outcome import Outcome

_EXAMPLES = """
\b
Examples:
  pjrt conform build/libmine.so
  pjrt conform build/libmine.so --tier official --json
  pjrt conform build/libmine.so --filter lookup_device -O num_devices=2
  pjrt conform mychip --leave-out large --jobs 4
"""

FAILED = 1
"""The exit code where a check failed."""


@click.command(epilog=_EXAMPLES)
@click.argument("plugin", shell_complete=complete_device)
@client_options
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    type=click.Choice(["official", "contract", "framework"]),
    help="Make only checks of this tier: what XLA's C tests expect, what the header requires, or what JAX and "
    "PyTorch/XLA need. May be given several times.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEXT",
    help="Make only checks with this in their name, such as 'lookup_device'; * is any text. May be given several "
    "times.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="TEXT",
    help="Leave out checks with this in their name; * is any text. May be given several times.",
)
@click.option(
    "--programs",
    default="",
    metavar="FOLDER",
    help="Programs for a plugin that reads no StableHLO: a folder with a file for each, such as add.mlir.",
)
@click.option(
    "--jobs", "-j", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Checks at once."
)
@time_limit_option(30.0, "a check may")
@json_option
def conform(
    plugin: str,
    options: dict[str, Any],
    tiers: tuple[str, ...],
    filters: tuple[str, ...],
    leave_out: tuple[str, ...],
    programs: str,
    jobs: int,
    time_limit: float,
    as_json: bool,
) -> None:
    """Check whether PLUGIN does what the C API of PJRT requires.

    PLUGIN is the path of a plugin's library, a plugin's name, or FILE.py:FUNCTION for a function that makes clients.
    Each check runs in a process of its own: a crash and a hang of the plugin are findings. The exit code is 0 if no
    check failed, 1 if one did, 2 if the plugin cannot be loaded.
    """
    from pjrt.conformance.plugin.check import Tier
    from pjrt.conformance.plugin.plugin_test import check_plugin

    def report_outcome(outcome: Outcome) -> None:
        if outcome.verdict.is_failure and not as_json:
            click.echo(f"{outcome.verdict}: {outcome.check}", err=True)

    with progress(f"checking {plugin}"):
        report = check_plugin(
            plugin,
            options,
            tiers=tiers or tuple(Tier),
            filters=filters,
            leave_out=leave_out,
            programs=programs,
            jobs=jobs,
            time_limit=time_limit,
            progress=report_outcome,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        click.echo(str(report))
    sys.exit(0 if report.passes else FAILED)
