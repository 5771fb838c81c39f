"""Arrays over eight devices: put, read, taken apart, put together, copied, deleted."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics, ArraySpec

X = np.arange(128, dtype=np.float32).reshape(8, 16)
SPECS: list[tuple[Any, ...]] = [(), ("x",), (None, "y"), ("x", "y"), ("y", "x"), (("x", "y"),), (None, ("y", "x"))]


@pytest.mark.parametrize("spec", SPECS)
def test_each_device_has_its_part(client: ifrt.Client, mesh: ifrt.Mesh, spec: tuple[Any, ...]) -> None:
    array = client.make_array(X, mesh.sharding(*spec))
    assert (array.shape, array.dtype, array.element_type) == ((8, 16), X.dtype, pjrt.ElementType.F32)
    for shard, device in zip(array.shards, client.devices, strict=True):
        assert shard.device is device
        assert shard.buffer.device is device
        np.testing.assert_array_equal(np.asarray(shard.buffer), X[shard.domain.slices])
    np.testing.assert_array_equal(np.asarray(array), X)


def test_an_array_is_a_value_of_python(client: ifrt.Client, mesh: ifrt.Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pjrt.api.buffer._COPY_SECONDS", 120.0)  # a notebook waits that long for the copy to the host
    array = client.make_array(X, mesh.sharding("x", "y"))
    assert array.tolist() == X.tolist()
    assert (array.nbytes, len(array), array[3, 4]) == (X.nbytes, 8, X[3, 4])
    np.testing.assert_array_equal(list(array), list(X))
    number = client.make_array(np.int32(3), mesh.sharding())
    assert (number.item(), float(number), int(number), bool(number), [5, 6, 7, 8][number]) == (3, 3.0, 3, True, 8)

    async def wait() -> None:
        assert await array is array

    asyncio.run(wait())
    assert "f32[8,16]" in array._repr_html_()
    assert "[  0.,   1.," in array._repr_html_()
    with pytest.raises(pjrt.InvalidArgumentError, match="one element"):
        array.item()
    array.delete()
    with pytest.raises(pjrt.FailedPreconditionError):
        array.tolist()


def test_the_order_of_the_axes_is_the_order_of_the_devices(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    domains = [str(shard.domain) for shard in client.make_array(X, mesh.sharding("x", "y")).shards]
    assert domains[:3] == ["[0:2, 0:8]", "[0:2, 8:16]", "[2:4, 0:8]"]
    domains = [str(shard.domain) for shard in client.make_array(X, mesh.sharding(("y", "x"))).shards]
    assert domains[:3] == ["[0:1, 0:16]", "[4:5, 0:16]", "[1:2, 0:16]"]


@settings(deadline=None, max_examples=30)
@given(
    shape=st.lists(st.integers(0, 9), min_size=2, max_size=3),
    spec=st.sampled_from(SPECS),
    dtype=st.sampled_from(["int8", "float32", "complex64", "bool"]),
)
def test_any_shape_also_uneven_ones(client: ifrt.Client, mesh: ifrt.Mesh, shape: Any, spec: Any, dtype: str) -> None:
    value = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    array = client.make_array(value, mesh.sharding(*spec))
    np.testing.assert_array_equal(np.asarray(array), value)
    parts = array.disassemble()
    assert [part.shape for part in parts] == [shard.domain.shape for shard in array.shards]
    again = client.assemble_array_from_single_device_arrays(value.shape, array.sharding, parts)
    np.testing.assert_array_equal(np.asarray(again), value)


def test_strides_of_all_kinds(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    for value in (X.T, X[::-1, ::2], np.broadcast_to(X[0], (8, 16))):
        array = client.make_array(value, mesh.sharding("y"))
        np.testing.assert_array_equal(np.asarray(array), value)


def test_the_callers_memory_is_released_once(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    released = threading.Event()
    calls: list[None] = []

    def on_done() -> None:
        calls.append(None)
        released.set()

    array = client.make_array(
        X.copy(),
        mesh.sharding("x", "y"),
        semantics=pjrt.HostBufferSemantics.IMMUTABLE_UNTIL_TRANSFER_COMPLETES,
        on_done_with_host_buffer=on_done,
    )
    array.ready().result()
    assert released.wait(60)
    assert len(calls) == 1


def test_shards_from_arrays_of_their_own(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    spec = ArraySpec((8, 16), pjrt.ElementType.F32, mesh.sharding("x", "y"))
    parts = [X[domain.slices] for domain in spec.sharding.index_domains(spec.shape)]
    np.testing.assert_array_equal(np.asarray(client.make_array_from_host_buffer_shards(spec, parts)), X)
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected shards of the shapes .* found"):
        client.make_array_from_host_buffer_shards(spec, parts[:-1])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected shards of F32 .* found float64"):
        client.make_array_from_host_buffer_shards(spec, [part.astype("float64") for part in parts])


def test_sharing_copying_and_donating(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    shared = array.disassemble(ArrayCopySemantics.REUSE_INPUT)
    assert shared[0].buffers[0] is array.buffers[0]
    copied = array.disassemble(ArrayCopySemantics.ALWAYS_COPY)
    assert copied[0].buffers[0] is not array.buffers[0]
    donated = array.disassemble(ArrayCopySemantics.DONATE_INPUT)
    assert array.is_deleted
    array.delete()  # what was donated is not its own any more
    np.testing.assert_array_equal(np.asarray(donated[3]), X[2:4, 8:])
    donated[3].delete()
    assert shared[3].is_deleted
    np.testing.assert_array_equal(np.asarray(copied[3]), X[2:4, 8:])


def test_use_after_delete(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    array.delete()
    array.delete()
    assert array.is_deleted
    for use in (array.ready, array.to_host, array.disassemble, lambda: np.asarray(array)):
        with pytest.raises(pjrt.FailedPreconditionError, match=r"the array f32\[8,16\] .* was deleted or donated"):
            use()


def test_shards_that_do_not_fit(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    sharding = mesh.sharding("x", "y")
    parts = client.make_array(X, sharding).disassemble()
    assemble = client.assemble_array_from_single_device_arrays
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected 8 shards for .*, found 7"):
        assemble((8, 16), sharding, parts[:-1])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected shard 0 of \[8, 16\] .* found f32\[2,8\]"):
        assemble((8, 16), sharding, parts[::-1])
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected shard 0 of \[16, 16\] .* to be \[4, 8\]"):
        assemble((16, 16), sharding, parts)
    other = client.make_array(X.astype("int32"), sharding).disassemble()
    with pytest.raises(pjrt.InvalidArgumentError, match="expected shards of one element type"):
        assemble((8, 16), sharding, [*parts[:-1], other[-1]])


def test_a_shard_of_a_replicated_array(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding())
    np.testing.assert_array_equal(np.asarray(array.fully_replicated_shard()), X)
    with pytest.raises(pjrt.InvalidArgumentError, match="expected a fully replicated array"):
        client.make_array(X, mesh.sharding("x")).fully_replicated_shard()


def test_copies_to_other_devices(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    array = client.make_array(X, mesh.sharding("x", "y"))
    turned = client.devices[::-1]
    (copy,) = client.copy_arrays([array], turned)
    assert [shard.device for shard in copy.shards] == list(turned)
    np.testing.assert_array_equal(np.asarray(copy), X)
    (moved,) = client.copy_arrays([copy], client.devices, semantics=ArrayCopySemantics.DONATE_INPUT)
    assert copy.is_deleted
    np.testing.assert_array_equal(np.asarray(moved), X)
    (same,) = client.copy_arrays([array], semantics=ArrayCopySemantics.REUSE_INPUT)
    assert same.buffers == array.buffers
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected 8 devices for .*, found 3"):
        client.copy_arrays([array], client.devices[:3])
    with pytest.raises(pjrt.InvalidArgumentError, match="expected arrays of one device list"):
        client.copy_arrays([array, client.make_array(X)])


def test_arrays_that_have_failed(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    spec = ArraySpec((8, 16), pjrt.ElementType.F32, mesh.sharding("x", "y"))
    (array,) = client.make_error_arrays(pjrt.DataLossError("the disk is gone"), [spec])
    with pytest.raises(pjrt.DataLossError, match="the disk is gone"):
        array.ready().result()
    with pytest.raises(pjrt.DataLossError, match="the disk is gone"):
        np.asarray(array)


def test_tuples(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    pair = client.make_tuple([client.make_array(X, mesh.sharding("x")), client.make_array(X)])
    nested = client.make_tuple([pair])
    assert (pair.arity, nested.unpack()) == (2, (pair,))
    client.get_ready_future([nested]).result()
    nested.delete()
    assert pair.is_deleted
    with pytest.raises(pjrt.InvalidArgumentError, match="expected an array or a tuple"):
        client.make_tuple([X])  # type: ignore[list-item]


def test_devices_of_another_client(client: ifrt.Client) -> None:
    with pjrt.client(client.platform_name, num_devices=8) as other:
        sharding = ifrt.Mesh(other.devices, {"x": 8}).sharding("x")
        with pytest.raises(pjrt.InvalidArgumentError, match="expected devices of"):
            client.make_array(X, sharding)


def test_arguments_of_a_wrong_type(client: ifrt.Client) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"expected a sharding of pjrt\.ifrt, found 'x'"):
        client.make_array(X, "x")  # type: ignore[arg-type]
