"""Custom calls: functions outside the program, by the name that it calls them by."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from pjrt.devices.reference._registry import Compile
from pjrt.devices.reference._view import OpView
from pjrt.stablehlo.attributes import Opaque

_TARGETS: dict[str, Compile] = {}


def custom_call(*targets: str) -> Callable[[Compile], Compile]:
    """Registers the decorated function as what compiles calls of these targets.

    As ``op``; the kernel gets the environment first, as those of ops with regions do, for ``view.called`` functions.
    ``config(view)`` has the parameters.
    """

    def register(function: Compile) -> Compile:
        for target in targets:
            if target in _TARGETS:
                raise ValueError(f"the custom call {target} is registered twice")
            _TARGETS[target] = function
        return function

    return register


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
