"""Plugins that ``PJRT_NAMES_AND_LIBRARY_PATHS`` names, as JAX reads it: ``name:path,name2:path2``.

A path is that of a library, or of a manifest in JSON. On Windows ``;`` stands for the colon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.plugins import configuration
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.discovery import libraries, manifest, settings

VARIABLE = settings.NAMES_AND_PATHS


def found() -> Iterator[Declaration]:
    """The plugins in the order in which the variable names them."""
    for part in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        name, separator, path = part.partition(os.pathsep)
        try:
            if not name or not separator or not path or os.pathsep in path:
                raise InvalidArgumentError(f"expected name{os.pathsep}path, found {part!r}")
            yield declared(name, VARIABLE, path)
        except PjrtError as error:
            yield Declaration(name or part, VARIABLE, problem=error.message)


def declared(name: str, origin: str, path: str) -> Declaration:
    """The plugin of a library, or of a manifest that names one.

    Raises:
        PjrtError: something is wrong with the path, the manifest or the library; the message is the reason.
    """
    if is_path(name):
        raise InvalidArgumentError(f"expected a name before the path, found {name!r}")
    if not path.endswith(manifest.SUFFIX):
        return Declaration(name, origin, library=libraries.written(path))
    said = manifest.read(Path(libraries.safe(path)))
    plugin = configuration.amended(Declaration(name, origin), said)
    return libraries.with_code(plugin, said)
