"""The processor that XLA compiles for: what it is, and which of its instructions matter to programs."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping
from pathlib import Path

from pjrt.api.attributes import NamedValue

_FACTS = Path("/proc/cpuinfo")
"""Where Linux tells; elsewhere the kind of processor is all that is known."""

_TOLD = {
    "x86_64": (
        *("sse4_2", "avx", "avx2", "fma", "f16c"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    ),
    "aarch64": ("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm", "sme"),
}
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


@functools.cache
def variants() -> Mapping[str, NamedValue]:
    """The architecture, and for each instruction set that tells its processors apart whether it is there."""
    machine = platform.machine().lower()
    machine = _SAME.get(machine, machine)
    found: dict[str, NamedValue] = {"architecture": machine or "unknown"}
    has = _flags()
    if has:
        found |= {name: name in has for name in _TOLD.get(machine, ())}
    return found


def _flags() -> frozenset[str]:
    """The flags of the first processor."""
    try:
        text = _FACTS.read_text()
    except (OSError, UnicodeDecodeError):
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() in ("flags", "features"):
            return frozenset(value.split())
    return frozenset()
