"""What a plugin says of itself once it is loaded, asked in a process of its own: one that crashes, hangs or prints
hurts nobody.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pjrt.api.attributes import Attributes, NamedValue
from pjrt.api.client import Client
from pjrt.api.errors import PjrtError
from pjrt.plugins import _builtin, configuration, registry
from pjrt.plugins._loading import FactoryPlugin
from pjrt.plugins.declaration import Declaration, is_path
from pjrt.system.python_process import run_function

TIME_LIMIT = 120.0
"""How long a plugin may take to answer, in seconds."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What a plugin said.

    Attributes:
        api_version: of the PJRT C API that it speaks; ``None`` if it could not be loaded.
        attributes: ``Plugin.attributes``.
        extensions: ``Plugin.extensions``.
        devices: if they were asked for, a mapping for each device of a client.
        problem: why it could not be loaded, or made no client; empty if all went well.
    """

    api_version: tuple[int, int] | None = None
    attributes: Attributes | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[Mapping[str, Any]] = ()
    problem: str = ""


def probe(
    plugin: Declaration,
    *,
    devices: bool = False,
    options: Mapping[str, NamedValue] | None = None,
    time_limit: float = TIME_LIMIT,
) -> Answers:
    """Loads a plugin in a process of its own and asks what it is. Nothing is raised for what goes wrong with it.

    Devices in the box, and functions that were registered in this process, are asked in this process.

    Args:
        plugin: the plugin.
        devices: whether to make a client and list its devices.
        options: the client's options.
        time_limit: how many seconds to wait before the process is ended.
    """
    if plugin.problem:
        return Answers(problem=plugin.problem)
    if plugin.distribution == _builtin.DISTRIBUTION or not (plugin.library or isinstance(plugin.factory, str)):
        return _asked_here(plugin.name, devices, options or {})
    question = {
        "name": plugin.name,
        "origin": plugin.origin,
        "declaration": None if _is_place(plugin.name) else configuration.table(plugin),
        "options": dict(options or {}),
        "devices": devices,
    }
    with tempfile.TemporaryDirectory(prefix="pjrt-probe-") as folder:
        return _asked_in_child(question, Path(folder), time_limit)


def answer_in_child(folder: Path) -> None:
    """What the other process does: answers the question in a folder."""
    asked = json.loads((folder / "question").read_text(encoding="utf-8"))
    if asked["declaration"] is not None:
        said = configuration.settings(asked["declaration"])
        plugin = configuration.amended(Declaration(asked["name"], asked["origin"]), said)
        library = said.get("library")
        registry.register(
            replace(plugin, library=None if library is None else Path(library), factory=said.get("factory"))
        )
    answers = _asked_here(asked["name"], asked["devices"], asked["options"])
    written = folder / "written"
    written.write_text(json.dumps(asdict(answers), default=str), encoding="utf-8")
    written.rename(folder / "answers")


def _asked_here(name: str, devices: bool, options: Mapping[str, NamedValue]) -> Answers:
    answers = Answers()
    try:
        plugin = registry.get(name)
        answers = Answers(plugin.api_version, dict(plugin.attributes), dict(plugin.extensions))
        if isinstance(plugin, FactoryPlugin) and not devices:
            return replace(answers, attributes=_attributes_of_client(name))
        if devices:
            with registry.client(name, **options) as client:
                answers = replace(answers, devices=describe_devices(client))
    except Exception as error:
        answers = replace(answers, problem=PjrtError.wrap(error).message)
    return answers


def _is_place(name: str) -> bool:
    """Whether a plugin's name says itself where the plugin is."""
    return is_path(name) or ".py:" in name


def _attributes_of_client(name: str) -> Attributes:
    """What the clients say that a function makes, which says nothing itself; nothing if none can be made now."""
    try:
        with registry.client(name) as client:
            return dict(client.attributes)
    except PjrtError:
        return {}


def describe_devices(client: Client) -> tuple[dict[str, Any], ...]:
    """What there is to say of a client's devices, as values that JSON has too."""
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


def _asked_in_child(question: dict[str, Any], folder: Path, time_limit: float) -> Answers:
    (folder / "question").write_text(json.dumps(question), encoding="utf-8")
    end = run_function(answer_in_child, folder, time_limit)
    answers = folder / "answers"
    if end is None:
        return Answers(problem=f"it did not answer within {time_limit:g} seconds")
    if not answers.exists():
        return Answers(problem=f"the process that loaded it ended without an answer: {end}")
    said = json.loads(answers.read_text(encoding="utf-8"))
    version = said["api_version"]
    return Answers(
        None if version is None else (version[0], version[1]),
        said["attributes"],
        dict(said["extensions"]),
        tuple(said["devices"]),
        said["problem"],
    )
