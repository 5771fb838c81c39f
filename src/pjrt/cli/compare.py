"""``pjrt compare``: whether devices agree about a program, and the first operation about which they do not."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

import pjrt
from pjrt.cli._console import echo, print_facts, print_json, progress
from pjrt.cli._differences import DIFFER, expect_option, print_differences, tolerance_options
from pjrt.cli._options import call_options, complete_file, devices_option, json_option, time_limit_option
from pjrt.cli._program import check_first, check_needs_no_infeed, printing_warnings, program_argument, read_model_file
from pjrt.host_memory.tolerance import Tolerance
from pjrt.models.comparison.comparison import Comparison, read_expected
from pjrt.models.comparison.comparison import compare as compare_devices
from pjrt.models.comparison.difference_search import SearchLimits

_EXAMPLES = """
\b
Examples:
  pjrt compare model.stablehlo -d cpu -d reference --input random:0
  pjrt compare model.mlir -d cpu -d reference -d ./plugin.so -i x=image.npy
  pjrt compare model.mlir -d plugin.so -d reference -i zeros --save-case bug
  pjrt compare model.mlir -d cpu -i image.npy --expect scores.npz --rtol 1e-3
"""


@click.command(epilog=_EXAMPLES)
@program_argument
@devices_option
@call_options
@expect_option
@tolerance_options
@click.option("--no-first", is_flag=True, help="Do not search for the first operation that differs.")
@click.option(
    "--save-case",
    metavar="DIR",
    shell_complete=complete_file,
    help="Write that operation as a program, with its inputs, to a folder.",
)
@click.option(
    "--max-compilations",
    type=click.IntRange(min=1),
    default=SearchLimits().compilations,
    show_default=True,
    metavar="N",
    help="How many programs the search may compile.",
)
@time_limit_option(SearchLimits().seconds, "a run of a device, and the search, may")
@click.option("--in-process", is_flag=True, help="Run the devices in this process, which they can crash.")
@json_option
def compare(
    program: str,
    devices: tuple[str, ...],
    options: dict[str, Any],
    shapes: dict[str, tuple[int, ...]] | None,
    partitioning: pjrt.CompileOptions,
    inputs: tuple[str, ...],
    expect: str | None,
    tolerance: Tolerance,
    no_first: bool,
    save_case: str | None,
    max_compilations: int,
    time_limit: float,
    in_process: bool,
    as_json: bool,
) -> None:
    """Run PROGRAM on all devices with the same inputs, and compare the results.

    The exit code is 0 if they agree, 1 if they differ. The device reference is the judge where it takes part. Each
    device runs in a worker, a process of its own, so that a crash is a finding, too.
    """
    check_first(devices, inputs)
    with printing_warnings(), progress("comparing"):
        comparison = compare_devices(
            check_needs_no_infeed(read_model_file(program, devices[0] if devices else None, options)),
            devices or (() if expect is None else (None,)),
            inputs,
            shapes=shapes,
            expected=None if expect is None else read_expected(expect),
            rtol=tolerance.rtol,
            atol=tolerance.atol,
            find_first=not no_first,
            limits=SearchLimits(max_compilations, time_limit),
            isolated=not in_process,
            time_limit=time_limit,
            compile_options=partitioning,
            client_options=options,
        )
    case_folder = _save(comparison, save_case)
    if as_json:
        print_json({**comparison.as_dict(), "case": case_folder})
    else:
        _print(comparison, case_folder)
    sys.exit(0 if comparison.agrees else DIFFER)


def _save(comparison: Comparison, folder: str | None) -> str | None:
    """Write the case of the first difference to a folder, and return the folder; None if there is no case."""
    difference = comparison.first_difference
    if folder is None or difference is None or difference.case is None:
        return None
    difference.save_case(Path(folder))
    return folder


def _print(comparison: Comparison, case_folder: str | None) -> None:
    print_differences(comparison.differences)
    for name, error in comparison.errors.items():
        echo(f"{name} failed: {error.message}")
    names = ", ".join(comparison.devices)
    verdict = "agrees" if len(comparison.devices) == 1 else "agree"
    if not comparison.agrees:
        verdict = "differs" if len(comparison.devices) == 1 else "do not all agree"
    echo(f"{names} {verdict}, compared with {comparison.judge}")
    for name in comparison.odd_ones:
        echo(f"the odd one out: {name}")
    for difference in comparison.first_differences.values():
        echo(f"\n{difference}")
    if case_folder is not None:
        print_facts([("case", case_folder)])
