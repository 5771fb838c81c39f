"""Remap plans: shards that become shards of other arrays, and plans that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics, ArraySpec, Interval, Mapping, RemapPlan

F32 = pjrt.ElementType.F32


def rows(devices: Any, count: int) -> ArraySpec:
    return ArraySpec((count, 3), F32, ifrt.Mesh(devices, {"z": count}).sharding("z"))


def test_two_halves_become_one_array(client: ifrt.Client) -> None:
    first, second = rows(client.devices[:4], 4), rows(client.devices[4:], 4)
    whole = rows(client.devices, 8)
    plan = RemapPlan(
        (first, second),
        (whole,),
        (Mapping(0, 0, (Interval(0, 4),), (Interval(0, 4),)), Mapping(1, 0, (Interval(0, 4),), (Interval(4, 8),))),
    )
    value = np.arange(24, dtype=np.float32).reshape(8, 3)
    halves = [client.make_array(value[:4], first.sharding), client.make_array(value[4:], second.sharding)]
    buffers = [half.buffers for half in halves]
    (joined,) = client.remap_arrays(plan, halves)
    np.testing.assert_array_equal(np.asarray(joined), value)
    assert joined.buffers == (*buffers[0], *buffers[1])
    assert all(half.is_deleted for half in halves)


def test_every_other_shard(client: ifrt.Client) -> None:
    whole, even = rows(client.devices, 8), rows(client.devices[::2], 4)
    plan = RemapPlan((whole,), (even,), (Mapping(0, 0, (Interval(0, 8, 2),), (Interval(0, 4),)),))
    value = np.arange(24, dtype=np.float32).reshape(8, 3)
    array = client.make_array(value, whole.sharding)
    (half,) = client.remap_arrays(plan, [array], ArrayCopySemantics.REUSE_INPUT)
    np.testing.assert_array_equal(np.asarray(half), value[::2])
    np.testing.assert_array_equal(np.asarray(array), value)


def plan_of(client: ifrt.Client, *mappings: Mapping, **changes: Any) -> RemapPlan:
    whole = rows(client.devices, 8)
    return RemapPlan(changes.get("inputs", (whole,)), changes.get("outputs", (whole,)), mappings)


ALL_SHARDS = Interval(0, 8)


@pytest.mark.parametrize(
    ("mappings", "message"),
    [
        ([Mapping(0, 0, (Interval(0, 4),), (Interval(0, 4),))], r"the shards \[4, 5, 6, 7\] of output 0 .* no source"),
        ([Mapping(0, 0, (Interval(0, 4),) * 2, (Interval(0, 4),) * 2)], "shard 0 of input 0 .* is used twice"),
        ([Mapping(0, 0, (ALL_SHARDS,), (Interval(0, 4),))], "as many target shards as the 8 sources, found 4"),
        (
            [Mapping(0, 0, (Interval(0, 9),), (Interval(0, 9),))],
            r"an interval of the 8 shards of an input, found \[0:9:1",
        ),
        ([Mapping(0, 0, (Interval(0, 8, 0),), (ALL_SHARDS,))], "expected a positive step"),
        ([Mapping(1, 0, (ALL_SHARDS,), (ALL_SHARDS,))], "the plan has no input 1"),
        ([Mapping(0, 2, (ALL_SHARDS,), (ALL_SHARDS,))], "the plan has no output 2"),
        (
            [Mapping(0, 0, (Interval(1, 8), Interval(0, 1)), (ALL_SHARDS,))],
            "shard 1 of input 0 is on .*, shard 0 of output 0 on .*; a remap moves no data",
        ),
    ],
)
def test_plans_that_are_refused(client: ifrt.Client, mappings: Any, message: str) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=message):
        plan_of(client, *mappings).validate()


def test_types_and_shapes_are_checked(client: ifrt.Client) -> None:
    whole = rows(client.devices, 8)
    mapping = Mapping(0, 0, (ALL_SHARDS,), (ALL_SHARDS,))
    other = ArraySpec((8, 3), pjrt.ElementType.S32, whole.sharding)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected one element type"):
        plan_of(client, mapping, outputs=(other,)).validate()
    longer = ArraySpec((16, 3), F32, whole.sharding)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected shards of one shape"):
        plan_of(client, mapping, outputs=(longer,)).validate()
    plan = plan_of(client, mapping)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected the arrays"):
        client.remap_arrays(plan, [client.make_array(np.ones((8, 3), np.float32))])
    with pytest.raises(pjrt.InvalidArgumentError, match="expected DONATE_INPUT, or REUSE_INPUT with one array"):
        client.remap_arrays(plan, [], ArrayCopySemantics.ALWAYS_COPY)
