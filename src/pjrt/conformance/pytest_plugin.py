"""The plugin for pytest: ``pytest -p pjrt.conformance --pjrt-plugin=libmine.so`` collects one item for each check.

pytest takes its hooks from ``pjrt.conformance``, which imports this module when it is first asked for one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pjrt.api.errors import PjrtError
from pjrt.conformance.plugin.check import Check, Outcome, Tier, Verdict
from pjrt.conformance.plugin.run import RunningTest, chosen_checks
from pjrt.conformance.plugin.strengths import Strength
from pjrt.plugins.env_vars import option_value

_RUNNING = pytest.StashKey[RunningTest]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line."""
    group = parser.getgroup("pjrt", "conformance of a PJRT plugin")
    group.addoption("--pjrt-plugin", metavar="NAME_OR_PATH", help="check this plugin, one item for each check")
    group.addoption(
        "--pjrt-tier",
        action="append",
        metavar="TIER",
        choices=[str(each) for each in Tier],
        help=f"make only the checks of a tier ({', '.join(Tier)}); may be given several times",
    )
    group.addoption(
        "--pjrt-filter", action="append", default=[], metavar="TEXT", help="make only checks with this in their name"
    )
    group.addoption(
        "--pjrt-leave-out", action="append", default=[], metavar="TEXT", help="leave out checks with this in their name"
    )
    group.addoption(
        "--pjrt-option", action="append", default=[], metavar="NAME=VALUE", help="an option of the plugin's clients"
    )
    group.addoption(
        "--pjrt-programs", default="", metavar="FOLDER", help="programs for a plugin that reads no StableHLO"
    )
    group.addoption(
        "--pjrt-strict", action="store_true", help="fail for checks that are expected or hardening, too (else: xfail)"
    )
    group.addoption(
        "--pjrt-time-limit", type=float, default=30.0, metavar="SECONDS", help="how long a check may take (default: 30)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Check the options; leave out the tests below the folder, unless the user names files."""
    for value in config.getoption("--pjrt-option"):
        if not value.partition("=")[0] or "=" not in value:
            raise pytest.UsageError(f"--pjrt-option: expected NAME=VALUE, such as num_devices=8, found {value!r}")
    for tier in Tier:
        config.addinivalue_line("markers", f"pjrt_{tier}: a check of a plugin, of the tier {tier}")
    if config.getoption("--pjrt-plugin") and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []


@pytest.hookimpl(tryfirst=True)  # before items are chosen by name and by marker
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the items of the plugin's checks to those of files."""
    plugin = config.getoption("--pjrt-plugin")
    if not plugin:
        return
    try:
        tiers = config.getoption("--pjrt-tier") or tuple(Tier)
        checks = chosen_checks(tiers, config.getoption("--pjrt-filter"), config.getoption("--pjrt-leave-out"))
    except PjrtError as error:
        raise pytest.UsageError(error.message) from error
    name = f"pjrt:{Path(plugin).name}"
    collector = _Checks.from_parent(session, name=name, nodeid=name, plugin=plugin, checks=checks)
    items.extend(collector.collect())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """End the processes of the checks."""
    running = session.config.stash.get(_RUNNING, None)
    if running is not None:
        running.close()


class _Checks(pytest.Collector):
    """The checks of the plugin."""

    def __init__(self, plugin: str, checks: Sequence[Check], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.plugin, self._checks = plugin, checks

    def collect(self) -> Iterator[pytest.Item]:
        for check in self._checks:
            yield _CheckItem.from_parent(self, name=check.name, check=check)

    def running(self) -> RunningTest:
        """Return the test of the plugin, which is started by the first item of the session."""
        stash, config = self.config.stash, self.config
        if _RUNNING not in stash:
            options = {}
            for value in config.getoption("--pjrt-option"):
                name, _, text = value.partition("=")
                options[name] = option_value(text)
            stash[_RUNNING] = RunningTest(
                self.plugin,
                options,
                programs=config.getoption("--pjrt-programs"),
                time_limit=config.getoption("--pjrt-time-limit"),
            )
        return stash[_RUNNING]


class CheckFailedError(Exception):
    """A check of the plugin failed; the text is the whole message."""


class _CheckItem(pytest.Item):
    def __init__(self, check: Check, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._check = check
        self.add_marker(f"pjrt_{check.tier}")

    def runtest(self) -> None:
        parent = self.parent
        assert isinstance(parent, _Checks)
        outcome = parent.running().run(self._check.name)
        if outcome.verdict is Verdict.UNSUPPORTED:
            pytest.skip(f"unsupported: {outcome.found}")
        if outcome.verdict.is_failure:
            if outcome.strength is not Strength.REQUIRED and not self.config.getoption("--pjrt-strict"):
                pytest.xfail(f"{outcome.strength}, not required: {outcome.message}")
            raise CheckFailedError(_text(outcome, parent.plugin))
        for text in outcome.advice:
            self.add_report_section("call", "advice", text)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, (CheckFailedError, PjrtError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.config.rootpath, None, self._check.name


def _text(outcome: Outcome, plugin: str) -> str:
    lines = [f"{outcome.verdict}: {outcome.message}", f"rule: {outcome.rule}"]
    if outcome.call:
        lines.append(f"in {outcome.call}")
    if outcome.printed:
        lines.append(f"the plugin printed:\n{outcome.printed.rstrip()}")
    lines.append(
        f"for programs in C and Python that show it: pjrt conform {plugin} --filter {shlex.quote(outcome.check)}"
    )
    lines[-1] += " --html report.html"
    return "\n".join(lines)
