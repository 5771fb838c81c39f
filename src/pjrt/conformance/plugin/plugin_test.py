"""The test of a plugin: its checks chosen, run by a zygote, and their outcomes collected."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import pickle
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InternalError, InvalidArgumentError
from pjrt.conformance.plugin.check import Check, Tier, all_checks
from pjrt.conformance.plugin.outcome import Outcome
from pjrt.conformance.plugin.plugin_report import PluginReport
from pjrt.conformance.plugin.process import Task
from pjrt.conformance.plugin.reproduction import Reproduction
from pjrt.conformance.plugin.reproduction_c import c_program
from pjrt.conformance.plugin.reproduction_python import python_program
from pjrt.conformance.plugin.samples import Samples
from pjrt.plugins import registry
from pjrt.system.python_process import Ended

_SLACK = 60.0
"""The seconds that the zygote may be silent beyond the time limit of a check."""


class UnloadableError(FailedPreconditionError):
    """The plugin cannot be loaded, so that no check can be made."""


def check_plugin(
    plugin: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    *,
    tiers: Iterable[str] = tuple(Tier),
    filters: Sequence[str] = (),
    leave_out: Sequence[str] = (),
    programs: str | os.PathLike[str] = "",
    jobs: int = 1,
    time_limit: float = 30.0,
    load_limit: float = 120.0,
    progress: Callable[[Outcome], None] = lambda _: None,
) -> PluginReport:
    """Check whether a plugin does what the C API requires, and return a report.

    Each check runs in a process of its own: a crash and a hang of the plugin are outcomes.

    Args:
        plugin: the path of the plugin's library, a name of ``pjrt.plugins.names()``, or ``FILE.py:FUNCTION`` for a
            function that makes clients. A device in Python is exported.
        options: the options of clients.
        tiers: names of ``Tier``.
        filters: texts, with ``*`` for anything, of which one must be in the name of a check; all checks if there are
            none.
        leave_out: texts, with ``*`` for anything, of which none may be in the name of a check.
        programs: a folder with programs for a plugin that reads no StableHLO; see ``samples``.
        jobs: how many checks may run at once.
        time_limit: the seconds that a check may take.
        load_limit: the seconds that loading the plugin and making a client may take.
        progress: is called with each outcome.

    Raises:
        UnloadableError: the plugin cannot be loaded.
        NotFoundError: there is no such plugin or folder.
        InvalidArgumentError: a tier is unknown, or no check has such a name.
    """
    name = os.fspath(plugin)
    registry.declaration(name).check_usable()
    Samples(os.fspath(programs)).check()
    if jobs < 1:
        raise InvalidArgumentError(f"expected at least 1 job, found {jobs}")
    checks = chosen_checks(tiers, filters, leave_out)
    task = Task(
        name, dict(options or {}), os.fspath(programs), tuple(each.name for each in checks), jobs, time_limit,
        load_limit,
    )  # fmt: skip
    begin = time.monotonic()
    facts: dict[str, Any] = {}
    outcomes: dict[str, Outcome] = {}
    for event in _events(task):
        if event["kind"] == "unloadable":
            raise UnloadableError(f"{name}: {event['reason']}")
        if event["kind"] == "loaded":
            facts = event["facts"]
        else:
            outcome = _with_programs(event["outcome"], name)
            outcomes[outcome.check] = outcome
            progress(outcome)
    return PluginReport(name, facts, tuple(outcomes[each.name] for each in checks), time.monotonic() - begin)


def chosen_checks(tiers: Iterable[str], filters: Sequence[str], leave_out: Sequence[str]) -> tuple[Check, ...]:
    """Return the checks of some tiers whose names match.

    Raises:
        InvalidArgumentError: a tier is unknown, or no check matches.
    """
    names = list(tiers)
    for tier in names:
        if tier not in list(Tier):
            raise InvalidArgumentError(f"expected a tier ({', '.join(Tier)}), found {tier!r}")
    chosen = tuple(
        each
        for each in all_checks().values()
        if each.tier in names
        and (not filters or any(_matches(each.name, text) for text in filters))
        and not any(_matches(each.name, text) for text in leave_out)
    )
    if not chosen:
        wanted = ", ".join(map(repr, filters or ["*"]))
        without = f", without those for {', '.join(map(repr, leave_out))}" if leave_out else ""
        raise InvalidArgumentError(
            "expected a filter that is a part of the name of a check, such as 'client.' or 'negative_id', found no "
            f"check for {wanted} in the tiers {', '.join(names)}{without}"
        )
    return chosen


def _with_programs(outcome: Outcome, plugin: str) -> Outcome:
    """Return an outcome with the programs that show it, if it has a transcript."""
    if not outcome.transcript:
        return outcome
    reproduction = Reproduction.of(outcome)
    c, python = c_program(reproduction), python_program(reproduction, plugin)
    return replace(outcome, c_program=c, python_program=python, transcript=())


def _matches(name: str, text: str) -> bool:
    # The names of checks have brackets, which must stand for themselves.
    return fnmatch.fnmatchcase(name, f"*{text.replace('[', '[[]')}*")


def _events(task: Task) -> Iterator[dict[str, Any]]:
    """Run the zygote, and give its events as they come."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(part for part in sys.path if part)}
    with tempfile.TemporaryFile() as printed:
        zygote = subprocess.Popen(
            [sys.executable, "-P", "-m", "pjrt.conformance.plugin.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=printed,
            env=environment,
            start_new_session=True,
        )
        events: queue.Queue[dict[str, Any] | None] = queue.Queue()
        reader = threading.Thread(target=_read, args=(zygote, events), name="pjrt conform", daemon=True)
        try:
            assert zygote.stdin is not None
            with contextlib.suppress(OSError), zygote.stdin as file:
                pickle.dump(task, file)
            reader.start()
            while True:
                try:
                    event = events.get(timeout=max(task.time_limit, task.load_limit) + _SLACK)
                except queue.Empty:
                    raise InternalError("the process that starts the checks made no progress, and was ended") from None
                if event is None:
                    break
                yield event
            if zygote.wait():
                printed.seek(0)
                end = Ended(zygote.returncode, b"", printed.read()[-20000:].decode("utf-8", "replace"))
                raise InternalError(f"the process that starts the checks ended: {end}")
        finally:
            zygote.kill()
            zygote.wait()
            if reader.is_alive():
                reader.join()
            assert zygote.stdout is not None
            zygote.stdout.close()


def _read(zygote: subprocess.Popen[bytes], events: queue.Queue[dict[str, Any] | None]) -> None:
    assert zygote.stdout is not None
    with contextlib.suppress(EOFError, pickle.UnpicklingError, OSError, ValueError):
        while True:
            events.put(pickle.load(zygote.stdout))
    events.put(None)
