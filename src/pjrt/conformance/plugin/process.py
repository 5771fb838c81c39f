"""The process of one check, seen from inside and from the zygote.

It loads the plugin, runs the check, and writes the outcome into shared memory; ``Child`` is its place in the zygote,
which ends it if it takes too long.
"""

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
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pjrt import system
from pjrt.abi.schema import FUNCTIONS
from pjrt.api.errors import PjrtError
from pjrt.capi import raw
from pjrt.capi.raw import Struct
from pjrt.conformance.plugin import transcript
from pjrt.conformance.plugin.check import Failed, Outcome, Unsupported, Verdict, all_checks
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject
from pjrt.conformance.plugin.transcript import TRANSCRIPT_BYTES, Transcript
from pjrt.layers.wrapping import table_of
from pjrt.system.python_process import Ended, module_command, module_environment

LOADING = "loading the plugin"
"""The name under which a process loads the plugin and reads the facts about it, and makes no check."""


@dataclass(frozen=True, slots=True)
class Task:
    """The task of the processes of a run.

    Attributes:
        plugin: the plugin's name, the path of its library, or ``FILE.py:FUNCTION``.
        options: the options of clients.
        programs: the folder of the user's programs; empty for those of this package.
        names: the names of the checks; none if the parent names them one by one.
        jobs: how many processes may run at once.
        time_limit: the seconds that a check may take.
        load_limit: the seconds that loading the plugin may take.
    """

    plugin: str
    options: Mapping[str, Any] = field(default_factory=dict)
    programs: str = ""
    names: tuple[str, ...] = ()
    jobs: int = 1
    time_limit: float = 30.0
    load_limit: float = 120.0


def run_in_this_process(task: Task, name: str, memory: mmap.mmap) -> None:
    """Run a check, or load the plugin, and end this process."""
    transcript = Transcript(memory)
    try:
        _run(task, name, transcript)
    except BaseException as error:
        transcript.note("broken", "".join(traceback.format_exception(error))[-4000:])
    finally:
        _flush()
        os._exit(0)  # nothing of the plugin is ended: threads that it left must not keep the process


def _run(task: Task, name: str, transcript: Transcript) -> None:
    try:
        address, _, _, owner = table_of(task.plugin)
        plugin = raw.Plugin(address, owner)
        plugin.observer = transcript
        if plugin.has("PJRT_Plugin_Initialize"):
            error = plugin.call("PJRT_Plugin_Initialize").error
            if error is not None:
                raise PjrtError.of(error.code, f"PJRT_Plugin_Initialize: {error.message}")
    except PjrtError as error:
        transcript.note("unloadable", error.message)
        return
    subject = Subject(plugin, task.options, Samples(task.programs), task.plugin)
    if name == LOADING:
        transcript.note("facts", facts_of(subject))
        # What a compilation imports is imported before processes are forked, too; whether it succeeds is for checks.
        with contextlib.suppress(Unsupported, Failed, PjrtError):
            subject.compile("add")
        transcript.note("modules", sorted(sys.modules))
        return
    begin = time.monotonic()
    verdict, expected, found = Verdict.PASSED, "", ""
    try:
        all_checks()[name].run(subject)
    except Unsupported as lack:
        verdict, found = Verdict.UNSUPPORTED, str(lack)
    except Failed as failure:
        verdict, expected, found = Verdict.FAILED, failure.expected, failure.found
    finally:
        subject.clean_up()
    transcript.note("outcome", (str(verdict), expected, found, list(subject.advice), time.monotonic() - begin))


def _flush() -> None:
    for file in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def facts_of(subject: Subject) -> dict[str, Any]:
    """Return the facts that a plugin states about itself and its client, as values that JSON has.

    ``problem`` is why no client can be made; empty if one can.
    """
    plugin = subject.plugin
    facts: dict[str, Any] = {
        "api_version": list(plugin.api_version),
        "extensions": sorted(plugin.extensions),
        "functions": [name for name in FUNCTIONS if plugin.has(name)],
        "attributes": {},
        "platform": "",
        "platform_version": "",
        "devices": 0,
        "device_kinds": [],
        "memories": [],
        "problem": "",
    }
    if plugin.has("PJRT_Plugin_Attributes"):
        facts["attributes"] = _attributes(plugin.call("PJRT_Plugin_Attributes").fields.get("attributes") or [])
    try:
        client = subject.client
        facts["platform"] = _text(subject.call("PJRT_Client_PlatformName", client=client).platform_name)
        facts["platform_version"] = _text(subject.call("PJRT_Client_PlatformVersion", client=client).platform_version)
        facts["devices"] = len(subject.devices)
        facts["device_kinds"] = sorted({_kind_of(subject, device) for device in subject.devices})
        facts["memories"] = sorted(subject.memories)
    except (Unsupported, Failed) as problem:
        facts["problem"] = str(problem)
    return facts


def _kind_of(subject: Subject, device: int) -> str:
    description = subject.call("PJRT_Device_GetDescription", device=device).device_description
    return _text(subject.call("PJRT_DeviceDescription_Kind", device_description=description).device_kind)


def _attributes(listed: list[Struct]) -> dict[str, Any]:
    return {_text(each.name): _text(each.value) if isinstance(each.value, bytes) else each.value for each in listed}


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


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

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
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
            strength=check.strength,
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
            module_command("pjrt.conformance.plugin.process"),
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
