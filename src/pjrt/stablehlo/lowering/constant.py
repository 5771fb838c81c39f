"""Operands that are the same in every run."""

from __future__ import annotations

from typing import Any

import numpy as np

from pjrt.stablehlo.lowering._types import sizes
from pjrt.stablehlo.operation import Operation, Value

_SPREADING = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape"})


def constant_value(value: Value) -> Any:
    """Return the one number of a constant value, as a numpy scalar of its type, or ``None`` for other values.

    Frameworks write the initial value of a reduction as such a constant, sometimes reshaped or broadcast.
    """
    owner = value.owner
    while isinstance(owner, Operation) and owner.name in _SPREADING:
        owner = owner.operands[0].owner
    if not isinstance(owner, Operation) or owner.name != "stablehlo.constant":
        return None
    array = np.asarray(owner.attribute("value"))
    return array.reshape(-1)[0] if array.size == 1 else None


def constant_array(value: Value) -> Any:
    """Return a constant value as a numpy array of its shape, that of ``stablehlo.iota`` too, or ``None`` for others."""
    owner = value.owner
    if not isinstance(owner, Operation):
        return None
    shape = sizes(value)
    if owner.name == "stablehlo.constant":
        return np.broadcast_to(owner.attribute("value"), shape)
    if owner.name == "stablehlo.iota":
        dimension = owner.attribute("iota_dimension")
        steps = [-1 if d == dimension else 1 for d in range(len(shape))]
        counter = np.arange(shape[dimension]).astype(value.type.dtype)  # type: ignore[union-attr]
        return np.broadcast_to(counter.reshape(steps), shape)
    return None
