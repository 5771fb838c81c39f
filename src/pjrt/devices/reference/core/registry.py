"""The registry: from the name of an op to the one function that compiles it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView

Compile = Callable[[OpView], Kernel]
"""A function that returns the kernel of an op. It runs once, when the program is compiled."""


@dataclass(frozen=True)
class Rule:
    """The compilation of one op. See ``op`` for the fields."""

    name: str
    compile: Compile
    chapter: str
    elementwise: bool
    environment: bool
    quantized: bool
    foldable: bool
    types: frozenset[ElementType] | None


_CHAPTERS = "pjrt.devices.reference.ops"
_RULES: dict[str, Rule] = {}


def _load_chapters() -> None:
    """Import the built-in ops, which registers them; not at the top: they need the core."""
    importlib.import_module(_CHAPTERS)


def op(
    *names: str,
    elementwise: bool = False,
    environment: bool = False,
    quantized: bool = False,
    foldable: bool = True,
    types: frozenset[ElementType] | None = None,
) -> Callable[[Compile], Compile]:
    """Register the decorated function, which compiles the ops called ``names``.

    Args:
        names: full names, such as ``"stablehlo.add"``.
        elementwise: the kernel works on arrays of any (broadcastable) shape, not only of the types in the program. A
            region made only of such ops on scalars is evaluated on whole arrays at once.
        environment: the kernel's first argument is the environment of the step (``Environment``), which regions and
            collectives need. The kernels of ops with regions always get it.
        quantized: the function handles uniform-quantized types itself; otherwise operands are dequantized, the op
            computed on the expressed type, and the results quantized, as the specification defines it.
        foldable: the kernel is a pure function of its operands, so it may run once at compile time where these are
            constants.
        types: the element types of the first operand that the op takes, where these alone decide; the device's
            capabilities list them.
    """

    def register(function: Compile) -> Compile:
        package, _, chapter = function.__module__.rpartition(".")
        if package != _CHAPTERS:
            _load_chapters()  # so that an op from outside comes second, and gets the error below
        for name in names:
            if name in _RULES:
                raise ValueError(f"{name} is registered twice: in {_RULES[name].chapter} and in {chapter}")
        for name in names:
            _RULES[name] = Rule(name, function, chapter, elementwise, environment, quantized, foldable, types)
        return function

    return register


def find(name: str) -> Rule | None:
    """Return the rule of an op, or None if the op is unknown."""
    return _RULES.get(name)


def rules() -> Iterator[Rule]:
    """Return all rules, by chapter and name, for the generated table of ops."""
    _load_chapters()
    return iter(sorted(_RULES.values(), key=lambda rule: (rule.chapter, rule.name)))
