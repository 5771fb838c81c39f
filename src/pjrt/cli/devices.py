"""``pjrt devices``: which devices are here."""

from __future__ import annotations

from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import print_json, print_table, progress
from pjrt.cli._failures import one_line
from pjrt.cli._options import client_options

_EXAMPLES = """
\b
Examples:
  pjrt devices
  pjrt devices cpu --option num_devices=8
  pjrt devices /path/to/plugin.so --json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("names", nargs=-1)
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def devices(names: tuple[str, ...], options: dict[str, Any], as_json: bool) -> None:
    """List the devices of the platforms NAMES, of all known ones if none is named."""
    found: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for name in names or plugins.names():
        try:
            with progress(f"asking {name}"), pjrt.client(name, **options) as client:
                found += [_describe(name, device) for device in client.devices]
        except pjrt.PjrtError as error:
            if names:
                raise
            failed.append({"name": name, "reason": one_line(error)})
    if as_json:
        print_json({"devices": found, "unavailable": failed})
        return
    rows = [[d["name"], d["id"], d["kind"], d["platform_version"], ", ".join(d["memory_spaces"])] for d in found]
    print_table(["name", "id", "kind", "version", "memory"], rows, right=["id"])
    for failure in failed:
        click.echo(f"{failure['name']} is not available: {failure['reason']}")


def _describe(name: str, device: pjrt.Device) -> dict[str, Any]:
    return {
        "name": name,
        "id": device.id,
        "kind": device.kind,
        "process_index": device.process_index,
        "is_addressable": device.is_addressable,
        "platform_version": device.client.platform_version,
        "memory_spaces": [space.kind for space in device.memory_spaces],
        "attributes": dict(device.description.attributes),
    }
