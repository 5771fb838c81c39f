"""Out of memory: whichever call meets it, the error carries the state of the allocators and the client's options."""

from __future__ import annotations

import json
import queue
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tiny import TinyProgram
from tiny.control import Control

import pjrt
from pjrt.api.client import Client

LIMIT = 1 << 16
HALF = np.zeros(LIMIT // 8, np.float32)
SPEC = pjrt.ShapeSpec((LIMIT // 4 + 1,), pjrt.ElementType.F32)


@pytest.fixture
def client(plugin: pjrt.Plugin) -> Iterator[Client]:
    """A client whose two devices have 64 KiB each; half of the first one's is taken."""
    with plugin.client(num_devices=2, bytes_limit=LIMIT, colour="blue") as made:
        taken = made.buffer_from_host(HALF)
        taken.ready().result()
        yield made
        taken.delete()


def upload(client: Client) -> object:
    return client.buffer_from_host(np.zeros(SPEC.shape, np.float32)).ready().result()


def leave_uninitialized(client: Client) -> object:
    return client.create_uninitialized_buffer(SPEC).ready().result()


def begin_transfer(client: Client) -> object:
    manager = client.create_buffers_for_async_host_to_device([SPEC])
    return manager.retrieve_buffer(0).ready().result()


def copy(client: Client) -> object:
    first, second = client.devices
    source = client.buffer_from_host(HALF, device=second)
    copies = [source.copy_to(first) for _ in range(2)]
    return [each.ready().result() for each in copies]


def execute(client: Client) -> object:
    program = TinyProgram("large")
    code = program.result(program.let("fill", f"f32[{SPEC.shape[0]}]", 1)).code
    return client.compile(pjrt.Program(code, format="tiny"))()[0].ready().result()


def check(error: pjrt.ResourceExhaustedError) -> None:
    stats = json.loads(error.payloads["pjrt.allocator_stats"])
    assert len(stats) == 2
    first, second = stats.values()
    assert first["bytes_limit"] == second["bytes_limit"] == LIMIT
    assert LIMIT >= first["bytes_in_use"] >= LIMIT // 2
    assert json.loads(error.payloads["pjrt.client_options"]) == {
        "num_devices": 2,
        "bytes_limit": LIMIT,
        "colour": "blue",
    }


@pytest.mark.parametrize(
    "act", [upload, leave_uninitialized, begin_transfer, copy, execute], ids=lambda act: act.__name__
)
def test_the_error_says_who_has_the_memory(client: Client, act: Callable[[Client], object]) -> None:
    with pytest.raises(pjrt.ResourceExhaustedError, match="bytes") as caught:
        act(client)
    check(caught.value)
    assert isinstance(caught.value, MemoryError)
    (note,) = caught.value.__notes__
    assert re.search(r"TinyDevice\(id=0\).*: (32,768|65,536) of 65,536 bytes in use, peak_bytes_in_use", note)
    assert "options of the client: {'num_devices': 2, 'bytes_limit': 65536, 'colour': 'blue'}" in note


def test_the_client_goes_on(client: Client) -> None:
    for _ in range(3):
        with pytest.raises(pjrt.ResourceExhaustedError):
            upload(client)
    np.testing.assert_array_equal(np.asarray(client.buffer_from_host(HALF[:16])), HALF[:16])


def test_it_may_arrive_late(client: Client, tiny_control: Control) -> None:
    tiny_control.event_fault("Buffer_ReadyEvent", pjrt.StatusCode.RESOURCE_EXHAUSTED, "no room after all", count=1)
    arrived: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    future = client.buffer_from_host(HALF[:16]).ready()
    future.add_done_callback(lambda done: arrived.put(done.exception()))
    with pytest.raises(pjrt.ResourceExhaustedError, match="no room after all") as caught:
        future.result()
    check(caught.value)
    told = arrived.get(timeout=120)
    assert isinstance(told, pjrt.ResourceExhaustedError)
    check(told)
