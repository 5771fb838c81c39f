"""``help()`` on any object of a loaded plugin shows the docstring of the device API."""

from __future__ import annotations

import inspect
import pydoc
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt.api.shape_spec import ShapeSpec


@pytest.fixture
def things(plugin: pjrt.Plugin, client: pjrt.Client, adder: pjrt.Program) -> list[Any]:
    """One object of every kind that a plugin gives."""
    device, spec = client.devices[0], ShapeSpec.of(np.zeros(2, np.float32))
    buffer = client.buffer_from_host(np.zeros(2, np.float32))
    executable = client.compile(adder)
    found = [plugin, client, device, device.description, device.default_memory_space, client.topology, buffer]
    found += [executable, executable.executable, client.create_buffers_for_async_host_to_device([spec])]
    found += [client.create_alias_buffer(spec)[1], buffer.external_reference(), buffer.raw(), plugin.profiler()]
    found += [device.create_async_tracking_event("test"), client.create_execute_context()]
    found += [client.runtime_abi_version(), executable.executable.abi_version()]
    return found


def test_every_public_name_has_a_docstring(things: list[Any]) -> None:
    missing = [
        f"{type(thing).__name__}.{name}"
        for thing in things
        for name in dir(type(thing))
        if not name.startswith("_") and not inspect.getdoc(getattr(type(thing), name))
    ]
    assert not missing


@pytest.mark.parametrize(
    ("index", "face", "name"),
    [
        (0, pjrt.Plugin, "topology"),
        (1, pjrt.Client, "compile"),
        (1, pjrt.Client, "devices"),
        (1, pjrt.Client, "platform_name"),
        (6, pjrt.Buffer, "to_host"),
        (7, pjrt.LoadedExecutable, "execute"),
        (7, pjrt.LoadedExecutable, "num_outputs"),
    ],
)
def test_help_shows_what_the_device_api_says(things: list[Any], index: int, face: type, name: str) -> None:
    said = inspect.getdoc(getattr(face, name))
    assert said is not None
    assert inspect.getdoc(getattr(type(things[index]), name)) == said
    assert said.splitlines()[0] in pydoc.plain(pydoc.render_doc(type(things[index])))


def test_what_a_core_says_of_itself_stays(things: list[Any]) -> None:
    text = inspect.getdoc(type(things[6]).is_deleted)
    assert text is not None
    assert "or its client closed" in text
