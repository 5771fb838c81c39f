"""``pjrt plugins``: the plugins, their origins and their states."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import click

import pjrt
from pjrt import plugins
from pjrt.abi.schema import ENUMS, TABLE
from pjrt.cli._console import (
    echo,
    error_as_dict,
    fail,
    one_line,
    print_facts,
    print_json,
    print_table,
    problem_of,
    progress,
    single_line,
)
from pjrt.cli._options import complete_device, json_option, time_limit_option
from pjrt.plugins import device_lock, env_vars, probe, schema
from pjrt.plugins.declaration import topology_lines

_EXAMPLES = """
\b
Examples:
  pjrt plugins
  pjrt plugins --no-load
  pjrt plugins cuda --json
"""


@click.command("plugins", epilog=_EXAMPLES)
@click.argument("name", required=False, shell_complete=complete_device)
@click.option("--no-load", is_flag=True, help="Load nothing: leave out the facts that only a loaded plugin has.")
@time_limit_option(probe.TIME_LIMIT, "a plugin may")
@json_option
def plugins_(name: str | None, no_load: bool, time_limit: float, as_json: bool) -> None:
    """List the plugins, or show all facts of the one called NAME.

    Each is loaded in a subprocess, so that one that crashes or hangs does no harm.
    """
    limit = None if no_load else time_limit
    if name is None:
        _list(limit, as_json)
    else:
        show(plugins.declaration(name), limit, as_json)


def _list(time_limit: float | None, as_json: bool) -> None:
    described = _described(plugins.declarations(), time_limit)
    if as_json:
        print_json({"plugins": described, "default": _default()})
        return
    rows = []
    for each in described:
        rows.append(_row(each))
        rows += [[each["name"], hidden["origin"], "", "", "", "hidden"] for hidden in each["shadowed"]]
    print_table(["name", "from", "API", "StableHLO", "extensions", "state"], rows, right=["extensions"])
    for each in described:
        if each["problem"]:
            echo(f"{each['name']}: {problem_of(each['name'], each['problem'])}")
        elif each["busy"]:
            echo(f"{each['name']}: {single_line(each['busy'])}")
        for hidden in each["shadowed"]:
            echo(f"{each['name']}: that of {hidden['origin']} is hidden by that of {each['origin']}")


def show(plugin: plugins.Declaration, time_limit: float | None, as_json: bool, *, devices: bool = False) -> None:
    """Print all facts of a plugin, or end with the reason why it cannot be used.

    Args:
        plugin: the plugin.
        time_limit: the seconds that loading it may take; None to load nothing.
        as_json: whether to print the facts as JSON.
        devices: whether to make a client, too, and print its devices and memories.
    """
    (described,) = _described([plugin], time_limit, devices)
    unusable = None
    if described["problem"]:
        problem = problem_of(plugin.name, described["problem"])
        unusable = pjrt.FailedPreconditionError(f"{plugin.name} cannot be used: {problem}")
    if as_json:
        print_json(described if unusable is None else {**described, **error_as_dict(unusable)})
    else:
        print_facts(_facts(described))
    if unusable is not None:
        fail(one_line(unusable))


def _described(
    listed: Sequence[plugins.Declaration], time_limit: float | None, devices: bool = False
) -> list[dict[str, Any]]:
    """Return all facts of plugins, as JSON; with a time limit also those of the loaded plugins."""
    # Before any is probed: a probe may make a client, which would be reported as the holder.
    busy = {plugin.name: device_lock.busy(plugin) for plugin in listed if not plugin.problem}

    def describe(plugin: plugins.Declaration) -> dict[str, Any]:
        result = probe.ProbeResult(problem=plugin.problem)
        if time_limit is not None:
            result = probe.probe(plugin, time_limit=time_limit, devices=devices and plugin.has_hardware)
        without_client = result.problem if result.api_version is not None else ""
        described = _description(
            plugin, replace(result, problem="") if without_client else result, busy.get(plugin.name, "")
        )
        return described | (_of_client(result, without_client) if devices and not described["problem"] else {})

    with progress("asking the plugins"), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(describe, listed))


def _description(plugin: plugins.Declaration, result: probe.ProbeResult, busy: str) -> dict[str, Any]:
    hardware_is_here = plugin.has_hardware
    attributes = result.attributes or {}
    return {
        "name": plugin.name,
        "state": _state(plugin, result, hardware_is_here, busy),
        "problem": result.problem,
        "busy": busy,
        "origin": plugin.origin,
        "other_origins": list(plugin.other_origins),
        "aliases": list(plugin.aliases),
        "distribution": plugin.distribution,
        "version": plugin.version,
        **schema.to_table(plugin),
        "options_variable": env_vars.options_variable(plugin.name),
        "hardware_is_here": hardware_is_here,
        "api_version": None if result.api_version is None else ".".join(map(str, result.api_version)),
        "stablehlo_version": _version(attributes.get("stablehlo_current_version")),
        "stablehlo_minimum_version": _version(attributes.get("stablehlo_minimum_version")),
        "attributes": {key: list(value) if isinstance(value, tuple) else value for key, value in attributes.items()},
        "extensions": dict(result.extensions),
        "shadowed": [_hidden(other) for other in plugin.shadowed],
    }


def _of_client(result: probe.ProbeResult, problem: str) -> dict[str, Any]:
    """Return the facts of a client, as JSON, and what the plugin lacks of the C API that this package knows."""
    first: Mapping[str, Any] = result.devices[0] if result.devices else {}
    known = {kind.removeprefix("PJRT_Extension_Type_") for kind, _ in ENUMS["PJRT_Extension_Type"]}
    of_version = [each for each in TABLE if result.api_version is not None and each.minor <= result.api_version[1]]
    return {
        "devices": [dict(each) for each in result.devices],
        "without_client": problem,
        "platform_version": first.get("platform_version", ""),
        "lacks": {
            "functions": [each.name for each in of_version if each.name not in result.functions],
            "newer_functions": [each.name for each in TABLE if each not in of_version],
            "extensions": sorted(known - {*result.extensions, "Example", "Unknown"}),
        }
        if result.functions
        else {},
    }


def _client_facts(described: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the facts of a client, and what the plugin lacks, one for each line."""
    devices, lacks = described.get("devices", []), described.get("lacks", {})
    kinds = Counter(each["kind"] for each in devices)
    return [
        ("platform", single_line(described.get("platform_version", ""))),
        ("devices", ", ".join(f"{number} × {kind}" for kind, number in kinds.items())),
        ("memories", ", ".join(devices[0]["memory_spaces"]) if devices else ""),
        ("devices", f"none: {single_line(described['without_client'])}" if described.get("without_client") else ""),
        ("lacks", ", ".join(lacks.get("functions", ()))),
        ("newer functions", _newer(lacks.get("newer_functions", ()))),
        ("lacks extensions", ", ".join(lacks.get("extensions", ()))),
    ]


def _newer(names: Sequence[str]) -> str:
    return f"{len(names)} of later versions are not there" if names else ""


def _state(plugin: plugins.Declaration, result: probe.ProbeResult, hardware_is_here: bool, busy: str) -> str:
    if plugin.disabled:
        return "disabled"
    if result.problem:
        return "broken"
    if busy:
        return "busy"
    return "ready" if hardware_is_here else "no hardware"


def _hidden(plugin: plugins.Declaration) -> dict[str, Any]:
    return {
        "origin": plugin.origin,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "problem": plugin.problem,
        **schema.to_table(plugin),
    }


def _row(described: dict[str, Any]) -> list[str]:
    loaded = described["api_version"] is not None
    package = f"{described['distribution']} {described['version']}".strip()
    origin = described["origin"]
    return [
        described["name"],
        origin.replace(described["distribution"], package) if described["version"] else origin,
        described["api_version"] or "",
        _range(described),
        str(len(described["extensions"])) if loaded else "",
        described["state"],
    ]


def _range(described: dict[str, Any]) -> str:
    versions = [described["stablehlo_minimum_version"], described["stablehlo_version"]]
    return " to ".join(version for version in versions if version)


def _facts(described: dict[str, Any]) -> list[tuple[str, object]]:
    """Return the facts with a value, one for each line."""
    memory = described.get("memory") or {}
    facts: list[tuple[str, object]] = [
        ("name", described["name"]),
        ("also called", ", ".join(described["aliases"])),
        ("state", described["state"]),
        ("reason", single_line(described["problem"])),
        ("held by", single_line(described["busy"])),
        ("found in", described["origin"]),
        *(("found in", place) for place in described["other_origins"]),
        ("package", f"{described['distribution']} {described['version']}".strip()),
        ("library", described.get("library", "")),
        ("factory", described.get("factory", "")),
        ("hardware", _hardware(described)),
        ("priority", described["priority"]),
        ("sharing", described["sharing"]),
        ("devices of a process", " or ".join(described["partition"])),
        ("options of a process", _assignments(described.get("processes", {}))),
        ("loaded once", described.get("resident", "")),
        *(("topologies", line) for line in topology_lines(described.get("topologies", {}))),
        ("memory on demand", _ways(memory.get("on_demand"))),
        ("memory at once", _ways(memory.get("preallocated"))),
        ("memory fraction", memory.get("fraction", "")),
        *((f"option {name}", value) for name, value in described["options"].items()),
        ("more options", described["options_variable"]),
        *((f"environment {name}", value) for name, value in described["environment"].items()),
        *((f"for {name}", _assignments(values)) for name, values in described["frameworks"].items()),
        ("PJRT C API", described["api_version"] or ""),
        ("StableHLO", _range(described)),
        *((f"attribute {name}", value) for name, value in described["attributes"].items()),
        *((f"extension {name}", about) for name, about in described["extensions"].items()),
        *_client_facts(described),
        *(("hides", f"{other['origin']} {other.get('library', '')}".strip()) for other in described["shadowed"]),
    ]
    return [(name, value) for name, value in facts if value != ""]


def _hardware(described: dict[str, Any]) -> str:
    if not described["hardware"]:
        return ""
    return ("here" if described["hardware_is_here"] else "not here") + f": {' or '.join(described['hardware'])}"


def _assignments(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _ways(options: dict[str, Any] | None) -> str:
    """Return the options for a way to allocate memory; ``always`` if none are needed, empty if it is unsupported."""
    return "" if options is None else _assignments(options) or "always"


def _version(attribute: object) -> str:
    """Return a version, which is a list of integers as an attribute, as text."""
    return ".".join(map(str, attribute)) if isinstance(attribute, Sequence) else ""


def _default() -> str:
    try:
        return plugins.default()
    except pjrt.PjrtError as error:
        return f"none: {error.message}"
