"""Checks of a plugin: single questions, each with a name, the rule of the header, and the functions it is about.

A check is a function of a module below ``official``, ``contract`` or ``framework``::

    @check(
        "client.lookup_device.negative_id",
        calls=("PJRT_Client_LookupDevice",),
        rule="An id that no device has is an error with the code INVALID_ARGUMENT.",
    )
    def _negative_id(subject: Subject) -> None:
        subject.fails("PJRT_Client_LookupDevice", "INVALID_ARGUMENT", client=subject.client, id=-1)
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InternalError

if TYPE_CHECKING:
    from pjrt.conformance.plugin.subject import Subject


class Tier(enum.StrEnum):
    """The tier of a check; a package of that name has its module."""

    OFFICIAL = "official"
    """Expectations of XLA's C tests."""
    CONTRACT = "contract"
    """Requirements of the header."""
    FRAMEWORK = "framework"
    """Needs of JAX and PyTorch/XLA."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        name: its name, which stays the same from version to version: reports are compared by it.
        tier: its tier.
        calls: the functions of the C API that it is about.
        rule: the requirement of the header, in our own words.
        run: is called with the plugin; raises ``Failed`` or ``Unsupported``.
    """

    name: str
    tier: Tier
    calls: tuple[str, ...]
    rule: str
    run: Callable[[Subject], None]


_registry: dict[str, Check] = {}


def check(
    name: str, *, calls: Iterable[str], rule: str, over: Mapping[str, Any] | Iterable[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a check of a function; its tier is that of the package of its module.

    Args:
        name: the check's name, ``function-or-noun.what`` in lower case.
        calls: the functions of the C API that it is about, by their names in C.
        rule: the requirement of the header, in our own words.
        over: makes one check of each of these: their labels and values, or values whose text is the label. The name is
            ``name[label]``, and the function gets the value as its second argument.
    """
    functions = tuple(calls)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        tier = Tier(function.__module__.removeprefix(f"{__package__}.").split(".")[0])
        if over is None:
            add(Check(name, tier, functions, rule, function))
            return function
        values = over if isinstance(over, Mapping) else {str(value): value for value in over}
        for label, value in values.items():
            add(Check(f"{name}[{label}]", tier, functions, rule, functools.partial(_run_with, function, value)))
        return function

    return register


def _run_with(function: Callable[..., None], value: Any, subject: Subject) -> None:
    function(subject, value)


def add(each: Check) -> None:
    """Add a check that a module makes without the decorator.

    Raises:
        InternalError: another check has the same name.
    """
    if each.name in _registry:
        raise InternalError(f"two checks have the name {each.name}; rename one of them")
    _registry[each.name] = each


@functools.cache
def all_checks() -> Mapping[str, Check]:
    """Return all checks by name: those of the tiers in their order, and of a module in its order."""
    for tier in Tier:
        package = importlib.import_module(f"pjrt.conformance.plugin.{tier}")
        for module in sorted(
            pkgutil.walk_packages(package.__path__, f"{package.__name__}."), key=lambda each: each.name
        ):
            importlib.import_module(module.name)
    return {each.name: each for tier in Tier for each in _registry.values() if each.tier is tier}
