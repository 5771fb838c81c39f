"""``pjrt test-device``: whether a device is right, and the smallest program for everything that is wrong."""

from __future__ import annotations

import sys
from typing import Any

import click

from pjrt.cli._console import INTERRUPTED, echo, print_json, progress
from pjrt.cli._options import client_options, complete_device, json_option, time_limit_option

_EXAMPLES = """
\b
Examples:
  pjrt test-device my.py:make_client
  pjrt test-device my.py:make_client --filter 'stablehlo.add f32'
  pjrt test-device mychip --group operations --all --json
  pjrt test-device mysimulator --leave-out large
"""

WRONG = 1
"""The exit code where something is wrong."""


@click.command("test-device", epilog=_EXAMPLES)
@click.argument("device", shell_complete=complete_device)
@client_options
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="TEXT",
    help="Make only checks with this in their name, such as 'stablehlo.add f32'; * is any text. May be given several "
    "times.",
)
@click.option(
    "--leave-out",
    multiple=True,
    metavar="TEXT",
    help="Leave out checks with this in their name, such as 'large'; * is any text. May be given several times.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(["operations", "behaviour", "devices", "jax"]),
    help="Make only checks of this group. May be given several times.",
)
@click.option("--all", "everything", is_flag=True, help="Test operations that the device leaves to a fallback, too.")
@time_limit_option(60.0, "a check may")
@click.option(
    "--total",
    type=click.FloatRange(min=1),
    default=1800.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the whole test may take.",
)
@json_option
def test_device(
    device: str,
    options: dict[str, Any],
    filters: tuple[str, ...],
    leave_out: tuple[str, ...],
    groups: tuple[str, ...],
    everything: bool,
    time_limit: float,
    total: float,
    as_json: bool,
) -> None:
    """Test whether DEVICE is right: its operations, its behaviour, several of them, and JAX on it.

    DEVICE is as in 'pjrt run', such as FILE.py:FUNCTION. It runs in a subprocess: a crash or a hang is a finding. The
    exit code is 0 if nothing is wrong, 1 if something is, 2 if no client can be made. After Ctrl-C the report has the
    checks made so far, and the exit code is 130.
    """
    from pjrt.conformance import Choice, check_device
    from pjrt.conformance.device.plan import GROUPS

    with progress(f"testing {device}"):
        report = check_device(
            device,
            options,
            choice=Choice(groups or GROUPS, filters, everything, leave_out),
            check_seconds=time_limit,
            total_seconds=total,
        )
    if as_json:
        print_json(report.as_dict())
    else:
        echo(str(report))
    sys.exit(INTERRUPTED if report.interrupted else 0 if report.is_right else WRONG)
