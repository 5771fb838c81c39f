"""The processor that XLA compiles for: what it is, and which of its instructions matter to programs."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping

from pjrt import system
from pjrt.api.attributes import NamedValue

_TOLD = {
    "x86_64": (
        *("sse4_2", "avx", "avx2", "fma", "f16c"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    ),
    "aarch64": ("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm", "sme"),
}
"""The instruction sets that tell processors of an architecture apart, by Linux's names."""

_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


@functools.cache
def variants() -> Mapping[str, NamedValue]:
    """The architecture, and for each instruction set whether it is there, as far as the system says it in these
    words.
    """
    machine = platform.machine().lower()
    machine = _SAME.get(machine, machine)
    told = _TOLD.get(machine, ())
    has = frozenset(system.processor_features())
    found: dict[str, NamedValue] = {"architecture": machine or "unknown"}
    if not has.isdisjoint(told):
        found |= {name: name in has for name in told}
    return found
