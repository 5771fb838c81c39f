"""Plans: the checks of a device, from what it declares that it can do."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pjrt.api.capability import Capabilities
from pjrt.api.element_type import ElementType
from pjrt.conformance.device.behaviour_checks import behaviour_checks, devices_checks, jax_checks
from pjrt.conformance.device.checks import Check, OperationCheck
from pjrt.conformance.operation_table import cases_of, operations

JAX = "jax"

GROUPS = ("operations", "behaviour", "devices", JAX)
"""The groups of checks, in their order."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The checks that a user asks for.

    Attributes:
        groups: names among ``GROUPS``.
        filters: texts, with ``*`` for anything, of which one must be in the name of a check; all checks if there are
            none.
        everything: whether to test operations that a fallback runs, too.
        left_out: texts, with ``*`` for anything, of which none may be in the name of a check.
    """

    groups: tuple[str, ...] = GROUPS
    filters: tuple[str, ...] = ()
    everything: bool = False
    left_out: tuple[str, ...] = ()

    def takes(self, check: Check) -> bool:
        """Whether a check is among them."""
        return (not self.filters or _has_one_of(check.name, self.filters)) and not _has_one_of(
            check.name, self.left_out
        )


def _has_one_of(name: str, texts: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, f"*{text}*") for text in texts)


def plan(capabilities: Capabilities, choice: Choice, groups: Collection[str]) -> list[Check]:
    """Return the checks of some groups, in an order that is always the same."""
    checks: list[Iterable[Check]] = []
    if "behaviour" in groups:
        checks.append(behaviour_checks(capabilities))
    if "devices" in groups:
        checks.append(devices_checks())
    if "operations" in groups:
        checks.append(_operation_checks(capabilities, choice.everything))
    if JAX in groups:
        checks.append(jax_checks())
    return [each for group in checks for each in group if choice.takes(each)]


def tested_operations(capabilities: Capabilities, everything: bool) -> Sequence[str]:
    """Return the operations to test, of those that the device declares: its own, and with ``everything`` those of its
    fallback. A device that declares none is asked for all that the table has.
    """
    declared = capabilities.operations
    own = capabilities.native_operations
    names = operations()
    return [
        name
        for name in names
        if (declared is None or name in declared or (own is not None and name in own))
        and (everything or own is None or name in own)
    ]


def untested_operations(capabilities: Capabilities) -> list[str]:
    """Return the operations that the device's own code runs, or else declares, and that have no cases."""
    names = capabilities.native_operations
    if names is None:
        names = frozenset(capabilities.operations or ())
    return sorted(name for name in names if name not in operations() and name != "func.return")


def _operation_checks(capabilities: Capabilities, everything: bool) -> Iterator[Check]:
    declared = capabilities.operations
    for operation in tested_operations(capabilities, everything):
        known_types = None if declared is None else declared.get(operation)
        for element_type in ElementType:
            if known_types is not None and element_type not in known_types:
                continue
            if capabilities.element_types is not None and element_type not in capabilities.element_types:
                continue
            for case in cases_of(operation, element_type):
                if declared is None or all(name in declared for name in case.operations):
                    yield OperationCheck(case, declared=known_types is not None)
