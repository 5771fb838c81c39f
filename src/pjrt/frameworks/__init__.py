"""Frameworks: the parts by which JAX, PyTorch and TensorFlow use plugins. They do not know the structs of the C ABI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.lazy_names import lazy_names

if TYPE_CHECKING:
    from pjrt.frameworks import jax, tensorflow, torch, torch_xla

__all__ = ["jax", "tensorflow", "torch", "torch_xla"]


# Every program that uses JAX imports this package, by the entry point ``jax_plugin``: it must stay cheap.
if not TYPE_CHECKING:  # a type checker has the names from above; with these functions it would accept any other
    __getattr__, __dir__ = lazy_names(__name__, {}, __all__)
