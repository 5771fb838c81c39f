"""The memory and the processor time of processes, and their children, as Linux reports them."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, and that run."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += map(int, (task / "children").read_text().split())
    return sorted(set(found))


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time that processes have used."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def proportional_bytes(pid: int) -> int:
    """Return the memory of a process, of which it has its part where several share some (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) << 10


def busy_seconds() -> float:
    """Return the processor time that all processes of this machine have used, in the steps of the system's clock."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")
