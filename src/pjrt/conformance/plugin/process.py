"""The process of one check: it loads the plugin, runs the check, and writes the outcome into shared memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.capi import raw
from pjrt.conformance.plugin.check import all_checks
from pjrt.conformance.plugin.facts import facts_of
from pjrt.conformance.plugin.outcome import Failed, Unsupported, Verdict
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.subject import Subject
from pjrt.conformance.plugin.transcript import Transcript
from pjrt.layers.wrapping import table_of

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
