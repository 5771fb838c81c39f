"""The C heap of this process."""

from __future__ import annotations

import ctypes
import sys
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
