"""``pjrt capabilities``: what devices can do, side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import print_json, print_table, progress
from pjrt.cli._options import client_options, topologies_option
from pjrt.cli.check import targets_of
from pjrt.plugins import subprocess_support

_EXAMPLES = """
\b
Examples:
  pjrt capabilities
  pjrt capabilities cpu reference --differences
  pjrt capabilities cpu --topology tpu:v5e:2x2 --json
"""

UNKNOWN = "?"


@click.command(short_help="Compare what devices can do.", epilog=_EXAMPLES)
@click.argument("names", nargs=-1)
@topologies_option
@client_options
@click.option("--differences", is_flag=True, help="Print only what is not the same for all.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def capabilities(
    names: tuple[str, ...], topologies: tuple[str, ...], options: dict[str, Any], differences: bool, as_json: bool
) -> None:
    """Compare what the devices NAMES can do, or all that are here if none is named; * marks what differs, ? is not
    known.
    """
    targets = targets_of(names, topologies, options) or targets_of(tuple(plugins.available()), (), options)
    found: dict[str, pjrt.Capabilities] = {}
    for target in targets:
        with progress(f"asking {target}"):
            found[str(target)] = subprocess_support.capabilities_of(target)
    if as_json:
        print_json({name: each.as_dict() for name, each in found.items()})
        return
    devices = list(found.values())
    rows = [row for row in _rows(devices) if not differences or _differs(row[1])]
    marks = [["*" if _differs(cells) else "", title, *cells] for title, cells in rows]
    print_table(["", "", *found], marks)


_Row = tuple[str, Sequence[str]]


def _rows(devices: Sequence[pjrt.Capabilities]) -> Iterator[_Row]:
    for title, tell in _FACTS:
        yield title, [tell(device) for device in devices]
    for feature in pjrt.Feature:
        yield feature.value.replace("_", " "), [_answer(device.has(feature)) for device in devices]
    for type_ in _types(devices):
        yield type_.mlir, [_answer(_holds(device.element_types, type_)) for device in devices]
    for name in dict.fromkeys(name for device in devices for name in device.variants):
        yield name, [_variant(device.variants, name) for device in devices]


def _differs(cells: Sequence[str]) -> bool:
    return len(set(cells)) > 1


def _answer(has: bool | None) -> str:
    return UNKNOWN if has is None else "yes" if has else "no"


def _types(devices: Sequence[pjrt.Capabilities]) -> list[pjrt.ElementType]:
    """The element types that a device is known to have; none where nothing is known of any."""
    return sorted({type_ for device in devices for type_ in device.element_types or ()})


def _holds(types: frozenset[pjrt.ElementType] | None, type_: pjrt.ElementType) -> bool | None:
    return None if types is None else type_ in types


def _variant(variants: Mapping[str, Any], name: str) -> str:
    value = variants.get(name)
    return _answer(value) if isinstance(value, bool) else "" if value is None else str(value)


def _listed(values: Sequence[str] | None) -> str:
    return UNKNOWN if values is None else ", ".join(values)


def _versions(device: pjrt.Capabilities) -> str:
    oldest, newest = device.stablehlo_minimum_version, device.stablehlo_current_version
    spelled = [UNKNOWN if version is None else ".".join(map(str, version)) for version in (oldest, newest)]
    return UNKNOWN if oldest is None and newest is None else " to ".join(spelled)


_FACTS: Sequence[tuple[str, Callable[[pjrt.Capabilities], str]]] = (
    ("devices", lambda device: UNKNOWN if device.num_devices is None else str(device.num_devices)),
    ("memory", lambda device: _listed(device.memory_kinds)),
    ("program formats", lambda device: _listed(device.program_formats)),
    ("StableHLO", _versions),
    ("operations", lambda device: UNKNOWN if device.operations is None else str(len(device.operations))),
    ("custom calls", lambda device: UNKNOWN if device.custom_calls is None else str(len(device.custom_calls))),
)
