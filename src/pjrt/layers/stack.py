"""Stacks of layers: wrapped tables, by the addresses of ``PJRT_Api`` structs."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pjrt.api.errors import InvalidArgumentError
from pjrt.capi.environment import PROBLEM_SIZE, checked, layers_library, write_with_layers

LayerOptions: TypeAlias = Mapping[str, object] | Sequence[Mapping[str, object]] | str
"""The options of a layer: by key; in several groups, such as the rules of ``inject``; or as text."""


@functools.cache
def _library() -> ctypes.CDLL:
    library = layers_library()
    table, text, size, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
    count = ctypes.POINTER(ctypes.c_uint64)
    for name, result, arguments in (
        ("pjrt_layer_wrap", table, (table, text, text, text, ctypes.c_char_p, size)),
        ("pjrt_layer_name", text, (size,)),
        ("pjrt_layer_at", text, (table, number)),
        ("pjrt_layer_enable", number, (table, number, number)),
        ("pjrt_layer_plugin", table, (table,)),
        ("pjrt_layer_flush", None, ()),
        ("pjrt_layer_num_callbacks", size, ()),
        ("pjrt_layer_inject_rule", text, (table, number, number, count, count)),
        ("pjrt_layer_inject_rules", number, (table, number, text, text, size)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def layer_names() -> tuple[str, ...]:
    """Return the names of all layers."""
    names: list[str] = []
    while (name := _library().pjrt_layer_name(len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def check_layers(layers: Sequence[str]) -> None:
    """Refuse names of layers that do not exist, and an empty list.

    Raises:
        InvalidArgumentError: a name is unknown, or there is none.
    """
    known = layer_names()
    for name in layers:
        if name not in known:
            raise InvalidArgumentError(f"there is no layer {name!r}; the layers are: {', '.join(known)}")
    if not layers:
        raise InvalidArgumentError(f"expected at least one layer, found none; the layers are: {', '.join(known)}")


def option_text(options: LayerOptions) -> str:
    """Return a layer's options as text: ``key=value,key=value``, with backslashes before commas in values.

    Values are text, numbers, paths, and bool as 1 and 0; sequences are joined by colons. Text passes as it is. Several
    groups of options follow each other.

    Raises:
        InvalidArgumentError: a key or a value has a line break or a tab.
    """
    if isinstance(options, str):
        text = options
    else:
        groups = [options] if isinstance(options, Mapping) else options
        text = ",".join(f"{key}={_escaped(value)}" for group in groups for key, value in group.items())
    if any(char in text for char in "\n\t"):
        raise InvalidArgumentError(f"options of layers must not contain line breaks or tabs, found {text!r}")
    return text


def _escaped(value: object) -> str:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, (list, tuple)):
        value = ":".join(map(str, value))
    return str(value).replace("\\", "\\\\").replace(",", "\\,")


def wrap_table(address: int, name: str, layers: Sequence[str], options: Mapping[str, LayerOptions]) -> int:
    """Return the address of a table with layers before it; the same table, layers and options give the same one.

    Args:
        address: the plugin's table. It must live as long as the process.
        name: the plugin's name, for messages.
        layers: the names of layers; the first is nearest to the framework.
        options: the options of layers, by name. Others have those of the environment, such as ``PJRT_TRACE``.

    Raises:
        InvalidArgumentError: a layer or an option is unknown, or the table is none.
    """
    check_layers(layers)
    lines = "".join(f"{layer}={option_text(values)}\n" for layer, values in options.items())
    problem = ctypes.create_string_buffer(PROBLEM_SIZE)
    wrapped = _library().pjrt_layer_wrap(
        address, name.encode(), ",".join(layers).encode(), lines.encode(), problem, PROBLEM_SIZE
    )
    return checked(wrapped, problem)


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
        layers: the names of layers; the first is nearest to the framework.
        options: the options of layers, by name. Others have those of the environment, such as ``PJRT_TRACE``.

    Raises:
        NotFoundError: there is no such plugin, or no folder for the file.
        InvalidArgumentError: a layer is unknown, or the file cannot be written.
    """
    check_layers(layers)
    texts = "\t".join(f"{layer}={option_text(values)}" for layer, values in options.items())
    return write_with_layers(path, target, ",".join(layers), texts)


def layers_of(address: int) -> tuple[str, ...]:
    """Return the layers of a wrapped table, in order; none for another table."""
    names: list[str] = []
    while (name := _library().pjrt_layer_at(address, len(names))) is not None:
        names.append(name.decode())
    return tuple(names)


def enable(address: int, layer: str, on: bool) -> bool:
    """Turn a layer of a wrapped table on or off; return whether it was on.

    Calls that are on their way go through; a layer that is off sees no new ones.

    Raises:
        InvalidArgumentError: the table has no such layer.
    """
    return bool(_library().pjrt_layer_enable(address, _position(address, layer), int(on)))


def plugin_table(address: int) -> int | None:
    """Return the address of the plugin's own table behind a wrapped one; ``None`` for another table."""
    table: int | None = _library().pjrt_layer_plugin(address)
    return table


def flush() -> None:
    """Have all layers write what they have recorded."""
    _library().pjrt_layer_flush()


def callbacks_in_use() -> int:
    """Return the number of callbacks that are replaced by those of layers at present."""
    number: int = _library().pjrt_layer_num_callbacks()
    return number


def injected_faults(address: int) -> tuple[tuple[str, int, int], ...]:
    """Return the rules of a wrapped table's layer ``inject``: their text, how many calls they are for, and faults."""
    rules: list[tuple[str, int, int]] = []
    calls, faults = ctypes.c_uint64(), ctypes.c_uint64()
    position = _position(address, "inject")
    while (text := _library().pjrt_layer_inject_rule(address, position, len(rules), calls, faults)) is not None:
        rules.append((text.decode(errors="replace"), calls.value, faults.value))
    return tuple(rules)


def replace_rules(address: int, rules: LayerOptions) -> None:
    """Replace the rules of a wrapped table's layer ``inject``.

    Raises:
        InvalidArgumentError: the table has no such layer, or a rule is wrong.
    """
    problem = ctypes.create_string_buffer(PROBLEM_SIZE)
    position, text = _position(address, "inject"), option_text(rules).encode()
    if not _library().pjrt_layer_inject_rules(address, position, text, problem, PROBLEM_SIZE):
        raise InvalidArgumentError(problem.value.decode(errors="replace"))


def _position(address: int, layer: str) -> int:
    layers = layers_of(address)
    if layer not in layers:
        raise InvalidArgumentError(
            f"expected a layer of this plugin ({', '.join(layers) or 'it has none'}), found {layer!r}"
        )
    return layers.index(layer)
