"""Shared libraries of devices in Python, written without a compiler.

Each is a copy of a library that comes with this package, with other settings in it.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from pjrt.api.errors import InternalError, InvalidArgumentError, NotFoundError
from pjrt.system import python_library, sign_library

_MARK = b"PJRT-EXPORT-SETTINGS\n"
_SETTINGS_SIZE = 16384


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
    target = Path(path)
    if not target.absolute().parent.is_dir():
        raise NotFoundError(f"there is no folder {str(target.parent)!r} to write {target.name!r} to")
    content = bytearray(_template().read_bytes())
    start = content.find(_MARK)
    if start < 0:
        raise InternalError("the library that came with this package is damaged; install the package again")
    settings = _MARK + _settings(spec, name).encode()
    if len(settings) >= _SETTINGS_SIZE:
        raise InvalidArgumentError(
            f"expected at most {_SETTINGS_SIZE} bytes of settings, found {len(settings)}; use shorter paths"
        )
    content[start : start + _SETTINGS_SIZE] = settings.ljust(_SETTINGS_SIZE, b"\0")
    try:
        # A new file replaces the old one, and is not written over it: a process may have the old one loaded.
        scratch = target.with_name(f".{target.name}.{os.getpid()}")
        scratch.write_bytes(content)
        scratch.chmod(0o755)
        sign_library(scratch)
        scratch.replace(target)
    except OSError as error:
        raise InvalidArgumentError(f"cannot write {str(target)!r}: {error.strerror or error}") from error
    return target


def _template() -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    template = Path(__file__).parent / f"_library{suffix}"
    if not template.is_file():
        raise InternalError(
            f"the library that came with this package is not at {str(template)!r}; install the package again"
        )
    return template


def _settings(spec: str, name: str) -> str:
    place, _, attribute = spec.rpartition(":")
    if place.endswith(".py"):
        spec = f"{Path(place).resolve()}:{attribute}"
    lines = {
        "name": name,
        "spec": spec,
        "python": sys.executable,
        "libpython": str(python_library() or ""),
        "path": _search_path(place),
    }
    if any("\n" in value for value in lines.values()):
        raise InvalidArgumentError("the name and the paths of an exported device must not contain line breaks")
    return "".join(f"{key}={value}\n" for key, value in lines.items() if value)


def _search_path(place: str) -> str:
    """Return the folder that the module was imported from; empty if installed packages are there."""
    module = sys.modules.get(place.partition(".")[0])
    file = getattr(module, "__file__", None)
    if place.endswith(".py") or file is None:
        return ""
    folder = Path(file).resolve().parent
    if Path(file).name == "__init__.py":
        folder = folder.parent
    installed = {
        Path(p).resolve()
        for p in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib"))
    }
    return "" if folder in installed else str(folder)
