"""A client of the tiny plugin with one of everything that can be made from it: for tests of how things end."""

from __future__ import annotations

import numpy as np

import pjrt

X = np.arange(4, dtype=np.float32)
SPEC = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)


def everything(plugin: pjrt.Plugin, adder: pjrt.Program) -> dict[str, object]:
    """Make a client with one of everything that can be made from it."""
    client = plugin.client(num_devices=2)
    loaded = client.compile(adder)
    buffer = client.buffer_from_host(X)
    manager = client.create_buffers_for_async_host_to_device([SPEC])
    alias, fulfillment = client.create_alias_buffer(SPEC)
    return {
        "client": client,
        "device": client.devices[1],
        "memory": client.memory_spaces[0],
        "topology": client.topology,
        "descriptions": client.topology.device_descriptions,
        "buffer": buffer,
        "results": loaded(buffer, buffer),
        "future": buffer.to_host(),
        "ready": buffer.ready(),
        "reference": buffer.external_reference(),
        "raw": buffer.raw(),
        "loaded": loaded,
        "executable": loaded.executable,
        "manager": manager,
        "transferred": manager.retrieve_buffer(0),
        "alias": alias,
        "fulfillment": fulfillment,
        "context": client.create_execute_context(),
        "tracking": client.devices[0].create_async_tracking_event("test"),
        "abi": client.runtime_abi_version(),
    }
