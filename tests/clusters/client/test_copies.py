"""Copies between the hosts of a cluster, which do not pass the controller."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pjrt.api.buffer import Buffer
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError
from pjrt.api.shape_spec import ShapeSpec, TiledLayout
from pjrt.clusters.client import buffer as copying
from pjrt.clusters.client.client import ClusterClient

TYPES = [getattr(ElementType, name) for name in ["PRED", "S4", "S8", "U64", "F8E4M3FN", "BF16", "F64", "C64"]]


@pytest.fixture
def no_transfers(shared_cluster: ClusterClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a value comes to this process or goes from it, but for those that are put and read by the test itself."""
    for member in shared_cluster.members:
        kind = type(member.client)
        monkeypatch.setattr(kind, "buffer_from_host", _refuse)
        monkeypatch.setattr(kind, "create_uninitialized_buffer", _refuse)


def _refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a value passes the controller")


def values_of(element_type: ElementType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    numbers = np.arange(int(np.prod(shape))).reshape(shape) % 2
    return numbers.astype(element_type.dtype)


@pytest.mark.parametrize("element_type", TYPES, ids=lambda each: each.name)
def test_element_types(shared_cluster: ClusterClient, element_type: ElementType) -> None:
    near, far = shared_cluster.devices[0], shared_cluster.devices[3]
    buffer = shared_cluster.buffer_from_host(values_of(element_type, (2, 3)), device=near)
    copy = buffer.copy_to(far)
    assert copy.device is far
    assert copy.element_type is element_type
    np.testing.assert_array_equal(np.asarray(copy), np.asarray(buffer))


@settings(max_examples=6)
@given(shape=st.lists(st.integers(0, 5), max_size=3), places=st.permutations(range(4)))
def test_any_shape_to_any_device(shared_cluster: ClusterClient, shape: list[int], places: list[int]) -> None:
    source, target = (shared_cluster.devices[place] for place in places[:2])
    value = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    copy = shared_cluster.buffer_from_host(value, device=source).copy_to(target)
    assert copy.device is target
    np.testing.assert_array_equal(np.asarray(copy), value)


def test_a_value_does_not_pass_the_controller(shared_cluster: ClusterClient, request: pytest.FixtureRequest) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    buffer: Buffer = shared_cluster.buffer_from_host(value, device=shared_cluster.devices[1])
    request.getfixturevalue("no_transfers")
    for device in (*shared_cluster.devices[2:], *shared_cluster.devices[:2]):
        buffer = buffer.copy_to(device)
    np.testing.assert_array_equal(np.asarray(buffer), value)


def test_kinds_of_memory(shared_cluster: ClusterClient) -> None:
    value = np.arange(6, dtype=np.float32)
    near, far = shared_cluster.devices[1], shared_cluster.devices[2]
    pinned = shared_cluster.buffer_from_host(value, memory_space=near.memory_space("pinned_host"))
    there = pinned.copy_to(far.memory_space("unpinned_host"))
    assert (there.device, there.memory_space.kind) == (far, "unpinned_host")
    back = there.copy_to(near)
    assert (back.device, back.memory_space) == (near, near.default_memory_space)
    np.testing.assert_array_equal(np.asarray(back), value)


def test_a_layout_stays(shared_cluster: ClusterClient) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    layout = TiledLayout((0, 1))
    buffer = shared_cluster.buffer_from_host(value, device=shared_cluster.devices[0], layout=layout)
    copy = buffer.copy_to(shared_cluster.devices[2])
    assert copy.layout == layout
    np.testing.assert_array_equal(np.asarray(copy), value)


def test_a_copy_waits_for_its_value_and_takes_its_error(shared_cluster: ClusterClient) -> None:
    near, far = shared_cluster.devices[0], shared_cluster.devices[2]
    manager = shared_cluster.create_buffers_for_async_host_to_device(
        [ShapeSpec((4,), ElementType.F32)], memory_space=near.default_memory_space
    )
    copy = manager.retrieve_buffer(0).copy_to(far)
    manager.transfer_literal(0, np.ones(4, np.float32))
    assert np.asarray(copy).tolist() == [1.0] * 4
    deleted = shared_cluster.buffer_from_host(np.zeros(4), device=near)
    deleted.delete()
    with pytest.raises(FailedPreconditionError, match="deleted"):
        deleted.copy_to(far)


def test_the_program_that_was_not_used_for_the_longest_time_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "_PROGRAMS_KEPT", 2)
    compiled: list[str] = []
    client: Any = SimpleNamespace(compile=lambda program, options: compiled.append(program) or program)
    copier = copying.CrossHostCopier(client)
    target: Any = SimpleNamespace(id=1)

    def programs_for(size: int) -> int:
        """Return how many programs are compiled to copy an array of this size."""
        before = len(compiled)
        layout, device = TiledLayout.row_major(1), SimpleNamespace(id=0)
        buffer: Any = SimpleNamespace(shape=(size,), element_type=ElementType.F32, layout=layout, device=device)
        copier._programs(buffer, target)
        return len(compiled) - before

    assert [programs_for(size) for size in (1, 2, 1, 3, 1, 3, 2)] == [2, 2, 0, 2, 0, 0, 2]
