"""The costs of a run, counted from the types in the program, by the keys of PJRT's cost analysis."""

from __future__ import annotations

from collections.abc import Sequence

from pjrt.devices.reference.core.block import Block, Step
from pjrt.devices.reference.evaluator import Evaluator
from pjrt.stablehlo.types import TensorType, ValueType


def _ops(names: str) -> frozenset[str]:
    return frozenset(f"stablehlo.{name}" for name in names.split())


_TRANSCENDENTAL = _ops("""
atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt tan tanh
""")
_FREE = _ops("""
bitcast_convert broadcast broadcast_in_dim concatenate constant convert dynamic_slice dynamic_update_slice gather
get_tuple_element iota optimization_barrier pad reshape reverse slice transpose tuple
""")


def costs(evaluator: Evaluator) -> dict[str, float]:
    """Return ``flops``, ``transcendentals`` and ``bytes accessed`` of a run; a loop's body counts once, as in XLA."""
    totals = {"flops": 0.0, "transcendentals": 0.0, "bytes accessed": 0.0}
    _add(evaluator.region.block, totals)
    return totals


def _add(block: Block, totals: dict[str, float]) -> None:
    for step in block.steps:
        totals["bytes accessed"] += _bytes(step.input_types) + _bytes(step.output_types)
        if step.name in _TRANSCENDENTAL:
            totals["transcendentals"] += _elements(step.output_types)
        elif step.name not in _FREE:
            totals["flops"] += _flops(step)
        for inner in step.blocks:
            _add(inner, totals)


def _flops(step: Step) -> float:
    if step.flops is not None:
        return step.flops
    if step.name.startswith("stablehlo.reduce"):
        return float(_elements(step.input_types))
    return float(_elements(step.output_types))


def _elements(types: Sequence[ValueType]) -> int:
    return sum(t.size for t in types if isinstance(t, TensorType) and t.is_static)


def _bytes(types: Sequence[ValueType]) -> int:
    return sum(t.size * t.dtype.itemsize for t in types if isinstance(t, TensorType) and t.is_static)
