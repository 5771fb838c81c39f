"""Arrays in another kind of memory: made there, moved there and back, and given to programs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import ifrt
from pjrt.ifrt import ArrayCopySemantics

X = np.arange(128, dtype=np.float32).reshape(8, 16)
KINDS = ["device", "pinned_host", "unpinned_host"]


def kinds_of(array: ifrt.Array) -> set[str]:
    """Return the kinds of memory of an array's buffers, which must be those of its sharding."""
    assert [buffer.memory_space for buffer in array.buffers] == list(array.sharding.memory_spaces)
    return {buffer.memory_space.kind for buffer in array.buffers}


def program(kind: str) -> str:
    """Return a program of eight partitions whose parameter and result are in a kind of memory."""
    attributes = f'{{mhlo.sharding = "{{devices=[8,1]0,1,2,3,4,5,6,7}}", mhlo.memory_kind = "{kind}"}}'
    return f"""module @pass attributes {{mhlo.num_partitions = 8 : i32}} {{
  func.func @main(%x: tensor<8x16xf32> {attributes}) -> (tensor<8x16xf32> {attributes}) {{
    return %x : tensor<8x16xf32>
  }}
}}"""


@pytest.mark.parametrize("kind", KINDS)
def test_made_in_a_kind(client: ifrt.Client, mesh: ifrt.Mesh, kind: str) -> None:
    array = client.make_array(X, mesh.sharding("x", "y", memory_kind=kind))
    assert kinds_of(array) == {kind}
    np.testing.assert_array_equal(np.asarray(array), X)
    parts = array.disassemble()
    assert {part.sharding.memory_kind for part in parts} == {kind}
    again = client.assemble_array_from_single_device_arrays(X.shape, array.sharding, parts)
    assert kinds_of(again) == {kind}
    single = client.make_array(X, ifrt.SingleDeviceSharding(client.devices[2], kind))
    assert kinds_of(single) == {kind}
    replicated = client.make_array(X, mesh.sharding(memory_kind=kind)).fully_replicated_shard()
    assert kinds_of(replicated) == {kind}


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_copies_between_kinds(client: ifrt.Client, mesh: ifrt.Mesh, source: str, target: str) -> None:
    array = client.make_array(X, mesh.sharding("x", memory_kind=source))
    (copy,) = client.copy_arrays([array], memory_kind=target)
    assert (kinds_of(copy), copy.sharding) == ({target}, mesh.sharding("x", memory_kind=target))
    np.testing.assert_array_equal(np.asarray(copy), X)
    (kept,) = client.copy_arrays([array], client.devices[::-1])
    assert kinds_of(kept) == {source}, "the kind stays where none is given"
    (donated,) = client.copy_arrays([array], memory_kind=target, semantics=ArrayCopySemantics.DONATE_INPUT)
    assert array.is_deleted
    np.testing.assert_array_equal(np.asarray(donated), X)


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("cut", [("x", "y"), (None, "x"), ()])
def test_reshards_between_kinds(
    client: ifrt.Client, mesh: ifrt.Mesh, source: str, target: str, cut: tuple[Any, ...]
) -> None:
    array = client.make_array(X, mesh.sharding("x", "y", memory_kind=source))
    (moved,) = client.reshard_arrays([array], [mesh.sharding(*cut, memory_kind=target)])
    assert kinds_of(moved) == {target}
    np.testing.assert_array_equal(np.asarray(moved), X)
    assert kinds_of(array) == {source}


def test_arrays_of_two_kinds_are_not_copied_together(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    arrays = [client.make_array(X, mesh.sharding("x", memory_kind=kind)) for kind in KINDS[:2]]
    with pytest.raises(pjrt.InvalidArgumentError, match="expected arrays of one device list and memory kind"):
        client.copy_arrays(arrays, memory_kind="device")


def test_shards_of_another_kind_are_not_assembled(client: ifrt.Client, mesh: ifrt.Mesh) -> None:
    parts = client.make_array(X, mesh.sharding("x", "y", memory_kind="pinned_host")).disassemble()
    with pytest.raises(pjrt.InvalidArgumentError, match=r"shard 0 .* in device, found .*, pinned_host\)"):
        client.assemble_array_from_single_device_arrays(X.shape, mesh.sharding("x", "y"), parts)
    plan = ifrt.RemapPlan(
        (ifrt.ArraySpec(X.shape, pjrt.ElementType.F32, mesh.sharding("x", "y", memory_kind="pinned_host")),),
        (ifrt.ArraySpec(X.shape, pjrt.ElementType.F32, mesh.sharding("x", "y")),),
        (ifrt.Mapping(0, 0, (ifrt.Interval(0, 8),), (ifrt.Interval(0, 8),)),),
    )
    with pytest.raises(pjrt.InvalidArgumentError, match=r"one kind of memory, found .*; a remap moves no data"):
        plan.validate()


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_copied_to_the_memory_of_the_program(client: ifrt.Client, mesh: ifrt.Mesh, kind: str) -> None:
    executable = client.compile(program("device"))
    (spec,) = executable.parameter_specs
    assert spec.sharding.memory_kind == "device"
    array = client.make_array(X, mesh.sharding("x", memory_kind=kind))
    (result,) = executable(array)
    assert kinds_of(result) == {"device"}
    np.testing.assert_array_equal(np.asarray(result), X)
    assert kinds_of(array) == {kind}


@pytest.mark.parametrize("client", ["cpu"], indirect=True)
def test_a_program_with_values_in_host_memory(client: ifrt.Client) -> None:
    executable = client.compile(program("pinned_host"))
    for specs in (executable.parameter_specs, executable.output_specs):
        assert [spec.sharding.memory_kind for spec in specs] == ["pinned_host"]
    (result,) = executable(X)
    assert kinds_of(result) == {"pinned_host"}
    np.testing.assert_array_equal(np.asarray(result), X)
    (again,) = executable(client.make_array(X, ifrt.SingleDeviceSharding(client.devices[0])))
    np.testing.assert_array_equal(np.asarray(again), X)
    (loaded,) = client.deserialize(executable.serialize(), program("pinned_host")).output_specs
    assert loaded.sharding.memory_kind == "pinned_host"


def test_results_are_where_their_specs_say(client: ifrt.Client) -> None:
    """Whether a device follows a program's memory kinds or not, the specs are right."""
    executable = client.compile(program("pinned_host"))
    (result,) = executable(X)
    assert kinds_of(result) == {executable.output_specs[0].sharding.memory_kind}
    np.testing.assert_array_equal(np.asarray(result), X)


def test_a_device_that_reports_no_memory_kinds(client: ifrt.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    executable = client.compile(program("device")).pjrt_executable
    for owner in type(executable).__mro__:
        for name in ("parameter_memory_kinds", "output_memory_kinds"):
            if name in vars(owner):
                monkeypatch.setattr(owner, name, property(unreported))
    (spec,) = client.compile(program("device")).output_specs
    assert spec.sharding.memory_kind == "device"


def unreported(_: object) -> Any:
    raise pjrt.UnimplementedError("memory kinds are not reported")
