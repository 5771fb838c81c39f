"""Eight threads on one client: on every Python, and above all on those without the GIL."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
WORKS = ["execute", "buffers", "metadata", "futures", "closing", "by_hand", "dropping"]

IMPORT_ALL = """
import importlib, pathlib, sys
for library in pathlib.Path(sys.argv[1]).rglob("*.so"):
    name = ".".join(library.relative_to(sys.argv[1]).parts).split(".cpython-")[0]
    if not name.endswith("._library"):
        importlib.import_module(name)
assert "pjrt.capi._scope" in sys.modules and "pjrt.native._here" in sys.modules
print(sys._is_gil_enabled())
"""


@pytest.mark.full
@pytest.mark.parametrize("work", WORKS)
def test_eight_threads_at_once(tiny_library: Path, work: str) -> None:
    """Nothing crashes, hangs, leaks or breaks a rule of the ABI."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", HERE / "threads_work.py", tiny_library, work],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "finished\n", "")


@pytest.mark.skipif(not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this Python has the GIL")
def test_no_module_turns_the_gil_on() -> None:
    import pjrt

    sources = Path(pjrt.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_ALL, sources],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
