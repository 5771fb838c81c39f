"""Run the conformance suite on mutants, and report which are caught.

    python tests/conformance/mutants/run.py                      # the whole suite on each mutant
    python tests/conformance/mutants/run.py --filter buffer.     # on some
    python tests/conformance/mutants/run.py --record             # and keep what caught each, for --known
    python tests/conformance/mutants/run.py --known              # on each only the checks that are known to catch it

A mutant is caught if a check fails on it that the right plugin passes. The script is a zygote itself: it forks a
process for each check, as ``pjrt conform`` does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "plugins")]

from mutants.catalog import MUTANTS  # noqa: E402
from mutants.library import MutantLibraries  # noqa: E402
from mutants.mutant import Mutant  # noqa: E402
from pjrt.conformance.plugin.check import all_checks  # noqa: E402
from pjrt.conformance.plugin.child import ForkedChild, wait_for_any  # noqa: E402
from pjrt.conformance.plugin.outcome import Outcome  # noqa: E402
from pjrt.conformance.plugin.process import Task  # noqa: E402

PROGRAMS = HERE.parent / "plugin" / "programs"
OPTIONS = {"num_devices": 2}
CAUGHT_BY = HERE / "caught_by.json"
_KEPT = 3
"""The checks that are kept for each mutant, the quickest ones."""

Catch = tuple[str, Mapping[str, Outcome]]
"""The name of a mutant, and the checks that caught it with their outcomes."""


def run_checks(jobs: int, limit: float, library: Path, names: Iterable[str]) -> Iterator[Outcome]:
    """Run checks on a library, each in a forked process, and give the outcomes as they come."""
    task = Task(str(library), OPTIONS, str(PROGRAMS), time_limit=limit)
    with tempfile.TemporaryDirectory(prefix="pjrt-mutants-") as folder:
        waiting, busy = deque(names), []
        free = [ForkedChild(folder, number) for number in range(jobs)]
        while waiting or busy:
            while waiting and free:
                busy.append(free.pop())
                busy[-1].start(task, waiting.popleft(), limit)
            wait_for_any(busy)
            for child in [each for each in busy if each.ended()]:
                yield child.outcome()
                busy.remove(child)
                free.append(child)


def catches(mutants: Sequence[Mutant], names: Mapping[str, Sequence[str]], jobs: int, limit: float) -> Iterator[Catch]:
    """Run the named checks on each mutant; give the checks that fail on it and pass on the right plugin.

    A check that fails on the mutant is run on the right plugin, too, if it was not yet.
    """
    libraries = MutantLibraries(Path(tempfile.gettempdir()) / "pjrt-tiny-plugins")
    right: dict[str, Outcome] = {}
    for mutant in mutants:
        library = libraries.mutant(mutant)
        failures = {
            each.check: each for each in run_checks(jobs, limit, library, names[mutant.name]) if each.verdict.is_failure
        }
        new = [name for name in failures if name not in right]
        right |= {each.check: each for each in run_checks(jobs, limit, libraries.right(), new)}
        yield mutant.name, {name: each for name, each in failures.items() if not right[name].verdict.is_failure}


def main() -> None:
    """Run the checks and print the result for each mutant; the exit code is 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", action="store_true", help="only the checks that are known to catch each mutant")
    parser.add_argument("--record", action="store_true", help="keep the checks that caught each mutant")
    parser.add_argument("--filter", default="", help="only mutants with this in their name")
    parser.add_argument("--json", action="store_true", help="print the checks that caught each mutant as JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=float, default=20.0)
    options = parser.parse_args()
    mutants = [each for each in MUTANTS if options.filter in each.name]
    known: dict[str, list[str]] = json.loads(CAUGHT_BY.read_text()) if CAUGHT_BY.exists() else {}
    names = {each.name: known.get(each.name, []) if options.known else list(all_checks()) for each in mutants}
    results: dict[str, list[str]] = {}
    begin = time.monotonic()
    for name, caught in catches(mutants, names, options.jobs, options.time_limit):
        quickest = sorted(caught, key=lambda each: (caught[each].verdict != "failed", caught[each].seconds, each))
        results[name] = quickest
        if not options.json:
            print(
                f"{name}: {'caught by ' + str(len(quickest)) if quickest else 'MISSED'}", *quickest[:_KEPT], flush=True
            )
    if options.record:
        known |= {name: quickest[:_KEPT] for name, quickest in results.items()}
        order = [each.name for each in MUTANTS]
        kept = {name: known[name] for name in order if name in known}
        CAUGHT_BY.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [name for name, quickest in results.items() if not quickest]
    if options.json:
        print(json.dumps(results))
    else:
        print(f"{len(results) - len(missed)} of {len(results)} caught, in {time.monotonic() - begin:.0f} s")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
