"""Collectives in the queues of devices: all is enqueued before any of it is done, and the results are the host's."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from anydevice.two_chips import Chips, Collecting, client_of
from waiting import wait_until

import pjrt
from pjrt import native

X = np.arange(4, dtype=np.float32)
ADD = """ ({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %s = stablehlo.add %a, %b : tensor<f32>
  stablehlo.return %s : tensor<f32>
})"""


@pytest.fixture
def memory() -> Chips:
    return Collecting()


@pytest.fixture
def client(memory: Chips) -> Iterator[pjrt.Client]:
    with client_of(memory) as client:
        yield client
        memory.gate.set()


def program(collective: str, result: str = "4") -> str:
    """Return a program of a sum, a collective, and a sum of its result, which has another shape perhaps."""
    return f"""func.func @main(%x: tensor<4xf32>) -> tensor<{result}xf32> {{
%0 = stablehlo.add %x, %x : tensor<4xf32>
%1 = {collective}
%2 = stablehlo.add %1, %1 : tensor<{result}xf32>
return %2 : tensor<{result}xf32>
}}"""


GROUPS = "replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>"
COLLECTIVES = {
    "all_reduce": program(f'"stablehlo.all_reduce"(%0) <{{{GROUPS}}}>{ADD} : (tensor<4xf32>) -> tensor<4xf32>'),
    "all_gather": program(
        f'"stablehlo.all_gather"(%0) <{{all_gather_dim = 0 : i64, {GROUPS}}}> : (tensor<4xf32>) -> tensor<8xf32>', "8"
    ),
    "reduce_scatter": program(
        f'"stablehlo.reduce_scatter"(%0) <{{scatter_dimension = 0 : i64, {GROUPS}}}>{ADD} '
        ": (tensor<4xf32>) -> tensor<2xf32>",
        "2",
    ),
    "all_to_all": program(
        f'"stablehlo.all_to_all"(%0) <{{split_dimension = 0 : i64, concat_dimension = 0 : i64, '
        f"split_count = 2 : i64, {GROUPS}}}> : (tensor<4xf32>) -> tensor<4xf32>"
    ),
    "broadcast": program(
        '"stablehlo.collective_broadcast"(%0) <{replica_groups = dense<[[1, 0]]> : tensor<1x2xi64>}> '
        ": (tensor<4xf32>) -> tensor<4xf32>"
    ),
    "permute": program(
        '"stablehlo.collective_permute"(%0) <{source_target_pairs = dense<[[0, 1]]> : tensor<1x2xi64>}> '
        ": (tensor<4xf32>) -> tensor<4xf32>"
    ),
}


def run(client: pjrt.Client, text: str, *values: Any) -> list[Any]:
    executable = client.compile(text, pjrt.CompileOptions(num_replicas=2))
    arguments = [[client.buffer_from_host(x, device=d)] for x, d in zip(values, client.devices, strict=True)]
    return [result for (result,) in executable.execute(arguments)]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_the_queues_are_full(client: pjrt.Client, memory: Chips, name: str) -> None:
    """All work on both chips is enqueued before any of it is done: nothing has waited for a fence."""
    memory.gate.clear()
    results = run(client, COLLECTIVES[name], X, X + 10)
    wait_until(lambda: len(memory.events) == 6)
    memory.gate.set()
    with pjrt.client("reference", num_devices=2) as reference:
        expected = [np.asarray(result) for result in run(reference, COLLECTIVES[name], X, X + 10)]
    for result, wanted in zip(results, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(result), wanted)
    for chip in "01":
        own = [event for event in memory.events if event.endswith(chip)]
        steps = ["add", name, "add"]
        assert own == [f"put {step} {chip}" for step in steps] + [f"do {step} {chip}" for step in steps]


@pytest.mark.parametrize("name", COLLECTIVES)
def test_without_a_method_they_go_through_the_host(name: str) -> None:
    memory = Chips()
    with client_of(memory) as client, pjrt.client("reference", num_devices=2) as reference:
        results = [np.asarray(result) for result in run(client, COLLECTIVES[name], X, X + 10)]
        expected = [np.asarray(result) for result in run(reference, COLLECTIVES[name], X, X + 10)]
    np.testing.assert_array_equal(results, expected)
    assert not any(name in event for event in memory.events)


def test_a_method_may_decline_some_operands() -> None:
    class Choosy(Collecting):
        def all_reduce(self, sources: Any, targets: Any, spec: pjrt.ShapeSpec, reduction: str) -> Any:
            if spec.shape == (2,):
                return NotImplemented
            return super().all_reduce(sources, targets, spec, reduction)

    text = f"""func.func @main(%x: tensor<4xf32>, %y: tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>) {{
%0:2 = "stablehlo.all_reduce"(%x, %y) <{{{GROUPS}}}>{ADD}
  : (tensor<4xf32>, tensor<2xf32>) -> (tensor<4xf32>, tensor<2xf32>)
return %0#0, %0#1 : tensor<4xf32>, tensor<2xf32>
}}"""
    memory = Choosy()
    with client_of(memory) as client:
        executable = client.compile(text, pjrt.CompileOptions(num_replicas=2))
        arguments = [
            [client.buffer_from_host(X + n, device=d), client.buffer_from_host(X[:2], device=d)]
            for n, d in enumerate(client.devices)
        ]
        for x, y in executable.execute(arguments):
            np.testing.assert_array_equal(np.asarray(x), 2 * X + 1)
            np.testing.assert_array_equal(np.asarray(y), 2 * X[:2])
        del x, y, arguments
    assert not memory.contents


def test_an_error_of_one_chip_is_that_of_all(client: pjrt.Client, memory: Chips) -> None:
    first, second = run(client, COLLECTIVES["all_reduce"], X, X - 10)
    with pytest.raises(pjrt.AbortedError, match=r"another device of the launch failed: .*chip 1 met a negative"):
        np.asarray(first)
    with pytest.raises(pjrt.PjrtError, match=r"chip 1 met a negative element.*\(in stablehlo.add "):
        np.asarray(second)
    first, second = run(client, COLLECTIVES["all_reduce"], X, X)
    for result in (first, second):
        np.testing.assert_array_equal(np.asarray(result), 8 * X)
    del first, second, result
    gc.collect()  # errors that were raised hold frames
    assert not memory.contents


@pytest.mark.parametrize("fences", [[None], 5, [None, 5]])
def test_wrong_fences_are_errors(fences: Any) -> None:
    class Wrong(Chips):
        def all_reduce(self, *arguments: Any, **options: Any) -> Any:
            return fences

    with client_of(Wrong()) as client:
        for result in run(client, COLLECTIVES["all_reduce"], X, X):
            with pytest.raises(pjrt.InternalError, match=r"Wrong.all_reduce"):
                np.asarray(result)


def test_an_error_of_a_method_is_that_of_all() -> None:
    class Broken(Chips):
        def all_reduce(self, *arguments: Any, **options: Any) -> Any:
            raise ValueError("no link between the chips")

    with client_of(Broken()) as client:
        for result in run(client, COLLECTIVES["all_reduce"], X, X):
            with pytest.raises(pjrt.PjrtError, match=r"no link between the chips.*\(in stablehlo.all_reduce "):
                np.asarray(result)


def test_an_observed_program_waits_for_each_collective(memory: Chips) -> None:
    with client_of(memory, profile=True) as client:
        for result in run(client, COLLECTIVES["all_reduce"], X, X):
            np.testing.assert_array_equal(np.asarray(result), 8 * X)
        assert "stablehlo.all_reduce on chips" in client.profile.as_dict()  # type: ignore[attr-defined]


def test_costs_count_the_collective_as_the_devices(client: pjrt.Client) -> None:
    costs = client.compile(COLLECTIVES["all_reduce"], pjrt.CompileOptions(num_replicas=2)).cost_analysis()
    assert not [name for name in costs if name.startswith("fallback")]


JAX = """
import runpy, sys
from functools import partial
import jax, jax.numpy as jnp, numpy as np, pjrt
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

called = []
if sys.argv[1].endswith(".so"):
    plugin = sys.argv[1]
else:
    chip = runpy.run_path(sys.argv[1])
    methods = vars(chip["TiledMemory"])
    def noted(name, method):
        def call(*arguments, **facts):
            called.append(name)
            return method(*arguments, **facts)
        return call
    for name in "all_reduce all_gather all_to_all broadcast copy_from_peer permute reduce_scatter".split():
        setattr(chip["TiledMemory"], name, noted(name, methods[name]))
    plugin = pjrt.export(chip["make_client"], name="tiled")
devices = jax.devices(pjrt.frameworks.jax.register(plugin, platform="chips"))
mesh = Mesh(devices, "x")
a = np.arange(4 * 150, dtype=np.float32).reshape(4, 150)
x = jax.device_put(a, NamedSharding(mesh, P("x")))
on_shards = partial(jax.shard_map, mesh=mesh, in_specs=P("x"))
lax = jax.lax
for out, function, expected in (
    (P(), lambda v: lax.psum(v + v, "x") * 2, 4 * (a[:2] + a[2:])),
    (P(), lambda v: lax.pmax(v + v, "x") * 2, 4 * a[2:]),
    (P("x"), lambda v: lax.all_gather(v + v, "x", axis=0, tiled=True) * 2, 4 * np.concatenate([a, a])),
    (P("x"), lambda v: lax.psum_scatter(v + v, "x", tiled=True) * 2, 4 * (a[:2] + a[2:])),
    (P("x"), lambda v: lax.all_to_all(v + v, "x", 1, 0, tiled=True) * 2,
        4 * np.concatenate([a[:, :75], a[:, 75:]])),
    (P("x"), lambda v: lax.pbroadcast(v + v, "x", 1) * 2, 4 * np.concatenate([a[2:], a[2:]])),
    (P("x"), lambda v: lax.ppermute(v + v, "x", [(0, 1)]) * 2, 4 * np.concatenate([0 * a[:2], a[:2]])),
):
    result = jax.jit(on_shards(function, out_specs=out))(x)
    np.testing.assert_allclose(result, expected, rtol=1e-6)
np.testing.assert_allclose(jax.jit(lambda v: (v * v).sum(0))(x), (a * a).sum(0), rtol=1e-5)
moved = jax.device_put(jax.jit(lambda v: v + v)(jax.device_put(a, devices[0])), devices[1])
np.testing.assert_array_equal(jax.jit(lambda v: v + v)(moved), 4 * a)
print("called", *sorted(set(called)))
"""


@pytest.mark.full
@pytest.mark.parametrize("is_worker", [False, True])
def test_jax_uses_them(is_worker: bool, tmp_path: Path) -> None:
    file = str(Path(__file__).parents[2] / "examples" / "tiled_chip" / "device.py")
    if is_worker:
        file = str(native.write_library(tmp_path / "tiled.so", f"{file}:make_client", driver="worker", name="tiled"))
    done = subprocess.run([sys.executable, "-c", JAX, file], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    names = "" if is_worker else " all_gather all_reduce all_to_all broadcast copy_from_peer permute reduce_scatter"
    assert f"called{names}\n" in done.stdout
