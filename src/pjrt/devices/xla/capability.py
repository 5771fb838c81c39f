"""What the ``cpu`` device can do: as measured, with every version of jaxlib that the tests run with."""

from __future__ import annotations

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.element_type import ElementType
from pjrt.api.program import ProgramFormat
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.cpu_features import variants
from pjrt.devices.xla.memory_space import KINDS

_LEFT_OUT = frozenset({ElementType.INVALID, ElementType.TOKEN, ElementType.S1, ElementType.U1})
"""Types that buffers here cannot have, though XLA may have them."""

_SIX_BITS = frozenset({ElementType.F6E2M3FN, ElementType.F6E3M2FN})
_ELEMENT_TYPES = frozenset(ElementType) - (_LEFT_OUT if _jaxlib.HAS_SIX_BITS else _LEFT_OUT | _SIX_BITS)

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
    Feature.INFEED_OUTFEED: False,  # such programs compile, but there is nobody to feed them
    Feature.LAYOUTS: True,
    Feature.MEMORY_STATISTICS: True,
    Feature.PARTITIONING: True,
    Feature.QUANTIZED_TYPES: False,
    Feature.SEND_RECV: False,
    Feature.SERIALIZATION: True,
    Feature.STRIDED_LAYOUTS: False,
    Feature.TILED_LAYOUTS: False,
    Feature.UNINITIALIZED_BUFFERS: True,
}


def capabilities(num_devices: int) -> Capabilities:
    """What a number of virtual devices can do.

    Which operations run is not said: XLA's compiler knows, and is asked.
    """
    from pjrt.stablehlo import current_version, minimum_version  # here: start-up would feel it

    oldest, newest = minimum_version(), current_version()
    return Capabilities(
        num_devices=num_devices,
        element_types=_ELEMENT_TYPES,
        memory_kinds=tuple(KINDS),
        program_formats=(ProgramFormat.MLIR.value, ProgramFormat.HLO.value),
        stablehlo_minimum_version=(oldest.major, oldest.minor, oldest.patch),
        stablehlo_current_version=(newest.major, newest.minor, newest.patch),
        features=_FEATURES,
        variants={"device_kind": "cpu", **variants()},
    )
