"""The registry: from the name of an op, or the target of a custom call, to the one function that compiles it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pjrt.api.element_type import ElementType
from pjrt.devices.reference.core.block import Kernel
from pjrt.devices.reference.core.op_view import OpView
from pjrt.stablehlo.ir.attributes import Opaque

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


def load_chapters() -> None:
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
            load_chapters()  # so that an op from outside comes second, and gets the error below
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
    load_chapters()
    return iter(sorted(_RULES.values(), key=lambda rule: (rule.chapter, rule.name)))


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
                from pjrt.stablehlo.ir.mlir_attributes import dictionary_of  # here: nearly all are JSON

                parsed = dictionary_of(value)  # as XLA since jaxlib 0.12 writes those of its own calls
                if parsed is None:
                    raise view.invalid(f"expected a dictionary or JSON as {name}, found {value[:80]!r}") from None
                return parsed
        if isinstance(value, Opaque | bytes):
            text = value.text if isinstance(value, Opaque) else repr(value)
            raise view.invalid(f"expected a dictionary or JSON as {name}, found {text[:80]}")
    return {}
