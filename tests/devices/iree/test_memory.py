"""Memory: IREE's own, with the caller's arrays in place where the semantics and the alignment allow it."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import pytest
from iree_programs import DOUBLE, SAME_AND_RESHAPED

from pjrt.api.buffer import HostBufferSemantics
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.client import IreeClient
from pjrt.devices.iree.runtime import ALIGNMENT, IreeGpuMemory, Tensor
from pjrt.host_memory.array import aligned_empty

pytestmark = pytest.mark.full

ZERO_COPY = HostBufferSemantics.IMMUTABLE_ZERO_COPY


def aligned(*shape: int) -> np.ndarray:
    array = aligned_empty(shape, np.dtype(np.float32))
    array[...] = np.arange(array.size).reshape(shape)
    return array


def test_copies_to_the_host_copy_nothing(client: IreeClient) -> None:
    buffer = client.buffer_from_host(np.ones(1000, np.float32))
    array = np.asarray(buffer)
    assert array.ctypes.data == buffer.unsafe_pointer()
    assert not array.flags.writeable


def test_programs_run_on_the_callers_memory(client: IreeClient) -> None:
    array = aligned(4)
    buffer = client.buffer_from_host(array, semantics=ZERO_COPY)
    assert buffer.unsafe_pointer() == array.ctypes.data
    np.testing.assert_array_equal(np.asarray(client.compile(DOUBLE)(buffer)[0]), 2 * array)


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_misaligned_arrays_are_copied(client: IreeClient, offset: int) -> None:
    memory = aligned(ALIGNMENT)
    array = memory[offset // 4 : offset // 4 + 4]
    buffer = client.buffer_from_host(array, semantics=ZERO_COPY)
    assert buffer.unsafe_pointer() % ALIGNMENT == 0
    np.testing.assert_array_equal(np.asarray(client.compile(DOUBLE)(buffer)[0]), 2 * array)


@pytest.mark.parametrize("driver", ["local-sync", "local-task"])
def test_results_do_not_share_the_callers_memory(new_client: Callable[..., IreeClient], driver: str) -> None:
    client = new_client(driver=driver)
    array = aligned(4, 4)
    released: list[bool] = []
    buffer = client.buffer_from_host(array, semantics=ZERO_COPY, on_done_with_host_buffer=lambda: released.append(True))
    results = client.compile(SAME_AND_RESHAPED)(buffer)
    for result in results:
        result.ready().result()
    buffer.delete()
    gc.collect()
    assert released == [True]
    array[...] = -1
    for result in results:
        np.testing.assert_array_equal(np.asarray(result).reshape(-1), np.arange(16))


def test_dlpack_shares_memory_both_ways(client: IreeClient) -> None:
    array = aligned(4)
    buffer = client.buffer_from_dlpack(array)
    assert buffer.unsafe_pointer() == array.ctypes.data
    out = np.from_dlpack(buffer)
    assert out.ctypes.data == array.ctypes.data


def test_the_allocator_counts_its_memory(client: IreeClient) -> None:
    device = client.devices[0]
    before = device.memory_stats()
    buffer = client.buffer_from_host(np.ones(1 << 16, np.float32))
    during = device.memory_stats()
    assert during.bytes_in_use == before.bytes_in_use + (1 << 18)
    assert during.pool_bytes is not None
    assert before.pool_bytes is not None
    assert during.pool_bytes >= before.pool_bytes + (1 << 18)
    assert during.peak_pool_bytes is not None
    assert during.peak_pool_bytes >= during.pool_bytes
    buffer.delete()
    gc.collect()
    after = device.memory_stats().pool_bytes
    assert after is not None
    assert after < during.pool_bytes


def test_memory_that_the_host_does_not_see_is_copied_by_the_device(client: IreeClient) -> None:
    memory = IreeGpuMemory(client.runtime)
    space = client.devices[0].default_memory_space
    spec = ShapeSpec((3, 5), np.float32)
    one, two = memory.allocate(spec, space), memory.allocate(spec, space)
    array, out = aligned(3, 5), np.zeros((3, 5), np.float32)
    memory.copy_in(one, array).wait()
    memory.copy(one, two, spec)
    memory.copy_out(two, out)
    np.testing.assert_array_equal(out, array)
    assert isinstance(one, Tensor)
    assert memory.host_view(one) is None
    assert memory.import_array(array, spec, space) is None
