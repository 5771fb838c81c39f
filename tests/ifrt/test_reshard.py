"""Resharding: from any sharding to any other one, by copies, by a program, and by way of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics
from pjrt.stablehlo.ir.sharding import Sharding as Tiling

X = np.arange(128, dtype=np.float32).reshape(8, 16)
SPECS: list[tuple[Any, ...]] = [(), ("x",), (None, "y"), ("x", "y"), ("y", "x"), (("x", "y"),), (None, ("y", "x"))]


@settings(deadline=None, max_examples=30)
@given(source=st.sampled_from(SPECS), target=st.sampled_from(SPECS), rows=st.integers(1, 9), columns=st.integers(1, 9))
def test_between_tilings(
    client: ifrt.Client, mesh: ifrt.Mesh, source: Any, target: Any, rows: int, columns: int
) -> None:
    value = np.arange(rows * columns, dtype=np.int32).reshape(rows, columns)
    array = client.make_array(value, mesh.sharding(*source))
    (again,) = client.reshard_arrays([array], [mesh.sharding(*target)])
    assert again.sharding == mesh.sharding(*target)
    np.testing.assert_array_equal(np.asarray(again), value)
    for shard in again.shards:
        part = np.asarray(shard.buffer)[tuple(slice(0, size) for size in shard.domain.shape)]
        np.testing.assert_array_equal(part, value[shard.domain.slices])


def test_to_other_devices_and_to_one(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    four = ifrt.Mesh(client.devices[2:6], {"z": 4})
    for target in (four.sharding("z"), four.sharding(None, "z"), ifrt.SingleDeviceSharding(client.devices[7])):
        (moved,) = client.reshard_arrays([array], [target])
        assert moved.sharding == target
        np.testing.assert_array_equal(np.asarray(moved), X)
        (back,) = client.reshard_arrays([moved], [array.sharding])
        np.testing.assert_array_equal(np.asarray(back), X)


def test_to_the_same_devices_in_another_order(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    turned = ifrt.Mesh(client.devices[::-1], {"x": 4, "y": 2})
    array = client.make_array(X, mesh.sharding("x", "y"))
    (again,) = client.reshard_arrays([array], [turned.sharding("y", "x")])
    for shard in again.shards:
        np.testing.assert_array_equal(np.asarray(shard.buffer), X[shard.domain.slices])


def test_the_terms_of_a_sum(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    grid = np.arange(8).reshape(1, 1, 8)
    summed = ifrt.HloSharding(client.devices, Tiling.of_grid(grid, 2, [2]))
    array = client.make_array_from_host_buffer_shards(
        ifrt.ArraySpec((8, 16), pjrt.ElementType.F32, summed), [X * number for number in range(8)]
    )
    np.testing.assert_array_equal(np.asarray(array), X * 28)
    (whole,) = client.reshard_arrays([array], [mesh.sharding("x", "y")])
    np.testing.assert_array_equal(np.asarray(whole), X * 28)


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
@pytest.mark.parametrize("summed", [[2], [2, 3]])
def test_an_array_is_what_its_terms_make(
    client: ifrt.Client, mesh: ifrt.Mesh, reduction: str, summed: list[int]
) -> None:
    """Made from a whole array, and resharded to and fro."""
    grid = np.arange(8)[::-1].reshape(2, 1, 2, 2)
    terms = ifrt.HloSharding(client.devices, Tiling.of_grid(grid, 2, summed, reduction))
    assert ifrt.HloSharding.from_proto(client.devices, terms.tiling.to_proto()) == terms
    value = X - X.mean()
    array = client.make_array(value, terms)
    np.testing.assert_array_equal(np.asarray(array), value)
    for target in (mesh.sharding("x", "y"), mesh.sharding()):
        (moved,) = client.reshard_arrays([array], [target])
        np.testing.assert_array_equal(np.asarray(moved), value)
        (back,) = client.reshard_arrays([moved], [terms])
        np.testing.assert_array_equal(np.asarray(back), value)


@pytest.mark.parametrize("reduction", ["sum", "max", "min"])
def test_every_device_has_a_term(client: ifrt.Client, reduction: str) -> None:
    """XLA does not say of how many there are, nor of how many dimensions."""
    spec = Tiling.of_terms(8, reduction).to_proto()
    sharding = ifrt.HloSharding.from_proto(client.devices, spec)
    shards = [X * (number - 3) for number in range(8)]
    spec = ifrt.ArraySpec((8, 16), pjrt.ElementType.F32, sharding)
    array = client.make_array_from_host_buffer_shards(spec, shards)
    expected = {"sum": np.sum, "max": np.max, "min": np.min}[reduction](shards, axis=0)
    np.testing.assert_array_equal(np.asarray(array), expected)
    assert reduction in repr(sharding)


def test_an_error_goes_along(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    spec = ifrt.ArraySpec((8, 16), pjrt.ElementType.F32, mesh.sharding("x", "y"))
    (failed,) = client.make_error_arrays(pjrt.DataLossError("the disk is gone"), [spec])
    targets = [mesh.sharding("y", "x"), ifrt.SingleDeviceSharding(client.devices[1])]
    for moved in client.reshard_arrays([failed, failed], targets):
        with pytest.raises(pjrt.PjrtError, match="the disk is gone"):
            moved.ready().result()


def test_donation_and_bad_arguments(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    with pytest.raises(pjrt.InvalidArgumentError, match="expected ALWAYS_COPY or DONATE_INPUT"):
        client.reshard_arrays([array], [mesh.sharding()], ArrayCopySemantics.REUSE_INPUT)
    with pytest.raises(pjrt.InvalidArgumentError, match="a sharding for each of 1 arrays, found 0"):
        client.reshard_arrays([array], [])
    with pytest.raises(pjrt.UnimplementedError, match="does not know the shapes and places"):
        client.reshard_arrays([array], [ifrt.OpaqueSharding(client.devices)])
    (moved,) = client.reshard_arrays([array], [mesh.sharding()], ArrayCopySemantics.DONATE_INPUT)
    assert array.is_deleted
    np.testing.assert_array_equal(np.asarray(moved), X)


@pytest.mark.parametrize("target", SPECS)
@pytest.mark.parametrize("source", SPECS)
@pytest.mark.usefixtures("by_program")
def test_by_a_program(client: ifrt.Client, mesh: ifrt.Mesh, source: Any, target: Any) -> None:
    array = client.make_array(X, mesh.sharding(*source))
    (again,) = client.reshard_arrays([array], [mesh.sharding(*target)])
    for shard in again.shards:
        np.testing.assert_array_equal(np.asarray(shard.buffer), X[shard.domain.slices])


@pytest.mark.usefixtures("by_program")
def test_an_error_goes_along_by_a_program(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    spec = ifrt.ArraySpec((8, 16), pjrt.ElementType.F32, mesh.sharding("x", "y"))
    (failed,) = client.make_error_arrays(pjrt.DataLossError("the disk is gone"), [spec])
    (moved,) = client.reshard_arrays([failed], [mesh.sharding("y", "x")])
    with pytest.raises(pjrt.PjrtError, match="the disk is gone"):
        moved.ready().result()


@pytest.mark.usefixtures("by_program")
def test_devices_in_another_order_by_a_program(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    turned = ifrt.Mesh(client.devices[::-1], {"x": 4, "y": 2})
    array = client.make_array(X, mesh.sharding("x", "y"))
    (again,) = client.reshard_arrays([array], [turned.sharding("y", "x")])
    for shard in again.shards:
        np.testing.assert_array_equal(np.asarray(shard.buffer), X[shard.domain.slices])


@pytest.mark.parametrize("target", SPECS)
def test_large_arrays(client: ifrt.Client, mesh: ifrt.Mesh, target: Any) -> None:
    """On devices in the host's memory they go by way of the host, without a wait."""
    value = np.arange(1 << 19, dtype=np.float32).reshape(512, 1024)
    array = client.make_array(value, mesh.sharding("x", "y"))
    (again,) = client.reshard_arrays([array], [mesh.sharding(*target)])
    np.testing.assert_array_equal(np.asarray(again), value)
