"""``pjrt capabilities``: the capabilities of devices, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import print_json, print_table, progress
from pjrt.cli._options import client_options, complete_device, json_option, targets_of, topologies_option
from pjrt.plugins import subprocess_support

_EXAMPLES = """
\b
Examples:
  pjrt capabilities
  pjrt capabilities cpu reference --differences
  pjrt capabilities cpu --topology tpu:v5e:2x2 --json
"""

UNKNOWN = "?"


@click.command(epilog=_EXAMPLES)
@click.argument("names", nargs=-1, shell_complete=complete_device)
@topologies_option
@client_options
@click.option("--differences", is_flag=True, help="Print only the differences.")
@json_option
def capabilities(
    names: tuple[str, ...], topologies: tuple[str, ...], options: dict[str, Any], differences: bool, as_json: bool
) -> None:
    """Compare the capabilities of the devices NAMES, or of all that are here.

    * marks a difference, ? is unknown.
    """
    targets = targets_of(names, topologies, options) or targets_of(plugins.available(), (), options)
    answers: dict[str, pjrt.Capabilities] = {}
    for target in targets:
        with progress(f"asking {target}"):
            answers[str(target)] = subprocess_support.capabilities_of(target)
    if as_json:
        print_json({name: each.as_dict() for name, each in answers.items()})
        return
    devices = list(answers.values())
    rows = [row for row in _rows(devices) if not differences or _differs(row[1])]
    marks = [["*" if _differs(cells) else "", title, *cells] for title, cells in rows]
    print_table(["", "", *answers], marks)


_Row = tuple[str, Sequence[str]]


def _rows(devices: Sequence[pjrt.Capabilities]) -> Iterator[_Row]:
    for title, fact in _FACTS:
        yield title, [fact(device) for device in devices]
    for feature in pjrt.Feature:
        yield feature.value.replace("_", " "), [_yes_or_no(device.has(feature)) for device in devices]
    for type_ in _types(devices):
        yield type_.mlir, [_yes_or_no(_holds(device.element_types, type_)) for device in devices]
    for name in dict.fromkeys(name for device in devices for name in device.variants):
        yield name, [_variant(device.variants, name) for device in devices]


def _differs(cells: Sequence[str]) -> bool:
    return len(set(cells)) > 1


def _yes_or_no(value: bool | None) -> str:
    return UNKNOWN if value is None else "yes" if value else "no"


def _types(devices: Sequence[pjrt.Capabilities]) -> list[pjrt.ElementType]:
    """Return the element types that any device is known to support."""
    return sorted({type_ for device in devices for type_ in device.element_types or ()})


def _holds(types: frozenset[pjrt.ElementType] | None, type_: pjrt.ElementType) -> bool | None:
    return None if types is None else type_ in types


def _variant(variants: Mapping[str, Any], name: str) -> str:
    value = variants.get(name)
    return _yes_or_no(value) if isinstance(value, bool) else "" if value is None else str(value)


def _listed(values: Sequence[str] | None) -> str:
    return UNKNOWN if values is None else ", ".join(values)


def _versions(device: pjrt.Capabilities) -> str:
    oldest, newest = device.stablehlo_minimum_version, device.stablehlo_current_version
    texts = [UNKNOWN if version is None else ".".join(map(str, version)) for version in (oldest, newest)]
    return UNKNOWN if oldest is None and newest is None else " to ".join(texts)


_FACTS: Sequence[tuple[str, Callable[[pjrt.Capabilities], str]]] = (
    ("devices", lambda device: UNKNOWN if device.num_devices is None else str(device.num_devices)),
    ("memory", lambda device: _listed(device.memory_kinds)),
    ("program formats", lambda device: _listed(device.program_formats)),
    ("StableHLO", _versions),
    ("operations", lambda device: UNKNOWN if device.operations is None else str(len(device.operations))),
    (
        "native operations",
        lambda device: UNKNOWN if device.native_operations is None else str(len(device.native_operations)),
    ),
    ("custom calls", lambda device: UNKNOWN if device.custom_calls is None else str(len(device.custom_calls))),
)
