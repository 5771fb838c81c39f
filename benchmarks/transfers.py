"""Time transfers of 4 KiB to 256 MiB from host to device and back, with a copy and in shared memory."""

from __future__ import annotations

import jax
import numpy as np

import pjrt
from benchmarks.side_by_side import Aim, Call, Report, Timing, duration, main, table, take_turns

SIZES = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20]
ALIGNMENT = 64  # what XLA's CPU asks of memory that it is to use in place

Case = dict[str, Call]


def host_array(size: int, *, offset: int) -> np.ndarray:
    """Return an f32 array of `size` bytes that starts `offset` bytes past a multiple of `ALIGNMENT`."""
    memory = np.empty(size + 2 * ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT + offset
    array = memory[start : start + size].view(np.float32)
    array[:] = np.arange(array.size) % 251
    return array


def cases(client: pjrt.Client, size: int) -> dict[str, Case]:
    """Return our call and jax's for each kind of transfer; each call waits for the end of the transfer."""
    aligned, unaligned = host_array(size, offset=0), host_array(size, offset=4)
    semantics = pjrt.HostBufferSemantics
    ours = client.buffer_from_host(aligned)
    theirs = jax.device_put(aligned).block_until_ready()

    def put(array: np.ndarray, how: pjrt.HostBufferSemantics) -> Call:
        return lambda: client.buffer_from_host(array, semantics=how).ready().result()

    return {
        "in, copied": {
            "pjrt": put(unaligned, semantics.IMMUTABLE_ONLY_DURING_CALL),
            "jax": lambda: jax.device_put(unaligned).block_until_ready(),
        },
        "in, shared": {
            "pjrt": put(aligned, semantics.IMMUTABLE_ZERO_COPY),
            "jax": lambda: jax.device_put(aligned).block_until_ready(),
        },
        "out, copied": {"pjrt": lambda: np.array(ours, copy=True), "jax": lambda: np.array(theirs, copy=True)},
        "out, shared": {"pjrt": lambda: np.asarray(ours), "jax": lambda: np.asarray(theirs)},
        "out, DLPack": {"pjrt": lambda: np.from_dlpack(ours), "jax": lambda: np.from_dlpack(theirs)},
    }


def check(way: str, case: Case, size: int) -> None:
    """Check that the values are right, and that memory is shared exactly where the case is called shared."""
    if not way.startswith("out"):
        return
    for name, call in case.items():
        first, second = call(), call()
        if not np.array_equal(first[:8], np.arange(8, dtype=np.float32)) or first.nbytes != size:
            raise RuntimeError(f"{name}, {way}: wrong numbers")
        if np.shares_memory(first, second) is not (way != "out, copied"):
            raise RuntimeError(f"{name}, {way}: memory is {'' if way == 'out, copied' else 'not '}shared")


def measure(quick: bool) -> Report:
    """Compare transfers between host and device: ours against jax.device_put and np.asarray."""
    client = pjrt.client("cpu")
    sizes = SIZES[:3] if quick else SIZES
    timings: dict[str, dict[int, dict[str, Timing]]] = {}
    for size in sizes:
        for way, case in cases(client, size).items():
            check(way, case, size)
            timings.setdefault(way, {})[size] = take_turns(case, rounds=3 if quick else 11)
    return _report(timings, sizes)


def _report(timings: dict[str, dict[int, dict[str, Timing]]], sizes: list[int]) -> Report:
    rows = []
    for way, by_size in timings.items():
        rows += [(way, name, *(duration(by_size[size][name].median) for size in sizes)) for name in ("pjrt", "jax")]
        ratios = (f"{pair['pjrt'].ratio_to(pair['jax']):.2f}×" for pair in by_size.values())
        rows.append((way, "pjrt takes", *ratios))
    report = Report(
        "Transfers",
        "Medians. *In* is `buffer_from_host` against `jax.device_put`, waiting for it to end; *copied* from an array "
        f"that is not aligned to {ALIGNMENT} bytes, so that it must be, *shared* from an aligned one (ours with "
        "`IMMUTABLE_ZERO_COPY`; jax shares it unasked). *Out* is `np.array(x, copy=True)`, `np.asarray(x)`, "
        "and `np.from_dlpack(x)`.",
        [table(["", "", *map(_bytes, sizes)], rows)],
    )
    for way in ("in, shared", "out, shared", "out, DLPack"):
        smallest, largest = timings[way][sizes[0]]["pjrt"], timings[way][sizes[-1]]["pjrt"]
        text = f"{way}: {_bytes(sizes[-1])} takes no longer than {_bytes(sizes[0])} (within 1.5×)"
        report.aims.append(Aim(text, largest.ratio_to(smallest), 1.5))
    for way, limit in (("in, copied", 0.25), ("out, shared", 1.5)):
        ratio = timings[way][sizes[0]]["pjrt"].ratio_to(timings[way][sizes[0]]["jax"])
        report.aims.append(Aim(f"{way}: {_bytes(sizes[0])} within {limit}× of jax", ratio, limit))
    return report


def _bytes(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


if __name__ == "__main__":
    main(measure)
