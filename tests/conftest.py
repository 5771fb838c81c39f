"""Fixtures that every test may use (each package's own lie beside its tests), and settings that make two runs alike."""

import gc
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["job_fixtures", "network_fixtures", "remote_fixtures", "tiny.fixtures"]

# A runner in the background of a shell has Ctrl-C ignored, and its children inherit that; the tests of Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What somebody has set for work of his own would change what is tested.
_OTHERS = ("JAX_", "XLA_", "TF_", "PJRT_", "COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "TTY_")
for _name in list(os.environ):
    if _name.startswith(_OTHERS) and not _name.startswith("PJRT_TEST_"):
        del os.environ[_name]

# The same examples each time, however slow the machine is; `--hypothesis-profile=search` looks for new ones.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", _patient)
settings.register_profile("same", _patient, derandomize=True)
settings.load_profile("same")


_BY_HAND = {"gpu", "heavy", "iree", "network", "ray", "torch", "vendor"}
_MARKED_BY_CONFTEST = {"device_api", "gpu"}


@cache
def _names(path: Path, marker: str) -> bool:
    """Whether the tests of a file may have a marker."""
    return not _MARKED_BY_CONFTEST.isdisjoint(path.parts) or f"mark.{marker}" in path.read_text()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what does not name the marker of ``-m full`` and the like: it takes longer to collect than to read."""
    marker = config.option.markexpr
    is_left_out = marker in _BY_HAND | {"full"} and collection_path.match("test_*.py")
    return True if is_left_out and not _names(collection_path, marker) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse tests that ``-m full`` would run although they need more than ``test-full``, or would not see."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "full" in marks and not _BY_HAND.isdisjoint(marks):
            raise pytest.UsageError(
                f"{item.nodeid} has the marker 'full' beside {sorted(_BY_HAND & marks)}: choose one"
            )
        for marker in marks & (_BY_HAND | {"full"}):
            if not _names(item.path, marker):
                raise pytest.UsageError(f"{item.nodeid} has the marker {marker!r}: write mark.{marker} into its file")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a file in one process of ``pytest -n``: what they share, such as a run of JAX, is done once."""
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log) if config.getoption("dist") == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Collect garbage behind each file: clients that a test left in a circle have threads, memory and connections."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()


def pytest_collection_finish() -> None:
    """Keep the collected tests out of the garbage collector, which many tests run to see what is left."""
    gc.collect()
    gc.freeze()
