"""The threads that are inside of a shared library."""

from __future__ import annotations

import array
import os
import sys
import threading
from pathlib import Path
from typing import BinaryIO


def threads_in_library(path: str | os.PathLike[str]) -> int | None:
    """How many threads of this process are inside of an opened library, or would return into it; ``None`` where that
    cannot be learned.

    Code that a thread is to return to must stay in memory. Looked for are addresses of the library on the threads'
    stacks. One that was left there by an earlier call counts as well, and so does a thread that runs just now: the
    number may be too high, and is never too low. It is known on Linux only.

    Args:
        path: the absolute path that the library was opened by.
    """
    if sys.platform != "linux":
        return None
    try:
        _state(threading.get_native_id())  # where the system does not tell, it would seem that the threads have ended
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            areas = [line.rstrip("\n").split(maxsplit=5) for line in maps]
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            return _threads_at(memory, areas, os.path.realpath(path))
    except OSError:
        return None


def _threads_at(memory: BinaryIO, areas: list[list[str]], library: str) -> int:
    bounds = [tuple(int(end, 16) for end in area[0].split("-")) for area in areas]
    code = [
        bound
        for bound, area in zip(bounds, areas, strict=True)
        if "x" in area[1] and len(area) == 6 and area[5].removesuffix(" (deleted)") == library
    ]
    inside = 0
    for thread in os.listdir("/proc/self/task"):
        if int(thread) == threading.get_native_id():
            continue
        try:
            state = _state(int(thread))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended meanwhile
        if len(state) < 3:
            inside += 1  # it runs: where it is cannot be told
            continue
        top, counter = int(state[-2], 16), int(state[-1], 16)
        end = next((high for low, high in bounds if low <= top < high), top)
        try:
            memory.seek(top)
            stack = array.array("Q", memory.read((end - top) // 8 * 8))
        except OSError:
            continue  # its stack is gone, so it has ended meanwhile
        inside += any(low <= address < high for address in (counter, *stack) for low, high in code)
    return inside


def _state(thread: int) -> list[str]:
    """What the system tells of a thread: its stack pointer and program counter are last, where it does not run."""
    return Path(f"/proc/self/task/{thread}/syscall").read_text().split()
