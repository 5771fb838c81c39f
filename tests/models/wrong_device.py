"""A device that is wrong on purpose, and the first difference between it and the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import pjrt
from pjrt.devices.reference.client import ReferenceClient
from pjrt.models import FirstDifference

Spoil = Callable[[Any, Any, Any], object]


class WrongClient(ReferenceClient):
    """The interpreter with a fault: a function may change the results of each step in place."""

    platform_name = property(lambda self: "wrong")  # type: ignore[assignment]

    def __init__(self, spoil: Spoil, **options: Any) -> None:
        def trace(step: Any, inputs: Any, outputs: Any) -> None:
            # A result of rank 0 may be a scalar of numpy, which cannot be changed.
            if all(isinstance(each, np.ndarray) for each in outputs):
                spoil(step, inputs, outputs)

        super().__init__(trace=trace, **options)


def at(place: str, change: Callable[[Any], Any]) -> Spoil:
    """A fault in the operation whose name or location contains a text."""

    def spoil(step: Any, inputs: Any, outputs: Any) -> None:
        if place in step.name or place in step.location:
            outputs[0][...] = change(outputs[0])

    return spoil


def find(program: str, spoil: Spoil, *inputs: Any, **options: Any) -> FirstDifference:
    with WrongClient(spoil) as client, pjrt.client("reference") as reference:
        comparison = pjrt.compare(program, [client, reference], inputs or ("random:0",), **options)
    assert not comparison.agrees
    assert comparison.first_difference is not None
    return comparison.first_difference


X = np.array([1.0, -2.0, 3.0], np.float32)
CHAIN = """
func.func @main(%x: tensor<3xf32>, %w: tensor<3xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
  %0 = stablehlo.multiply %x, %w : tensor<3xf32>
  %1 = stablehlo.tanh %0 : tensor<3xf32> loc("layer"("model.py":7:3))
  %2 = stablehlo.add %1, %x : tensor<3xf32>
  %3 = stablehlo.cosine %2 : tensor<3xf32>
  %4 = stablehlo.convert %0 : (tensor<3xf32>) -> tensor<3xi32>
  return %3, %4 : tensor<3xf32>, tensor<3xi32>
}
"""
