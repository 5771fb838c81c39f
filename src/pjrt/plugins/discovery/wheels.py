"""Vendors' plugins: the wheels that bring them, and where the library lies in a wheel."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pjrt.plugins import configuration
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.discovery import libraries, packages


@dataclass(frozen=True)
class Wheel:
    """A wheel with a plugin.

    Attributes:
        distribution: what ``pip install`` calls it.
        library: the plugin's library, as a path from a folder of ``sys.path``.
    """

    distribution: str
    library: str


@dataclass(frozen=True)
class Vendor:
    """A vendor's plugin.

    Attributes:
        wheels: those that may bring it, the one to recommend first.
        facts: fields of ``Declaration``.
    """

    wheels: tuple[Wheel, ...]
    facts: Mapping[str, Any]

    @property
    def priority(self) -> int:
        """The priority that its declaration has."""
        priority: int = self.facts.get("priority", 0)
        return priority


@functools.cache
def vendors() -> Mapping[str, Vendor]:
    """Return the vendors' plugins by name, the one with the highest priority first.

    Their facts are files in the folder ``vendors``: manifests as third parties write them, with the key ``wheels``.
    """
    found = {}
    for file in Path(__file__).parent.joinpath("vendors").glob("*.json"):
        table = json.loads(file.read_text(encoding="utf-8"))
        wheels = tuple(Wheel(distribution, library) for distribution, library in table.pop("wheels").items())
        found[file.stem] = Vendor(wheels, configuration.settings(table))
    return dict(sorted(found.items(), key=lambda item: -item[1].priority))


def found() -> Iterator[Declaration]:
    """The plugins of the wheels that are installed, the best first.

    Nothing is imported for it: the packages around some plugins import a whole framework.
    """
    for name, vendor in vendors().items():
        for wheel in vendor.wheels:
            path = _place(wheel)
            if path is not None:
                yield _declared(name, vendor, wheel, path)


def known_library(path: Path) -> Declaration:
    """A library that somebody gives the path of, with what is known of a vendor's plugin of its file name."""
    for vendor in vendors().values():
        for wheel in vendor.wheels:
            if Path(wheel.library).name == path.name:
                return Declaration(str(path), "a path", library=path, **vendor.facts)
    return Declaration(str(path), "a path", library=path)


def advice(name: str) -> str:
    """How to get a vendor's plugin, if the name is one; otherwise empty."""
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
    return libraries.or_broken(plugin, lambda: replace(plugin, library=libraries.installed(str(path))))


def _place(wheel: Wheel) -> Path | None:
    package, _, rest = wheel.library.partition("/")
    for folder in libraries.folders(libraries.find_module(package)):
        path = folder / rest
        if path.is_file():
            return path
    return None
