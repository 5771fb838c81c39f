"""Plugins in the namespace package ``jax_plugins``, where JAX looks for modules; only those with a library count."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import packages, safe_paths

PACKAGE = "jax_plugins"


def find() -> Iterator[Declaration]:
    """Return the plugins, named as their modules."""
    places = map(str, packages.folders(packages.find_module(PACKAGE)))
    for module in pkgutil.iter_modules(places):
        library = packages.find_library(packages.find_module(f"{PACKAGE}.{module.name}"))
        if library is not None:
            plugin = Declaration(module.name, f"namespace package {PACKAGE}.{module.name}")
            yield packages.or_broken(plugin, partial(_with_library, plugin, library))


def _with_library(plugin: Declaration, path: Path) -> Declaration:
    return replace(plugin, library=safe_paths.installed_library(path))
