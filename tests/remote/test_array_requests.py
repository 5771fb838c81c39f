"""The requests about arrays, by messages and without a transport."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_client import (
    ADDRESSABLE_SHARDS,
    ALL_SHARDS,
    ALWAYS_COPY,
    DONATE_INPUT,
    REUSE_INPUT,
    ProtocolClient,
    connected,
    remap_plan_proto,
)

import pjrt
from pjrt import ifrt
from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import TiledLayout
from pjrt.remote.protocol.messages import wire
from pjrt.remote.protocol.values import (
    device_list_proto,
    element_type_proto,
    shape_proto,
    sharding_proto,
    status_proto,
)
from pjrt.remote.server.memory import array_in, bytes_of, region_size


@pytest.fixture(scope="module")
def device_client() -> Iterator[pjrt.Client]:
    with pjrt.client("cpu", num_devices=4) as client:
        yield client


@pytest.fixture(scope="module")
def speaker(device_client: pjrt.Client) -> Iterator[ProtocolClient]:
    with connected(device_client) as speaker:
        yield speaker


@pytest.fixture(scope="module")
def mesh(speaker: ProtocolClient) -> ifrt.Mesh:
    return ifrt.Mesh(speaker.ifrt.devices, {"x": 4})


def single(speaker: ProtocolClient, number: int = 0, memory_kind: str | None = None) -> ifrt.Sharding:
    return ifrt.SingleDeviceSharding(speaker.ifrt.devices[number], memory_kind)


NO_ARRAYS = ("INVALID", "TOKEN", "F6E2M3FN", "F6E3M2FN")  # of the last two jaxlib makes none on this device
ALL_DTYPES = [element_type for element_type in ElementType if element_type.name not in NO_ARRAYS]


@given(st.sampled_from(ALL_DTYPES), st.lists(st.integers(0, 4), max_size=3), st.randoms())
def test_any_array_comes_back(
    speaker: ProtocolClient, element_type: ElementType, shape: list[int], random: Any
) -> None:
    value = np.reshape([random.choice([0, 1]) for _ in range(int(np.prod(shape)))], shape).astype(element_type.dtype)
    handle = speaker.put(value)
    back = speaker.get(handle, shape, element_type)
    assert back.dtype == value.dtype
    assert back.tobytes() == value.tobytes()
    speaker.ask("destruct_array", array_handle=[handle])


@given(st.permutations([0, 1, 2]), st.tuples(*[st.integers(1, 4)] * 3), st.sampled_from(["u1", "f4", "c16"]))
def test_a_host_buffer_may_have_strides(
    speaker: ProtocolClient, order: list[int], shape: tuple[int, ...], dtype: str
) -> None:
    dense = np.arange(np.prod(shape)).astype(dtype).reshape([shape[d] for d in order])
    value = dense.transpose(np.argsort(order))
    handle = speaker.handle()
    strides = wire.ByteStrides(strides=value.strides)
    region = dense.reshape(-1).view(np.uint8)
    speaker.session.host_buffers.store(handle, region)
    fields = speaker.array_fields(value)
    speaker.ask(
        "make_array_from_host_buffer", **fields, byte_strides=strides, host_buffer_handle=handle, array_handle=handle
    )
    assert speaker.get(handle, shape, dtype).tobytes() == value.tobytes()
    buffer = speaker.handle()
    speaker.ask("copy_to_host_buffer", array_handle=handle, byte_strides=strides, host_buffer_handle=buffer)
    assert bytes(speaker.session.host_buffers.take(buffer)) == region.tobytes()


def test_a_host_buffer_may_have_gaps(speaker: ProtocolClient) -> None:
    handle = speaker.put(np.float32([[1, 2], [3, 4]]))
    buffer = speaker.handle()
    strides = wire.ByteStrides(strides=[16, 4])
    speaker.ask("copy_to_host_buffer", array_handle=handle, byte_strides=strides, host_buffer_handle=buffer)
    data = speaker.session.host_buffers.take(buffer)
    assert np.frombuffer(data, np.float32).tolist() == [1, 2, 0, 0, 3, 4]


@pytest.mark.parametrize(
    ("shape", "strides", "error"),
    [
        ((2, 2), [8], "expected 2 byte strides"),
        ((2, 2), [8, -4], "positive multiples of 4"),
        ((2, 2), [8, 0], "positive multiples of 4"),
        ((2, 2), [8, 3], "positive multiples of 4"),
        ((2, 2), None, "expected a host buffer of 16 bytes"),
        ((2, 2), [1 << 62, 4], "expected a host buffer of"),
        ((1 << 40, 1 << 40), None, "expected a host buffer of"),
    ],
)
def test_a_wrong_host_buffer_is_an_error(
    speaker: ProtocolClient, shape: tuple[int, ...], strides: list[int] | None, error: str
) -> None:
    handle = speaker.handle()
    speaker.session.host_buffers.store(handle, bytes(12))
    fields: dict[str, Any] = {} if strides is None else {"byte_strides": wire.ByteStrides(strides=strides)}
    with pytest.raises(pjrt.PjrtError, match=error):
        speaker.ask(
            "make_array_from_host_buffer",
            dtype=element_type_proto(ElementType.F32),
            shape=shape_proto(shape),
            sharding=sharding_proto(single(speaker)),
            host_buffer_handle=handle,
            array_handle=handle,
            **fields,
        )
    with pytest.raises(pjrt.PjrtError, match=error):
        speaker.ask("check_value_ready", value_handles=[handle])
    with pytest.raises(pjrt.NotFoundError):
        speaker.session.host_buffers.lookup(handle)


def test_the_size_of_a_region() -> None:
    assert region_size(4, (), None) == 4
    assert region_size(4, (3, 0), [0, 0]) == 0
    assert region_size(4, (1, 3), [-1, 4]) == 12


@pytest.mark.parametrize(("kind", "noun"), [(99, "strings"), (14, "opaque"), (17, "TOKEN"), (55, "one of the kinds")])
def test_types_without_numbers_are_errors(speaker: ProtocolClient, kind: int, noun: str) -> None:
    handle = speaker.handle()
    speaker.session.host_buffers.store(handle, b"")
    with pytest.raises((pjrt.UnimplementedError, pjrt.InvalidArgumentError), match=noun):
        speaker.ask(
            "make_array_from_host_buffer",
            dtype=wire.DTypeProto(kind=kind),
            shape=shape_proto((0,)),
            sharding=sharding_proto(single(speaker)),
            host_buffer_handle=handle,
            array_handle=handle,
        )


def test_an_array_of_a_custom_layout(speaker: ProtocolClient) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    handle = speaker.handle()
    speaker.session.host_buffers.store(handle, bytes_of(value, None))
    compact = wire.CompactLayoutProto(major_to_minor=[1, 0]).SerializeToString()
    layout = wire.LayoutProto(serialized_layout=wire.Serialized(type_name="xla::ifrt::CompactLayout", data=compact))
    fields = speaker.array_fields(value)
    speaker.ask("make_array_from_host_buffer", **fields, layout=layout, host_buffer_handle=handle, array_handle=handle)
    assert speaker.session.arrays.get(handle).layout == TiledLayout((0, 1))
    assert speaker.get(handle, (2, 3)).tolist() == value.tolist()


def test_shards_of_host_buffers(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    """Two arrays in a request; the second is replicated, and has one host buffer for all devices."""
    parts = [np.full((1, 2), n, np.float32) for n in range(4)]
    whole = np.float32([7, 8])
    buffers = [speaker.handle() for _ in range(5)]
    Shards = wire.MakeArraysFromHostBufferShardsRequest_ShardIndices  # noqa: N806 the class of a message
    Spec = wire.MakeArraysFromHostBufferShardsRequest_MakeArraysFromHostBufferShardsSpec  # noqa: N806

    def host_buffer(value: np.ndarray[Any, Any], handle: int) -> Any:
        return wire.MakeArraysFromHostBufferShardsRequest_HostBuffer(
            dtype=element_type_proto(ElementType.F32), shape=shape_proto(value.shape), host_buffer_handle=handle
        )

    specs = [
        Spec(
            addressable_shard_indices=[Shards(indices=[n]) for n in range(4)],
            host_buffers=[host_buffer(part, handle) for part, handle in zip(parts, buffers[:4], strict=True)],
            array_spec=speaker.spec((4, 2), mesh.sharding("x")),
        ),
        Spec(
            addressable_shard_indices=[Shards(indices=[0, 1, 2, 3])],
            host_buffers=[host_buffer(whole, buffers[4])],
            array_spec=speaker.spec((2,), mesh.sharding()),
        ),
    ]
    number = speaker.send("make_arrays_from_host_buffer_shards", specs=specs, array_handles=[buffers[0], buffers[4]])
    for value, handle in zip([*parts, whole], buffers, strict=True):
        assert number not in speaker.responses
        speaker.session.host_buffers.store(handle, bytes_of(value, None))
    assert list(speaker.wait(number).array_handles) == [buffers[0], buffers[4]]
    assert speaker.get(buffers[0], (4, 2)).tolist() == np.concatenate(parts).tolist()
    assert [np.asarray(s.buffer).tolist() for s in speaker.session.arrays.get(buffers[4]).shards] == [[7, 8]] * 4

    for spec, error in (
        (Spec(array_spec=speaker.spec((2,), mesh.sharding())), r"none for \[0, 1, 2, 3\]"),
        (
            Spec(addressable_shard_indices=[Shards()], array_spec=speaker.spec((2,), mesh.sharding())),
            "shards of each of 0 host buffers",
        ),
        (
            Spec(
                addressable_shard_indices=[Shards(indices=[4])],
                host_buffers=[host_buffer(whole, buffers[4])],
                array_spec=speaker.spec((2,), mesh.sharding()),
            ),
            "one of 4 shards",
        ),
    ):
        speaker.session.host_buffers.store(buffers[4], bytes_of(whole, None))
        poisoned = speaker.handle()
        with pytest.raises(pjrt.InvalidArgumentError, match=error):
            speaker.ask("make_arrays_from_host_buffer_shards", specs=[spec], array_handles=[poisoned])
        with pytest.raises(pjrt.InvalidArgumentError, match=error):
            speaker.ask("check_value_ready", value_handles=[poisoned])
        if spec.host_buffers:
            with pytest.raises(pjrt.NotFoundError):
                speaker.session.host_buffers.lookup(buffers[4])
        else:
            speaker.session.host_buffers.delete(buffers[4])


def test_error_arrays(speaker: ProtocolClient) -> None:
    error = pjrt.DataLossError("the disk is full", payloads={"type.googleapis.com/disk": b"full"})
    handle = speaker.handle()
    specs = [speaker.spec((2,), single(speaker))]
    speaker.ask("make_error_arrays", error=status_proto(error), array_specs=specs, array_handles=[handle])
    for kind, fields in (
        ("check_value_ready", {"value_handles": [handle]}),
        ("copy_to_host_buffer", {"array_handle": handle, "host_buffer_handle": speaker.handle()}),
    ):
        with pytest.raises(pjrt.DataLossError, match="the disk is full"):
            speaker.ask(kind, **fields)
    assert not speaker.ask("is_array_deleted", array_handle=handle).deleted
    with pytest.raises(pjrt.InvalidArgumentError, match="found OK"):
        speaker.ask("make_error_arrays", array_specs=specs, array_handles=[speaker.handle()])


def test_assemble_and_disassemble(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    value = np.arange(8, dtype=np.float32).reshape(4, 2)
    shards = [speaker.put(value[n : n + 1], single(speaker, n)) for n in range(4)]
    whole, parts = speaker.handle(), [speaker.handle() for _ in range(4)]
    fields = {"shape": shape_proto((4, 2)), "sharding": sharding_proto(mesh.sharding("x"))}
    speaker.ask(
        "assemble_array_from_single_device_arrays",
        **fields,
        single_device_array_handles=shards,
        copy_semantics=REUSE_INPUT,
        single_device_shard_semantics=ADDRESSABLE_SHARDS,
        result_handle=whole,
        dtype=element_type_proto(ElementType.F32),
    )
    assert speaker.get(whole, (4, 2)).tolist() == value.tolist()
    speaker.ask(
        "disassemble_into_single_device_arrays",
        array_handle=whole,
        copy_semantics=DONATE_INPUT,
        single_device_shard_semantics=ALL_SHARDS,
        result_handles=parts,
    )
    assert [speaker.get(part, (1, 2)).tolist() for part in parts] == [[row] for row in value.tolist()]
    assert speaker.ask("is_array_deleted", array_handle=whole).deleted
    with pytest.raises(pjrt.InvalidArgumentError, match="expected 4 shards"):
        speaker.ask(
            "assemble_array_from_single_device_arrays",
            **fields,
            single_device_array_handles=shards[:2],
            copy_semantics=REUSE_INPUT,
            single_device_shard_semantics=ALL_SHARDS,
            result_handle=speaker.handle(),
        )
    with pytest.raises(pjrt.InvalidArgumentError, match="SingleDeviceShardSemantics"):
        speaker.ask("disassemble_into_single_device_arrays", array_handle=parts[0], copy_semantics=1)


def test_uneven_shards(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    """The last tile is short: its shard is padded on the device, and the host cuts it, in a thread of its own."""
    value = np.arange(7, dtype=np.float32)
    whole, again, parts = speaker.put(value, mesh.sharding("x")), speaker.handle(), [speaker.handle() for _ in range(4)]
    kinds = {"copy_semantics": REUSE_INPUT, "single_device_shard_semantics": ALL_SHARDS}
    speaker.ask("disassemble_into_single_device_arrays", array_handle=whole, result_handles=parts, **kinds)
    assert [speaker.get(part, (size,)).tolist() for part, size in zip(parts, (2, 2, 2, 1), strict=True)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6],
    ]
    speaker.ask(
        "assemble_array_from_single_device_arrays",
        shape=shape_proto((7,)),
        sharding=sharding_proto(mesh.sharding("x")),
        single_device_array_handles=parts,
        result_handle=again,
        **kinds,
    )
    assert speaker.get(again, (7,)).tolist() == value.tolist()
    with pytest.raises(pjrt.NotFoundError):
        speaker.ask("disassemble_into_single_device_arrays", array_handle=12345, **kinds)


@pytest.mark.parametrize(("semantics", "deleted"), [(ALWAYS_COPY, False), (REUSE_INPUT, False), (DONATE_INPUT, True)])
def test_copy_arrays(speaker: ProtocolClient, mesh: ifrt.Mesh, semantics: int, deleted: bool) -> None:
    value = np.arange(8, dtype=np.float32)
    handle = speaker.put(value, mesh.sharding("x"))
    other, backwards, twice = speaker.put(value, mesh.sharding("x")), speaker.handle(), speaker.handle()
    ids = [device.id for device in reversed(speaker.ifrt.devices)]
    speaker.ask(
        "copy_arrays",
        array_handles=[handle, other],
        device_ids=ids,
        memory_kind="pinned_host",
        copy_semantics=semantics,
        result_handles=[backwards, twice],
    )
    sharding = speaker.session.arrays.get(backwards).sharding
    assert (list(sharding.devices.ids), sharding.memory_kind) == (ids, "pinned_host")
    assert speaker.get(backwards, (8,)).tolist() == speaker.get(twice, (8,)).tolist() == value.tolist()
    assert speaker.ask("is_array_deleted", array_handle=handle).deleted is deleted


def test_copies_that_cannot_be(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    handle = speaker.put(np.zeros(8, np.float32), mesh.sharding("x"))
    here = speaker.put(np.zeros(8, np.float32))
    for fields, error in (
        ({"array_handles": [handle, here], "copy_semantics": 1}, "one device list"),
        ({"array_handles": [handle], "device_ids": [0, 1], "copy_semantics": 1}, "expected 4 devices"),
        ({"array_handles": [handle], "device_ids": [0, 1, 2, 77], "copy_semantics": 1}, "77"),
        ({"array_handles": [handle], "memory_kind": "moon", "copy_semantics": 1}, "moon"),
        ({"array_handles": [handle], "copy_semantics": 0}, "ArrayCopySemantics"),
        ({"array_handles": [handle], "copy_semantics": 4}, "ArrayCopySemantics"),
    ):
        with pytest.raises(pjrt.PjrtError, match=error):
            speaker.ask("copy_arrays", **fields, result_handles=[speaker.handle()])
    results = [speaker.handle(), speaker.handle()]
    with pytest.raises(pjrt.InvalidArgumentError, match="expected 1 handles of arrays, found 2"):
        speaker.ask("copy_arrays", array_handles=[handle], copy_semantics=1, result_handles=results)


def test_handles_are_made_for_clients_that_make_none(speaker: ProtocolClient) -> None:
    handle = speaker.put(np.float32([1]))
    (made,) = speaker.ask("copy_arrays", array_handles=[handle], copy_semantics=ALWAYS_COPY).array_handles
    assert made >= 1 << 62
    assert speaker.get(made, (1,)).tolist() == [1]


def test_a_fully_replicated_shard(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    replicated = speaker.put(np.float32([1, 2, 3, 4]), mesh.sharding())
    cut = speaker.put(np.float32([1, 2, 3, 4]), mesh.sharding("x"))
    shard = speaker.handle()
    speaker.ask("fully_replicated_shard", array_handle=replicated, copy_semantics=ALWAYS_COPY, result_handle=shard)
    assert speaker.session.arrays.get(shard).sharding == single(speaker)
    assert speaker.get(shard, (4,)).tolist() == [1, 2, 3, 4]
    with pytest.raises(pjrt.InvalidArgumentError, match="fully replicated"):
        speaker.ask("fully_replicated_shard", array_handle=cut, copy_semantics=1, result_handle=speaker.handle())


@pytest.mark.parametrize("semantics", [ALWAYS_COPY, DONATE_INPUT])
def test_reshard_arrays(speaker: ProtocolClient, mesh: ifrt.Mesh, semantics: int) -> None:
    value = np.arange(16, dtype=np.float32).reshape(4, 4)
    handle, target = speaker.put(value, mesh.sharding("x")), speaker.handle()
    speaker.ask(
        "reshard_arrays",
        array_handles=[handle],
        array_specs=[speaker.spec((4, 4), mesh.sharding(None, "x"))],
        copy_semantics=semantics,
        result_handles=[target],
    )
    assert [shard.buffer.shape for shard in speaker.session.arrays.get(target).shards] == [(4, 1)] * 4
    assert speaker.get(target, (4, 4)).tolist() == value.tolist()
    assert speaker.ask("is_array_deleted", array_handle=handle).deleted is (semantics == DONATE_INPUT)


def swap(speaker: ProtocolClient) -> tuple[ifrt.RemapPlan, list[int]]:
    """Return a plan that makes one array of two devices of two arrays of one device, and the arrays."""
    pair = ifrt.ConcreteEvenSharding(speaker.ifrt.devices[1::-1], (2, 2), (1, 2))
    inputs = [ifrt.ArraySpec((1, 2), ElementType.F32, single(speaker, n)) for n in range(2)]
    output = ifrt.ArraySpec((2, 2), ElementType.F32, pair)
    one, other = (ifrt.Interval(n, n + 1) for n in range(2))
    plan = ifrt.RemapPlan(
        tuple(inputs), (output,), (ifrt.Mapping(0, 0, (one,), (other,)), ifrt.Mapping(1, 0, (one,), (one,)))
    )
    return plan, [speaker.put(np.float32([[n, n]]), single(speaker, n)) for n in range(2)]


@pytest.mark.parametrize("forms", [("mappings",), ("devices",), ("mappings", "devices")])
def test_remap_arrays(speaker: ProtocolClient, forms: tuple[str, ...]) -> None:
    plan, handles = swap(speaker)
    proto = remap_plan_proto(plan)
    if "mappings" not in forms:
        del proto.mappings[:]
    if "devices" in forms:
        output = proto.input_devices_for_output.add(out_array=0)
        for n in range(2):
            output.input_devices.add(
                in_array=n, device_list=device_list_proto(speaker.ifrt.make_device_list([speaker.ifrt.devices[n]]))
            )
    result = speaker.handle()
    fields = {"array_handles": handles, "copy_semantics": DONATE_INPUT, "result_handles": [result]}
    speaker.ask("remap_arrays", plan=proto, **fields)
    buffers = speaker.session.arrays.get(result).buffers
    assert [np.asarray(buffer).tolist() for buffer in buffers] == [[[1, 1]], [[0, 0]]]
    assert all(speaker.ask("is_array_deleted", array_handle=handle).deleted for handle in handles)


def test_wrong_remap_plans(speaker: ProtocolClient, mesh: ifrt.Mesh) -> None:
    plan, handles = swap(speaker)
    incomplete = remap_plan_proto(plan)
    del incomplete.mappings[0].from_end[:]
    elsewhere = remap_plan_proto(plan)
    elsewhere.input_devices_for_output.add().input_devices.add(in_array=1, device_list=device_list_proto(mesh.devices))
    nowhere = remap_plan_proto(plan)
    nowhere.input_devices_for_output.add(out_array=7).input_devices.add(device_list={"device_ids": [0]})
    for proto, error in (
        (incomplete, "a start, an end and a step"),
        (elsewhere, "expected a shard on"),
        (nowhere, "output 7"),
        (remap_plan_proto(ifrt.RemapPlan(plan.input_specs, plan.output_specs)), "have no source"),
        (remap_plan_proto(ifrt.RemapPlan(plan.input_specs[::-1], plan.output_specs)), "expected the arrays"),
    ):
        with pytest.raises(pjrt.InvalidArgumentError, match=error):
            speaker.ask(
                "remap_arrays",
                plan=proto,
                array_handles=handles,
                copy_semantics=DONATE_INPUT,
                result_handles=[speaker.handle()],
            )


def test_deleted_arrays(speaker: ProtocolClient) -> None:
    handle = speaker.put(np.float32([1]))
    assert not speaker.ask("is_array_deleted", array_handle=handle).deleted
    future = speaker.ask("delete_array", array_handle=[handle]).deletion_future_handle
    speaker.ask("check_future", future_handle=future)
    assert speaker.ask("is_array_deleted", array_handle=handle).deleted
    with pytest.raises(pjrt.FailedPreconditionError, match="deleted"):
        speaker.ask("check_value_ready", value_handles=[handle])
    with pytest.raises(pjrt.NotFoundError, match="future"):
        speaker.ask("check_future", future_handle=future)


def test_the_client_and_its_devices(speaker: ProtocolClient) -> None:
    client, response = speaker.ifrt, speaker.ask("init")
    assert response.session_id == speaker.session.id
    assert (response.platform_name, response.runtime_type) == (client.platform_name, "pjrt_ifrt")
    assert [device.id for device in response.all_devices] == list(client.devices.ids)
    assert list(response.addressable_device_ids) == list(response.primary_device_ids) == list(client.devices.ids)
    memories = {memory.id: memory for memory in response.memories}
    for message, device in zip(response.all_devices, client.devices, strict=True):
        assert (message.device_kind, message.platform_name) == (device.kind, client.platform_name)
        assert memories[message.default_memory_id].memory_space_kind == device.default_memory_space.kind
        assert [memories[number].memory_space_kind for number in message.memory_ids] == [
            space.kind for space in device.memory_spaces
        ]


def test_defaults(speaker: ProtocolClient) -> None:
    response = speaker.ask("get_default_device_assignment", num_replicas=2, num_partitions=2)
    assignment = response.device_assignment
    columns = [list(column.replica_device_ids) for column in assignment.computation_devices]
    rows = speaker.ifrt.default_device_assignment(2, 2).device_ids
    assert (assignment.replica_count, assignment.computation_count) == (2, 2)
    assert columns == [[row[n] for row in rows] for n in range(2)]
    fields = {"dtype": element_type_proto(ElementType.F32), "dims": [2, 3], "device_id": 0}
    assert speaker.ask("get_default_layout", **fields, memory_kind="device").serialized_pjrt_layout == b"{1,0}"
    with pytest.raises(pjrt.NotFoundError):
        speaker.ask("get_default_layout", **(fields | {"device_id": 77}))
    with pytest.raises(pjrt.InvalidArgumentError):
        speaker.ask("get_default_device_assignment", num_replicas=1 << 40, num_partitions=1)


def test_bfloat16_keeps_its_bits(speaker: ProtocolClient) -> None:
    value = np.array([1.5, -2.25, float("inf")], ml_dtypes.bfloat16)
    assert speaker.get(speaker.put(value), (3,), ml_dtypes.bfloat16).tobytes() == value.tobytes()


def test_an_empty_array_whose_dimensions_overflow_is_refused() -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match="that numpy can hold"):
        array_in(b"", ElementType.F32, (1 << 62, 4, 0), None)
