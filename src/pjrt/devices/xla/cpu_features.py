"""The processor that XLA compiles for: its architecture, and the instruction sets that matter to programs."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping

from pjrt import system
from pjrt.api.device import NamedValue

_INSTRUCTION_SETS = {
    "x86_64": (
        *("sse4_2", "avx", "avx2", "fma", "f16c"),
        *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx512_fp16"),
        *("avx_vnni", "amx_tile", "amx_bf16", "amx_int8", "amx_fp16"),
    ),
    "aarch64": ("asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm", "sme"),
}
"""The instruction sets in which processors of an architecture differ, by Linux's names."""

_SYNONYMS = {"amd64": "x86_64", "arm64": "aarch64"}


@functools.cache
def variants() -> Mapping[str, NamedValue]:
    """Return the architecture, and for each instruction set whether the processor has it.

    The instruction sets are left out on systems that do not use Linux's names for them.
    """
    machine = platform.machine().lower()
    machine = _SYNONYMS.get(machine, machine)
    names = _INSTRUCTION_SETS.get(machine, ())
    features = frozenset(system.processor_features())
    values: dict[str, NamedValue] = {"architecture": machine or "unknown"}
    if not features.isdisjoint(names):
        values |= {name: name in features for name in names}
    return values
