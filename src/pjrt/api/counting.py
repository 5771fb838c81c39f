"""Kinds of things and how many there are, in words."""

from __future__ import annotations

from collections.abc import Mapping


def counted(kinds: Mapping[str, int]) -> str:
    """Such as ``3 buffers, 1 client, 2 topologies``, by the kinds' singular names in alphabetical order."""
    return ", ".join(f"{number} {kind if number == 1 else _several(kind)}" for kind, number in sorted(kinds.items()))


def _several(kind: str) -> str:
    head, space, rest = kind.partition(" under ")
    return (head[:-1] + "ies" if head.endswith("y") else head + "s") + space + rest
