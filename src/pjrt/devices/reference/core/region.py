"""Regions: the bodies of while, reduce, sort, …, and functions, as ops use them."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Block, Environment
from pjrt.stablehlo.types import TensorType, ValueType

_COMMUTATIVE = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "multiply",
    "stablehlo.maximum": "maximum",
    "stablehlo.minimum": "minimum",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}


class Region:
    """A compiled region or function.

    Calling it runs it: ``region(environment, *args)`` gives a list with as many values as it returns. The environment
    is the first argument of the kernel of the op that has the region.

    ``elementwise`` tells whether every op in it works element by element on scalars, so that ``vectorized`` costs one
    pass over arrays.
    """

    def __init__(self, block: Block, elementwise: bool) -> None:
        self.block = block
        self.elementwise = elementwise

    @property
    def arguments(self) -> tuple[ValueType, ...]:
        """The types of its arguments."""
        return self.block.arguments

    @property
    def results(self) -> tuple[ValueType, ...]:
        """The types of what it returns."""
        return self.block.results

    def __call__(self, environment: Environment, *args: Any) -> list[Any]:
        return self.block.run(environment, args)

    def run(self, environment: Environment, args: Any) -> list[Any]:
        """As calling it, with the arguments in a sequence."""
        return self.block.run(environment, args)

    def consume(self, environment: Environment, args: list[Any]) -> list[Any]:
        """As ``run``, and empties the list of arguments: what nobody else holds may then be updated in place."""
        return self.block.consume(environment, args)

    @cached_property
    def pattern(self) -> str | None:
        """What the body computes, where it is one of the common ones.

        ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"`` for that op of its two
        arguments in either order; ``"first"`` and ``"second"`` for returning that one of two arguments; else None. The
        element type of the body is ``arguments[0]``: it can be wider than the operand's, then the caller converts.
        """
        block = self.block
        if len(block.arguments) != 2 or len(block.outputs) != 1 or block.captures:
            return None
        if not block.code:
            return {1: "first", 2: "second"}.get(block.outputs[0])
        if len(block.steps) != 1:
            return None
        step = block.steps[0]
        if set(step.inputs) != {1, 2} or step.outputs != block.outputs:
            return None
        return _COMMUTATIVE.get(step.name)

    def vectorized(self, environment: Environment, *arrays: Any) -> list[np.ndarray[Any, Any]]:
        """The scalar body applied at each position of arrays that broadcast together; one array of the common shape a
        result.

        One pass over whole arrays where the body is ``elementwise``; otherwise the body is run for each position.
        """
        if self.elementwise:
            results = self.block.run(environment, arrays)
            shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
            return [r if np.shape(r) == shape else np.broadcast_to(r, shape) for r in results]
        return self._position_by_position(environment, arrays)

    def _position_by_position(self, environment: Environment, arrays: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
        spread = np.broadcast_arrays(*arrays)
        shape = spread[0].shape
        flats = [a.reshape(-1) for a in spread]
        outs = [np.empty(flats[0].size, t.dtype) for t in self.results if isinstance(t, TensorType)]
        run = self.block.run
        for i, items in enumerate(zip(*flats, strict=True)):
            for out, value in zip(outs, run(environment, items), strict=True):
                out[i] = value
        return [out.reshape(shape) for out in outs]
