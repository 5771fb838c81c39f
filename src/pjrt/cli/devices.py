"""``pjrt devices``: which devices are here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.cli._console import print_json, print_table, problem_of, progress
from pjrt.cli._options import client_options
from pjrt.plugins import probe

_EXAMPLES = """
\b
Examples:
  pjrt devices
  pjrt devices cpu --option num_devices=8
  pjrt devices /path/to/plugin.so --json
"""


@click.command(short_help="List the devices that are here.", epilog=_EXAMPLES)
@click.argument("names", nargs=-1)
@client_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def devices(names: tuple[str, ...], options: dict[str, Any], as_json: bool) -> None:
    """List the devices of the plugins NAMES, of all that can be found if none is named."""
    found: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    for name in names:
        with progress(f"asking {name}"), pjrt.client(name, **options) as client:
            found += [{"name": name, **described} for described in probe.describe_devices(client)]
    for plugin in () if names else plugins.declarations():
        devices, reason = _devices_of(plugin, options)
        found += devices
        if reason:
            failed.append({"name": plugin.name, "reason": reason})
    if as_json:
        print_json({"devices": found, "unavailable": failed})
        return
    rows = [[d["name"], d["id"], d["kind"], d["platform_version"], ", ".join(d["memory_spaces"])] for d in found]
    print_table(["name", "id", "kind", "version", "memory"], rows, right=["id"])
    for failure in failed:
        click.echo(f"{failure['name']} is not available: {problem_of(failure['name'], failure['reason'])}")


def _devices_of(plugin: plugins.Declaration, options: Mapping[str, Any]) -> tuple[list[dict[str, Any]], str]:
    """The devices of a plugin that nobody named, or why it has none: it must not keep the others from being listed."""
    if not plugin.problem and not plugin.has_hardware:
        return [], "its hardware is not here"
    with progress(f"asking {plugin.name}"):
        answers = probe.probe(plugin, devices=True, options=options)
    return [{"name": plugin.name, **device} for device in answers.devices], " ".join(answers.problem.split())
