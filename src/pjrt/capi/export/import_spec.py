"""Import specs: ``MODULE:ATTRIBUTE`` and ``FILE.py:ATTRIBUTE``, the names by which devices in Python are found.

A written shared library holds the spec of its device, and calls ``table_address`` in the process that loads it.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError, PjrtError
from pjrt.capi.export._table import CAPSULE_NAME
from pjrt.capi.export.exported_plugin import ExportedPlugin, export

_loaded: dict[str, ExportedPlugin] = {}

_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def table_address(settings: str) -> int:
    """Return the address of the table for a library with these settings, ``key=value`` lines; each time the same."""
    values = dict(line.split("=", 1) for line in settings.splitlines() if "=" in line)
    for folder in reversed([v for v in values.get("path", "").split("|") if v]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    return load_exported(values["spec"], values["name"]).address


def load_exported(spec: str, name: str = "") -> ExportedPlugin:
    """Return the exported plugin that a spec names.

    Args:
        spec: ``package.module:attribute`` or ``/path/of/file.py:attribute``; the attribute is an ``ExportedPlugin``, or
            a function that makes clients.
        name: the plugin's name if the attribute is a function, by default that of its module or file; an
            ``ExportedPlugin`` keeps its own.

    Raises:
        NotFoundError: there is no such module, file or attribute.
        FailedPreconditionError: the module raised an exception during its import, which is the error's cause.
        InvalidArgumentError: the spec is of neither form, or names something else.
    """
    key = f"{spec}\n{name}"
    if key not in _loaded:
        value = find_attribute(spec)
        if not (isinstance(value, ExportedPlugin) or callable(value)):
            raise InvalidArgumentError(
                f"{spec!r}: expected a function that makes clients, or what pjrt.export returns, "
                f"found {type(value).__name__}"
            )
        _loaded[key] = value if isinstance(value, ExportedPlugin) else export(value, name=name or _name_of(spec))
    return _loaded[key]


def _name_of(spec: str) -> str:
    """Return the name of the module or file that a spec names, without its packages and folders."""
    place = spec.rpartition(":")[0]
    return Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]


def exported_at(capsule: object) -> ExportedPlugin | None:
    """Return the plugin of a library that this process loaded, by a capsule of its table; None for a foreign table."""
    address = _capsule_pointer(capsule, CAPSULE_NAME.encode())
    return next((each for each in list(_loaded.values()) if each.address == address), None)


def find_attribute(spec: str) -> Any:
    """Return the value that a spec names, ``package.module:attribute`` or ``/path/of/file.py:attribute``.

    The module is imported if it is not yet.

    Raises:
        NotFoundError: there is no such module, file or attribute.
        FailedPreconditionError: the module raised an exception during its import, which is the error's cause.
        InvalidArgumentError: the spec is of neither form.
    """
    place, colon, attribute = spec.rpartition(":")
    if not colon or not place or not attribute:
        raise InvalidArgumentError(
            f"expected MODULE:ATTRIBUTE or FILE.py:ATTRIBUTE, such as mydevice:make_client, found {spec!r}"
        )
    return _attribute(_import(place), attribute, spec)


def module_name(path: Path) -> str:
    """Return the module name of a device in a file; each file has its own."""
    return f"_pjrt_device_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


class UncachedLoader(SourceFileLoader):
    """A loader that compiles a module's source each time and ignores compiled files.

    Python recognizes an outdated compiled file by the time in seconds and the size of its source, and two versions of a
    source may have both in common.
    """

    def get_code(self, fullname: str) -> CodeType:
        """Return the module's code, compiled now."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code


def _import(place: str) -> ModuleType:
    if not place.endswith(".py"):
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise NotFoundError(
                f"there is no module {place!r} here: {error}; is the package installed for {sys.executable}?"
            ) from error
        except (Exception, SystemExit) as error:
            raise _failed_import(place, error) from error
    path = Path(place).resolve()
    if not path.is_file():
        raise NotFoundError(f"there is no file {place!r}")
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    module_spec = importlib.util.spec_from_file_location(name, path, loader=UncachedLoader(name, str(path)))
    if module_spec is None or module_spec.loader is None:
        raise InvalidArgumentError(f"expected a Python file, found {place!r}")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module
    try:
        module_spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _failed_import(place, error) from error
    return module


def _failed_import(place: str, error: BaseException) -> PjrtError:
    return FailedPreconditionError(f"{place!r} cannot be imported: {located(error)}")


def located(error: BaseException) -> str:
    """Return the error of an import as one line that begins with the file and line of the code that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: {type(error).__name__}: {error.msg}"
    place, is_imported_code = "", False
    for frame, line in traceback.walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            is_imported_code = True  # the frames that follow belong to the imported module
        elif is_imported_code:
            place = f"{file}:{line}: "
    return f"{place}{type(error).__name__}: {error}"


def _attribute(module: ModuleType, attribute: str, spec: str) -> Any:
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise NotFoundError(f"{spec!r}: {module.__name__} has no {attribute!r}")
        value = getattr(value, part)
    return value
