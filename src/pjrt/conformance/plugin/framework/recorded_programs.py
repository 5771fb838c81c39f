"""Checks by recordings: the calls that programs with JAX, PyTorch and TensorFlow made, made to this plugin.

``tools/gen_framework_recordings.py`` makes the recordings.
"""

from __future__ import annotations

import functools
import json
import lzma
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from pjrt.capi.raw import Result
from pjrt.capi.raw.struct import Memory
from pjrt.capi.raw.table import Table
from pjrt.conformance.plugin.check import Check, Failed, Tier, Unsupported, add
from pjrt.conformance.plugin.subject import Subject
from pjrt.conformance.plugin.transcript import Transcript
from pjrt.layers.recording import Recording
from pjrt.layers.replay.replay_arguments import Settings
from pjrt.layers.replay.replayer import Replayer, ReplayFinding

_FOLDER = resources.files(__package__) / "recordings"
_WORK = (
    "PJRT_Client_BufferFromHostBuffer", "PJRT_Buffer_ToHostBuffer", "PJRT_Buffer_CopyToDevice",
    "PJRT_Buffer_CopyToMemory", "PJRT_Client_Compile", "PJRT_Executable_Serialize",
    "PJRT_Executable_DeserializeAndLoad", "PJRT_LoadedExecutable_Execute")  # fmt: skip
"""The functions that do the program's work: where the plugin lacks none of them, the program runs on it."""


def replay(name: str, facts: Mapping[str, Any], subject: Subject) -> None:
    """Make the calls of a recording to the plugin, and compare its results."""
    _require(subject, facts)
    recording = Recording.parse(lzma.decompress((_FOLDER / f"{name}.rec.xz").read_bytes()), name)
    replayer = _replay(subject, recording)
    if any(map(_refuses_options, replayer.comparison.findings)):
        replayer = _replay(subject, recording, recorded_options=False)
    findings = replayer.comparison.findings
    wrong = [each for each in findings if not _is_absence(each)]
    if wrong:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise Failed("the results of the recorded program", f"{wrong[0]}{more}")
    needed = Counter(call.function for call in recording.calls if call.function in _WORK)
    if any(replayer.made[function] < count for function, count in needed.items()) or _lacks_work(findings):
        raise Unsupported(_reason(findings))


def _require(subject: Subject, facts: Mapping[str, Any]) -> None:
    if subject.samples.folder:
        raise Unsupported("programs of frameworks, which are StableHLO")
    if facts["devices"] > 1:
        subject.several_devices(facts["devices"])
    client = subject.client
    subject.call("PJRT_Client_Destroy", client=client)


def _replay(subject: Subject, recording: Recording, *, recorded_options: bool = True) -> Replayer:
    steps = _Steps(subject)
    settings = Settings(options=subject.options, recorded_options=recorded_options)
    replayer = Replayer(recording, Table(subject.plugin.address), settings, progress=steps.begin)
    replayer.run()
    steps.forget()
    return replayer


def _refuses_options(finding: ReplayFinding) -> bool:
    """Whether no client was made: options are the choice of a user, and plugins refuse what they do not know."""
    return finding.kind == "error" and finding.function == "PJRT_Client_Create"


class _Steps:
    """The calls of a replay for the transcript: after a crash or a hang it has the call that did it."""

    def __init__(self, subject: Subject) -> None:
        self._observer = subject.plugin.observer
        self._token: Any = None
        self._function = ""

    def begin(self, _number: int, function: str) -> None:
        """Note that a call of the recording begins."""
        self._end()
        if self._observer is not None:
            name = function.partition(",")[0]
            self._function, self._token = name, self._observer.begin(name, {})

    def forget(self) -> None:
        """Take the calls out of the transcript: they are without arguments, and of no use once all have returned."""
        if isinstance(self._observer, Transcript):
            self._observer.forget()

    def _end(self) -> None:
        if self._observer is not None and self._token is not None:
            self._observer.end(self._token, Result(self._function, None, {}, 0, Memory()))
        self._token = None


def _is_absence(finding: ReplayFinding) -> bool:
    """Whether a plugin lacks something that it may lack."""
    if finding.kind == "value" and finding.place == "serialized_device_assignment":
        return True  # a portable executable need not have one, and then a null pointer stands for it
    return finding.kind in ("missing", "unusable") or (
        finding.kind == "error" and "failed here with UNIMPLEMENTED" in finding.text
    )


def _lacks_work(findings: Sequence[ReplayFinding]) -> bool:
    return any(each.function in _WORK for each in findings)


def _reason(findings: Sequence[ReplayFinding]) -> str:
    absences = [each for each in findings if _is_absence(each)]
    first = next((each for each in absences if each.function in _WORK), absences[0] if absences else None)
    if first is None:
        return "a part of the recorded program"
    if first.kind == "missing":
        return f"the plugin lacks {first.function}"
    return f"{first.function}: {first.text}"


def _add_all() -> None:
    index = json.loads((_FOLDER / "recordings.json").read_text(encoding="utf-8"))
    for name, facts in index.items():
        rule = f"The plugin does what a program with {facts['framework']} needs. {facts['about']}"
        run = functools.partial(replay, name, facts)
        add(Check(name, Tier.FRAMEWORK, tuple(facts["calls"]), rule, run))


_add_all()
