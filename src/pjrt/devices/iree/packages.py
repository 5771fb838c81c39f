"""IREE's two Python packages: which versions work, and the one way to import them."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from pjrt.api.errors import FailedPreconditionError

EXTRA = "pjrt[iree]"
"""The requirement that installs both packages."""

COMPILER = "iree-base-compiler"
RUNTIME = "iree-base-runtime"


def load(module: str, purpose: str) -> Any:
    """Import a module of IREE, such as ``iree.runtime``.

    Args:
        module: the module's name.
        purpose: the purpose that it is needed for, as the end of the sentence "IREE is needed to …".

    Raises:
        FailedPreconditionError: the package is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = COMPILER if ".compiler" in module else RUNTIME
        raise FailedPreconditionError(
            f"the package {package} is needed to {purpose}, and it cannot be imported ({error}): pip install '{EXTRA}'"
        ) from error


def check() -> None:
    """Check that both packages are installed, without importing them.

    Raises:
        FailedPreconditionError: one is not.
    """
    for package in (COMPILER, RUNTIME):
        try:
            importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise FailedPreconditionError(
                f"the device 'iree' needs the package {package}, which is not installed: pip install '{EXTRA}'"
            ) from None


def version() -> str:
    """Return the version of the installed runtime, such as ``3.13.0``; empty if it is not installed."""
    try:
        return importlib.metadata.version(RUNTIME)
    except importlib.metadata.PackageNotFoundError:
        return ""
