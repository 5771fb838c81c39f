"""Written libraries: a plugin with layers before it, for programs that load a plugin by its path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError
from pjrt.capi import check_library_file
from pjrt.capi.export import load_exported
from pjrt.capi.export import write_library as write_exported
from pjrt.capi.layer.layer_library import write_layer_library
from pjrt.capi.layer.stack import LayerOptions, check_layers
from pjrt.plugins import factories, registry


@dataclass(frozen=True, slots=True)
class WrittenLibrary:
    """A library that was written.

    Attributes:
        path: its file.
        target: the library of the plugin behind it.
        layers: its layers in order.
    """

    path: Path
    target: Path
    layers: tuple[str, ...]


def write_library(
    path: str | os.PathLike[str],
    plugin: str | os.PathLike[str],
    layers: Sequence[str],
    options: Mapping[str, LayerOptions] | None = None,
) -> WrittenLibrary:
    """Write a shared library with ``GetPjrtApi`` that puts layers before a plugin; needs no compiler.

    Args:
        path: the file to write.
        plugin: a name of ``pjrt.plugins.names()``, or the path of a plugin's library. A device in Python is exported to
            a library of its own, beside the file.
        layers: the names of layers; the first is nearest to the framework.
        options: the options of layers, by name. Others have those of the environment of the program, such as
            ``PJRT_TRACE``.

    Raises:
        InvalidArgumentError: a layer is unknown, or the file cannot be written.
        NotFoundError: there is no such plugin, or no folder for the file.
        FailedPreconditionError: the plugin cannot be used, or its file is no shared library.
        DataLossError: the file of the plugin is cut off.
    """
    names = (layers,) if isinstance(layers, str) else tuple(layers)
    check_layers(names)
    values = options or {}
    unused = sorted(set(values) - set(names))
    if unused:
        raise InvalidArgumentError(f"expected options of the layers {', '.join(names)}, found some of {unused[0]!r}")
    declaration = registry.declaration(plugin)
    declaration.check_usable()
    if declaration.library is None:
        place = factories.place(declaration.name)
        beside = Path(path).with_name(f"{Path(path).stem}-{declaration.name}{Path(path).suffix}")
        target = write_exported(beside, place, load_exported(place, declaration.name).name)
    else:
        target = Path(declaration.library)
        check_library_file(target)
    return WrittenLibrary(write_layer_library(path, target, names, values), target, names)
