"""``pjrt devices``: the devices of this machine."""

from __future__ import annotations

from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import echo, print_json, print_table, problem_of, progress, single_line
from pjrt.cli._options import client_options, complete_device, json_option
from pjrt.plugins import probe

_EXAMPLES = """
\b
Examples:
  pjrt devices
  pjrt devices cpu --option num_devices=8
  pjrt devices /path/to/plugin.so --json
"""


@click.command(epilog=_EXAMPLES)
@click.argument("names", nargs=-1, shell_complete=complete_device)
@client_options
@json_option
def devices(names: tuple[str, ...], options: dict[str, Any], as_json: bool) -> None:
    """List the devices of the plugins NAMES, by default of all plugins."""
    listed: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for name in names:
        with progress(f"asking {name}"), pjrt.client(name, **options) as client:
            listed += [{"name": name, **device} for device in probe.describe_devices(client)]
    for plugin in () if names else plugins.declarations():
        with progress(f"asking {plugin.name}"):
            result = probe.probe(plugin, devices=True, options=options)
        listed += [{"name": plugin.name, **device} for device in result.devices]
        if result.problem:
            failed.append({"name": plugin.name, "reason": single_line(result.problem)})
    if as_json:
        print_json({"devices": listed, "unavailable": failed})
        return
    columns = {
        "name": [device["name"] for device in listed],
        "host": [device["attributes"].get("host", "") for device in listed],
        "id": [device["id"] for device in listed],
        "kind": [device["kind"] for device in listed],
        "version": [device["platform_version"] for device in listed],
        "memory": [", ".join(device["memory_spaces"]) for device in listed],
    }
    if not any(columns["host"]):
        del columns["host"]
    print_table(list(columns), list(zip(*columns.values(), strict=True)), right=["id"])
    for failure in failed:
        echo(f"{failure['name']} is not available: {problem_of(failure['name'], failure['reason'])}")
