"""Clients, devices, memory spaces and topologies: what they say of themselves."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from anydevice import Backend

from pjrt.api.client import Client
from pjrt.api.device import Device
from pjrt.api.element_type import ElementType
from pjrt.api.errors import FailedPreconditionError, InvalidArgumentError, NotFoundError
from pjrt.api.shape_spec import TiledLayout


@pytest.mark.full
def test_a_client_has_the_devices_asked_for(new_client: Callable[..., Client]) -> None:
    client = new_client(num_devices=3)
    assert len(client.devices) == len(client.addressable_devices) == 3
    assert len({device.id for device in client.devices}) == 3
    assert client.process_index == 0
    assert client.platform_name
    assert isinstance(client.platform_version, str)


def test_devices_are_found_by_id(client: Client) -> None:
    for device in client.devices:
        assert client.lookup_device(device.id).id == device.id
        assert client.lookup_addressable_device(device.local_hardware_id).id == device.id
    with pytest.raises((NotFoundError, InvalidArgumentError)):
        client.lookup_device(987654)
    with pytest.raises((NotFoundError, InvalidArgumentError)):
        client.lookup_addressable_device(987654)


@pytest.mark.usefixtures("second")
def test_the_same_device_is_the_same_object(client: Client) -> None:
    assert client.devices[0] == client.addressable_devices[0]
    assert client.devices[0] != client.devices[1]
    assert len({*client.devices, *client.addressable_devices}) == 2


def test_a_device_describes_itself(client: Client, device: Device) -> None:
    description = device.description
    assert description.id == device.id
    assert description.process_index == 0
    assert description.kind
    assert str(device)
    assert description.debug_string
    assert device.is_addressable
    assert device.client is client
    assert isinstance(dict(description.attributes), dict)
    assert isinstance(dict(device.attributes), dict)


def test_memory_spaces_belong_to_devices(client: Client) -> None:
    spaces = client.memory_spaces
    assert len({space.id for space in spaces}) == len(spaces)
    for device in client.addressable_devices:
        assert device.default_memory_space in device.memory_spaces
        for space in device.memory_spaces:
            assert space in spaces
            assert device in space.devices
            assert space.client is client
            assert space.kind
            assert isinstance(space.kind_id, int)
            assert space.debug_string
            assert str(space)


def test_memory_kinds_have_one_id_each(client: Client) -> None:
    by_kind: dict[str, set[int]] = {}
    for space in client.memory_spaces:
        by_kind.setdefault(space.kind, set()).add(space.kind_id)
    assert all(len(ids) == 1 for ids in by_kind.values())
    assert len({next(iter(ids)) for ids in by_kind.values()}) == len(by_kind)
    assert {"device", "pinned_host", "unpinned_host"} <= set(by_kind)


@pytest.mark.usefixtures("second")
def test_the_default_device_assignment_names_each_device_once(client: Client) -> None:
    assignment = client.default_device_assignment(1, 2)
    assert (assignment.num_replicas, assignment.num_partitions) == (1, 2)
    assert sorted(assignment.device_ids[0]) == sorted(device.id for device in client.devices)


def test_a_default_device_assignment_of_more_devices_than_there_are(backend: Backend, client: Client) -> None:
    if not backend.name.startswith(("exported-", "worker-")) and "tiny" not in backend.name:
        with pytest.raises(InvalidArgumentError):
            client.default_device_assignment(4, 4)
        return
    # XLA's C API answers for any number: so would the devices be counted.
    ids = [device_id for row in client.default_device_assignment(4, 4).device_ids for device_id in row]
    assert ids == list(range(16))


def test_the_default_layout_is_a_permutation(client: Client) -> None:
    layout = client.default_layout(ElementType.F32, (2, 3, 4))
    assert isinstance(layout, TiledLayout)
    assert sorted(layout.minor_to_major) == [0, 1, 2]


def test_the_topology_describes_the_devices(client: Client) -> None:
    topology = client.topology
    assert topology.platform_name == client.platform_name
    assert {each.id for each in topology.device_descriptions} == {device.id for device in client.devices}
    assert isinstance(topology.platform_version, str)


def test_equal_topologies_have_equal_fingerprints(new_client: Callable[..., Client]) -> None:
    two, also_two, three = (new_client(num_devices=n).topology.fingerprint() for n in (2, 2, 3))
    assert two == also_two
    assert two != three


def test_a_topology_tells_canonical_shapes(client: Client) -> None:
    topology = client.topology
    kinds = topology.memory_space_kind_ids
    assert set(kinds) == {space.kind_id for space in client.memory_spaces}
    shapes = {
        topology.make_canonical_shape(ElementType.F32, shape, memory_space_kind_id=kinds[0])
        for shape in ((2, 3), (3, 2), ())
    }
    assert len(shapes) == 3
    column_major = topology.make_canonical_shape(
        ElementType.F32, (2, 3), TiledLayout((0, 1)), memory_space_kind_id=kinds[0]
    )
    assert column_major not in shapes


def test_closing_is_final_and_may_be_repeated(new_client: Callable[..., Client]) -> None:
    client = new_client()
    assert not client.is_closed
    client.close()
    client.close()
    assert client.is_closed
    assert "closed" in repr(client)
    with pytest.raises(FailedPreconditionError):
        client.buffer_from_host(np.zeros(3, np.float32))


def test_a_client_is_a_context_manager(new_client: Callable[..., Client]) -> None:
    with new_client() as client:
        assert not client.is_closed
    assert client.is_closed


def test_what_is_left_of_a_closed_client_is_refused(new_client: Callable[..., Client]) -> None:
    client = new_client()
    buffer = client.buffer_from_host(np.arange(3, dtype=np.float32))
    buffer.ready().result()
    client.close()
    with pytest.raises(FailedPreconditionError):
        buffer.to_host().result()
    with pytest.raises(FailedPreconditionError):
        buffer.copy_to(buffer.device)


def test_clients_live_side_by_side(new_client: Callable[..., Client]) -> None:
    first, second = new_client(), new_client()
    a = first.buffer_from_host(np.float32(1))
    b = second.buffer_from_host(np.float32(2))
    first.close()
    assert np.asarray(b) == 2
    assert a.client is first


def test_memory_can_be_mapped_for_direct_transfers(client: Client) -> None:
    memory = np.zeros(64, np.uint8)
    client.dma_map(memory)
    client.dma_unmap(memory)
    client.dma_map(memory)
    client.dma_unmap(memory)


def test_an_async_tracking_event_may_be_closed_twice(device: Device) -> None:
    event = device.create_async_tracking_event("loading weights")
    event.close()
    event.close()
    with device.create_async_tracking_event("in a with statement"):
        pass
