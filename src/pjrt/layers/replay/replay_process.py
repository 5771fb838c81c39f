"""Replays of recordings in a subprocess: whatever the plugin does, there is a result."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pjrt.api.errors import InvalidArgumentError
from pjrt.layers.recording import Recording
from pjrt.layers.replay.replay_arguments import Settings
from pjrt.layers.replay.replayer import PROGRESS, ReplayFinding, Task
from pjrt.layers.wrapping import table_of, wrap
from pjrt.system import TemporaryFolder
from pjrt.system.python_process import Ended, module_command, module_environment

__all__ = ["TIME_LIMIT", "PluginOpener", "ReplayFinding", "ReplayResult", "Settings", "replay"]

TIME_LIMIT = 120.0
"""The seconds that one call of a replay may take by default."""

_POLL = 0.05
_START_LIMIT = 60.0
"""The seconds that the subprocess may take to begin, at least: it imports this package."""


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        findings: where the plugin did something else than the recorded one, as they came; the first is the one to look
            at, since later ones may follow from it.
        notes: facts that differ from plugin to plugin, such as names and layouts, by function and field.
        calls: how many calls were made.
        skipped: how many were not made, since an earlier one failed.
        seconds: how long it took.
        printed: what the plugin, and layers before it, printed.
        problem: why the recording could not be read to its end; empty if it is whole.
    """

    findings: Sequence[ReplayFinding]
    notes: Mapping[str, str] = field(default_factory=dict)
    calls: int = 0
    skipped: int = 0
    seconds: float = 0.0
    printed: str = ""
    problem: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the plugin did what the recorded one did."""
        return not self.findings


def replay(
    path: str | os.PathLike[str],
    open_plugin: Callable[[], tuple[int, Any]] | str | os.PathLike[str],
    settings: Settings | None = None,
    *,
    time_limit: float = TIME_LIMIT,
) -> ReplayResult:
    """Make the calls of a recording to a plugin, in a subprocess, and compare the results.

    Args:
        path: the recording.
        open_plugin: the plugin's name, the path of its library, or ``FILE.py:FUNCTION``; or a function at the top of a
            module that opens the plugin in the subprocess, and returns the address of its ``PJRT_Api`` and an object
            that keeps it open.
        settings: what to compare, and how far to go.
        time_limit: the seconds that one call may take; a plugin that takes longer counts as hanging.

    Returns:
        The findings. A crash and a hang are findings, with the call that did it.

    Raises:
        NotFoundError: there is no such recording.
        InvalidArgumentError: the file is no recording, or no subprocess can be started.
        DataLossError: the file holds not even one call.
    """
    if isinstance(open_plugin, (str, os.PathLike)):
        open_plugin = PluginOpener(os.fspath(open_plugin))
    task = Task(os.fspath(path), open_plugin, settings or Settings())
    with TemporaryFolder("replay") as folder:
        return _Run(folder, Recording.open(path), task, time_limit).result()


@dataclass(frozen=True, slots=True)
class PluginOpener:
    """A function that opens a plugin in the subprocess of a replay.

    Attributes:
        plugin: a name, the path of a library, or ``FILE.py:FUNCTION``.
        layers: the layers to put before it, such as ``validate``.
    """

    plugin: str
    layers: tuple[str, ...] = ()

    def __call__(self) -> tuple[int, Any]:
        if self.layers:
            wrapped = wrap(self.plugin, self.layers)
            return wrapped.address, wrapped
        address, _, _, owner = table_of(self.plugin)
        return address, owner


class _Run:
    """One subprocess of a replay."""

    def __init__(self, folder: Path, recording: Recording, task: Task, time_limit: float) -> None:
        self._folder, self._recording, self._task, self._time_limit = folder, recording, task, time_limit

    def result(self) -> ReplayResult:
        begin = time.monotonic()
        (self._folder / "progress").write_bytes(bytes(PROGRESS.size))
        (self._folder / "answers").touch()
        end, hangs = self._run()
        findings: list[ReplayFinding] = []
        last: Mapping[str, Any] = {}
        for line in (self._folder / "answers").read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "finding":
                findings.append(ReplayFinding.of(event))
            elif kind == "failed":
                findings.append(ReplayFinding("unusable", 0, "", "", f"the plugin cannot be loaded: {event['text']}"))
                last = event
            else:
                last = event
        number, text = self._moment()[1:]
        if hangs:
            limit = f"{self._time_limit:g} s"
            findings.append(ReplayFinding("hang", number, text, "", f"made no progress for {limit}, and was ended"))
        elif not last:
            how = end if end.crashed or not end.status else f"the replay ended with {end}"
            findings.append(ReplayFinding("crash", number, text, "", f"the process ended in this call: {how}"))
        made = int(last.get("calls", 0)) if last else sum(call.number <= number for call in self._recording.calls)
        return ReplayResult(
            tuple(findings),
            last.get("notes", {}),
            made,
            int(last.get("skipped", 0)),
            time.monotonic() - begin,
            end.errors,
            self._recording.problem,
        )

    def _run(self) -> tuple[Ended, bool]:
        environment = module_environment()
        environment.pop("PJRT_LAYERS", None)  # the replay of a recording must not be recorded over it
        command = module_command("pjrt.layers.replay.replayer", str(self._folder))
        with (self._folder / "printed").open("w+b") as printed:
            try:
                process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=printed, stderr=subprocess.STDOUT, env=environment
                )
            except OSError as error:
                raise InvalidArgumentError(f"cannot start a subprocess for the replay: {error}") from error
            with process:
                assert process.stdin is not None
                try:
                    process.stdin.write(pickle.dumps(self._task))
                    process.stdin.close()
                except BrokenPipeError:
                    pass  # it has ended; how it ended says why
                hangs = self._wait(process)
            printed.seek(0)
            return Ended(process.returncode, b"", printed.read()[-20000:].decode(errors="replace")), hangs

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the end of the subprocess; end it if it makes no progress. Return whether it hung."""
        count, since = -1, time.monotonic()
        while True:
            try:
                process.wait(_POLL)
                return False
            except subprocess.TimeoutExpired:
                pass
            except BaseException:
                process.kill()
                raise
            moment = self._moment()[0]
            if moment != count:
                count, since = moment, time.monotonic()
            elif time.monotonic() - since > (self._time_limit if count else max(self._time_limit, _START_LIMIT)):
                process.kill()
                return True

    def _moment(self) -> tuple[int, int, str]:
        count, number, text = PROGRESS.unpack((self._folder / "progress").read_bytes())
        return count, number, text.rstrip(b"\0").decode(errors="replace")
