"""Frameworks: what JAX and PyTorch/XLA need to use plugins (floor 6: must not know the C ABI's structs)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.frameworks import jax, torch_xla

__all__ = ["jax", "torch_xla"]


if not TYPE_CHECKING:  # a type checker knows the names from above, and would take any other for granted here

    def __getattr__(name: str) -> Any:
        """Import the part for one framework when it is first asked for."""
        if name in __all__:
            return importlib.import_module(f"pjrt.frameworks.{name}")
        raise AttributeError(f"module 'pjrt.frameworks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
