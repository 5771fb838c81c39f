"""The registry of faster kernels: the compilers here are tried before those in ``ops``."""

from __future__ import annotations

from collections.abc import Callable

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView

FasterCompile = Callable[[OpView], Kernel | None]
"""A function that returns a faster kernel of an op, or None where it has none for these types or attributes."""

_COMPILERS: dict[str, FasterCompile] = {}


def faster(name: str) -> Callable[[FasterCompile], FasterCompile]:
    """Register the decorated function for the ops of a name."""

    def register(function: FasterCompile) -> FasterCompile:
        _COMPILERS[name] = function
        return function

    return register


def faster_kernel(view: OpView) -> Kernel | None:
    """Return the faster kernel of an op, or None if it has none."""
    compile_faster = _COMPILERS.get(view.name)
    return None if compile_faster is None else compile_faster(view)
