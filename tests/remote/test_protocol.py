"""The objects of ``pjrt.ifrt`` and the values inside messages: there and back, and damaged ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_client import remap_plan_proto

import pjrt
from pjrt import ifrt
from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import StridedLayout, TiledLayout
from pjrt.remote.protocol import values
from pjrt.remote.protocol.messages import wire
from pjrt.stablehlo.ir.sharding import Sharding as Tiling


@pytest.fixture(scope="module")
def client() -> Iterator[ifrt.Client]:
    with pjrt.client("reference", num_devices=4) as client:
        yield ifrt.Client(client)


def all_shardings(client: ifrt.Client) -> list[ifrt.Sharding]:
    devices = client.devices
    mesh = ifrt.Mesh(devices[::-1], {"x": 2, "y": 2})
    return [
        ifrt.SingleDeviceSharding(devices[2]),
        ifrt.SingleDeviceSharding(devices[1], "pinned_host"),
        ifrt.OpaqueSharding(devices),
        ifrt.ConcreteSharding(devices[:2], (3, 2), [(1, 2), (2, 2)]),
        ifrt.ConcreteEvenSharding(devices, (4, 2), (1, 2), "pinned_host"),
        ifrt.ConcreteEvenSharding(devices[:2], (4, 2), (4, 2), is_fully_replicated=True),
        ifrt.ShardingParamSharding(devices, ifrt.ShardingParam((2, 1), (1, 0), (2, 2))),
        ifrt.HloSharding(devices),
        ifrt.HloSharding(devices, Tiling.of_terms(4)),
        ifrt.HloSharding(devices, Tiling.of_grid(np.arange(4).reshape(1, 2, 2), 2, [2], "max")),
        mesh.sharding("y", None),
        mesh.sharding(None, ("y", "x"), memory_kind="pinned_host"),
    ]


def test_shardings_go_round(client: ifrt.Client) -> None:
    names = set()
    for sharding in all_shardings(client):
        proto = values.sharding_proto(sharding)
        names.add(proto.serialized_sharding.type_name)
        read = values.sharding_of(client, wire.ShardingProto.FromString(proto.SerializeToString()))
        assert type(read) is type(sharding)
        assert read == sharding, sharding
    assert len(names) == 6


def test_array_specs_go_round(client: ifrt.Client) -> None:
    for sharding in all_shardings(client):
        for layout in (None, TiledLayout((0, 1)), TiledLayout((1, 0), ((8, 128), (2, 1)))):
            spec = ifrt.ArraySpec((4, 2), ElementType.BF16, sharding, layout)
            assert values.array_spec_of(client, values.array_spec_proto(spec)) == spec


def test_remap_plans_go_round(client: ifrt.Client) -> None:
    one, two = (
        ifrt.ArraySpec((4,), ElementType.F32, ifrt.Mesh(client.devices[n : n + 2], {"x": 2}).sharding("x"))
        for n in (0, 2)
    )
    mappings = (
        ifrt.Mapping(0, 1, (ifrt.Interval(0, 2),), (ifrt.Interval(0, 2),)),
        ifrt.Mapping(1, 0, (ifrt.Interval(0, 1), ifrt.Interval(1, 2, 3)), (ifrt.Interval(0, 2),)),
    )
    plan = ifrt.RemapPlan((one, two), (one, two), mappings)
    assert values.remap_plan_of(client, remap_plan_proto(plan)) == plan


@given(st.permutations(range(3)), st.lists(st.lists(st.integers(1, 128), min_size=1, max_size=2), max_size=2))
def test_layouts_go_round(order: list[int], tiles: list[list[int]]) -> None:
    layout = TiledLayout(tuple(order), tuple(map(tuple, tiles)))
    assert values.layout_of_spelling(values.layout_spelling(layout)) == layout
    proto = values.xla_layout_proto(layout)
    assert values.layout_of_xla_proto(proto) == layout
    data = wire.PjRtLayoutProto(xla_layout=proto).SerializeToString()
    serialized = wire.Serialized(type_name="xla::ifrt::PjRtLayout", data=data)
    assert values.layout_of(wire.LayoutProto(serialized_layout=serialized)) == layout


def test_other_layouts_are_refused() -> None:
    with pytest.raises(pjrt.UnimplementedError, match="layout of tiles"):
        values.layout_spelling(StridedLayout((4, 8)))
    for name, data, error in (
        ("xla::ifrt::NewLayout", b"", pjrt.UnimplementedError),
        ("xla::ifrt::PjRtLayout", b"\xff", pjrt.InvalidArgumentError),
        ("xla::ifrt::CompactLayout", b"\x0a\x02\x00\x00", pjrt.InvalidArgumentError),
    ):
        serialized = wire.Serialized(type_name=name, data=data)
        with pytest.raises(error):
            values.layout_of(wire.LayoutProto(serialized_layout=serialized))
    with pytest.raises(pjrt.InvalidArgumentError):
        values.layout_of_spelling(b"\xff{1,0")


def sharding_message(name: str, **fields: Any) -> Any:
    """Return a ``ShardingProto`` with a message of our table inside."""
    data = getattr(wire, f"{name}Proto")(**fields).SerializeToString()
    return wire.ShardingProto(serialized_sharding=wire.Serialized(type_name=f"xla::ifrt::{name}", data=data))


@pytest.mark.parametrize(
    ("proto", "error", "message"),
    [
        (wire.ShardingProto(), pjrt.UnimplementedError, "found ''"),
        (
            wire.ShardingProto(serialized_sharding=wire.Serialized(type_name="xla::ifrt::HloSharding", data=b"\xff")),
            pjrt.InvalidArgumentError,
            "found other bytes",
        ),
        (sharding_message("SingleDeviceSharding", device_id=77), pjrt.NotFoundError, "77"),
        (sharding_message("SingleDeviceSharding", memory_kind="moon"), pjrt.NotFoundError, "moon"),
        (sharding_message("OpaqueSharding"), pjrt.InvalidArgumentError, "at least one device"),
        (sharding_message("OpaqueSharding", devices={"device_ids": [1, 1]}), pjrt.InvalidArgumentError, "once"),
        (
            sharding_message("ConcreteSharding", devices={"device_ids": [1]}, dynamic_shape={}),
            pjrt.UnimplementedError,
            "dynamic shape",
        ),
        (
            sharding_message("ConcreteEvenSharding", devices={"device_ids": [1]}, shape={"dims": [-1]}),
            pjrt.InvalidArgumentError,
            "-1",
        ),
        (
            sharding_message("ShardingParamSharding", sharding_param={"unreduced_axes": [0]}),
            pjrt.UnimplementedError,
            "unreduced",
        ),
        (
            sharding_message("HloSharding", devices={"device_ids": [0, 1]}, xla_op_sharding=b"\x08\x03"),
            pjrt.DataLossError,
            "corrupt",
        ),
        (
            sharding_message("HloSharding", devices={"device_ids": [0, 1]}, xla_op_sharding=b"\x08\x04"),
            pjrt.UnimplementedError,
            "kind 4",
        ),
    ],
)
def test_wrong_shardings_are_errors(client: ifrt.Client, proto: Any, error: type[pjrt.PjrtError], message: str) -> None:
    with pytest.raises(error, match=message):
        values.sharding_of(client, proto)


def test_element_types_go_round() -> None:
    for element_type in ElementType:
        if element_type is ElementType.INVALID:
            with pytest.raises(pjrt.UnimplementedError, match="INVALID"):
                values.element_type_proto(element_type)
        else:
            assert values.element_type_of(values.element_type_proto(element_type)) is element_type


@given(
    st.dictionaries(
        st.text(),
        st.one_of(
            st.text(),
            st.booleans(),
            st.integers(-(1 << 63), (1 << 63) - 1),
            st.floats(width=32, allow_nan=False),
            st.lists(st.integers(-(1 << 63), (1 << 63) - 1)).map(tuple),
        ),
    )
)
def test_attributes_go_round(attributes: dict[str, Any]) -> None:
    read = values.attributes_of(values.attributes_proto(attributes))
    assert read == attributes
    assert {name: type(value) for name, value in read.items()} == {n: type(v) for n, v in attributes.items()}


def test_an_attribute_needs_a_value() -> None:
    proto = wire.AttributeMapProto(attributes=[wire.AttributeMapProto_AttributesEntry(key="speed")])
    with pytest.raises(pjrt.InvalidArgumentError, match="speed"):
        values.attributes_of(proto)


def test_errors_go_round() -> None:
    assert values.error_of(wire.StatusProto()) is None
    for code in range(1, 17):
        error = pjrt.PjrtError.of(code, "no\udc80 good", {"type.googleapis.com/why": b"\xff"})
        read = values.error_of(values.status_proto(error))
        assert read is not None
        assert (type(read), read.message) == (type(error), "no\\udc80 good")
        assert dict(read.payloads) == {"type.googleapis.com/why": b"\xff"}
    unknown = values.error_of(wire.StatusProto(code=99, message="new"))
    assert isinstance(unknown, pjrt.UnknownError)
