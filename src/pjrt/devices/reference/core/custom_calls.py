"""Custom calls: functions outside the program, by the name that it calls them by."""

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
    """Registers the decorated function as what compiles calls of these targets.

    As ``op``; the kernel gets the environment first, as those of ops with regions do, for ``view.called`` functions.
    ``config(view)`` has the parameters.

    Args:
        targets: the names that programs call it by.
        takes: the least rank of each operand, where their number is known: nobody else checks a call's types.
        gives: the numbers of results that there may be.
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
    """Raises InvalidArgumentError: number or rank of the operands, or the number of results, is not what it must be."""
    if takes is not None and len(view.operands) != len(takes):
        raise view.invalid(f"expected {len(takes)} operands, found {len(view.operands)}")
    if gives is not None and len(view.results) not in gives:
        raise view.invalid(f"expected {' or '.join(map(str, sorted(gives)))} results, found {len(view.results)}")
    for index, rank in enumerate(takes or ()):
        if view.operand(index).rank < rank:
            raise view.invalid(f"expected {rank} dimensions or more of operand {index}, found {view.operand(index)}")


def find_target(name: str) -> Compile | None:
    """What compiles the calls of a target, or None where there is none."""
    return _TARGETS.get(name)


def targets() -> tuple[str, ...]:
    """The targets that are known, in alphabetical order."""
    return tuple(sorted(_TARGETS))


def config(view: OpView) -> Mapping[str, Any]:
    """The parameters of a call: a dictionary (``mhlo.backend_config``, or ``mhlo.attributes`` of ops that travel as
    calls) or JSON.

    Raises:
        InvalidArgumentError: they are of another form.
    """
    for name in ("mhlo.attributes", "mhlo.backend_config", "backend_config"):
        found = view.attr(name, None)
        if isinstance(found, Mapping):
            return found
        if isinstance(found, str) and found.startswith("{"):
            try:
                parsed = json.loads(found)
            except ValueError as error:
                raise view.invalid(f"expected a dictionary or JSON as {name}, found {found[:80]!r}") from error
            return dict(parsed)
        if isinstance(found, Opaque | bytes):
            told = found.text if isinstance(found, Opaque) else repr(found)
            raise view.invalid(f"expected a dictionary or JSON as {name}, found {told[:80]}")
    return {}
