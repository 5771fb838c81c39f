"""The peak of the process's memory, on the system that runs the tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pjrt import system

CODE = """
import numpy, pjrt.system as system
can_reset = system.reset_peak_resident_bytes()
before = system.peak_resident_bytes()
array = numpy.ones(16_000_000)
with_array = system.peak_resident_bytes()
del array
still = system.peak_resident_bytes()
system.reset_peak_resident_bytes()
print(can_reset, before, with_array, still, system.peak_resident_bytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can begin a new peak")
def test_a_peak_stays_until_it_is_reset() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    can_reset, *peaks = done.stdout.split()
    before, with_array, still, after = map(int, peaks)
    assert can_reset == "True"
    assert with_array - before > 100_000_000
    assert still - before > 100_000_000
    assert still - after > 100_000_000


def test_a_system_without_proc_reports_the_peak_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    from pjrt.system import processes

    monkeypatch.setattr(processes, "_STATUS", Path("/nowhere/status"))
    monkeypatch.setattr(processes, "_CLEAR_REFS", Path("/nowhere/clear_refs"))
    assert not system.reset_peak_resident_bytes()
    peak = system.peak_resident_bytes()
    assert peak is None or peak > 1_000_000
