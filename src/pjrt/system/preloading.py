"""Libraries that the dynamic linker loads before a program's own, so that their functions come first."""

from __future__ import annotations

import os
import platform
import sys


def with_preloaded(library: str, environment: dict[str, str]) -> dict[str, str] | None:
    """Return an environment in which programs load a library before all others.

    Returns:
        The environment; ``None`` where functions of such a library would not come before those of the system. Only
        glibc, of Linux, is known to let them.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return None
    if any(char in library for char in ": "):  # they separate libraries, and cannot be quoted
        return None
    earlier = environment.get("LD_PRELOAD", "")
    return {**environment, "LD_PRELOAD": f"{library}{os.pathsep}{earlier}" if earlier else library}
