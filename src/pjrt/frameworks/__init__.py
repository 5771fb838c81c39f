"""Frameworks: the parts by which JAX and PyTorch/XLA use plugins. They do not know the structs of the C ABI."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pjrt.frameworks import jax, torch_xla

__all__ = ["jax", "torch_xla"]


# Every program that uses JAX imports this package, by the entry point ``jax_plugin``: it must stay cheap.
if not TYPE_CHECKING:  # a type checker knows the names from above, and would accept any other name here

    def __getattr__(name: str) -> Any:
        """Import the part for one framework at its first use."""
        if name in __all__:
            return importlib.import_module(f"pjrt.frameworks.{name}")
        raise AttributeError(f"module 'pjrt.frameworks' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
