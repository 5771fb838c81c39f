"""JAX's persistent compilation cache, for platforms of this package.

JAX uses the cache only for platforms in a list of its own. The executables of our devices can be serialized too: one
without a form of its own is saved as its program.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pjrt.frameworks import _jax_lowering

_LISTED = SimpleNamespace(platform="cpu")
"""A backend of a platform in JAX's list."""


def install() -> None:
    """Have JAX use its cache for our platforms too."""
    from jax._src import compilation_cache

    original = compilation_cache.is_cache_used

    def is_cache_used(backend: Any) -> bool:
        return bool(original(_LISTED if _jax_lowering.is_client_of_ours(backend) else backend))

    compilation_cache.is_cache_used = is_cache_used
