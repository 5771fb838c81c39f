"""Shared libraries of plugins with layers, written without a compiler, for programs that load a plugin by its path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pjrt.api.errors import InvalidArgumentError, NotFoundError
from pjrt.capi.library_files import write_with_settings
from pjrt.layers.stack import LayerOptions, check_layers, library_path, option_text

_MARK = b"PJRT-LAYER-SETTINGS\n"


def write_layer_library(
    path: str | os.PathLike[str],
    target: str | os.PathLike[str],
    layers: Sequence[str],
    options: Mapping[str, LayerOptions],
) -> Path:
    """Write a library whose ``GetPjrtApi`` loads a plugin's library and puts layers before its table.

    Args:
        path: the file to write.
        target: the plugin's library, which is loaded from this place.
        layers: the names of layers; the first is nearest to the framework. None: those that ``PJRT_LAYERS`` names in
            the process that loads the library.
        options: the options of layers, by name. Others have those of the environment, such as ``PJRT_TRACE``.

    Raises:
        NotFoundError: there is no such plugin, or no folder for the file.
        InvalidArgumentError: a layer is unknown, or the file cannot be written.
    """
    if layers:
        check_layers(layers)
    library = Path(target).resolve()
    if not library.is_file():
        raise NotFoundError(f"{library}: there is no such file; give the path of the plugin's shared library")
    if Path(path).resolve() == library:
        raise InvalidArgumentError(f"expected another file to write to than the plugin itself, {str(library)!r}")
    lines = "\t".join(f"{layer}={option_text(values)}" for layer, values in options.items())
    settings = {"target": str(library), "layers": ",".join(layers), "options": lines}
    return write_with_settings(path, library_path(), _MARK, settings)
