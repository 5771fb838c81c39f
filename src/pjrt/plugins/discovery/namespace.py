"""Plugins in the namespace package ``jax_plugins``, where JAX looks for modules; those count that carry a library."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import libraries

PACKAGE = "jax_plugins"


def found() -> Iterator[Declaration]:
    """The plugins, by the names of their modules."""
    places = [str(folder) for folder in libraries.folders(libraries.find_module(PACKAGE))]
    for module in pkgutil.iter_modules(places):
        library = libraries.in_package(libraries.find_module(f"{PACKAGE}.{module.name}"))
        if library is not None:
            plugin = Declaration(module.name, f"namespace package {PACKAGE}.{module.name}")
            yield libraries.or_broken(plugin, partial(_with_library, plugin, str(library)))


def _with_library(plugin: Declaration, path: str) -> Declaration:
    return replace(plugin, library=libraries.installed(path))
