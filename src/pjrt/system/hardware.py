"""What hardware there is: the files of drivers, and the processor."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pjrt.system._programs import answer


def any_file(patterns: Iterable[str]) -> bool:
    """Whether there is a file that matches one of some file name patterns, as ``count_files`` takes them."""
    return any(map(_matching, patterns))


def count_files(patterns: Iterable[str]) -> int:
    """Return how many files match the first pattern that any file matches: one a device, as a rule.

    Args:
        patterns: absolute file names with ``*``, ``?`` and ``[…]``. ``${NAME}`` is an environment variable; a pattern
            whose variable is not set is for another system, and matches nothing.
    """
    return next((len(found) for found in map(_matching, patterns) if found), 0)


def _matching(pattern: str) -> list[str]:
    path = os.path.expandvars(pattern)
    return glob.glob(path) if os.path.isabs(path) else []


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
