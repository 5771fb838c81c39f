"""Fixtures that every test may use: each room's own lie beside its tests. And what makes two runs alike."""

import gc
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tiny.fixtures"]

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


def pytest_collection_finish() -> None:
    """Many tests collect garbage to see what is left. The thousands of tests that wait for their turn are none."""
    gc.collect()
    gc.freeze()


_ALONE = "PJRT_TEST_ALONE"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is marked ``alone`` in a process of its own, where no other test has left anything."""
    if pyfuncitem.get_closest_marker("alone") is None or _ALONE in os.environ:
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", pyfuncitem.nodeid]
    done = subprocess.run(
        command,
        cwd=pyfuncitem.config.rootpath,
        env={**environment, _ALONE: "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return True
