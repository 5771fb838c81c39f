"""The facts that only a loaded plugin has, read in a subprocess: one that crashes, hangs or prints does no harm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pjrt.abi.schema import TABLE
from pjrt.api.client import Client
from pjrt.api.device import Attributes, NamedValue
from pjrt.api.errors import PjrtError
from pjrt.api.plugin import Plugin
from pjrt.plugins import builtin, registry
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.plugins.loader import FactoryPlugin
from pjrt.system.python_process import NoAnswerError, ask

TIME_LIMIT = 120.0
"""The default time limit of a probe, in seconds."""


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The facts of a loaded plugin.

    Attributes:
        api_version: the version of its PJRT C API; ``None`` if it could not be loaded.
        attributes: ``Plugin.attributes``; of a function that makes clients, those of its client.
        extensions: ``Plugin.extensions``.
        functions: the functions that its table has; empty where the plugin has no table.
        devices: the devices of a client, each as ``describe_devices`` returns it, if they were requested.
        problem: why it could not be loaded, or made no client; empty if nothing failed.
    """

    api_version: tuple[int, int] | None = None
    attributes: Attributes | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    functions: Sequence[str] = ()
    devices: Sequence[Mapping[str, Any]] = ()
    problem: str = ""


def probe(
    plugin: Declaration,
    *,
    devices: bool = False,
    options: Mapping[str, NamedValue] | None = None,
    time_limit: float = TIME_LIMIT,
) -> ProbeResult:
    """Load a plugin in a subprocess and return its facts. No failure of the plugin raises an error.

    Built-in devices, and functions that were registered in this process, are probed in this process.

    Args:
        plugin: the plugin.
        devices: whether to make a client and list its devices.
        options: the client's options.
        time_limit: the seconds after which the subprocess is ended.
    """
    if plugin.problem:
        return ProbeResult(problem=plugin.problem)
    if devices and not plugin.has_hardware:
        return ProbeResult(problem="its hardware is not here")
    if plugin.distribution == builtin.DISTRIBUTION or not (plugin.library or isinstance(plugin.factory, str)):
        return _probe_here(plugin.name, devices, options or {})
    try:
        answer = ask(answer_in_subprocess, (replace(plugin, shadowed=()), devices, dict(options or {})), time_limit)
    except NoAnswerError as lost:
        if lost.end is None:
            return ProbeResult(problem=f"it did not answer within {time_limit:g} seconds")
        return ProbeResult(problem=f"the process that loaded it ended without an answer: {lost.end}")
    version = answer.pop("api_version")
    answer |= {name: tuple(answer[name]) for name in ("functions", "devices")}
    return ProbeResult(None if version is None else (version[0], version[1]), **answer)


def answer_in_subprocess(question: tuple[Declaration, bool, Mapping[str, NamedValue]]) -> dict[str, Any]:
    """Return the answer to a probe's question; called in the subprocess."""
    plugin, devices, options = question
    if not is_path(plugin.name) and ".py:" not in plugin.name:  # a path is enough to find the plugin
        registry.register(plugin)
    return asdict(_probe_here(plugin.name, devices, options))


def _probe_here(name: str, devices: bool, options: Mapping[str, NamedValue]) -> ProbeResult:
    result = ProbeResult()
    try:
        plugin = registry.load_plugin(name)
        result = ProbeResult(plugin.api_version, dict(plugin.attributes), dict(plugin.extensions), _functions(plugin))
        if devices:
            with registry.client(name, **options) as client:
                result = replace(result, devices=describe_devices(client))
        elif isinstance(plugin, FactoryPlugin):
            result = replace(result, attributes=_client_attributes(name))
    except Exception as error:
        result = replace(result, problem=PjrtError.wrap(error).message)
    return result


def _functions(plugin: Plugin) -> tuple[str, ...]:
    """Return the functions that the table of a plugin has; empty for a plugin without a table."""
    address = getattr(plugin, "address", 0)
    if not address:
        return ()
    from pjrt.capi import raw

    loaded = raw.Plugin(address)
    return tuple(each.name for each in TABLE if loaded.has(each.name))


def _client_attributes(name: str) -> Attributes:
    """Return the attributes of a client, for a plugin that is a function; empty if no client can be made."""
    try:
        with registry.client(name) as client:
            return dict(client.attributes)
    except PjrtError:
        return {}


def describe_devices(client: Client) -> tuple[dict[str, Any], ...]:
    """Return a client's devices with their properties, as values that JSON has too."""
    return tuple(
        {
            "id": device.id,
            "kind": device.kind,
            "process_index": device.process_index,
            "is_addressable": device.is_addressable,
            "platform_version": client.platform_version,
            "memory_spaces": [space.kind for space in device.memory_spaces],
            "attributes": dict(device.description.attributes),
        }
        for device in client.devices
    )
