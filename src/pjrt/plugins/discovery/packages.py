"""What installed packages say in their metadata: entry points, and the files that they consist of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pjrt.plugins.declaration import Declaration

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint


class EntryPoints:
    """The entry points of some groups; of two packages with one name the one that the path has first counts.

    Each package is read on its own: the metadata of one may be damaged, and then Python's own list of all is too.

    Attributes:
        broken: the packages that say something in one of the groups that cannot be read.
    """

    def __init__(self, *groups: str) -> None:
        import importlib.metadata  # here, because it takes as long to import as all else of this package

        self.broken: list[Declaration] = []
        self._groups = groups
        self._points: list[EntryPoint] = []
        self._seen: set[str] = set()
        for package in importlib.metadata.distributions():
            self._read(package)

    def of(self, group: str) -> list[EntryPoint]:
        """Those of one group."""
        return [point for point in self._points if point.group == group]

    def _read(self, package: Distribution) -> None:
        name = "an unknown package"
        try:
            text = package.read_text("entry_points.txt") or ""
            if not any(group in text for group in self._groups):
                return
            if not package.name:
                raise ValueError("it does not say its name")
            name = package.name
            if normalized(name) not in self._seen:
                self._seen.add(normalized(name))
                self._points += package.entry_points
        except Exception as error:
            reason = f"its metadata cannot be read ({type(error).__name__}: {error}); install it again"
            self.broken.append(Declaration(name, f"package {name}", problem=reason))


def version(name: str) -> str:
    """The version of an installed package; empty if it is not installed, or does not say."""
    import importlib.metadata

    try:
        return importlib.metadata.version(name) or ""
    except Exception:
        return ""


def files(package: Distribution | None) -> list[Path]:
    """The files of a package; none if it does not say."""
    try:
        return [] if package is None else [Path(str(file.locate())) for file in package.files or ()]
    except Exception:
        return []


def normalized(name: str) -> str:
    """A package's name in the one spelling that all its spellings stand for."""
    return re.sub(r"[-_.]+", "-", name).lower()
