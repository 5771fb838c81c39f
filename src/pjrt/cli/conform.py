"""``pjrt conform``: whether a plugin does what the C API of PJRT requires."""

from __future__ import annotations

import sys
from typing import Any

import click

from pjrt.cli._console import INTERRUPTED, echo, print_json, progress
from pjrt.cli._options import client_options, complete_device, complete_file, json_option, time_limit_option
from pjrt.models.output_path import check_output_path

_EXAMPLES = """
\b
Examples:
  pjrt conform build/libmine.so
  pjrt conform build/libmine.so --tier official --json
  pjrt conform build/libmine.so --filter lookup_device -O num_devices=2
  pjrt conform build/libmine.so --report report.json --html report.html
  pjrt conform build/libmine.so --baseline report.json
  pjrt conform build/libmine.so --strict
"""

FAILED = 1
"""The exit code where a check failed, or is worse than in the baseline."""

NO_CLIENT = 2
"""The exit code where the plugin makes no client, as where it cannot be loaded."""


@click.command(epilog=_EXAMPLES)
@click.argument("plugin", shell_complete=complete_device)
@client_options
@click.option(
    "--tier",
    "tiers",
    multiple=True,
    type=click.Choice(["official", "contract", "framework"]),
    help="Make only checks of this tier: what XLA's C tests expect, what the header requires, or what JAX, "
    "PyTorch and TensorFlow need. May be given several times.",
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
@click.option(
    "--report",
    "--output",
    "-o",
    "output",
    metavar="PATH",
    shell_complete=complete_file,
    help="Write the report to a JSON file, too, with the versions of all that took part and a hash of itself.",
)
@click.option("--html", metavar="PATH", shell_complete=complete_file, help="Write the report to an HTML page, too.")
@click.option(
    "--baseline",
    metavar="PATH",
    shell_complete=complete_file,
    help="Compare with an earlier report: the exit code is 1 only if a check is worse than in that one.",
)
@click.option(
    "--without-client",
    is_flag=True,
    help="Accept that no client can be made, as where the plugin's hardware is missing: check what needs none.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Require all checks: also what most plugins do though the header does not ask for it (expected), and that "
    "wrong input does not end the process (hardening).",
)
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
    output: str | None,
    html: str | None,
    baseline: str | None,
    without_client: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Check whether PLUGIN does what the C API of PJRT requires.

    PLUGIN is the path of a plugin's library, a plugin's name, or FILE.py:FUNCTION for a function that makes clients.
    Each check runs in a process of its own: a crash and a hang of the plugin are findings. The exit code is 0 if no
    check failed that is required, 1 if one did, 2 if the plugin cannot be loaded or makes no client. With --strict
    each check counts. With --baseline it is 1 only if a check fails that did not fail before, or is unsupported
    though it passed. After Ctrl-C the report has the checks made so far, and the exit code is 130.
    """
    from pjrt.conformance.plugin.check import Tier
    from pjrt.conformance.plugin.report import PluginReport, ReportComparison, report_page
    from pjrt.conformance.plugin.run import check_plugin
    from pjrt.models.report.page import write_page

    earlier = PluginReport.read(baseline) if baseline is not None else None
    for path, suffix, option in ((output, ".json", "--output"), (html, ".html", "--html")):
        if path is not None:
            check_output_path(path, (suffix,), option=option)
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
        )
    comparison = ReportComparison.of(report, earlier) if earlier is not None and report.facts else None
    if output is not None:
        report.write(output)
    if html is not None:
        write_page(html, report_page(report, earlier))
    if as_json:
        print_json(report.as_dict() | ({"baseline": comparison.as_dict()} if comparison is not None else {}))
    else:
        echo(str(report))
        if comparison is not None:
            echo(str(comparison))
        if output is not None:
            echo(f"wrote {output}, sha256 {report.as_dict()['sha256']}")
    if report.left:
        sys.exit(INTERRUPTED)
    if report.facts["problem"] and not without_client:
        echo(
            f"pjrt: error: {plugin} makes no client, so that only a part was checked: {report.facts['problem']}; give "
            "its options with --option, or accept it with --without-client",
            err=True,
        )
        sys.exit(NO_CLIENT)
    if comparison is None:
        is_worse = not (report.passes_strictly if strict else report.passes)
    else:
        is_worse = comparison.is_strictly_worse if strict else comparison.is_worse
    sys.exit(FAILED if is_worse else 0)
