"""The memory of this process in the machine's main memory, and its peak."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
"""The value that makes Linux begin a new peak, since version 4.0."""


def reset_peak_resident_bytes() -> bool:
    """Begin a new peak of the resident memory; return whether the system can do that."""
    try:
        _CLEAR_REFS.write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def peak_resident_bytes() -> int | None:
    """Return the most bytes of main memory that the process had since the last reset, or since its start.

    ``None`` where the system does not report it.
    """
    try:
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _peak_of_usage()


def _peak_of_usage() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, the other systems count KiB.
    return peak if sys.platform == "darwin" else peak * 1024
