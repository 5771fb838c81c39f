"""Plugins that ``PJRT_NAMES_AND_LIBRARY_PATHS`` names, as JAX reads it: ``name:path,name2:path2``.

A path is that of a library, or of a manifest in JSON. On Windows the separator is ``;``, not the colon.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pjrt.api.errors import InvalidArgumentError, PjrtError
from pjrt.plugins import env_vars, schema
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.discovery import manifest, safe_paths

VARIABLE = env_vars.NAMES_AND_PATHS


def find() -> Iterator[Declaration]:
    """Return the plugins in the variable's order."""
    for part in filter(None, (part.strip() for part in os.environ.get(VARIABLE, "").split(","))):
        name, separator, path = part.partition(os.pathsep)
        try:
            if not name or not separator or not path or os.pathsep in path:
                raise InvalidArgumentError(f"expected name{os.pathsep}path, found {part!r}")
            yield declare(name, VARIABLE, path)
        except PjrtError as error:
            yield Declaration(name or part, VARIABLE, problem=error.message)


def declare(name: str, origin: str, path: str) -> Declaration:
    """Return the declaration of a plugin's library, or of a manifest that names one.

    Raises:
        PjrtError: the path, the manifest or the library cannot be used; the message is the reason.
    """
    if is_path(name):
        raise InvalidArgumentError(f"expected a name before the path, found {name!r}")
    if not path.endswith(manifest.SUFFIX):
        return Declaration(name, origin, library=safe_paths.library_path(path))
    fields = manifest.read(safe_paths.safe_path(path))
    return manifest.with_code(schema.amend(Declaration(name, origin), fields), fields)
