"""The statistics of a device's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from pjrt.conformance.plugin.check import Unsupported, check
from pjrt.conformance.plugin.contract.buffers.buffer_calls import ramp
from pjrt.conformance.plugin.contract.buffers.external_references import DECREASE, INCREASE
from pjrt.conformance.plugin.subject import Subject

STATS = "PJRT_Device_MemoryStats"
_CALLS = (STATS,)
_SIZE = 1 << 22
_PATIENCE = 20.0
"""The seconds in which a plugin frees the memory of a buffer that nothing uses any more."""


def statistics(subject: Subject) -> dict[str, Any]:
    """Return the statistics of the first device that are set."""
    subject.require(STATS)
    fields = subject.call(STATS, device=subject.device).fields
    return {
        name: value
        for name, value in fields.items()
        if not name.endswith("_is_set") and fields.get(f"{name}_is_set", True)
    }


def _in_use(subject: Subject) -> int:
    return int(statistics(subject)["bytes_in_use"])


def _wait_until(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; the plugin frees memory when operations on it have completed, perhaps later."""
    end = time.monotonic() + _PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


@check(
    "memory_stats.sane",
    calls=_CALLS,
    rule="The statistics are numbers of bytes: none is negative, and peaks are no smaller.",
)
def _sane(subject: Subject) -> None:
    buffer = subject.buffer(ramp(1000))
    found = statistics(subject)
    for name, number in found.items():
        subject.expect(number >= 0, f"{name} of at least 0", f"{number}")
    in_use = found["bytes_in_use"]
    for name in ("peak_bytes_in_use", "bytes_limit"):
        if found.get(name):
            subject.expect(found[name] >= in_use, f"{name} of at least {in_use}", f"{found[name]}")
    subject.destroy_buffers(buffer)


@check(
    "memory_stats.flags",
    calls=_CALLS,
    rule="Each flag says whether its statistic is set, whatever the caller's memory held before.",
)
def _flags(subject: Subject) -> None:
    names = [name for name in statistics(subject) if name != "bytes_in_use"]
    fields = subject.call(STATS, device=subject.device).fields
    flags = [name for name in fields if name.endswith("_is_set")]
    before = dict.fromkeys(flags, True) | {name.removesuffix("_is_set"): -777 for name in flags}
    after = subject.call(STATS, device=subject.device, **before).fields
    found = sorted(name.removesuffix("_is_set") for name in flags if after[name])
    subject.expect(found == sorted(names), f"the flags of {sorted(names)}", str(found))
    for name in found:
        subject.expect(after[name] != -777, f"a value of {name}", "the value that the caller's memory held before")


@check("memory_stats.grow", calls=_CALLS, rule="bytes_in_use has the bytes of each buffer.")
def _grow(subject: Subject) -> None:
    before = _in_use(subject)
    buffers = [subject.buffer(np.ones(_SIZE, np.uint8)) for _ in range(3)]
    subject.await_buffers(buffers)
    after = _in_use(subject)
    subject.expect(after >= before + 3 * _SIZE, f"at least {before + 3 * _SIZE} bytes", f"{after}")
    subject.destroy_buffers(*buffers)


@check(
    "memory_stats.shrink",
    calls=(*_CALLS, "PJRT_Buffer_Destroy", "PJRT_Buffer_Delete"),
    rule="The memory of a buffer is freed when it was deleted or destroyed, and nothing uses it any more.",
    over=("delete", "destroy"),
)
def _shrink(subject: Subject, end: str) -> None:
    statistics(subject)
    buffers = [subject.buffer(np.ones(_SIZE, np.uint8)) for _ in range(3)]
    subject.await_buffers(buffers)
    full = _in_use(subject)
    for buffer in buffers:
        if end == "delete":
            subject.call("PJRT_Buffer_Delete", buffer=buffer)
        else:
            subject.destroy_buffers(buffer)
    most = full - 3 * _SIZE
    subject.expect(_wait_until(lambda: _in_use(subject) <= most), f"at most {most} bytes in use", f"{_in_use(subject)}")
    if end == "delete":
        subject.destroy_buffers(*buffers)


@check(
    "memory_stats.steady",
    calls=(*_CALLS, "PJRT_Buffer_Destroy"),
    rule="Buffers that come and go leave no memory in use.",
)
def _steady(subject: Subject) -> None:
    subject.destroy_buffers(subject.buffer(np.ones(_SIZE, np.uint8)))
    before = _in_use(subject)
    for _ in range(50):
        subject.destroy_buffers(subject.buffer(np.ones(_SIZE // 4, np.uint8)))
    subject.expect(
        _wait_until(lambda: _in_use(subject) <= before), f"at most {before} bytes in use", f"{_in_use(subject)}"
    )


@check(
    "memory_stats.peak",
    calls=_CALLS,
    rule="peak_bytes_in_use is the most that was in use, also after it is freed.",
)
def _peak(subject: Subject) -> None:
    if "peak_bytes_in_use" not in statistics(subject):
        raise Unsupported("the statistic peak_bytes_in_use")
    buffer = subject.buffer(np.ones(2 * _SIZE, np.uint8))
    subject.await_buffers([buffer])
    full = _in_use(subject)
    subject.destroy_buffers(buffer)
    found = statistics(subject)["peak_bytes_in_use"]
    subject.expect(found >= full, f"at least {full} bytes", f"{found}")


@check(
    "memory_stats.allocations",
    calls=_CALLS,
    rule="num_allocs and largest_alloc_size, where they are set, count the buffers that were made.",
)
def _allocations(subject: Subject) -> None:
    before = statistics(subject)
    if not {"num_allocs", "largest_alloc_size"} & before.keys():
        raise Unsupported("the statistics num_allocs and largest_alloc_size")
    buffers = [subject.buffer(np.ones(2 * _SIZE, np.uint8)) for _ in range(3)]
    after = statistics(subject)
    if "num_allocs" in before:
        least = before["num_allocs"] + 1
        subject.expect(after["num_allocs"] >= least, f"at least {least} allocations", f"{after['num_allocs']}")
    if "largest_alloc_size" in before:
        found = after["largest_alloc_size"]
        subject.expect(found >= 2 * _SIZE, f"at least {2 * _SIZE} bytes", f"{found}")
    subject.destroy_buffers(*buffers)


@check(
    "memory_stats.external_reference",
    calls=(*_CALLS, INCREASE, DECREASE, "PJRT_Buffer_Delete"),
    rule="While a buffer has external references, its memory stays in use after PJRT_Buffer_Delete.",
)
def _external_reference(subject: Subject) -> None:
    subject.require(INCREASE, DECREASE)
    statistics(subject)
    buffer = subject.buffer(np.ones(_SIZE, np.uint8))
    subject.await_buffers([buffer])
    subject.call(INCREASE, buffer=buffer)
    full = _in_use(subject)
    subject.call("PJRT_Buffer_Delete", buffer=buffer)
    found = _in_use(subject)
    subject.expect(found >= full, f"still {full} bytes in use", f"{found}")
    subject.call(DECREASE, buffer=buffer)
    subject.destroy_buffers(buffer)
    most = full - _SIZE
    subject.expect(_wait_until(lambda: _in_use(subject) <= most), f"at most {most} bytes in use", f"{_in_use(subject)}")


@check(
    "memory_stats.of_each_device",
    calls=_CALLS,
    rule="A buffer counts on the device that it is on.",
)
def _of_each_device(subject: Subject) -> None:
    subject.require(STATS)
    first, second = subject.several_devices(2)
    before = {each: subject.call(STATS, device=each).bytes_in_use for each in (first, second)}
    buffer = subject.buffer(np.ones(_SIZE, np.uint8), device=second)
    subject.await_buffers([buffer])
    after = subject.call(STATS, device=second).bytes_in_use
    subject.expect(after >= before[second] + _SIZE, f"at least {before[second] + _SIZE} bytes", f"{after}")
    subject.destroy_buffers(buffer)
