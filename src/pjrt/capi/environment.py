"""The layers that ``PJRT_LAYERS`` asks for: before whatever this package loads and exports."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_suspended: ContextVar[bool] = ContextVar("suspended", default=False)


def are_suspended() -> bool:
    """Whether this is inside of ``no_layers``."""
    return _suspended.get()


def with_layers(table: int, name: str) -> int:
    """Return the address of a table with the layers of ``PJRT_LAYERS`` before it; that of the table if there are none.

    Raises:
        InvalidArgumentError: a layer or an option is unknown, or the table is none.
    """
    if not table or not os.environ.get("PJRT_LAYERS"):
        return table
    from pjrt.layers.stack import wrap_by_environment  # here: it opens a library that most processes do not need

    return wrap_by_environment(table, name)


def capsule_with_layers(library: str | os.PathLike[str]) -> object | None:
    """Return the table of a plugin's library with the layers of ``PJRT_LAYERS``, as a capsule for JAX.

    ``None`` without layers: then the framework loads the library.

    Raises:
        InvalidArgumentError: a layer or an option is unknown.
        PjrtError: the library cannot be opened, or is no plugin.
    """
    if not os.environ.get("PJRT_LAYERS"):
        return None
    from pjrt.capi import open_table
    from pjrt.capi.export._table import capsule_of

    table, path, _ = open_table(library)
    return capsule_of(with_layers(table, path))


@functools.cache
def library_with_layers(library: Path) -> Path:
    """Return a library that puts the layers of ``PJRT_LAYERS`` before a plugin's; the plugin's own without layers.

    For a framework that takes nothing but a path. The library is removed when the process ends.

    Raises:
        FailedPreconditionError: no library can be loaded from the temporary folder.
    """
    if not os.environ.get("PJRT_LAYERS"):
        return library
    from pjrt.capi.library_files import check_loadable
    from pjrt.layers.layer_library import write_layer_library

    folder = tempfile.mkdtemp(prefix="pjrt-layers-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    check_loadable(folder)
    return write_layer_library(Path(folder) / library.name, library, (), {})


@contextlib.contextmanager
def no_layers() -> Iterator[None]:
    """Make clients without the layers of ``PJRT_LAYERS``: a device behind an exported plugin needs none of its own."""
    token = _suspended.set(True)
    try:
        yield
    finally:
        _suspended.reset(token)
