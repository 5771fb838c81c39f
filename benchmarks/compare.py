"""Compare the speed of two commits: build both, run the same calls in turns, and print what became slower.

    python -m benchmarks.compare BASE            # the working tree's last commit against BASE
    python -m benchmarks.compare BASE CHANGE --only 'execute on cpu*'

Each commit is checked out into a folder of its own and built there; one whose compiled sources are those of the working
tree gets the libraries of the working tree, which is built first. A launch is three processes: two of BASE and one of
CHANGE. In each round all three time the same call, in an order drawn by chance. The ratios of the two processes of BASE
are the noise: of the machine, and of where a process happens to have its memory, hence several launches. A case counts
as slower (or faster) if the middle half of CHANGE's ratios lies outside of the middle half of these, and its median is
away from 1 by more than `--least`. The exit status is 1 if a case became slower.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fnmatch
import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from benchmarks.side_by_side import Timing, calls_that_fill, duration, mean_seconds, table

ROOT = Path(__file__).parents[1]
BASE, AGAIN, CHANGE = "base", "base again", "change"
ROUND_SECONDS = 0.02
LEAST_LAUNCHES = 2


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The times of one case: of two processes of the base, and of one of the change."""

    base: Timing
    again: Timing
    change: Timing

    @property
    def ratio(self) -> float:
        """The change's time divided by the base's: the median over all rounds."""
        return statistics.median(self._ratios(self.change))

    @property
    def noise(self) -> tuple[float, float]:
        """The quartiles of the same ratio between the two processes of the base, which have the same code."""
        return _quartiles(self._ratios(self.again))

    def verdict(self, least: float) -> str:
        """Return "slower", "faster", or nothing for a difference within the noise or below `least`."""
        low, high = _quartiles(self._ratios(self.change))
        if low > self.noise[1] and self.ratio > 1 + least:
            return "slower"
        if high < self.noise[0] and self.ratio < 1 - least:
            return "faster"
        return ""

    def _ratios(self, timing: Timing) -> list[float]:
        return [mine / theirs for mine, theirs in zip(timing.rounds, self.base.rounds, strict=True)]


class Contestant:
    """A process that has one commit's package, and times a case when it is asked."""

    def __init__(self, tree: Path) -> None:
        # The cases come from this folder for both commits, the package from the commit's own tree.
        search_path = os.pathsep.join([str(tree / "src"), str(ROOT)])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.compare", "--contestant"],
            env={**os.environ, "PYTHONPATH": search_path},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        package = str(self._answer()["package"])
        if not Path(package).is_relative_to(tree):
            raise RuntimeError(f"expected the package of {tree}, found {package}")

    def prepare(self, case: str, round_seconds: float) -> str:
        """Make the case's call and choose how often a round calls it; return an error's text, or nothing."""
        return str(self._ask({"prepare": case, "round_seconds": round_seconds})["error"])

    def mean_seconds(self) -> float:
        """Return the mean time of a call in one round."""
        return float(self._ask({})["seconds"])

    def close(self) -> None:
        """End the process."""
        self._process.communicate()

    def _ask(self, request: dict[str, object]) -> dict[str, object]:
        requests = self._process.stdin
        assert requests is not None
        requests.write(json.dumps(request) + "\n")
        requests.flush()
        return self._answer()

    def _answer(self) -> dict[str, object]:
        answers = self._process.stdout
        assert answers is not None
        answer = answers.readline()
        if not answer:
            raise RuntimeError(f"the process of a contestant ended with status {self._process.wait()}")
        return json.loads(answer)  # type: ignore[no-any-return]


def serve_as_contestant() -> None:
    """Answer the requests of `Contestant`, one a line, until there are no more."""
    import pjrt
    from benchmarks.cases import CASES

    answers = _take_stdout()
    print(json.dumps({"package": pjrt.__file__}), file=answers, flush=True)
    call, count = None, 0
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            call = None
            gc.collect()
            try:
                call = CASES[request["prepare"]]()
                count = calls_that_fill(request["round_seconds"], call)
                answer: dict[str, object] = {"error": ""}
            except Exception as error:  # whatever an older commit lacks
                answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        else:
            assert call is not None
            answer = {"seconds": mean_seconds(call, count)}
        print(json.dumps(answer), file=answers, flush=True)


def _take_stdout() -> IO[str]:
    """Return a file for the answers, and send to stderr whatever a device prints."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


COMPILED = ("*.pyx", "*.pxd", "*.c", "*.h", "setup.py")
"""The files that the extension modules and libraries are made of."""


@contextlib.contextmanager
def built(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, build it there, and remove the folder in the end.

    The working tree is built, and a commit with the same compiled sources takes its libraries.
    """
    with tempfile.TemporaryDirectory(prefix="pjrt-compare-") as folder:
        tree = Path(folder) / "tree"
        _git("worktree", "add", "--quiet", "--detach", str(tree), commit)
        try:
            if subprocess.run(["git", "diff", "--quiet", commit, "--", *COMPILED], cwd=ROOT, check=False).returncode:
                _build(tree, commit)
            else:
                for library in (ROOT / "src").rglob("*.so"):
                    shutil.copy2(library, tree / library.relative_to(ROOT))
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _build(tree: Path, name: str) -> None:
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", "--parallel", str(os.cpu_count() or 1)]
    done = subprocess.run(build, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} could not be built:\n{done.stderr[-2000:]}")


def compare(base: Path, change: Path, cases: list[str], *, minutes: float, rounds: int) -> dict[str, Comparison | str]:
    """Return each case's comparison, or the reason why it could not be made.

    Launches follow one another while the next one fits into the minutes, if it takes as long as those before. There are
    at least two.
    """
    begin = time.monotonic()
    chance = random.Random(0)
    seconds: dict[str, dict[str, list[float]]] = {case: {BASE: [], AGAIN: [], CHANGE: []} for case in cases}
    failed: dict[str, str] = {}
    launches = 0
    while launches < LEAST_LAUNCHES or (time.monotonic() - begin) * (launches + 1) / launches < minutes * 60:
        launches += 1
        contestants = {BASE: Contestant(base), AGAIN: Contestant(base), CHANGE: Contestant(change)}
        try:
            for case in cases:
                print(f"launch {launches}: {case}", file=sys.stderr)
                for name, contestant in contestants.items():
                    error = contestant.prepare(case, ROUND_SECONDS)
                    if error:
                        failed[case] = f"{name}: {error}"
                if case in failed:
                    continue
                for _ in range(rounds):
                    for name in chance.sample(list(contestants), len(contestants)):
                        seconds[case][name].append(contestants[name].mean_seconds())
        finally:
            for contestant in contestants.values():
                contestant.close()
    return {
        case: failed.get(case) or Comparison(*(Timing(tuple(seconds[case][name])) for name in (BASE, AGAIN, CHANGE)))
        for case in cases
    }


def _quartiles(ratios: list[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, high


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    """Compare two commits, and exit with status 1 if a case became slower."""
    from benchmarks.cases import CASES

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", metavar="BASE", help="the commit to compare with")
    parser.add_argument("change", metavar="CHANGE", nargs="?", default="HEAD", help="the commit in question: HEAD")
    parser.add_argument("--only", metavar="PATTERN", default="*", help="the cases whose names match, as 'execute*'")
    parser.add_argument("--minutes", type=float, default=4.5, help="the time for all launches together: 4.5")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each case and launch: 5")
    parser.add_argument("--least", type=float, default=0.02, help="the smallest difference that counts: 0.02 is 2%%")
    arguments = parser.parse_args()
    cases = [case for case in CASES if fnmatch.fnmatch(case, arguments.only)]
    if not cases:
        parser.error(f"no case matches {arguments.only!r}; there are: {', '.join(CASES)}")

    _build(ROOT, "the working tree")
    with built(arguments.base) as base, built(arguments.change) as change:
        results = compare(base, change, cases, minutes=arguments.minutes, rounds=arguments.rounds)
    rows, slower = [], 0
    for case, result in results.items():
        if isinstance(result, str):
            rows.append((case, "", "", "", "", result))
            continue
        verdict = result.verdict(arguments.least)
        slower += verdict == "slower"
        low, high = result.noise
        times = (duration(result.base.median), duration(result.change.median))
        rows.append((case, *times, f"{result.ratio:.3f}×", f"{low:.3f}–{high:.3f}", verdict))
    print(table(["case", arguments.base, arguments.change, "ratio", "noise", ""], rows))
    raise SystemExit(1 if slower else 0)


if __name__ == "__main__":
    if "--contestant" in sys.argv:
        serve_as_contestant()
    else:
        main()
