"""A test of a plugin whose checks are made one by one, as a test runner asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pjrt.api.errors import PjrtError
from pjrt.conformance.plugin.outcome import Outcome
from pjrt.conformance.plugin.plugin_test import with_programs
from pjrt.conformance.plugin.process import Task
from pjrt.conformance.plugin.samples import Samples
from pjrt.conformance.plugin.zygote_process import ZygoteProcess
from pjrt.plugins import registry


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
