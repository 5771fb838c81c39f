"""jaxlib: which versions this package works with, and the one way to import it.

jaxlib (not jax) brings the StableHLO bindings and XLA's CPU compiler. It is optional, and most of what is used of it
is private, so it can change with any of its releases: that is why the range below is closed at both ends, and why
tests run at both ends of it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
from types import ModuleType
from typing import Any

from pjrt.api.errors import FailedPreconditionError
from pjrt.system import limit_xla_log

OLDEST = (0, 9, 0)
"""The oldest jaxlib that works. (The bindings of 0.8 end the process when they meet a complex constant.)"""

BELOW = (0, 13, 0)
"""The first jaxlib release series that is not known to work."""

EXTRA = "pjrt[xla]"
"""The requirement that installs a jaxlib that works."""

SUPPORTED = f"jaxlib >={'.'.join(map(str, OLDEST[:2]))},<{'.'.join(map(str, BELOW[:2]))}"
"""The range as a requirement; ``pyproject.toml`` states the same one, and a test compares them."""


def is_installed() -> bool:
    """Whether there is a jaxlib; it may be one that does not work."""
    return importlib.util.find_spec("jaxlib") is not None


def load(name: str, purpose: str) -> Any:
    """Import a module of jaxlib, such as ``mlir.ir`` or ``xla_client``.

    Args:
        name: the module's name inside jaxlib.
        purpose: the purpose that it is needed for, as the end of the sentence "jaxlib is needed to …".

    Raises:
        FailedPreconditionError: jaxlib is not installed, is outside the supported range, or cannot be imported.
    """
    try:
        _package()
        return importlib.import_module(f"jaxlib.{name}")
    except ModuleNotFoundError as error:
        if error.name == "jaxlib":
            raise FailedPreconditionError(
                f"jaxlib is needed to {purpose}, and it is not installed: pip install '{EXTRA}'"
            ) from error
        raise _broken(purpose, error) from error
    except ImportError as error:
        raise _broken(purpose, error) from error


def load_hlo(purpose: str) -> Any:
    """Import the module of jaxlib with the classes of HLO. Before 0.10 they were in ``_jax``.

    Raises:
        FailedPreconditionError: as ``load``.
    """
    module = load("_jax", purpose)
    return module if hasattr(module, "HloModule") else load("_hlo", purpose)


def dialect(name: str) -> Any:
    """Import the bindings of one of MLIR's dialects, such as ``stablehlo``.

    Dialects are imported by this name alone. Where the native half of ``sdy`` comes first, the dialect lacks five
    classes in jaxlib 0.12, and what JAX does with Shardy fails.

    Raises:
        FailedPreconditionError: as ``load``.
    """
    return load(f"mlir.dialects.{name}", "read what is inside programs")


def version() -> tuple[int, ...]:
    """Return the version of the installed jaxlib, such as ``(0, 10, 2)``.

    Raises:
        FailedPreconditionError: as ``load``.
    """
    version_info: tuple[int, ...] = load("version", "read its version").__version_info__
    return version_info


def without_stages(message: str) -> str:
    """Return a message of XLA's compiler without the names of its passes, which say nothing to users."""
    return re.sub(r"during context \[[^\]]*\]: |\s*Failed after [\w-]+\s*$", "", message).strip()


@functools.cache
def _package() -> ModuleType:
    """Import jaxlib itself and check its version, once a process: the version cannot change in it."""
    package = importlib.import_module("jaxlib")
    version_info: tuple[int, ...] = importlib.import_module("jaxlib.version").__version_info__
    if not OLDEST <= version_info < BELOW:
        spelled = ".".join(map(str, version_info))
        raise FailedPreconditionError(
            f"expected {SUPPORTED}, found jaxlib {spelled}: pip install '{EXTRA}' brings one that works"
        )
    limit_xla_log()
    return package


def _broken(purpose: str, error: ImportError) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"jaxlib is needed to {purpose}, and the installed one cannot be imported ({error}); "
        f"reinstall it: pip install --force-reinstall '{EXTRA}'"
    )
