"""Names of a package that are imported at their first use, so that programs without them start faster."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], parts: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: the package's name.
        homes: for each module that has some of the names, the names, with blanks between them. A module of the package
            is written as in a relative import: ``.client``.
        parts: the modules of the package that are names themselves.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        if name in parts:
            return importlib.import_module(f"{package}.{name}")
        module = home_of.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = importlib.util.resolve_name(module, package)
        # The package first: a thread that has its module's lock, and another with the package's, wait for each other.
        importlib.import_module(home.rpartition(".")[0])
        value = getattr(importlib.import_module(home), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *home_of, *parts})

    return get, names
