"""The capabilities of the ``reference`` device, from its own table of ops."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection, Mapping

import ml_dtypes

from pjrt.api.capability import Capabilities, Feature
from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core import custom_calls, mlir, registry
from pjrt.devices.reference.numerics.element_types import BOOLEAN, EVERY

_MOVING = """
broadcast_in_dim concatenate constant convert dynamic_slice dynamic_update_slice get_tuple_element optimization_barrier
pad reshape reverse slice transpose tuple while
"""
_TYPES: dict[str, frozenset[ElementType]] = {
    **{f"stablehlo.{name}": EVERY for name in _MOVING.split()},
    "func.call": EVERY,
    "stablehlo.case": frozenset({ElementType.S32}),
    "stablehlo.if": BOOLEAN,
    "stablehlo.select": BOOLEAN,
}
"""Ops that treat all element types alike, with those that their first operand can have."""

_HELD = frozenset(map(ElementType.of, filter(None, (getattr(ml_dtypes, name, None) for name in ("int1", "uint1")))))
"""Types that buffers can have, but that no op is defined on, if ml_dtypes has them."""

_FEATURES = {
    Feature.BOUNDED_DYNAMIC_SHAPES: True,
    Feature.COLLECTIVES: True,
    Feature.DYNAMIC_SHAPES: True,
    Feature.INFEED_OUTFEED: True,
    Feature.PARTITIONING: True,
    Feature.QUANTIZED_TYPES: True,
    Feature.SEND_RECV: True,
}


def capabilities(handlers: Collection[str]) -> Capabilities:
    """Return the capabilities of the device.

    Args:
        handlers: names of functions of the host that custom calls may call, besides the built-in ones.
    """
    return Capabilities(
        element_types=EVERY | _HELD,
        operations=operations(),
        custom_calls=frozenset({*custom_calls.targets(), *handlers}),
        features=_FEATURES,
    )


@functools.cache
def operations() -> Mapping[str, frozenset[ElementType] | None]:
    """Return the operations of the interpreter by name, each with its element types, or None where they vary."""
    importlib.import_module("pjrt.devices.reference.ops")  # registers them
    # Ops of CHLO that are not in the table may be expressed by others, in StableHLO's own pass.
    types: dict[str, frozenset[ElementType] | None] = dict.fromkeys(mlir.operations("chlo"))
    for rule in registry.rules():
        types[rule.name] = _TYPES.get(rule.name, rule.types)
    return types
