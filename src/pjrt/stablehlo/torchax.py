"""torchax: the lowering of PyTorch's operations to JAX, and the one way to import it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import warnings
from collections.abc import Iterator
from typing import Any

from pjrt.api.errors import FailedPreconditionError

REQUIREMENTS = "torch torchax jax"
"""The packages that ``pip install`` needs to get."""


_PARTS = ("torchax.decompositions", "torchax.ops.jaten")
"""The modules that torchax imports at their first use, with the lowerings of operations."""


def load(purpose: str) -> Any:
    """Import torchax with all lowerings of operations.

    Args:
        purpose: the purpose that it is needed for, as the end of the sentence "torchax is needed to …".

    Raises:
        FailedPreconditionError: PyTorch, JAX or torchax is not installed, or they do not fit together.
    """
    for package, title in (("torch", "PyTorch"), ("jax", "JAX"), ("torchax", "torchax")):
        if importlib.util.find_spec(package) is None:
            raise FailedPreconditionError(
                f"{title} is needed to {purpose}, and it is not installed: pip install {REQUIREMENTS}"
            )
    try:
        with _removed_overloads():
            for part in _PARTS:
                importlib.import_module(part)
        return importlib.import_module("torchax")
    except Exception as error:  # torchax reads hundreds of PyTorch's names while it is imported
        raise FailedPreconditionError(
            f"torchax is needed to {purpose}, and the installed one cannot be imported with "
            f"{_versions()} ({type(error).__name__}: {error}); install versions that fit together, such as "
            "torch 2.9 to 2.13 with torchax 0.0.13"
        ) from error


@contextlib.contextmanager
def _removed_overloads() -> Iterator[None]:
    """Have names of overloads that PyTorch has removed stand for nothing while torchax is imported.

    torchax 0.0.13 names overloads for named tensors, such as ``aten.prod.dim_Dimname``, in its tables. PyTorch 2.13 has
    none of them. No program can use them, so an entry that nothing looks up is right.
    """
    from torch._ops import OpOverloadPacket

    original = OpOverloadPacket.__getattr__

    def get(packet: Any, key: str) -> Any:
        try:
            return original(packet, key)
        except AttributeError:
            if "name" not in key.lower():
                raise
            return object()

    OpOverloadPacket.__getattr__ = get
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about its own use of PyTorch and JAX
            yield
    finally:
        OpOverloadPacket.__getattr__ = original


def _versions() -> str:
    from importlib.metadata import version

    return ", ".join(f"{package} {version(package)}" for package in ("torch", "jax", "torchax"))
