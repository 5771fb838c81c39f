"""Custom calls: functions outside the program, by the name of the call's target."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.devices.reference.core.registry import Compile
from pjrt.stablehlo.attributes import Opaque

_TARGETS: dict[str, Compile] = {}


def custom_call(
    *targets: str, takes: Sequence[int] | None = None, gives: Collection[int] | None = None
) -> Callable[[Compile], Compile]:
    """Register the decorated function, which compiles calls of these targets.

    It is like ``op``. The kernel gets the environment first, as those of ops with regions do. ``config(view)`` returns
    the parameters.

    Args:
        targets: the names in programs.
        takes: the least rank of each operand, where their number is known: MLIR does not check the types of calls.
        gives: the allowed numbers of results.
    """

    def register(function: Compile) -> Compile:
        def compile_call(view: OpView) -> Kernel:
            _check(view, takes, gives)
            return function(view)

        for target in targets:
            if target in _TARGETS:
                raise ValueError(f"the custom call {target} is registered twice")
            _TARGETS[target] = compile_call
        return function

    return register


def _check(view: OpView, takes: Sequence[int] | None, gives: Collection[int] | None) -> None:
    """Check number and rank of the operands, and the number of results.

    Raises:
        InvalidArgumentError: the call has other operands or results than the target takes and gives.
    """
    if takes is not None and len(view.operands) != len(takes):
        raise view.invalid(f"expected {len(takes)} operands, found {len(view.operands)}")
    if gives is not None and len(view.results) not in gives:
        raise view.invalid(f"expected {' or '.join(map(str, sorted(gives)))} results, found {len(view.results)}")
    for index, rank in enumerate(takes or ()):
        if view.operand(index).rank < rank:
            raise view.invalid(f"expected {rank} dimensions or more of operand {index}, found {view.operand(index)}")


def find_target(name: str) -> Compile | None:
    """Return the function that compiles the calls of a target, or None if the target is unknown."""
    return _TARGETS.get(name)


def targets() -> tuple[str, ...]:
    """Return the known targets, in alphabetical order."""
    return tuple(sorted(_TARGETS))


def config(view: OpView) -> Mapping[str, Any]:
    """Return the parameters of a call: a dictionary (``mhlo.backend_config``, or ``mhlo.attributes`` of ops that travel
    as calls) or JSON.

    Raises:
        InvalidArgumentError: the parameters are neither a dictionary nor JSON.
    """
    for name in ("mhlo.attributes", "mhlo.backend_config", "backend_config"):
        value = view.attr(name, None)
        if isinstance(value, Mapping):
            return value
        if isinstance(value, str) and value.startswith("{"):
            try:
                return dict(json.loads(value))
            except ValueError:
                from pjrt.stablehlo.mlir_attributes import dictionary_of  # here: nearly all are JSON

                parsed = dictionary_of(value)  # as XLA since jaxlib 0.12 writes those of its own calls
                if parsed is None:
                    raise view.invalid(f"expected a dictionary or JSON as {name}, found {value[:80]!r}") from None
                return parsed
        if isinstance(value, Opaque | bytes):
            text = value.text if isinstance(value, Opaque) else repr(value)
            raise view.invalid(f"expected a dictionary or JSON as {name}, found {text[:80]}")
    return {}
