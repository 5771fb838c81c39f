"""Shared libraries of devices in Python, written without a compiler.

Each is a copy of a library that comes with this package, with other settings in it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from pjrt.capi.library_files import library_of, read_settings, write_with_settings
from pjrt.system import python_library

_MARK = b"PJRT-EXPORT-SETTINGS\n"


def write_library(path: str | os.PathLike[str], spec: str, name: str) -> Path:
    """Write the shared library of a device.

    Args:
        path: the file to write.
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute`` of a function that makes clients.
        name: the plugin's name.

    Raises:
        NotFoundError: the folder does not exist.
        InvalidArgumentError: the file cannot be written, or the settings are too long for it.
    """
    return write_with_settings(path, library_of(Path(__file__).parent), _MARK, _settings(spec, name))


def exported_spec(path: str | os.PathLike[str]) -> str:
    """Return the place of the function whose device a library exports; empty if the library exports none."""
    return read_settings(path, _MARK).get("spec", "")


def _settings(spec: str, name: str) -> dict[str, str]:
    place, _, attribute = spec.rpartition(":")
    if place.endswith(".py"):
        spec = f"{Path(place).resolve()}:{attribute}"
    return {
        "name": name,
        "spec": spec,
        "python": sys.executable,
        "libpython": str(python_library() or ""),
        "path": _search_path(place),
    }


def _search_path(place: str) -> str:
    """Return the folder that the module was imported from; empty if installed packages are there."""
    module = sys.modules.get(place.partition(".")[0])
    # A package without __init__.py has no file.
    files = [*getattr(module, "__path__", ()), getattr(module, "__file__", None)]
    if place.endswith(".py") or files[0] is None:
        return ""
    folder = Path(files[0]).resolve().parent
    installed = {
        Path(p).resolve()
        for p in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    }
    return "" if folder in installed else str(folder)
