"""Vendors' plugins: the wheels that bring them, and the library's path in each wheel."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pjrt.plugins import schema
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import packages, safe_paths


@dataclass(frozen=True)
class Wheel:
    """A wheel with a plugin.

    Attributes:
        distribution: its name for ``pip install``.
        library: the plugin's library, as a path relative to a folder of ``sys.path``.
    """

    distribution: str
    library: str


@dataclass(frozen=True)
class Vendor:
    """A vendor's plugin.

    Attributes:
        wheels: those that may bring it, the recommended one first.
        facts: fields of ``Declaration``.
    """

    wheels: tuple[Wheel, ...]
    facts: Mapping[str, Any]


@functools.cache
def vendors() -> Mapping[str, Vendor]:
    """Return the vendors' plugins by name, the one with the highest priority first.

    Their facts are files in the folder ``vendors``: manifests as third parties write them, with the key ``wheels``.
    """
    plugins = {}
    for file in Path(__file__).parent.joinpath("vendors").glob("*.json"):
        table = json.loads(file.read_text(encoding="utf-8"))
        wheels = tuple(Wheel(distribution, library) for distribution, library in table.pop("wheels").items())
        plugins[file.stem] = Vendor(wheels, schema.read_table(table))
    return dict(sorted(plugins.items(), key=lambda item: -item[1].facts.get("priority", 0)))


def find() -> Iterator[Declaration]:
    """Return the plugins of the installed wheels, the one with the highest priority first.

    Nothing is imported: the packages around some plugins import a whole framework.
    """
    for name, vendor in vendors().items():
        for wheel in vendor.wheels:
            path = _find_library(wheel)
            if path is not None:
                yield _declared(name, vendor, wheel, path)


def declare_library(path: Path) -> Declaration:
    """Return a declaration of the library at a path, with the vendor's facts if its file name is that of a vendor."""
    for vendor in vendors().values():
        for wheel in vendor.wheels:
            if Path(wheel.library).name == path.name:
                return Declaration(str(path), "a path", library=path, **vendor.facts)
    return Declaration(str(path), "a path", library=path)


def advice(name: str) -> str:
    """Return the commands that install a vendor's plugin; empty if the name is not one of them."""
    if name not in vendors():
        return ""
    return " or ".join(f"'pip install {wheel.distribution}'" for wheel in vendors()[name].wheels)


def _declared(name: str, vendor: Vendor, wheel: Wheel, path: Path) -> Declaration:
    plugin = Declaration(
        name,
        f"wheel {wheel.distribution}",
        distribution=wheel.distribution,
        version=packages.version(wheel.distribution),
        **vendor.facts,
    )
    return packages.or_broken(plugin, lambda: replace(plugin, library=safe_paths.installed_library(path)))


def _find_library(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.library.partition("/")
    paths = (folder / rest for folder in packages.folders(packages.find_module(package)))
    return next((path for path in paths if path.is_file()), None)
