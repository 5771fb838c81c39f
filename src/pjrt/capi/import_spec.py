"""Import specs: ``MODULE:ATTRIBUTE`` and ``FILE.py:ATTRIBUTE``, the names by which devices in Python are found."""

from __future__ import annotations

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
    # A module may have names with dots: the one of plugins' functions has libraries by their paths.
    for part in [attribute] if hasattr(module, attribute) else attribute.split("."):
        if not hasattr(value, part):
            raise NotFoundError(f"{spec!r}: {module.__name__} has no {attribute!r}")
        value = getattr(value, part)
    return value
