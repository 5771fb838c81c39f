"""The statistics of a device's allocator, and allocations when the memory is full."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from anydevice import Absent, Backend
from waiting import wait_until

from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import ResourceExhaustedError
from pjrt.api.shape_spec import ShapeSpec

KIB = np.zeros(256, np.float32)


def wait_for_use(device: Device, count: int) -> None:
    """Return once so many bytes are in use; the device may let go of a buffer a moment after its last owner."""
    wait_until(lambda: device.memory_stats().bytes_in_use == count, f"the use of {count} bytes")


def test_memory_in_use_is_counted(client: Client, device: Device) -> None:
    before = device.memory_stats().bytes_in_use
    buffers = [client.buffer_from_host(KIB) for _ in range(3)]
    for buffer in buffers:
        buffer.ready().result(60)
    stats = device.memory_stats()
    assert stats.bytes_in_use == before + 3072
    assert stats.peak_bytes_in_use is None or stats.peak_bytes_in_use >= stats.bytes_in_use
    buffers[0].delete()
    wait_for_use(device, before + 2048)
    del buffer
    buffers.clear()
    gc.collect()
    wait_for_use(device, before)


def test_peaks_can_be_cleared(client: Client, device: Device) -> None:
    buffer = client.buffer_from_host(KIB)
    buffer.ready().result(60)
    buffer.delete()
    if device.memory_stats().peak_bytes_in_use is None:
        raise Absent("peaks of memory")
    assert device.memory_stats().peak_bytes_in_use == 1024
    wait_for_use(device, 0)
    device.clear_memory_stats()
    assert device.memory_stats().peak_bytes_in_use == 0


def test_devices_count_apart(client: Client, second: Device) -> None:
    first = client.addressable_devices[0]
    before = first.memory_stats().bytes_in_use
    buffer = client.buffer_from_host(KIB, device=second)
    buffer.ready().result(60)
    assert first.memory_stats().bytes_in_use == before
    assert second.memory_stats().bytes_in_use >= 1024


def test_a_limit_is_kept(new_client: Callable[..., Client]) -> None:
    client = new_client(memory_limit=4096)
    device = client.addressable_devices[0]
    assert device.memory_stats().bytes_limit == 4096
    kept = [client.buffer_from_host(KIB) for _ in range(4)]
    for buffer in kept:
        buffer.ready().result(60)
    with pytest.raises(ResourceExhaustedError) as caught:
        client.buffer_from_host(KIB).ready().result(60)
    assert isinstance(caught.value, MemoryError)
    kept.pop().delete()
    wait_for_use(device, 3072)
    client.buffer_from_host(KIB).ready().result(60)


def test_a_limit_holds_for_every_way_to_a_buffer(backend: Backend, new_client: Callable[..., Client]) -> None:
    client = new_client(memory_limit=2048)
    spec = ShapeSpec((256,), ElementType.F32)
    executable = client.compile(backend.programs.itself_and_negative((256,)))
    x = client.buffer_from_host(KIB)
    with pytest.raises(ResourceExhaustedError):
        client.create_uninitialized_buffer(ShapeSpec((512,), ElementType.F32)).ready().result(60)
    with pytest.raises(ResourceExhaustedError):
        client.create_buffers_for_async_host_to_device([spec, spec]).retrieve_buffer(1).ready().result(60)
    with pytest.raises(ResourceExhaustedError):
        executable(x)[1].ready().result(60)
    gc.collect()
    there = x.copy_to(x.device)
    with pytest.raises(ResourceExhaustedError):
        x.copy_to(x.device).ready().result(60)
    np.testing.assert_array_equal(np.asarray(there), KIB)


def test_host_memory_is_not_limited(new_client: Callable[..., Client]) -> None:
    client = new_client(memory_limit=1024)
    space = next(each for each in client.memory_spaces if each.kind == "pinned_host")
    buffers = [client.buffer_from_host(KIB, memory_space=space) for _ in range(4)]
    np.testing.assert_array_equal(np.asarray(buffers[3]), KIB)
