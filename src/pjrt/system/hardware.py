"""The hardware of this machine: the files of drivers, and the processor."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pjrt.system.processes import program_output


def any_file(patterns: Iterable[str]) -> bool:
    """Whether a file matches one of some file name patterns, in the form of ``count_files``."""
    return any(map(_matching, patterns))


def count_files(patterns: Iterable[str]) -> int:
    """Return how many files match the first pattern that any file matches: usually one a device.

    Args:
        patterns: absolute file names with ``*``, ``?`` and ``[…]``. ``${NAME}`` is an environment variable; a pattern
            with an unset variable is for another system, and matches nothing.
    """
    return next((len(files) for files in map(_matching, patterns) if files), 0)


def _matching(pattern: str) -> list[str]:
    import glob  # here, for a fast start

    path = os.path.expandvars(pattern)
    return glob.glob(path) if os.path.isabs(path) else []


def processor_features() -> tuple[str, ...]:
    """Return the processor's features by the system's names, in alphabetical order: ``avx2``, ``asimd``, ``FEAT_BF16``.

    On Windows it is the name of the processor's model alone, from which its features follow.
    """
    if sys.platform == "linux":
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
        except OSError:
            return ()
        features = next((line for line in lines if line.startswith(("flags", "Features"))), "")
        return tuple(sorted(features.partition(":")[2].split()))
    if sys.platform == "darwin":
        return _parse_sysctl(program_output("/usr/sbin/sysctl", "machdep.cpu", "hw.optional"))
    return tuple(filter(None, [os.environ.get("PROCESSOR_IDENTIFIER", "")]))


def _parse_sysctl(output: str) -> tuple[str, ...]:
    """Return the features that ``sysctl`` prints: lists of words for Intel's processors, a line each for Apple's."""
    features: set[str] = set()
    for line in output.splitlines():
        name, _, value = line.partition(": ")
        if name.startswith("machdep.cpu.") and name.endswith("features"):
            features.update(value.lower().split())
        elif name.startswith("hw.optional.") and value == "1":
            features.add(name.rpartition(".")[2])
    return tuple(sorted(features))
