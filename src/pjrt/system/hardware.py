"""What hardware there is: the files of drivers, and the processor."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pjrt.system._programs import answer


def device_files(vendor: str) -> tuple[str, ...]:
    """File name patterns of which one matches where the hardware of ``tpu``, ``cuda`` or ``rocm`` and its driver are.

    They are empty for a vendor that has no driver for this system.
    """
    if sys.platform == "win32":
        system = Path(os.environ.get("SYSTEMROOT", "C:\\Windows")) / "System32"
        drivers = {"cuda": ("nvcuda.dll",), "rocm": ("amdhip64*.dll",)}
        return tuple(str(system / name) for name in drivers.get(vendor, ()))
    if sys.platform == "linux":
        # Linux within Windows (WSL) has no /dev/nvidia0: its driver is a library that Windows puts there.
        files = {
            "tpu": ("/dev/accel[0-9]*", "/dev/vfio/[0-9]*"),
            "cuda": ("/dev/nvidia[0-9]*", "/usr/lib/wsl/lib/libcuda.so*"),
            "rocm": ("/dev/kfd",),
        }
        return files.get(vendor, ())
    return ()


def any_file(patterns: Iterable[str]) -> bool:
    """Whether there is a file that matches one of some file name patterns."""
    return any(glob.glob(pattern) for pattern in patterns)


def count_files(patterns: Iterable[str]) -> int:
    """How many files match the first of some file name patterns that any file matches: one a device, as a rule."""
    return next((len(found) for found in map(glob.glob, patterns) if found), 0)


def processor_features() -> tuple[str, ...]:
    """What the processor can do, as the system names it, in alphabetical order: ``avx2``, ``asimd``, ``FEAT_BF16``.

    On Windows it is the name of the processor's model alone, from which its features follow.
    """
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            return ()
        found = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return tuple(sorted(found.partition(":")[2].split()))
    if sys.platform == "darwin":
        return _features_of(answer("/usr/sbin/sysctl", "machdep.cpu", "hw.optional"))
    return tuple(filter(None, [os.environ.get("PROCESSOR_IDENTIFIER", "")]))


def _features_of(answer: str) -> tuple[str, ...]:
    """The features in what ``sysctl`` prints: lists of words for Intel's processors, one line a feature for Apple's."""
    found: set[str] = set()
    for line in answer.splitlines():
        name, _, value = line.partition(": ")
        if name.startswith("machdep.cpu.") and name.endswith("features"):
            found.update(value.lower().split())
        elif name.startswith("hw.optional.") and value == "1":
            found.add(name.rpartition(".")[2])
    return tuple(sorted(found))
