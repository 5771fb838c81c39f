"""Parameters and results of models: one array each, as the caller sees them."""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.api.element_type import ElementType

Sizes = tuple[int | str | None, ...]
"""A shape: a size is a number, the symbol of a dynamic size such as ``batch``, or None for one without a symbol."""


@dataclass(frozen=True, slots=True)
class Result:
    """One array that a model returns.

    Attributes:
        index: its position among the results.
        name: its path in the nested results, such as ``result['logits']``; empty if unknown.
        element_type: the type of its elements.
        shape: its shape; a dynamic size is a symbol or None.
        sharding: its sharding over devices, as the program spells it; empty if none is stated.
    """

    index: int
    name: str
    element_type: ElementType
    shape: Sizes
    sharding: str = ""

    @property
    def is_dynamic(self) -> bool:
        """Whether a size of it is known only when the model is called."""
        return any(not isinstance(size, int) for size in self.shape)

    def __str__(self) -> str:
        return f"result {self._described()}"

    def _described(self) -> str:
        label = f"{self.index}" + (f" ({self.name})" if self.name else "")
        sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{label}: {self.element_type.name.lower()}[{sizes}]"


@dataclass(frozen=True, slots=True)
class Parameter(Result):
    """One array that a model takes.

    Attributes:
        donated: whether the program may use its memory for results; an array on the devices is deleted by the call.
        argument: its position among the arguments of the program; None if the program does not need it.
    """

    donated: bool = False
    argument: int | None = None

    def __str__(self) -> str:
        return f"argument {self._described()}"
