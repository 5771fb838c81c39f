"""Runs of the checks of a plugin: chosen, made by a zygote, and their outcomes collected."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.conformance.plugin.check import Check, Outcome, Tier, all_checks
from pjrt.conformance.plugin.process import Task
from pjrt.conformance.plugin.report import PluginReport
from pjrt.conformance.plugin.reproduction import Reproduction, c_program, python_program
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.zygote import ZygoteProcess, zygote_process
from pjrt.plugins import registry

_PACKAGES = ("pjrt", "numpy", "jaxlib", "jax", "torch", "torch_xla", "torchax", "torch_tpu", "tensorflow")
"""The packages whose versions a report has where they are installed."""


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

    Each check runs in a process of its own: a crash and a hang of the plugin are outcomes. An interrupt from the
    keyboard ends the run, and the report has the checks that were made until then.

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
    outcomes: dict[str, Outcome] = {}
    facts: Mapping[str, Any] = {}
    with contextlib.suppress(KeyboardInterrupt), zygote_process(task) as zygote:
        facts = {**zygote.facts(), **surroundings(name)}
        for _ in checks:
            outcome = with_programs(zygote.next_event()["outcome"], name)
            outcomes[outcome.check] = outcome
            progress(outcome)
    made = tuple(outcomes[each.name] for each in checks if each.name in outcomes)
    return PluginReport(name, facts, made, time.monotonic() - begin, len(checks) - len(made))


def surroundings(plugin: str) -> dict[str, Any]:
    """Return with what a plugin is checked: its library, its package, and the versions of all that takes part."""
    declared = registry.declaration(plugin)
    versions = {"python": platform.python_version()}
    for package in (*_PACKAGES, *([declared.distribution] if declared.distribution else [])):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    digest = hashlib.sha256(declared.library.read_bytes()).hexdigest() if declared.library is not None else ""
    return {
        "package": declared.distribution,
        "library_sha256": digest,
        "versions": versions,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


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


def with_programs(outcome: Outcome, plugin: str) -> Outcome:
    """Return an outcome with the programs that show it, if it has a transcript."""
    if not outcome.transcript:
        return outcome
    reproduction = Reproduction.of(outcome)
    c, python = c_program(reproduction), python_program(reproduction, plugin)
    return replace(outcome, c_program=c, python_program=python, transcript=())


def _matches(name: str, text: str) -> bool:
    if "*" not in text:
        return text in name
    # The names of checks have brackets, which must stand for themselves.
    return fnmatch.fnmatchcase(name, f"*{text.replace('[', '[[]')}*")


class RunningTest:
    """A test of a plugin. The plugin is loaded for the first check.

    Args:
        plugin: the plugin, as for ``check_plugin``.
        options: the options of clients.
        programs: the folder of the user's programs.
        time_limit: the seconds that a check may take.
    """

    def __init__(self, plugin: str, options: Mapping[str, Any], *, programs: str, time_limit: float) -> None:
        self._task = Task(plugin, dict(options), programs, time_limit=time_limit)
        self._zygote: ZygoteProcess | None = None
        self._problem: PjrtError | None = None

    def run(self, name: str) -> Outcome:
        """Return the outcome of a check.

        Raises:
            UnloadableError: the plugin cannot be loaded.
            NotFoundError: there is no such plugin or folder.
        """
        if self._problem is not None:  # a plugin that hangs while it is loaded would do so for each check
            raise self._problem
        if self._zygote is None:
            try:
                self._zygote = self._started()
            except PjrtError as problem:
                self._problem = problem
                raise
        return with_programs(self._zygote.ask(name)["outcome"], self._task.plugin)

    def _started(self) -> ZygoteProcess:
        registry.declaration(self._task.plugin).check_usable()
        Samples(self._task.programs).check()
        zygote = ZygoteProcess(self._task)
        try:
            zygote.facts()
        except BaseException:
            zygote.close()
            raise
        return zygote

    def close(self) -> None:
        """End the processes."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
