"""Clients, devices, memory spaces and topologies: what they say of themselves."""

from __future__ import annotations

import numpy as np
import pytest
import toys

import pjrt
from pjrt.host import MEMORY_KINDS, HostClient


def test_a_client_and_its_devices() -> None:
    client = toys.negate(
        num_devices=3,
        platform_version="1.5",
        device_kind="Toy 9000",
        device_attributes={"coords": (0, 1)},
        attributes={"stablehlo_current_version": (1, 17, 0)},
    )
    assert (client.platform_name, client.platform_version, client.process_index) == ("negate", "1.5", 0)
    assert client.attributes == {"stablehlo_current_version": (1, 17, 0)}
    assert list(client.devices) == list(client.addressable_devices)
    assert [d.id for d in client.devices] == [0, 1, 2]
    assert [d.local_hardware_id for d in client.devices] == [0, 1, 2]
    device = client.devices[1]
    assert (device.kind, device.process_index, device.is_addressable) == ("Toy 9000", 0, True)
    assert device.attributes == device.description.attributes == {"coords": (0, 1)}
    assert device.client is client
    assert str(device) == "Toy 9000(id=1)"
    assert client.lookup_device(2) is client.devices[2]
    assert client.lookup_addressable_device(1) is device
    with pytest.raises(pjrt.NotFoundError):
        client.lookup_device(3)
    assert repr(client) == "<HostClient negate, 3 devices>"
    client.close()


def test_memory_spaces() -> None:
    client = toys.negate(num_devices=2)
    first, second = client.devices
    assert [space.kind for space in first.memory_spaces] == list(MEMORY_KINDS)
    assert [space.id for space in client.memory_spaces] == [0, 1, 2, 3, 4, 5]
    assert [space.kind_id for space in client.memory_spaces] == [0, 1, 2, 0, 1, 2]
    assert first.default_memory_space is first.memory_space("device")
    assert second.memory_space("pinned_host").devices == (second,)
    assert [(m.kind, m.kind_id) for m in first.description.memory_space_descriptions] == list(
        zip(MEMORY_KINDS, range(3), strict=True)
    )
    assert second.memory_spaces[1].client is client
    assert str(second.memory_spaces[1]) == "pinned_host(id=4) of negate(id=1)"
    with pytest.raises(pjrt.NotFoundError, match="'hbm'"):
        first.memory_space("hbm")
    only = toys.negate(memory_kinds=["sram"])
    assert [space.kind for space in only.memory_spaces] == ["sram"]


def test_devices_of_other_processes_are_listed_and_cannot_be_used() -> None:
    client = toys.negate(num_devices=2, process_index=1, process_count=3)
    assert [d.id for d in client.devices] == [0, 1, 2, 3, 4, 5]
    assert [d.process_index for d in client.devices] == [0, 0, 1, 1, 2, 2]
    assert [d.id for d in client.addressable_devices] == [2, 3]
    assert [d.local_hardware_id for d in client.devices] == [-1, -1, 0, 1, -1, -1]
    other = client.devices[0]
    assert other.memory_spaces == ()
    with pytest.raises(pjrt.FailedPreconditionError, match="process 0"):
        _ = other.default_memory_space
    with pytest.raises(pjrt.InvalidArgumentError, match="process 0"):
        client.buffer_from_host(toys.floats(), device=other)
    buffer = client.buffer_from_host(toys.floats())
    assert buffer.device.id == 2
    with pytest.raises(pjrt.InvalidArgumentError, match="process 0"):
        buffer.copy_to(other)
    assert client.default_device_assignment(2, 1).device_ids == ((2,), (3,))
    everywhere = pjrt.CompileOptions(num_replicas=6, device_assignment=pjrt.DeviceAssignment.of(range(6)))
    exe = client.compile("program", everywhere)
    assert [d.id for d in exe.addressable_devices] == [2, 3]
    assert list(exe.addressable_device_logical_ids) == [(2, 0), (3, 0)]
    assert exe.device_assignment.num_replicas == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_devices": 0}, "num_devices is 0"),
        ({"memory_kinds": ()}, "memory_kinds is empty"),
        ({"process_index": 2, "process_count": 2}, "process_index is 2"),
        ({"alignment": 48}, "power of two"),
    ],
)
def test_impossible_platforms_are_refused(options: dict, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        toys.negate(**options)


def test_default_assignments() -> None:
    client = toys.negate(num_devices=4)
    assert client.default_device_assignment(2, 2).device_ids == ((0, 1), (2, 3))
    with pytest.raises(pjrt.InvalidArgumentError, match="num_devices=6"):
        client.default_device_assignment(3, 2)
    with pytest.raises(pjrt.InvalidArgumentError, match="num_devices=5"):
        client.compile("program", toys.replicas(5))
    with pytest.raises(pjrt.NotFoundError, match="id 9"):
        client.compile("program", pjrt.CompileOptions(device_assignment=pjrt.DeviceAssignment(((9,),))))
    assert client.compile("program", pjrt.CompileOptions(device_ordinal=3)).addressable_devices[0].id == 3
    assert client.default_layout(pjrt.ElementType.F32, (2, 3)) == pjrt.TiledLayout((1, 0))


def test_topology_describes_compiles_and_travels() -> None:
    client = toys.negate(num_devices=2, device_attributes={"coords": (0, 1)}, attributes={"generation": 4})
    topology = client.topology
    assert (topology.platform_name, topology.platform_version) == ("negate", "")
    assert [d.id for d in topology.device_descriptions] == [0, 1]
    assert list(topology.memory_space_kind_ids) == [0, 1, 2]
    assert topology.default_layout(pjrt.ElementType.F32, (2,)) == pjrt.TiledLayout((0,))
    again = topology.deserialize(topology.serialize())
    assert again.attributes == {"generation": 4}
    assert again.device_descriptions[1].attributes == {"coords": (0, 1)}
    assert again.fingerprint() == topology.fingerprint() < 2**64
    assert toys.negate(num_devices=3).topology.fingerprint() != topology.fingerprint()
    for wrong in (b"", b"{}", b"[]", toys.gated()[0].topology.serialize()):
        with pytest.raises(pjrt.InvalidArgumentError, match="topology"):
            topology.deserialize(wrong)
    executable = again.compile("program", toys.replicas(2))
    assert not isinstance(executable, pjrt.LoadedExecutable)
    loaded = client.load(executable)
    outs = loaded.execute([[client.buffer_from_host(toys.floats(), device=d)] for d in client.devices])
    np.testing.assert_array_equal(np.asarray(outs[1][0]), -toys.floats())
    one = client.load(executable, pjrt.CompileOptions())
    assert one.num_replicas == 1
    with pytest.raises(pjrt.InvalidArgumentError, match="not compiled for"):
        toys.gated()[0].load(executable)


def test_abi_versions() -> None:
    client = toys.negate(platform_version="2")
    exe = client.compile("program")
    runtime, needed = client.runtime_abi_version(), exe.abi_version()
    runtime.check_compatible_with(needed)
    runtime.check_compatible_with(toys.negate(platform_version="2").runtime_abi_version())
    assert runtime.platform_id == needed.platform_id
    for other in (toys.negate(platform_version="3"), HostClient("other", compile=lambda p, o: len)):
        with pytest.raises(pjrt.FailedPreconditionError, match="compile it again"):
            other.runtime_abi_version().check_compatible_with(needed)


def test_tracking_events_and_mapped_memory() -> None:
    client = toys.negate()
    device = client.devices[0]
    with device.create_async_tracking_event("loading weights"), device.create_async_tracking_event("b") as event:
        assert device.tracked == ["b", "loading weights"]
        event.close()
        assert device.tracked == ["loading weights"]
    assert device.tracked == []
    memory = bytearray(8)
    client.dma_map(memory)
    with pytest.raises(pjrt.AlreadyExistsError):
        client.dma_map(memory)
    client.dma_unmap(memory)
    with pytest.raises(pjrt.NotFoundError):
        client.dma_unmap(memory)


def test_the_state_of_other_processes_is_taken_note_of() -> None:
    client = toys.negate(process_count=2)
    client.update_global_process_info([pjrt.ProcessInfo(1, 7, pjrt.ProcessState.ERROR, pjrt.AbortedError("gone"))])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"pjrt\.ProcessInfo"):
        client.update_global_process_info([3])  # type: ignore[list-item]
    client.close()
    with pytest.raises(pjrt.FailedPreconditionError):
        client.update_global_process_info([])


def test_what_a_host_device_lacks_says_so() -> None:
    client = toys.negate()
    buffer = client.buffer_from_host(toys.floats())
    for call in (
        client.devices[0].stream_for_external_ready_events,
        lambda: buffer.wait_until_ready_on_stream(0),
        lambda: client.cross_host_send_buffers([], [], []),
    ):
        with pytest.raises(pjrt.UnimplementedError, match="negate"):
            call()
