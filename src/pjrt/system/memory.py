"""The memory of this process: its C heap, and how much of it stands in main memory."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_BYTES = 32 << 20  # the largest value that glibc takes
_TRIM_BYTES = 128 << 20


def keep_freed_memory() -> bool:
    """Have the C library keep freed memory for the next allocation; return whether it can (glibc's ``mallopt``).

    XLA's CPU device allocates tens of MiB for each run of a larger program and frees them at its end. glibc gives such
    memory back to the system and gets it again, page by page, in the next run: ResNet-50 took a quarter longer.
    Allocations above 32 MiB go back to the system as before, and the heap keeps at most 128 MiB at its end.
    """
    mallopt = _glibc("mallopt")
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES))


def release_freed_memory() -> bool:
    """Give freed memory back to the system; return whether any was (glibc's ``malloc_trim``)."""
    trim = _glibc("malloc_trim")
    return trim is not None and bool(trim(ctypes.c_size_t(0)))


def _glibc(name: str) -> Any:
    """Return a function of glibc; ``None`` where the C library is another one."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


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
