"""Run the jobs of frameworks, print a table of the results, and record it on the page ``docs/frameworks/index.md``.

    python tests/frameworks/run_jobs.py                        # all frameworks that are installed, on all devices
    python tests/frameworks/run_jobs.py flax keras -d iree     # some of them
    python tests/frameworks/run_jobs.py --record               # and write the results to the page

The packages are listed on the page. A difference beyond a part's tolerance is a failure.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import platform
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from framework_jobs import CLUSTER, DEVICES, FRAMEWORKS, JAX_CPU, PAGE, Outcome, largest_difference, run_on

MARKERS = "<!-- results: python tests/frameworks/run_jobs.py --record -->", "<!-- end of results -->"
NOT_RUN = "not run"

Row = tuple[str, ...]


def run(name: str, devices: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Run a job.

    Returns:
        A row for each part: its name, the tolerance, and for each device the difference and the time. And the failures.
    """
    failures = []
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for device in (JAX_CPU, *devices):
            outcomes[device] = outcome = run_on(device, name, Path(folder))
            seconds = f"{sum(outcome.seconds.values()):.1f} s"
            print(f"{name} on {device}: {outcome.error or seconds}", flush=True)
            if outcome.error:
                failures.append(f"{name} on {device}: {outcome.error}")
    rows = []
    for part, tolerance in outcomes[JAX_CPU].tolerances.items():
        cells = []
        for device in devices:
            cell, failed = compared(outcomes[device], outcomes[JAX_CPU], part)
            cells.append(cell)
            if failed:
                failures.append(f"{name} on {device}: {part}: {cell}, the tolerance is {tolerance:.0e}")
        rows.append((part.replace("_", " "), f"{tolerance:.0e}", *cells))
    return rows, failures


def compared(outcome: Outcome, expected: Outcome, part: str) -> tuple[str, bool]:
    """Return the cell of a part on a device, and whether the part failed."""
    if outcome.error:
        return "failed", True
    largest = largest_difference(outcome, expected, part)
    cell = f"{largest:.0e}, {outcome.seconds[part]:.1f} s" if largest else f"equal, {outcome.seconds[part]:.1f} s"
    return cell, largest > expected.tolerances[part]


def table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def record(results: Mapping[str, Sequence[Row]], devices: Sequence[str]) -> None:
    """Write results to the page; those of other frameworks and devices on it stay."""
    text = PAGE.read_text()
    begin, end = MARKERS
    before, rest = text.split(begin)
    old, after = rest.split(end)
    headings = [each.heading for each in FRAMEWORKS.values()]
    versions = {row[0]: row for row in rows_of(old, 4)}
    cells = {row[:2]: dict(zip(DEVICES, row[3:], strict=True)) for row in rows_of(old, 3 + len(DEVICES))}
    tolerances = {row[:2]: row[2] for row in rows_of(old, 3 + len(DEVICES))}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for name, rows in results.items():
        heading = FRAMEWORKS[name].heading
        versions[heading] = (heading, ", ".join(map(version, FRAMEWORKS[name].packages)), jax_version(), today)
        for part, tolerance, *new in rows:
            tolerances[heading, part] = tolerance
            cells[heading, part] = cells.get((heading, part), {}) | dict(zip(devices, new, strict=True))
        parts = {part for part, *_ in rows}
        cells = {key: row for key, row in cells.items() if key[0] != heading or key[1] in parts}
    keys = sorted(cells, key=lambda key: headings.index(key[0]))
    first = table(("framework", "version", "with", "date"), [versions[each] for each in headings if each in versions])
    second = table(
        ("framework", "part", "tolerance", *(f"`{device}`" for device in DEVICES)),
        [(*key, tolerances[key], *(cells[key].get(device, NOT_RUN) for device in DEVICES)) for key in keys],
    )
    PAGE.write_text(f"{before}{begin}\n\n{first}\n\n{second}\n\n{end}{after}")


def rows_of(text: str, columns: int) -> list[Row]:
    """Return the rows of the table that has so many columns."""
    rows = [tuple(line.strip("| ").split(" | ")) for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if len(row) == columns and row[0] not in ("framework", "---")]


def job_of(heading: str) -> str:
    return next((name for name, each in FRAMEWORKS.items() if each.heading == heading), "")


def version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def jax_version() -> str:
    return f"{version('jax')}, Python {re.match(r'3[.][0-9]+', platform.python_version())[0]}"


def is_installed(name: str) -> bool:
    """Whether the packages of a job are installed."""
    try:
        return bool([version(package) for package in FRAMEWORKS[name].packages])
    except importlib.metadata.PackageNotFoundError:
        return False


def main() -> int:
    """Run the jobs; return 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="*", choices=[*FRAMEWORKS, []], help="the frameworks; all that are installed")
    parser.add_argument(
        "-d", "--device", action="append", choices=[*DEVICES, CLUSTER], help="a device; all of the page by default"
    )
    parser.add_argument("--record", action="store_true", help="write the results to the page")
    options = parser.parse_args()
    devices = options.device or DEVICES
    results: dict[str, list[Row]] = {}
    failures = []
    for name in options.jobs or [name for name in FRAMEWORKS if is_installed(name)]:
        results[name], failed = run(name, devices)
        failures += failed
    rows = [(FRAMEWORKS[name].heading, *row) for name in results for row in results[name]]
    print(table(("framework", "part", "tolerance", *devices), rows))
    if options.record:
        record(results, devices)
    print("\n".join(["", *failures]) if failures else f"{len(results)} jobs, nothing failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
