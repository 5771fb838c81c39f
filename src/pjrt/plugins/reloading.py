"""Load new code of a plugin in a running process, beside the old code.

New clients run the new code. Existing clients and their objects keep the old code until they are closed. Nothing is
unloaded: a library stays in memory, and old modules stay as long as something refers to them.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from pjrt.api.errors import FailedPreconditionError, PjrtError
from pjrt.plugins import registry
from pjrt.plugins.declaration import Declaration
from pjrt.plugins.loader import Slot, open_plugin


def reload(name: str | os.PathLike[str], *, force: bool = False) -> tuple[Path, ...]:
    """Load the present library or Python source of a plugin, if a file of it has changed since it was loaded.

    JAX makes a client of the new code after ``jax.extend.backend.clear_backends()``. A plugin that is not loaded is
    loaded.

    Args:
        name: the plugin's name, or its library's path.
        force: whether to load it again although no file has changed.

    Returns:
        The changed files; empty if none has changed, or the plugin was not loaded before.

    Raises:
        FailedPreconditionError: the new code cannot be loaded, and the old stays in use; or the plugin cannot be
            loaded twice in a process: a built-in device, a vendor's library that is declared ``resident``, a factory
            that is not at the top level of a module, a package with a compiled module.
        NotFoundError: there is no plugin of that name.
    """
    from pjrt.plugins.module_files import place_of  # here and below: a program that reloads nothing does without

    declaration = registry.declaration(name)
    slot = registry.slot(declaration)
    place = place_of(declaration)
    with slot.lock:
        if slot.plugin is not None:
            _check_reloadable(declaration, place)
            changed = slot.changed_files()
            if not changed and not force:
                return ()
        else:
            changed = ()
        if place:
            _import_anew(declaration, slot, place, changed)
        else:
            slot.fill(open_plugin)
        return changed


def files(name: str | os.PathLike[str]) -> frozenset[Path]:
    """Return the files that a plugin is loaded from: its library, or its source; none for a built-in device.

    Raises:
        NotFoundError: there is no plugin of that name.
    """
    from pjrt.plugins.module_files import ModuleFiles, place_of

    declaration = registry.declaration(name)
    if declaration.library is not None:
        return frozenset({declaration.library})
    place = place_of(declaration)
    return frozenset(ModuleFiles.of(place).on_disk()) if place else frozenset()


def _check_reloadable(declaration: Declaration, place: str) -> None:
    name = declaration.name
    if declaration.library is not None:
        if declaration.resident:
            raise FailedPreconditionError(
                f"{declaration.library}: the library of {name!r} cannot be loaded twice in a process, for "
                f"{declaration.resident}; start a new process for new code of it"
            )
    elif str(declaration.factory).startswith("pjrt."):
        raise FailedPreconditionError(f"the device {name!r} is built-in, a part of this package; it cannot be reloaded")
    elif not place:
        raise FailedPreconditionError(
            f"the device {name!r} was registered as an object that is not at the top level of a module, so its source "
            "is unknown; register it by its place, such as factory='mydevice:make_client'"
        )


def _import_anew(declaration: Declaration, slot: Slot, place: str, changed: tuple[Path, ...]) -> None:
    from pjrt.plugins.module_files import ModuleFiles

    with ModuleFiles.of(place).imported_anew():
        try:
            slot.fill(lambda _: open_plugin(replace(declaration, factory=place)))
        except Exception as error:
            stays = ", and stays as it was" if slot.plugin else ""
            missing = ", ".join(str(path) for path in changed if not path.exists())
            gone = f"no longer there: {missing}; " if missing else ""
            reason = error.message if isinstance(error, PjrtError) else error
            raise FailedPreconditionError(
                f"the device {declaration.name!r} cannot be loaded as it is now{stays}: {gone}{reason}"
            ) from error
