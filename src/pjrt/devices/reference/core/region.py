"""Regions: the bodies of while, reduce, sort, …, and functions, as ops use them."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from pjrt.devices.reference.core.block import Block, Environment
from pjrt.devices.reference.numerics.chunks import CHUNK, chunks
from pjrt.stablehlo.types import TensorType, ValueType

_COMMUTATIVE = {f"stablehlo.{name}": name for name in ("add", "multiply", "maximum", "minimum", "and", "or", "xor")}


class Region:
    """A compiled region or function.

    A call runs it: ``region(environment, *args)`` returns a list of its results. The environment is the first argument
    of the kernel of the op that has the region. ``elementwise`` is True where every op in it works element by element
    on scalars, so that ``vectorized`` costs one pass over arrays.
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
        """The types of its results."""
        return self.block.results

    def __call__(self, environment: Environment, *args: Any) -> list[Any]:
        return self.block.run(environment, args)

    def run(self, environment: Environment, args: Any) -> list[Any]:
        """Return the results for arguments in a sequence."""
        return self.block.run(environment, args)

    def consume(self, environment: Environment, args: list[Any]) -> list[Any]:
        """Do as ``run``, and empty the list of arguments (see ``Block.consume``)."""
        return self.block.consume(environment, args)

    @cached_property
    def pattern(self) -> str | None:
        """The common function that the body computes, if it is one.

        ``"add"``, ``"multiply"``, ``"maximum"``, ``"minimum"``, ``"and"``, ``"or"``, ``"xor"`` for that op of its two
        arguments in either order; ``"first"`` and ``"second"`` for returning that one of two arguments; else None. The
        element type of the body, that of ``arguments[0]``, can be wider than the operand's: then the caller converts.
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
        """Return the results of the scalar body at each position of arrays that broadcast together: one array of the
        common shape for each result.

        Where the body is ``elementwise`` it takes one pass over whole arrays; otherwise it runs for each position.
        """
        if not self.elementwise:
            return self._position_by_position(environment, arrays)
        shape = np.broadcast_shapes(*(np.shape(a) for a in arrays))
        if math.prod(shape) > 2 * CHUNK and not self._is_one_ufunc:
            return self._by_chunks(environment, [np.broadcast_to(a, shape) for a in arrays])
        results = self.block.run(environment, arrays)
        return [r if np.shape(r) == shape else np.broadcast_to(r, shape) for r in results]

    @cached_property
    def _is_one_ufunc(self) -> bool:
        """Whether the body is one function of numpy, which holds nothing but its result."""
        return len(self.block.code) == 1 and isinstance(self.block.code[0][0], np.ufunc)

    def _by_chunks(self, environment: Environment, arrays: list[Any]) -> list[np.ndarray[Any, Any]]:
        """Do as ``vectorized``, with only chunks of the values between the body's operations."""
        shape = arrays[0].shape
        outs = [np.empty(shape, t.dtype) for t in self.results if isinstance(t, TensorType)]
        for part in chunks(shape[0], math.prod(shape[1:])):
            for out, value in zip(outs, self.block.run(environment, [a[part] for a in arrays]), strict=True):
                out[part] = value
        return outs

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
