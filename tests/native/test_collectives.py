"""Collectives on the example's chips: who meets, and what happens where one of them fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pjrt
from pjrt import layers
from pjrt.api.client import Client
from pjrt.capi import LoadedPlugin, load_capsule

X = np.arange(4, dtype=np.float32)
F = "tensor<4xf32>"
CHIPS = 4


def total(groups: str, before: str = "", x: str = "%x", extra: str = "") -> str:
    """Return a program that adds its argument over groups of replicas."""
    rows, columns = groups.count("[") - 1, groups.count(",") + 1
    table = f"dense<{groups}> : tensor<{rows}x{columns // rows}xi64>"
    return f"""func.func @main(%x: {F}) -> {F} {{
      {before}
      %s = "stablehlo.all_reduce"({x}) ({{
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
          %c = stablehlo.add %a, %b : tensor<f32>
          stablehlo.return %c : tensor<f32>
      }}) {{replica_groups = {table}{extra}}} : ({F}) -> {F}
      %r = stablehlo.add %s, {x} : {F}
      return %r : {F}
    }}"""


@pytest.fixture(scope="module")
def chips(chip_library: Path) -> Iterator[Client]:
    with pjrt.load_plugin(chip_library).client(num_devices=CHIPS) as client:
        yield client


def run(client: Client, program: str, arguments: list[Any], **options: Any) -> list[Any]:
    """Return what a program gives on each of the first devices: an array, or an error."""
    options = options or {"num_replicas": len(arguments)}
    executable = client.compile(program, pjrt.CompileOptions(**options))
    placed = [
        [x if isinstance(x, pjrt.Buffer) else client.buffer_from_host(x, device=device)]
        for x, device in zip(arguments, client.devices, strict=False)
    ]
    results = []
    for (each,) in executable.execute(placed):
        try:
            results.append(np.asarray(each))
        except pjrt.PjrtError as error:
            results.append(error)
    return results


def ones(count: int) -> list[Any]:
    return [X + 10**n for n in range(count)]


@pytest.mark.parametrize(
    ("groups", "sums"),
    [
        ("[[0, 1, 2, 3]]", [1111] * 4),
        ("[[0, 1], [2, 3]]", [11, 11, 1100, 1100]),
        ("[[2, 0], [1, 3]]", [101, 1010, 101, 1010]),
        ("[[0], [1], [2], [3]]", [1, 10, 100, 1000]),
    ],
)
def test_groups_of_replicas(chips: Client, groups: str, sums: list[int]) -> None:
    members = groups.count(",") // max(groups.count("[") - 1, 1) + 1
    results = run(chips, total(groups), ones(CHIPS))
    for number, (result, expected) in enumerate(zip(results, sums, strict=True)):
        np.testing.assert_array_equal(result, members * X + expected + X + 10**number)


@pytest.mark.parametrize(
    ("groups", "extra", "sums"),
    [
        ("[[0, 1]]", "", [101, 1010, 101, 1010]),  # the replicas of each partition
        ("[[1], [0]]", ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>", [11, 11, 1100, 1100]),
        (
            "[[0, 3], [2, 1]]",
            ", channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids",
            [1001, 110, 110, 1001],
        ),
    ],
)
def test_groups_of_replicas_and_partitions(chips: Client, groups: str, extra: str, sums: list[int]) -> None:
    head = "module attributes {mhlo.num_replicas = 2 : i32, mhlo.num_partitions = 2 : i32}"
    program = f"{head} {{{total(groups, extra=extra)}}}"
    results = run(chips, program, ones(CHIPS), num_replicas=2, num_partitions=2)
    for number, (result, expected) in enumerate(zip(results, sums, strict=True)):
        np.testing.assert_array_equal(result, 2 * X + expected + X + 10**number)


def test_gathered_in_the_order_of_the_group(chips: Client) -> None:
    program = f"""func.func @main(%x: {F}) -> tensor<8xf32> {{
      %0 = "stablehlo.all_gather"(%x) {{
        all_gather_dim = 0 : i64, replica_groups = dense<[[3, 0], [1, 2]]> : tensor<2x2xi64>
      }} : ({F}) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }}"""
    x = ones(CHIPS)
    results = run(chips, program, x)
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, np.concatenate([x[3], x[0]] if number in (0, 3) else [x[1], x[2]]))


GROUPS = "replica_groups = dense<[[2, 0], [1, 3]]> : tensor<2x2xi64>"
ADDS = """({
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
})"""


@pytest.mark.parametrize(
    ("operation", "size", "expected"),
    [
        (
            '"stablehlo.collective_permute"(%x) {source_target_pairs = dense<[[0, 2], [3, 0]]> : tensor<2x2xi64>}',
            4,
            lambda x: [x[3], 0 * X, x[0], 0 * X],
        ),
        (f'"stablehlo.collective_broadcast"(%x) {{{GROUPS}}}', 4, lambda x: [x[2], x[1], x[2], x[1]]),
        (
            f'"stablehlo.reduce_scatter"(%x) {ADDS} {{scatter_dimension = 0 : i64, {GROUPS}}}',
            2,
            lambda x: [(x[2] + x[0])[2:], (x[1] + x[3])[:2], (x[2] + x[0])[:2], (x[1] + x[3])[2:]],
        ),
        (
            '"stablehlo.all_to_all"(%x) {split_dimension = 0 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, '
            f"{GROUPS}}}",
            4,
            lambda x: [
                np.concatenate(pair)
                for pair in ((x[2][2:], x[0][2:]), (x[1][:2], x[3][:2]), (x[2][:2], x[0][:2]), (x[1][2:], x[3][2:]))
            ],
        ),
    ],
    ids=["permute", "broadcast", "reduce_scatter", "all_to_all"],
)
def test_other_collectives(chips: Client, operation: str, size: int, expected: Any) -> None:
    program = f"""func.func @main(%x: {F}) -> tensor<{size}xf32> {{
      %0 = {operation} : ({F}) -> tensor<{size}xf32>
      return %0 : tensor<{size}xf32>
    }}"""
    x = ones(CHIPS)
    for result, wanted in zip(run(chips, program, x), expected(x), strict=True):
        np.testing.assert_array_equal(result, wanted)


@pytest.mark.parametrize("groups", ["[[0, 1]]", "[[0, 1, 2], [3, -1, -1]]"])
def test_groups_that_the_chips_lack(chips: Client, groups: str) -> None:
    with pytest.raises(pjrt.UnimplementedError, match="of all chips"):
        chips.compile(total(groups), pjrt.CompileOptions(num_replicas=CHIPS))


# One chip fails: the others have its error, instead of a wait for what does not come.

ALL = "[[0, 1, 2, 3]]"


@pytest.mark.parametrize("broken", range(CHIPS))
def test_an_argument_that_failed(chips: Client, broken: int) -> None:
    arguments: list[Any] = ones(CHIPS)
    memory = chips.devices[broken].default_memory_space
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    arguments[broken] = chips.create_error_buffer(pjrt.DataLossError("lost"), spec, memory_space=memory)
    results = run(chips, total(ALL), arguments)
    assert [type(result) for result in results] == [pjrt.DataLossError] * CHIPS
    results = run(chips, total(ALL), ones(CHIPS))
    np.testing.assert_array_equal(results[0], 5 * X + 1112)


@pytest.mark.parametrize("broken", [0, CHIPS - 1])
def test_a_step_of_the_host_that_failed(chips: Client, broken: int) -> None:
    def refuse(x: Any, result: Any) -> None:
        if x[0] == 10**broken:
            raise pjrt.NotFoundError("there is no such thing")
        result[...] = x

    chips.register_ffi_handler(f"collectives.refuse{broken}", refuse)
    refuses = f"%y = stablehlo.custom_call @collectives.refuse{broken}(%x) {{api_version = 4 : i32}} : ({F}) -> {F}"
    results = run(chips, total(ALL, refuses, "%y"), ones(CHIPS))
    assert [type(result) for result in results] == [pjrt.NotFoundError] * CHIPS


def test_a_kernel_that_fails_on_all(chips: Client) -> None:
    fails = f'%y = stablehlo.custom_call @chip.fail(%x) {{backend_config = "15"}} : ({F}) -> {F}'
    results = run(chips, total(ALL, fails, "%y"), ones(CHIPS))
    assert [type(result) for result in results] == [pjrt.DataLossError] * CHIPS


def test_an_argument_that_work_of_another_chip_brings(chips: Client) -> None:
    """Its launch waits for work that comes to the queue later, and that must not wait behind it."""
    executable = chips.compile(total(ALL), pjrt.CompileOptions(num_replicas=CHIPS))
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    there = chips.devices[1].default_memory_space
    alias, fulfill = chips.create_alias_buffer(spec, memory_space=there)
    placed = [[chips.buffer_from_host(x, device=device)] for x, device in zip(ones(CHIPS), chips.devices, strict=True)]
    placed[1] = [alias]
    results = executable.execute(placed)
    (late,) = chips.compile(f"func.func @main(%x: {F}) -> {F} {{ return %x : {F} }}")(placed[0][0])
    fulfill.fulfill(late.copy_to(there))
    for number, (each,) in enumerate(results):
        own = X + 10 ** (0 if number == 1 else number)
        np.testing.assert_array_equal(each, 4 * X + 1102 + own)


def test_an_execution_that_is_poisoned(chips: Client) -> None:
    """All of its launches wait for the argument of one."""
    executable = chips.compile(total(ALL), pjrt.CompileOptions(num_replicas=CHIPS))
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    alias, fulfill = chips.create_alias_buffer(spec, memory_space=chips.devices[1].default_memory_space)
    placed = [[chips.buffer_from_host(x, device=device)] for x, device in zip(ones(CHIPS), chips.devices, strict=True)]
    real, placed[1] = placed[1][0], [alias]
    results = executable.execute(placed, pjrt.ExecuteOptions(launch_id=7))
    assert chips.devices[2].poison_execution(7, pjrt.AbortedError("given up"))
    fulfill.fulfill(real)
    for (each,) in results:
        with pytest.raises(pjrt.AbortedError, match="given up"):
            np.asarray(each)


@pytest.mark.parametrize("broken", [0, CHIPS - 1])
def test_an_argument_that_failed_on_a_worker(broken: int) -> None:
    """The runtime knows that error, and the worker, whose other devices would wait, hears of it."""
    spec = pjrt.ShapeSpec(X.shape, pjrt.ElementType.F32)
    with pjrt.client("worker:reference", num_devices=CHIPS) as client:
        arguments: list[Any] = ones(CHIPS)
        memory = client.devices[broken].default_memory_space
        arguments[broken] = client.create_error_buffer(pjrt.DataLossError("lost"), spec, memory_space=memory)
        results = run(client, total(ALL), arguments)
        assert isinstance(results[broken], pjrt.DataLossError)
        assert all("lost" in str(result) for result in results)
        np.testing.assert_array_equal(run(client, total(ALL), ones(CHIPS))[0], 5 * X + 1112)


# ---- plugins in C that this package brings to a framework -----------------------------------------------------------


@pytest.fixture(scope="module")
def counted(chip_library: Path) -> LoadedPlugin:
    """The plugin of the chips, whose executions are counted."""
    return layers.wrap(chip_library, ["inject"], inject={"call": "LoadedExecutable_Execute", "slow": "0ns"})


@pytest.fixture
def brought(counted: LoadedPlugin) -> Iterator[Client]:
    exported = pjrt.export(lambda **options: counted.client(num_devices=CHIPS, **options), name="brought")
    with load_capsule(exported.capsule).client() as client:
        yield client


def test_an_execution_on_several_devices_is_one_call_of_the_plugin(counted: LoadedPlugin, brought: Client) -> None:
    """Some plugins compute before the call for one device returns, and would wait there for the others."""
    before = layers.injections(counted)[0].calls
    for _ in range(3):
        results = run(brought, total(ALL), ones(CHIPS))
        for number, result in enumerate(results):
            np.testing.assert_array_equal(result, 4 * X + 1111 + X + 10**number)
    assert layers.injections(counted)[0].calls == before + 3


def test_results_of_a_brought_plugin_are_arguments_at_once(brought: Client) -> None:
    """An argument that comes later holds up all devices, and not the thread that launches more."""
    executable = brought.compile(total(ALL), pjrt.CompileOptions(num_replicas=CHIPS))
    spec = pjrt.ShapeSpec((4,), pjrt.ElementType.F32)
    alias, fulfillment = brought.create_alias_buffer(spec, memory_space=brought.devices[3].default_memory_space)
    rows = [[brought.buffer_from_host(X, device=device)] for device in brought.devices[:3]]
    first = executable.execute([*rows, [alias]])
    second = executable.execute(first)
    del first
    fulfillment.fulfill(brought.buffer_from_host(X, device=brought.devices[3]))
    for (result,) in second:
        np.testing.assert_array_equal(np.asarray(result), 25 * X)


def test_an_error_of_one_device_of_a_brought_plugin_is_that_of_all(brought: Client) -> None:
    error = pjrt.DataLossError("the bytes are gone")
    memory = brought.devices[2].default_memory_space
    lost = brought.create_error_buffer(error, pjrt.ShapeSpec((4,), pjrt.ElementType.F32), memory_space=memory)
    for result in run(brought, total(ALL), [X, X, lost, X]):
        assert isinstance(result, pjrt.DataLossError)
    for result in run(brought, total(ALL), [X] * CHIPS):
        np.testing.assert_array_equal(result, 5 * X)


def test_a_brought_plugin_that_refuses_an_execution(chip_library: Path) -> None:
    faulty = layers.wrap(chip_library, ["inject"], inject={"call": "LoadedExecutable_Execute", "error": "ABORTED"})
    exported = pjrt.export(lambda **options: faulty.client(num_devices=CHIPS, **options), name="faulty")
    with load_capsule(exported.capsule).client() as client:
        assert [type(result) for result in run(client, total(ALL), ones(CHIPS))] == [pjrt.AbortedError] * CHIPS
        layers.inject(faulty, [])
        np.testing.assert_array_equal(run(client, total(ALL), ones(CHIPS))[0], 5 * X + 1112)
