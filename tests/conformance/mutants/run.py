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
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "plugins")]

from mutants.catalog import MUTANTS  # noqa: E402
from mutants.library import MutantLibraries  # noqa: E402
from mutants.mutant import Mutant  # noqa: E402
from pjrt.conformance.plugin.check import Outcome, Tier, Verdict, all_checks  # noqa: E402
from pjrt.conformance.plugin.process import ForkedChild, Task, wait_for_any  # noqa: E402

PROGRAMS = HERE.parent / "plugin" / "programs"
OPTIONS = {"num_devices": 4}
CAUGHT_BY = HERE / "caught_by.json"
_KEPT = 3
"""The checks that are kept for each mutant, the quickest ones."""

_TRIES = 8
"""The number of times that a check may miss a mutant that it is known to catch: some faults depend on chance."""

_SLOW = ("key_value_store.two_processes", "serialization.another_process")
_FUNCTIONS = {
    "api.c": "Error", "buffer.c": "Buffer_|Client_Create|View", "client.c": "Client_|Memory_",
    "device.c": "_Device_|Memory_|HostBuffer", "event.c": "Event_", "executable.c": "Executable_|Compile",
    "execute.c": "Execute", "execute_options.c": "Stream", "extensions.c": "Layouts|RawBuffer", "faults.c": "Plugin_",
    "program.c": "Compile", "run.c": "Execute", "shape.c": "HostBuffer|Layout", "table.c": "Plugin_|Event_",
    "topology.c": "Topology|DeviceDescription|MemoryDescription", "transfer.c": "HostBuffer|Copy|AsyncHostToDevice",
    "values.c": "Error",
}  # fmt: skip
"""Parts of the names of each C file's functions. The checks of these functions catch the most, so they come first."""

_TIERS = (Tier.OFFICIAL, Tier.CONTRACT)
"""Frameworks need StableHLO, which the tiny plugin does not read."""

Catch = tuple[str, Mapping[str, Outcome]]
"""The name of a mutant, and the checks that caught it with their outcomes."""

Run = tuple[Path, str]
"""A library, and the name of a check to run on it."""


def run_checks(jobs: int, limit: float, checks: Iterable[Run]) -> Iterator[tuple[Path, Outcome]]:
    """Run checks on libraries, each in a forked process, and give the outcomes as they come."""
    with tempfile.TemporaryDirectory(prefix="pjrt-mutants-") as name:
        waiting, busy = deque(checks), []
        free = [ForkedChild(Path(name), number) for number in range(jobs)]
        libraries: dict[ForkedChild, Path] = {}
        try:
            while waiting or busy:
                while waiting and free:
                    child = free.pop()
                    busy.append(child)
                    libraries[child], name = waiting.popleft()
                    child.start(Task(str(libraries[child]), OPTIONS, str(PROGRAMS), time_limit=limit), name, limit)
                wait_for_any(busy)
                ended = [each for each in busy if each.ended()]
                busy = [each for each in busy if each not in ended]
                outcomes = [(libraries[each], each.outcome()) for each in ended]
                free += ended
                yield from outcomes
        finally:  # the caller may have enough outcomes before the last one
            for each in busy:
                each.close()


def compiled(mutants: Sequence[Mutant]) -> tuple[Path, dict[str, Path]]:
    """Return the library of the right plugin, and those of the mutants by their names."""
    libraries = MutantLibraries(Path(tempfile.gettempdir()) / "pjrt-tiny-plugins")
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # its threads end before the first fork
        paths = pool.map(libraries.mutant, mutants)
        return libraries.right(), {mutant.name: path for mutant, path in zip(mutants, paths, strict=True)}


def catches(
    mutants: Sequence[Mutant], names: Mapping[str, Sequence[str]], jobs: int, limit: float, enough: int
) -> Iterator[Catch]:
    """Run the named checks on one mutant after the other; give the checks that fail on it and pass on the right plugin.

    Args:
        mutants: the mutants.
        names: the names of the checks to run on each, in their order.
        jobs: how many processes may run at once.
        limit: the seconds that a check may take.
        enough: the number of checks that catch a mutant after which no further ones are run.
    """
    right, libraries = compiled(mutants)
    right_passes: dict[str, bool] = {}

    def passes(name: str) -> bool:
        """Return whether the right plugin passes a check."""
        if name not in right_passes:
            ((_, outcome),) = run_checks(1, limit, [(right, name)])
            right_passes[name] = outcome.verdict is Verdict.PASSED
        return right_passes[name]

    for mutant in mutants:
        failures: dict[str, Outcome] = {}
        runs = [(libraries[mutant.name], name) for name in names[mutant.name]]
        for _, outcome in run_checks(jobs, limit, runs):
            if outcome.verdict.is_failure and passes(outcome.check):
                failures[outcome.check] = outcome
            if len(failures) >= enough:
                break
        yield mutant.name, failures


def known_catches(
    mutants: Sequence[Mutant], names: Mapping[str, Sequence[str]], jobs: int, limit: float
) -> Iterator[Catch]:
    """Run the first named check of all mutants at once, then the second one of those that it missed, and so on.

    The names are gone through several times: a race, and the use of freed memory, do not show in each run.
    Most mutants need no second check, and a check that hangs waits while others work.

    Args:
        mutants: the mutants.
        names: the names of the checks that are known to catch each.
        jobs: how many processes may run at once.
        limit: the seconds that a check may take.
    """
    right, libraries = compiled(mutants)
    left = {each.name: _TRIES * list(names[each.name]) for each in mutants}
    while left:
        runs = {(libraries[name], checks[0]) for name, checks in left.items() if checks}
        outcomes: dict[Run, Outcome] = {}
        for library, outcome in run_checks(jobs, limit, runs | {(right, check) for _, check in runs}):
            outcomes[library, outcome.check] = outcome
        for name, checks in list(left.items()):
            failures: dict[str, Outcome] = {}
            if checks:
                check = checks.pop(0)
                outcome = outcomes[libraries[name], check]
                if outcome.verdict.is_failure and outcomes[right, check].verdict is Verdict.PASSED:
                    failures[check] = outcome
            if failures or not checks:
                del left[name]
                yield name, failures


def nearest_first(mutant: Mutant) -> list[str]:
    """Return the names of all checks of the tiers: those of the functions of the changed file first."""
    near = re.compile(_FUNCTIONS[mutant.file])
    checks = [each for each in all_checks().values() if each.tier in _TIERS and each.name not in _SLOW]
    checks.sort(key=lambda each: not any(near.search(function) for function in each.calls))
    return [each.name for each in checks]


def main() -> None:
    """Run the checks and print the result for each mutant; the exit code is 1 if one was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", action="store_true", help="only the checks that are known to catch each mutant")
    parser.add_argument("--record", action="store_true", help="keep the checks that caught each mutant")
    parser.add_argument("--filter", default="", help="only mutants with this in their name")
    parser.add_argument("--enough", type=int, default=10**6, help="stop after so many checks that catch a mutant")
    parser.add_argument("--new", action="store_true", help="only mutants of which no check is known that catches them")
    parser.add_argument("--nearest", type=int, help="only so many checks of each, those nearest to its function")
    parser.add_argument("--json", action="store_true", help="print the checks that caught each mutant as JSON")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--time-limit", type=float, default=20.0)
    options = parser.parse_args()
    mutants = [each for each in MUTANTS if options.filter in each.name]
    known: dict[str, list[str]] = json.loads(CAUGHT_BY.read_text()) if CAUGHT_BY.exists() else {}
    if options.new:
        mutants = [each for each in mutants if not known.get(each.name)]
    names = {
        each.name: known.get(each.name, []) if options.known else nearest_first(each)[: options.nearest]
        for each in mutants
    }
    results: dict[str, list[str]] = {}
    begin = time.monotonic()
    if options.known:
        catching = known_catches(mutants, names, options.jobs, options.time_limit)
    else:
        catching = catches(mutants, names, options.jobs, options.time_limit, options.enough)
    for name, caught in catching:
        quickest = sorted(caught, key=lambda each: (caught[each].verdict != "failed", caught[each].seconds, each))
        results[name] = quickest
        if options.record:
            known[name] = quickest[:_KEPT]
            _store(known)
        if not options.json:
            print(
                f"{name}: {'caught by ' + str(len(quickest)) if quickest else 'MISSED'}", *quickest[:_KEPT], flush=True
            )
    missed = [name for name, quickest in results.items() if not quickest]
    if options.json:
        print(json.dumps(results))
    else:
        print(f"{len(results) - len(missed)} of {len(results)} caught, in {time.monotonic() - begin:.0f} s")
    sys.exit(1 if missed else 0)


def _store(known: Mapping[str, Sequence[str]]) -> None:
    kept = {each.name: known[each.name] for each in MUTANTS if known.get(each.name)}
    CAUGHT_BY.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
