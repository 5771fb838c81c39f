"""The growth of a process's memory while something is made and destroyed again and again."""

from __future__ import annotations

import ctypes
import functools
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import Unsupported
from pjrt.conformance.plugin.subject import Subject

ROUNDS = 10_000
"""The rounds of a check, unless they are slow."""

_SECONDS = 1.2
"""The time after which a check makes no more rounds; a slow plugin gets fewer."""

_PARTS = 5
"""The parts of a check, each of half its rounds; memory that does not grow in one of them is no leak."""

_SETTLING = 0.4
"""The seconds after a part in which a plugin may still free memory."""

_MANY = 200
"""The rounds that show a small leak."""

_STATM = Path("/proc/self/statm")
_PAGE = 4096
_X = np.arange(4, dtype=np.float32)


def expect_no_growth(
    subject: Subject,
    run: Callable[[], None],
    *,
    rounds: int = ROUNDS,
    least: int | None = None,
    warm_up: int | None = None,
    heap_bytes: int = 8,
    resident_bytes: int = 48,
) -> None:
    """Make rounds, and fail the check where each leaves memory behind.

    Args:
        subject: the plugin.
        run: makes a round.
        rounds: the number of rounds.
        least: the number that a slow plugin gets in each part; a tenth of all by default.
        warm_up: the least number of rounds before; ``least`` by default.
        heap_bytes: the bytes of the heap for each round that count as a leak.
        resident_bytes: the same of main memory, which allocators give back in pieces.
    """
    least = rounds // 10 if least is None else least
    subject.plugin.observer = None  # the transcript is memory, too
    # What a plugin keeps for later rounds is made in the first ones.
    _repeat(run, max(rounds // 10, warm_up or 0), least if warm_up is None else warm_up)
    growths, heap_leaks, resident_leaks = [], True, True
    for _ in range(_PARTS):  # a leak grows in each part; memory that is only kept longer does not
        subject.await_buffers([subject.buffer(_X)])
        before = _memory()
        count = _repeat(run, rounds // 2, least)
        # Of few rounds only a large leak can be told from what allocators do.
        heap_floor, resident_floor = (32 << 10, 192 << 10) if count >= _MANY else (4 << 20, 8 << 20)
        settled = time.monotonic() + _SETTLING
        while True:
            subject.await_buffers([subject.buffer(_X)])
            heap, resident = ((later - earlier) / count for earlier, later in zip(before, _memory(), strict=True))
            heap_grows = heap >= max(heap_bytes, heap_floor / count)
            resident_grows = resident >= max(resident_bytes, resident_floor / count)
            if not (heap_grows or resident_grows) or time.monotonic() > settled:
                break
            time.sleep(0.02)  # a plugin's threads may free memory a moment later
        growths.append((heap, resident, count))
        heap_leaks &= heap_grows
        resident_leaks &= resident_grows
        if not (heap_leaks or resident_leaks):
            break
    heap, resident = min(each[0] for each in growths), min(each[1] for each in growths)
    subject.expect(
        not (heap_leaks or resident_leaks),
        "no memory to be left behind",
        f"{heap:.0f} bytes of the heap and {resident:.0f} bytes of main memory in each of "
        f"{sum(each[2] for each in growths)} rounds",
    )


def _repeat(run: Callable[[], None], most: int, least: int) -> int:
    """Make rounds until there are enough, or the time is up; return their number."""
    end = time.monotonic() + _SECONDS / 2
    for number in range(1, most + 1):
        run()
        if number >= least and time.monotonic() > end:
            return number
    return most


class _HeapInfo(ctypes.Structure):
    """The ``mallinfo2`` of the C library."""

    _fields_ = (
        ("before", ctypes.c_size_t * 7),
        ("in_use", ctypes.c_size_t),
        ("behind", ctypes.c_size_t * 2),
    )


@functools.cache
def _heap_info() -> Any:
    """Return the function of the C library that counts the bytes of its heap; ``None`` if it has none."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if function is not None:
        function.restype = _HeapInfo
    return function


def _memory() -> tuple[int, int]:
    """Return the bytes of the heap that are in use, or 0, and the bytes of the process in main memory."""
    gc.collect()  # of a plugin in Python, which shares this interpreter, and of the check
    if not _STATM.exists():
        raise Unsupported("the memory of a process on this system")
    function = _heap_info()
    in_use = 0 if function is None else int(function().in_use)
    return in_use, int(_STATM.read_text().split()[1]) * _PAGE
