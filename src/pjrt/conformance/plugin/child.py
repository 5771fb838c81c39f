"""Child processes of the zygote: each makes one check, and is ended if it takes too long."""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.conformance.plugin import transcript
from pjrt.conformance.plugin.check import all_checks
from pjrt.conformance.plugin.outcome import Outcome, Verdict
from pjrt.conformance.plugin.process import Task, run_in_this_process
from pjrt.conformance.plugin.transcript import TRANSCRIPT_BYTES, Transcript
from pjrt.system.python_process import Ended, module_command, module_environment

_POLL = 0.002
_MAX_PRINTED = 4000
_MAX_CALLS = 2000
"""The calls that the outcome of a failed check keeps, the last ones."""


class Child:
    """A place for one process after the other; a subclass starts them.

    Args:
        folder: a folder for files.
        number: the number of the place.
    """

    def __init__(self, folder: str, number: int) -> None:
        self._folder = Path(folder)
        self._number = number
        self._printed = (self._folder / f"printed{number}").open("w+b")
        self._memory = self._new_memory()
        self._name = ""
        self._limit = self._begin = self._end = 0.0
        self._status: int | None = None
        self._hung = False

    def start(self, task: Task, name: str, limit: float) -> None:
        """Start a process for a check."""
        self._name, self._limit, self._status, self._hung = name, limit, None, False
        self._printed.seek(0)
        self._printed.truncate()
        Transcript.clear(self._memory)
        self._begin = time.monotonic()
        self._end = self._begin + limit
        self._start(task, name)

    @property
    def seconds_left(self) -> float:
        """The seconds until the time limit."""
        return max(0.0, self._end - time.monotonic())

    def ended(self) -> bool:
        """Whether the process has ended; one that is past its time limit is ended here."""
        self._status = self._poll()
        if self._status is None and not self.seconds_left:
            self._kill()
            self._hung = True
        return self._status is not None

    def close(self) -> None:
        """End the process, if one runs, and close the files."""
        if self._name and self._status is None:
            self._kill()
        self._printed.close()

    def loading(self) -> dict[str, Any]:
        """Return what came of loading the plugin: the facts about it, or the reason why it cannot be loaded."""
        notes = {kind: rest[0] for kind, *rest in transcript.records(self._memory) if kind not in ("call", "return")}
        if "facts" in notes:
            return {"kind": "loaded", "facts": notes["facts"], "modules": notes.get("modules", ())}
        calls = transcript.calls(transcript.records(self._memory))
        where = f" in {transcript.spelled_call(calls[-1])}" if calls else ""
        if "unloadable" in notes:
            reason = notes["unloadable"]
        elif "broken" in notes:
            reason = f"it cannot be asked for facts{where}: {notes['broken'].strip().splitlines()[-1]}"
        elif self._hung:
            reason = f"it was not loaded within {self._limit:g} seconds{where}"
        else:
            reason = f"the process that loaded it ended{where}: {self._how()}"
        return {"kind": "unloadable", "reason": reason}

    def outcome(self) -> Outcome:
        """Return the outcome of the check."""
        records = transcript.records(self._memory)
        notes = {kind: rest[0] for kind, *rest in records if kind not in ("call", "return")}
        calls = transcript.calls(records)[-_MAX_CALLS:]
        place, call = _at(calls)
        check = all_checks()[self._name]
        outcome = Outcome(
            check.name, Verdict.FAILED, str(check.tier), check.calls, check.rule,
            call=call, printed=self._text(), seconds=time.monotonic() - self._begin, transcript=calls,
        )  # fmt: skip
        if "outcome" in notes:
            text, expected, found, advice, seconds = notes["outcome"]
            verdict = Verdict(text)
            outcome = replace(
                outcome, verdict=verdict, expected=expected, found=found, advice=tuple(advice), seconds=seconds
            )
            return outcome if verdict.is_failure else replace(outcome, call="", printed="", transcript=())
        if "unloadable" in notes:
            return replace(outcome, expected="a plugin that can be loaded", found=notes["unloadable"])
        if "broken" in notes:
            return replace(outcome, found="an error in the check: " + notes["broken"].strip())
        if self._hung:
            return replace(outcome, verdict=Verdict.HUNG, found=f"no end of {place} within {self._limit:g} seconds")
        return replace(outcome, verdict=Verdict.CRASHED, found=f"the end of the process in {place}: {self._how()}")

    def _new_memory(self) -> mmap.mmap:
        return mmap.mmap(-1, TRANSCRIPT_BYTES)

    def _start(self, task: Task, name: str) -> None:
        raise NotImplementedError

    def _poll(self) -> int | None:
        raise NotImplementedError

    def _kill(self) -> None:
        raise NotImplementedError

    def _text(self) -> str:
        self._printed.seek(0, os.SEEK_END)
        self._printed.seek(max(0, self._printed.tell() - _MAX_PRINTED))
        return self._printed.read().decode("utf-8", "replace")

    def _how(self) -> str:
        return str(Ended(self._status or 0, b"", self._text()))


class ForkedChild(Child):
    """A place for processes that are forked from this one."""

    _pid = 0

    def _start(self, task: Task, name: str) -> None:
        self._pid = system.fork()
        if not self._pid:
            try:
                os.setsid()  # what the plugin starts ends with the check
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(self._printed.fileno(), 1)
                os.dup2(self._printed.fileno(), 2)
                os.closerange(3, 1024)  # a process that the plugin starts must not keep the zygote's files
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                run_in_this_process(task, name, self._memory)
            finally:
                os._exit(70)
        self._descriptor = os.pidfd_open(self._pid) if sys.platform == "linux" else -1

    def _poll(self) -> int | None:
        if os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self._kill()  # before its number is free for another process
        if self._descriptor >= 0:
            os.close(self._descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has not made its group yet, or has none
            os.killpg(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    @property
    def descriptor(self) -> int:
        """The file descriptor that can be read when the process has ended; -1 on systems without such."""
        return self._descriptor


class SpawnedChild(Child):
    """A place for processes that are started anew, for systems that cannot fork."""

    _process: subprocess.Popen[bytes]

    def _new_memory(self) -> mmap.mmap:
        path = self._folder / f"memory{self._number}"
        path.write_bytes(bytes(TRANSCRIPT_BYTES))
        with path.open("r+b") as file:
            return mmap.mmap(file.fileno(), TRANSCRIPT_BYTES)

    def _start(self, task: Task, name: str) -> None:
        self._process = subprocess.Popen(
            module_command("pjrt.conformance.plugin.child"),
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            env=module_environment(),
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as file:
            pickle.dump((task, name, self._folder / f"memory{self._number}"), file)

    def _poll(self) -> int | None:
        return self._process.poll()

    def _kill(self) -> None:
        self._process.kill()


def wait_for_any(children: Sequence[Child]) -> None:
    """Wait until a process has perhaps ended, or is past its time limit."""
    seconds = min(each.seconds_left for each in children)
    descriptors = [each.descriptor for each in children if isinstance(each, ForkedChild) and each.descriptor >= 0]
    if len(descriptors) == len(children):
        select.select(descriptors, [], [], seconds)
    else:
        time.sleep(min(seconds, _POLL))


def _at(calls: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return where a check was, and the call that it was in or behind."""
    running = [each for each in calls if not each["returned"]]
    if running:
        return running[-1]["function"], transcript.spelled_call(running[-1])
    if calls:
        return f"the process after {calls[-1]['function']}", transcript.spelled_call(calls[-1])
    return "the process before its first call", ""


def main() -> None:
    """Run the check of a spawned process."""
    task, name, path = pickle.load(sys.stdin.buffer)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), TRANSCRIPT_BYTES)
    run_in_this_process(task, name, memory)


if __name__ == "__main__":
    main()
