"""Checks of a plugin: single questions, each with a name, the rule of the header, and the functions it is about.

A check is a function of a module below ``official``, ``contract`` or ``framework``::

    @check("client.lookup_device.negative_id", calls=("PJRT_Client_LookupDevice",))
    def _negative_id(subject: Subject) -> None:
        '''An id that no device has is an error with the code INVALID_ARGUMENT.'''
        subject.fails("PJRT_Client_LookupDevice", "INVALID_ARGUMENT", client=subject.client, id=-1)

It returns, or raises ``Failed`` or ``Unsupported``, of which its process makes an ``Outcome``.
"""

from __future__ import annotations

import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pjrt.api.errors import InternalError
from pjrt.conformance.plugin.strengths import Strength, strength_of

if TYPE_CHECKING:
    from pjrt.conformance.plugin.subject import Subject


class Verdict(enum.StrEnum):
    """The verdict of a check."""

    PASSED = "passed"
    """The plugin did what the rule requires."""
    FAILED = "failed"
    """The plugin did something else."""
    UNSUPPORTED = "unsupported"
    """The plugin lacks something that it may lawfully leave out."""
    CRASHED = "crashed"
    """The process of the check ended."""
    HUNG = "hung"
    """The check was not done within the time limit."""

    @property
    def is_failure(self) -> bool:
        """Whether the plugin breaks the rule."""
        return self in (Verdict.FAILED, Verdict.CRASHED, Verdict.HUNG)


class Failed(Exception):  # noqa: N818  # a verdict
    """The plugin breaks the rule of a check.

    Attributes:
        expected: what the rule requires.
        found: what the plugin did.
    """

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


class Unsupported(Exception):  # noqa: N818  # a verdict
    """The plugin lacks something that it may lawfully leave out; the text is the same for all checks that need it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one check.

    Attributes:
        check: the name of the check.
        verdict: the verdict.
        tier: the tier of the check.
        functions: the functions of the C API that the check is about.
        rule: the rule of the check.
        expected: what the rule requires; empty unless the check failed.
        found: what the plugin did instead; of an unsupported check, what the plugin lacks.
        call: the call that did it, as text; empty if there is none.
        advice: what the plugin should do, but need not.
        printed: the end of what the process of the check printed, if the check failed.
        seconds: how long the check took.
        c_program: the calls of a check that failed as a program in C; empty if it made none.
        python_program: the same in Python.
        strength: how much a failure of the check matters.
        transcript: the calls, as ``transcript.calls`` reads them, until the programs are written.
    """

    check: str
    verdict: Verdict
    tier: str = ""
    functions: tuple[str, ...] = ()
    rule: str = ""
    expected: str = ""
    found: str = ""
    call: str = ""
    advice: tuple[str, ...] = ()
    printed: str = ""
    seconds: float = 0.0
    c_program: str = field(default="", repr=False)
    python_program: str = field(default="", repr=False)
    strength: Strength = Strength.REQUIRED
    transcript: tuple[Mapping[str, Any], ...] = field(default=(), repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome in machine-readable form; fields that are empty are left out."""
        plain = {name: value for name, value in asdict(self).items() if name != "transcript" and value not in ("", ())}
        lists = {name: list(value) for name, value in plain.items() if isinstance(value, tuple)}
        return {**plain, **lists, "verdict": str(self.verdict), "strength": str(self.strength)}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Outcome:
        """Return the outcome that ``as_dict`` wrote.

        Raises:
            TypeError, ValueError: it is not such an outcome.
        """
        lists = {name: tuple(plain.get(name, ())) for name in ("functions", "advice")}
        for name, value in plain.items():
            if name not in lists and not isinstance(value, (int, float) if name == "seconds" else str):
                raise TypeError(f"expected {'a number' if name == 'seconds' else 'a text'} as {name}, found {value!r}")
        # Reports of earlier versions state no strength.
        strength = Strength(plain["strength"]) if "strength" in plain else strength_of(plain["check"])
        return Outcome(**{**plain, **lists, "verdict": Verdict(plain["verdict"]), "strength": strength})

    @property
    def message(self) -> str:
        """The expectation and the answer, in one sentence."""
        if self.verdict is Verdict.UNSUPPORTED:
            return self.found
        return f"expected {self.expected}, found {self.found}" if self.expected else self.found


class Tier(enum.StrEnum):
    """The tier of a check; a package of that name has its module."""

    OFFICIAL = "official"
    """Expectations of XLA's C tests."""
    CONTRACT = "contract"
    """Requirements of the header."""
    FRAMEWORK = "framework"
    """Needs of JAX, PyTorch and TensorFlow."""


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

    @property
    def strength(self) -> Strength:
        """The strength of the check: how much its failure matters."""
        return strength_of(self.name)


_registry: dict[str, Check] = {}


def check(
    name: str, *, calls: Iterable[str], over: Mapping[str, Any] | Iterable[Any] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that makes a check of a function: its docstring is the rule, in our own words.

    The tier is that of the package of its module.

    Args:
        name: the check's name, ``function-or-noun.what`` in lower case.
        calls: the functions of the C API that it is about, by their names in C.
        over: makes one check of each of these: their labels and values, or values whose text is the label. The name is
            ``name[label]``, and the function gets the value as its second argument.
    """
    functions = tuple(calls)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        tier = Tier(function.__module__.removeprefix(f"{__package__}.").split(".")[0])
        rule = " ".join((function.__doc__ or "").split())
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
