"""The client: devices, memory spaces, options, topology, its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from waiting import wait_until

import pjrt
from pjrt.stablehlo.encodings.jaxlib import version


def test_devices(client: pjrt.Client) -> None:
    assert client.platform_name == "cpu"
    assert client.platform_version.startswith("XLA of jaxlib 0.")
    assert client.process_index == 0
    assert [d.id for d in client.devices] == [0, 1, 2, 3]
    assert list(client.addressable_devices) == list(client.devices)
    device = client.lookup_device(2)
    assert (device.kind, device.process_index, device.is_addressable, str(device)) == ("cpu", 0, True, "cpu:2")
    assert device.client is client
    assert client.lookup_addressable_device(device.local_hardware_id) is device
    with pytest.raises(pjrt.NotFoundError, match="no device with id 9; it has"):
        client.lookup_device(9)


def test_memory_spaces(client: pjrt.Client) -> None:
    assert len(client.memory_spaces) == 12
    assert len({space.id for space in client.memory_spaces}) == 12
    device = client.devices[1]
    assert [space.kind for space in device.memory_spaces] == ["device", "pinned_host", "unpinned_host"]
    assert [space.kind_id for space in device.memory_spaces] == [0, 1, 2]
    assert device.default_memory_space is device.memory_space("device")
    assert list(device.memory_space("pinned_host").devices) == [device]
    described = device.description.memory_space_descriptions
    assert [(d.kind, d.kind_id) for d in described] == [(s.kind, s.kind_id) for s in device.memory_spaces]


@pytest.fixture
def device() -> Iterator[pjrt.Device]:
    """A device whose memory nobody else uses."""
    with pjrt.client("cpu", num_devices=1) as client:
        yield client.devices[0]


def wait_for_bytes_in_use(count: int, *devices: pjrt.Device) -> None:
    """Return once so many bytes are in use; a thread of XLA's may still hold what was let go of."""
    wait_until(lambda: all(device.memory_stats().bytes_in_use == count for device in devices), f"{count} bytes in use")


def test_bytes_in_use_follow_the_buffers(device: pjrt.Device) -> None:
    assert device.memory_stats().bytes_in_use == 0
    buffer = device.client.buffer_from_host(np.zeros(1000, np.float32))
    assert device.memory_stats().bytes_in_use == 4000
    buffer.delete()
    wait_for_bytes_in_use(0, device)


def test_memory_of_several_buffers_is_in_use_once(device: pjrt.Device) -> None:
    client = device.client
    buffer = client.buffer_from_host(np.zeros(1000, np.float32))
    view = client.buffer_from_dlpack(buffer)
    assert device.memory_stats().bytes_in_use == 4000
    whole = buffer.bitcast(pjrt.ElementType.S8, (4000,))
    whole.ready().result()
    part = client.buffer_from_host(np.asarray(whole)[2000:], semantics=pjrt.HostBufferSemantics.IMMUTABLE_ZERO_COPY)
    assert device.memory_stats().bytes_in_use in (4000, 6000)  # XLA copies what is not aligned
    del part
    copied = view.copy_to(device.memory_space("pinned_host"))
    copied.ready().result()
    wait_for_bytes_in_use(8000, device)
    del buffer, view, copied
    wait_for_bytes_in_use(4000, device)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_device_has_its_own_shard_in_use(is_read: bool) -> None:
    text = """func.func @main(%x: tensor<1000xf32>) -> tensor<1000xf32> {
      %0 = stablehlo.add %x, %x : tensor<1000xf32>
      return %0 : tensor<1000xf32> }"""
    with pjrt.client("cpu", num_devices=4) as four:
        executable = four.compile(text, pjrt.CompileOptions(num_replicas=4))
        rows = [[four.buffer_from_host(np.ones(1000, np.float32), device=device)] for device in four.devices]
        results = executable.execute(rows)
        for (result,) in results:
            result.ready().result()
            if is_read:
                np.asarray(result)
        del rows
        wait_for_bytes_in_use(4000, *four.devices)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_devices": 0}, "num_devices of the device 'cpu' is a number from 1 to"),
        ({"num_devices": 2.5}, "found 2.5"),
        ({"num_devices": True}, "found True"),
        ({"num_devices": "8"}, "found '8'"),
        ({"asynchronous": 1}, "asynchronous of the device 'cpu' is True or False, found 1"),
        ({"num_threads": 2}, "no option 'num_threads'; it has num_devices, asynchronous"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.client("cpu", **options)


def test_default_device_assignment(client: pjrt.Client) -> None:
    assert client.default_device_assignment(2, 2).device_ids == ((0, 1), (2, 3))
    with pytest.raises(pjrt.InvalidArgumentError, match=r"need 5 devices, the client has 4; .*num_devices=5"):
        client.default_device_assignment(5, 1)


def test_a_synchronous_client_has_its_results_when_a_call_returns(programs: Any) -> None:
    with pjrt.client("cpu", asynchronous=False) as client:
        x = np.eye(512, dtype=np.float32)
        (result,) = client.compile(programs.power)(x, np.int64(20))
        assert result.ready().done()


def test_after_close_everything_says_so(programs: Any) -> None:
    client = pjrt.client("cpu")
    executable = client.compile(programs.add)
    x = client.buffer_from_host(np.ones(4, np.float32))
    client.close()
    client.close()
    assert client.is_closed
    uses = [
        lambda: client.compile(programs.add),
        lambda: client.buffer_from_host(np.ones(4)),
        lambda: executable(x, x),
        lambda: executable.execute([[x, x]]),
        lambda: executable.cost_analysis(),
        lambda: x.to_host(),
        lambda: x.ready(),
        lambda: x.copy_to(client.devices[0]),
        lambda: client.devices[0].memory_stats(),
    ]
    for use in uses:
        with pytest.raises(pjrt.FailedPreconditionError, match="client was closed"):
            use()
    assert "closed" in repr(client)


def test_places_of_another_client_are_refused(client: pjrt.Client) -> None:
    with pjrt.client("cpu") as other:
        with pytest.raises(pjrt.InvalidArgumentError, match="belongs to another client"):
            client.buffer_from_host(np.ones(4), device=other.devices[0])
        with pytest.raises(pjrt.InvalidArgumentError, match="belongs to another client"):
            client.buffer_from_host(np.ones(4)).copy_to(other.devices[0])
        with pytest.raises(pjrt.InvalidArgumentError, match="cannot address the memory space"):
            client.buffer_from_host(
                np.ones(4), device=client.devices[0], memory_space=client.devices[1].memory_spaces[0]
            )


def test_what_the_device_lacks_is_named(client: pjrt.Client) -> None:
    lacks = [
        (lambda: client.dma_map(bytearray(8)), "Client.dma_map"),
        (lambda: client.create_execute_context(), "Client.create_execute_context"),
        (lambda: client.runtime_abi_version(), "Client.runtime_abi_version"),
        (lambda: client.devices[0].clear_memory_stats(), "Device.clear_memory_stats"),
        (lambda: client.devices[0].stream_for_external_ready_events(), "Device.stream_for_external_ready_events"),
        (
            lambda: client.buffer_from_host(np.ones(1)).copy_to_remote_device(pjrt.Future.completed(b"")),
            "copy_to_remote",
        ),
    ]
    for use, operation in lacks:
        with pytest.raises(pjrt.UnimplementedError, match=rf"device 'cpu' does not offer .*{operation}"):
            use()


@pytest.mark.skipif(version() < (0, 10), reason="jaxlib before 0.10 cannot poison executions")
def test_an_execution_that_is_not_there_cannot_be_poisoned(client: pjrt.Client) -> None:
    assert client.devices[0].poison_execution(12345, pjrt.AbortedError("no more")) is False
