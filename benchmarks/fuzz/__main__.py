"""Fuzz: mutated programs through `inspect` or a compiler, or mutated requests to a server, in processes that may die.

A finding is a program that ends its process, that takes longer than the limit, or that raises anything but an error
of this package. The target ``compare`` makes random programs that are valid, and runs them on `reference` and on `cpu`:
there a finding is also a result that differs by more than rounding. A seed and a number determine each program, so a
run can be continued, and `--show` makes a finding again. Of the target ``remote`` a number is a round of a hundred
mutated requests, and of ``files`` a mutated file, of the one format after the other, for a command that reads it.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.fuzz.mutations import Mutator
from benchmarks.fuzz.worker import BARE, COMPARE, DIFFERENT, FILES, REFUSED, REMOTE, TAKEN, TARGETS

BATCH = 2000
ROUNDS = 500  # of the target remote
_KEY = ("seed", "target", "binary")
_NAMES = {TAKEN: "taken", REFUSED: "refused", BARE: "bare", DIFFERENT: "different"}
_FOUND = {BARE: "bare exception", DIFFERENT: "different results"}


def main() -> int:
    """Run, or show one program."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--programs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=[*TARGETS, REMOTE, COMPARE, FILES], default="parse")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--limit", type=float, default=60.0, help="seconds that one program may take")
    parser.add_argument("--binary", type=float, default=0.1, help="the share of programs that are not text")
    parser.add_argument("--seconds", type=float, help="stop after so many; the next run with --state goes on")
    parser.add_argument("--state", type=Path, help="where to keep how far it is, and what was found")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="write one program to the standard output")
    arguments = parser.parse_args()
    if arguments.show is not None and arguments.target == REMOTE:
        raise SystemExit("the requests of a round are printed by: python -m benchmarks.fuzz.worker --target remote ...")
    if arguments.show is not None and arguments.target == COMPARE:
        from benchmarks.fuzz.random_programs import RandomProgram  # here: the job itself needs none

        print(RandomProgram(arguments.seed, arguments.show).text)
        return 0
    if arguments.show is not None and arguments.target == FILES:
        from benchmarks.fuzz.files import FilesTarget

        sys.stdout.buffer.write(FilesTarget(arguments.seed).file(arguments.show)[1])
        return 0
    if arguments.show is not None:
        sys.stdout.buffer.write(Mutator(arguments.seed, arguments.binary).program(arguments.show))
        return 0
    state = Job(arguments).run()
    print(json.dumps(state, indent=1))
    return 1 if state["findings"] else 0


class Job:
    """One run over a range of numbers, by several workers."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._counts: Counter[str] = Counter()
        self._findings: list[dict[str, Any]] = []
        self._next = 0
        self._seconds = 0.0
        if arguments.state is not None and arguments.state.exists():
            saved = json.loads(arguments.state.read_text())
            key = {name: getattr(arguments, name) for name in _KEY}
            if key != {name: saved[name] for name in key}:
                raise SystemExit(f"{arguments.state} is of a run with other arguments: {saved}")
            self._next, self._seconds, self._findings = saved["done"], saved["seconds"], saved["findings"]
            self._counts.update(saved["counts"])

    def run(self) -> dict[str, Any]:
        """Work until all programs are done or the time is over; returns counts and findings."""
        begin, already = time.monotonic(), self._seconds
        stop = begin + self._arguments.seconds if self._arguments.seconds else float("inf")
        workers: list[Worker] = []
        while True:
            while (
                len(workers) < self._arguments.workers
                and self._next < self._arguments.programs
                and time.monotonic() < stop
            ):
                end = min(
                    self._next + (ROUNDS if self._arguments.target == REMOTE else BATCH), self._arguments.programs
                )
                workers.append(Worker(self._arguments, self._next, end))
                self._next = end
            if not workers:
                break
            ready, _, _ = select.select([worker.pipe for worker in workers], [], [], 1.0)
            for worker in list(workers):
                self._look_at(worker, worker.pipe in ready)
                if worker.is_done:
                    workers.remove(worker)
                    self._seconds = already + time.monotonic() - begin
                    self._save(workers)
        self._seconds = already + time.monotonic() - begin
        self._save(workers)
        return self._state(self._next)

    def _look_at(self, worker: Worker, is_ready: bool) -> None:
        if is_ready:
            letters = os.read(worker.pipe, 1 << 16)
            for letter in letters:
                self._counts[_NAMES[bytes([letter])]] += 1
                if what := _FOUND.get(bytes([letter])):
                    self._found(worker.position, what)
                worker.advance()
            if letters:
                return
            worker.process.wait()
            if worker.position < worker.end:
                self._again(worker, f"exit status {worker.process.returncode}")
                worker.restart()
            else:
                worker.is_done = True
        elif time.monotonic() - worker.since > self._arguments.limit:
            worker.process.kill()
            worker.process.wait()
            self._again(worker, f"not done after {self._arguments.limit:.0f} s")
            worker.restart()

    def _again(self, worker: Worker, what: str) -> None:
        """Try a program that ended its process again, with vetting: it is a finding if it still does harm."""
        command = worker.command(worker.position, worker.position + 1, "--untrusted")
        try:
            done = subprocess.run(command, capture_output=True, timeout=max(120.0, self._arguments.limit), check=False)
            letter, errors = done.stdout[:1], done.stderr.decode(errors="replace")
        except subprocess.TimeoutExpired:
            letter, errors = b"", "it was not done again"
        if letter in (TAKEN, REFUSED):
            self._counts["ended a process where vetting runs it" if letter == REFUSED else "ended a process once"] += 1
        elif letter in _FOUND:
            self._counts[_NAMES[letter]] += 1
            self._found(worker.position, _FOUND[letter], errors)
        else:
            self._counts["crashed" if what.startswith("exit") else "hung"] += 1
            self._found(worker.position, what, errors)
        worker.advance()

    def _found(self, number: int, what: str, errors: str = "") -> None:
        if len(self._findings) < 1000:
            lines = [line for line in errors.splitlines() if line.strip()]
            fatal = [line for line in lines if line.startswith(("F0", "F1")) or "Check fail" in line or "Error" in line]
            self._findings.append({"number": number, "what": what, "message": (fatal or lines or [""])[0][:400]})
            print(self._findings[-1], file=sys.stderr, flush=True)

    def _save(self, workers: list[Worker]) -> None:
        if self._arguments.state is not None and not workers:
            self._arguments.state.write_text(json.dumps(self._state(self._next), indent=1))

    def _state(self, done: int) -> dict[str, Any]:
        return {
            **{name: getattr(self._arguments, name) for name in _KEY},
            "done": done,
            "seconds": self._seconds,
            "counts": dict(self._counts),
            "findings": self._findings,
        }


class Worker:
    """One process, and how far it is."""

    def __init__(self, arguments: argparse.Namespace, begin: int, end: int) -> None:
        self._arguments = arguments
        self.position = begin
        self.end = end
        self.is_done = False
        self._start()

    def command(self, begin: int, end: int, *more: str) -> list[str]:
        """Return the command line of a worker for some programs."""
        how = {"seed": self._arguments.seed, "binary": self._arguments.binary, "target": self._arguments.target}
        options = [f"--{name}={value}" for name, value in how.items()]
        return [sys.executable, "-m", "benchmarks.fuzz.worker", *options, *more, str(begin), str(end)]

    def advance(self) -> None:
        """Count one more program as done."""
        self.position += 1
        self.since = time.monotonic()

    def restart(self) -> None:
        """Start a new process for the programs that are left."""
        os.close(self.pipe)
        if self.position < self.end:
            self._start()
        else:
            self.is_done = True

    def _start(self) -> None:
        reading, writing = os.pipe()
        command = self.command(self.position, self.end)
        self.process = subprocess.Popen(command, stdout=writing, stderr=subprocess.DEVNULL)
        os.close(writing)
        self.pipe = reading
        self.since = time.monotonic()


if __name__ == "__main__":
    sys.exit(main())
