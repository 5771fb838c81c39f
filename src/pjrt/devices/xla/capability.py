"""The capabilities of the ``cpu`` device, as measured with every supported version of jaxlib."""

from __future__ import annotations

import functools
import platform
from collections.abc import Mapping

from pjrt import system
from pjrt.api.capability import Capabilities, Feature
from pjrt.api.device import NamedValue
from pjrt.api.element_type import ElementType
from pjrt.api.program import ProgramFormat
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.device import KINDS

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


_UNSUPPORTED_TYPES = frozenset({ElementType.INVALID, ElementType.TOKEN, ElementType.S1, ElementType.U1})
"""Types that buffers of this package cannot have, though XLA may have them."""

_SIX_BITS = frozenset({ElementType.F6E2M3FN, ElementType.F6E3M2FN})
_ELEMENT_TYPES = frozenset(ElementType) - _UNSUPPORTED_TYPES - (frozenset() if _jaxlib.HAS_SIX_BITS else _SIX_BITS)

_FEATURES = {
    Feature.ALIAS_BUFFERS: True,
    Feature.AOT_TOPOLOGIES: True,
    Feature.ASYNC_TRANSFERS: True,
    Feature.BOUNDED_DYNAMIC_SHAPES: True,
    Feature.COLLECTIVES: True,
    Feature.CROSS_HOST_TRANSFERS: False,
    Feature.DEVICE_VIEWS: True,
    Feature.DMA_MAPPING: False,
    Feature.DONATION: True,
    Feature.DYNAMIC_SHAPES: False,
    Feature.ERROR_BUFFERS: True,
    Feature.EXECUTE_CONTEXTS: False,
    Feature.HOST_CALLBACKS: True,
    Feature.INFEED_OUTFEED: False,  # such programs compile, but jaxlib has no function to feed them
    Feature.LAYOUTS: True,
    Feature.MEMORY_STATISTICS: True,
    Feature.PARTITIONING: True,
    Feature.QUANTIZED_TYPES: True,
    Feature.SEND_RECV: False,
    Feature.SERIALIZATION: True,
    Feature.STRIDED_LAYOUTS: False,
    Feature.TILED_LAYOUTS: False,
    Feature.UNINITIALIZED_BUFFERS: True,
}


def capabilities(num_devices: int) -> Capabilities:
    """Return the capabilities of a number of virtual devices.

    They do not list the operations: XLA's compiler is asked for each program.
    """
    from pjrt.stablehlo import current_version, minimum_version  # here: start-up would be slower

    oldest, newest = minimum_version(), current_version()
    return Capabilities(
        num_devices=num_devices,
        element_types=_ELEMENT_TYPES,
        memory_kinds=tuple(KINDS),
        program_formats=tuple(each.value for each in ProgramFormat),
        stablehlo_minimum_version=(oldest.major, oldest.minor, oldest.patch),
        stablehlo_current_version=(newest.major, newest.minor, newest.patch),
        features=_FEATURES,
        variants={"device_kind": "cpu", **variants()},
    )
