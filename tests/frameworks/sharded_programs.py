"""Run sharded JAX programs on a device of ours and on JAX's own CPU: a script for a subprocess, which prints JSON.

    python sharded_programs.py jax|ifrt DEVICE

Each program runs on a mesh of eight devices, 4 × 2: by JAX on the exported device (``jax``), or lowered by JAX and run
as a program on global arrays (``ifrt``). Its result is null if all values and all shardings of results are those of
JAX's own eight CPU devices, or a message about the first difference. The module itself does not import this package:
``tests/remote`` runs the programs in a process without it.
"""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import contextlib
import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax._src.op_shardings import are_hlo_shardings_equal
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P  # the name that all of JAX's users know it by

Build = Callable[[Mesh], tuple[Any, tuple[Any, ...]]]
"""Makes a jitted function and its arguments for a mesh."""
PROGRAMS: dict[str, Build] = {}
EXPLICIT: set[str] = set()
"""The programs in which shardings are part of the types."""
DEVICES = 8


def program(build: Build) -> Build:
    PROGRAMS[build.__name__] = build
    return build


def explicit(build: Build) -> Build:
    EXPLICIT.add(build.__name__)
    return build


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def put(mesh: Mesh, value: Any, *spec: Any) -> Any:
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def shard_map(mesh: Mesh, function: Callable[..., Any], inside: Any, outside: Any) -> Any:
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=inside, out_specs=outside, check_vma=False))


def perceptron(parameters: Any, x: Any) -> Any:
    for weight, bias in parameters[:-1]:
        x = jax.nn.gelu(x @ weight + bias)
    weight, bias = parameters[-1]
    return x @ weight + bias


def training_step(parameters: Any, x: Any, y: Any) -> Any:
    loss, gradients = jax.value_and_grad(lambda p: jnp.mean((perceptron(p, x) - y) ** 2))(parameters)
    return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), loss


def layers(mesh: Mesh, first: tuple[Any, ...], second: tuple[Any, ...]) -> Any:
    return [
        (put(mesh, numbers(16, 32, seed=1) * 0.1, *first), put(mesh, numbers(32, seed=2), first[1])),
        (put(mesh, numbers(32, 8, seed=3) * 0.1, *second), put(mesh, numbers(8, seed=4), second[1])),
    ]


@program
def data_parallel_training(mesh: Mesh) -> Any:
    x, y = put(mesh, numbers(24, 16), ("x", "y")), put(mesh, numbers(24, 8), ("x", "y"))
    return jax.jit(training_step), (
        layers(mesh, (None, None), (None, None)),
        x,
        y,
    )


@program
def tensor_parallel_training(mesh: Mesh) -> Any:
    x, y = put(mesh, numbers(24, 16)), put(mesh, numbers(24, 8))
    return jax.jit(training_step), (
        layers(mesh, (None, "y"), ("y", None)),
        x,
        y,
    )


@program
def data_and_tensor_parallel_training(mesh: Mesh) -> Any:
    x, y = put(mesh, numbers(24, 16), "x"), put(mesh, numbers(24, 8), "x")
    return jax.jit(training_step, donate_argnums=0), (
        layers(mesh, (None, "y"), ("y", None)),
        x,
        y,
    )


@program
def fully_sharded_training(mesh: Mesh) -> Any:
    x, y = put(mesh, numbers(24, 16), "x"), put(mesh, numbers(24, 8), "x")
    parameters = layers(mesh, ("x", "y"), ("x", "y"))
    shardings = jax.tree.map(lambda p: p.sharding, parameters)
    return jax.jit(training_step, out_shardings=(shardings, None)), (
        parameters,
        x,
        y,
    )


@program
def attention(mesh: Mesh) -> Any:
    q, k, v = (put(mesh, numbers(8, 12, 4, 16, seed=seed), "x", None, "y") for seed in range(3))

    def function(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4.0
        scores = jnp.where(jnp.tril(jnp.ones((12, 12), bool)), scores, -1e9)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)

    return jax.jit(function), (
        q,
        k,
        v,
    )


@program
def expert_parallel(mesh: Mesh) -> Any:
    """Tokens go to the device of their expert and back."""

    def function(tokens: Any, weights: Any) -> Any:
        sent = lax.all_to_all(tokens, "x", 0, 0, tiled=True)
        return lax.all_to_all(jnp.tanh(sent @ weights[0]), "x", 0, 0, tiled=True)

    tokens, weights = put(mesh, numbers(32, 8), "x"), put(mesh, numbers(4, 8, 8), "x")
    return shard_map(mesh, function, (P("x"), P("x")), P("x")), (
        tokens,
        weights,
    )


@program
def pipeline_parallel(mesh: Mesh) -> Any:
    """Each device has a layer; microbatches go from one to the next."""

    def function(batches: Any, weight: Any) -> Any:
        stage, count = lax.axis_index("x"), 4
        state = jnp.zeros_like(batches[0])
        outputs = jnp.zeros_like(batches)
        for step in range(batches.shape[0] + count - 1):
            state = jnp.where(stage == 0, batches[min(step, batches.shape[0] - 1)], state)
            state = jnp.tanh(state @ weight[0])
            if step >= count - 1:
                outputs = outputs.at[step - count + 1].set(jnp.where(stage == count - 1, state, 0))
            state = lax.ppermute(state, "x", [(i, (i + 1) % count) for i in range(count)])
        return lax.psum(outputs, "x")

    batches, weights = put(mesh, numbers(6, 3, 8)), put(mesh, numbers(4, 8, 8), "x")
    return shard_map(mesh, function, (P(), P("x")), P()), (
        batches,
        weights,
    )


@program
def sum_over_an_axis(mesh: Mesh) -> Any:
    function = shard_map(mesh, lambda x: (lax.psum(x, "x"), lax.pmax(x, "y"), lax.pmean(x, ("x", "y"))), P("x", "y"),
                         (P(None, "y"), P("x"), P()))  # fmt: skip
    return function, (put(mesh, numbers(8, 6), "x", "y"),)


@program
def gather_over_an_axis(mesh: Mesh) -> Any:
    function = shard_map(mesh, lambda x: lax.all_gather(x, "x", tiled=True), P("x", "y"), P(None, "y"))
    return function, (put(mesh, numbers(8, 6), "x", "y"),)


@program
def scatter_of_a_sum(mesh: Mesh) -> Any:
    function = shard_map(
        mesh, lambda x: lax.psum_scatter(x, "x", scatter_dimension=1, tiled=True), P(None, None), P(None, "x")
    )
    return function, (put(mesh, numbers(3, 8)),)


@program
def permutation_and_index(mesh: Mesh) -> Any:
    def function(x: Any) -> Any:
        moved = lax.ppermute(x, "x", [(0, 2), (2, 1), (1, 0)])
        return moved + lax.axis_index("x") * 10 + lax.axis_index("y")

    return shard_map(mesh, function, P("x", "y"), P("x", "y")), (put(mesh, numbers(8, 6), "x", "y"),)


@program
def exchange_over_an_axis(mesh: Mesh) -> Any:
    function = shard_map(mesh, lambda x: lax.all_to_all(x, "y", 1, 0, tiled=True), P("x", "y"), P(("x", "y")))
    return function, (put(mesh, numbers(8, 8), "x", "y"),)


@program
def map_over_one_axis_only(mesh: Mesh) -> Any:
    """XLA partitions over the other axis, inside."""
    function = jax.jit(
        jax.shard_map(lambda x, w: lax.psum(x @ w, "x"), mesh=mesh, in_specs=(P(None, "x"), P("x")), out_specs=P(),
                      axis_names={"x"}, check_vma=False)
    )  # fmt: skip
    return function, (
        put(mesh, numbers(8, 16), "y", "x"),
        put(mesh, numbers(16, 6), "x", "y"),
    )


@program
def donated_state(mesh: Mesh) -> Any:
    state = {"count": put(mesh, np.int32(0)), "total": put(mesh, numbers(8, 6), "x", "y")}
    step = jax.jit(lambda s, x: {"count": s["count"] + 1, "total": s["total"] * 0.5 + x}, donate_argnums=0)
    return step, (state, put(mesh, numbers(8, 6, seed=1), "x", "y"))


@program
def results_as_asked(mesh: Mesh) -> Any:
    asked = (NamedSharding(mesh, P("y", "x")), NamedSharding(mesh, P(("y", "x"))), NamedSharding(mesh, P()))
    function = jax.jit(lambda x: (x + 1, x.sum(1), x.T), out_shardings=asked)
    return function, (put(mesh, numbers(8, 8), "x", "y"),)


@program
def results_as_xla_likes(mesh: Mesh) -> Any:
    return jax.jit(lambda x: (x + 1, x.sum(1), x.T, x[:4], x.reshape(-1))), (put(mesh, numbers(8, 8), "x", "y"),)


@program
def uneven_shards_inside(mesh: Mesh) -> Any:
    def function(x: Any) -> Any:
        part = lax.with_sharding_constraint(x[:6, :5] * 2, NamedSharding(mesh, P("x", "y")))
        return part.sum(0), jnp.sort(part, 0), jnp.flip(part, 1)

    return jax.jit(function), (put(mesh, numbers(8, 6), "x", "y"),)


@program
def loops_and_branches(mesh: Mesh) -> Any:
    def function(x: Any) -> Any:
        x = lax.fori_loop(0, 5, lambda i, v: v @ (v.T @ v) * 0.01 + i, x)
        x = lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x)
        return lax.scan(lambda total, row: (total + row, total.sum()), x[0], x)

    return jax.jit(function), (put(mesh, numbers(8, 6), "x", "y"),)


@program
def random_sort_convolution_fft(mesh: Mesh) -> Any:
    def function(x: Any) -> Any:
        noise = jax.random.normal(jax.random.key(3), x.shape)
        blurred = lax.conv_general_dilated(x[None, None], jnp.ones((1, 1, 3, 3)), (1, 1), "SAME")[0, 0]
        return jnp.sort(x + noise, 0), blurred, jnp.fft.fft(x).real, jnp.cumsum(x, 0)

    return jax.jit(function), (put(mesh, numbers(8, 6), "x", "y"),)


@program
def linear_algebra(mesh: Mesh) -> Any:
    def function(x: Any) -> Any:
        square = x @ x.T + 8 * jnp.eye(8)
        return jnp.linalg.cholesky(square), jnp.linalg.solve(square, x), jnp.linalg.eigh(square)[0]

    return jax.jit(function), (put(mesh, numbers(8, 6), "x", "y"),)


@program
def gather_scatter_take(mesh: Mesh) -> Any:
    def function(table: Any, rows: Any) -> Any:
        return table[rows], table.at[rows].add(1.0), jnp.take_along_axis(table, rows[:, None] % 6, 1)

    return jax.jit(function), (
        put(mesh, numbers(8, 6), "x", "y"),
        put(mesh, np.arange(8)[::-1].copy(), "y"),
    )


@explicit
@program
def explicit_shardings(mesh: Mesh) -> Any:
    x, w = put(mesh, numbers(8, 16), "x"), put(mesh, numbers(16, 6), None, "y")
    return jax.jit(lambda x, w: jnp.tanh(x @ w)), (x, w)


@program
def without_arguments(mesh: Mesh) -> Any:
    asked = (NamedSharding(mesh, P("x", "y")), NamedSharding(mesh, P(("x", "y"))), NamedSharding(mesh, P()))
    return jax.jit(lambda: (jnp.ones((8, 6)), jnp.arange(16.0), jnp.float32(3)), out_shardings=asked), ()


@program
def without_results(mesh: Mesh) -> Any:
    return jax.jit(lambda x: (), keep_unused=True), (put(mesh, numbers(8, 16), "x"),)


@program
def devices_in_another_order(mesh: Mesh) -> Any:
    """Collectives and results are by the mesh's order of its devices."""
    turned = Mesh(mesh.devices.ravel()[[1, 3, 0, 2, 5, 4, 7, 6]].reshape(2, 4), ("a", "b"))
    function = jax.shard_map(lambda x: (lax.psum(x, "a"), lax.all_gather(x, "b", tiled=True)), mesh=turned,
                             in_specs=P("b", "a"), out_specs=(P("b"), P(None, "a")), check_vma=False)  # fmt: skip
    return jax.jit(lambda x: (*function(x), x.sum(0), x @ x.T)), (put(turned, numbers(8, 6), "b", "a"),)


@explicit
@program
def sums_that_are_left_to_be_taken(mesh: Mesh) -> Any:
    """Each device has a term of the sum, which is taken where a result is asked for whole."""

    def function(x: Any, w: Any) -> Any:
        left = jnp.einsum("ij,jk->ik", x, w, out_sharding=P(None, None, unreduced={"x"}))
        return jax.sharding.reshard(left, P("y", None))

    return jax.jit(function), (put(mesh, numbers(8, 16), None, "x"), put(mesh, numbers(16, 6), "x", None))


@explicit
@program
def terms_as_results(mesh: Mesh) -> Any:
    """Each device gives its term of a sum: along one axis, with copies or tiles along the other, and along both."""

    def function(x: Any, w: Any) -> Any:
        copied = jnp.einsum("ij,jk->ik", x, w, out_sharding=P(None, None, unreduced={"x"}))
        tiled = jnp.einsum("ij,jk->ik", jax.sharding.reshard(x, P("y", "x")), w,
                           out_sharding=P("y", None, unreduced={"x"}))  # fmt: skip
        x, w = jax.sharding.reshard(x, P(None, ("x", "y"))), jax.sharding.reshard(w, P(("x", "y"), None))
        return copied, tiled, jnp.einsum("ij,jk->ik", x, w, out_sharding=P(None, None, unreduced={"x", "y"}))

    return jax.jit(function), (put(mesh, numbers(8, 16), None, "x"), put(mesh, numbers(16, 6), "x", None))


if hasattr(jax.sharding, "UnreducedKind"):  # since JAX 0.12

    @explicit
    @program
    def terms_of_a_maximum_and_of_a_minimum(mesh: Mesh) -> Any:
        def function(x: Any) -> Any:
            typed, kinds = jax.sharding.get_abstract_mesh(), jax.sharding.UnreducedKind
            left = [
                reduce.bind(x, axes=(1,), out_sharding=NamedSharding(typed, P(None, unreduced={"x"}, unreduced_kind=k)))
                for reduce, k in ((lax.reduce_max_p, kinds.max), (lax.reduce_min_p, kinds.min))
            ]
            return *left, *(jax.sharding.reshard(value, P("y")) for value in left)

        return jax.jit(function), (put(mesh, numbers(8, 16), None, "x"),)


def within(name: str, mesh: Mesh) -> Any:
    """Return the mesh as a program wants it, and the context to run it in."""
    if name not in EXPLICIT:
        return mesh, contextlib.nullcontext()
    typed = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Explicit,) * 2)
    return typed, jax.set_mesh(typed)


def run_by_jax(name: str, mesh: Mesh) -> Any:
    mesh, context = within(name, mesh)
    with context:
        function, arguments = PROGRAMS[name](mesh)
        return jax.tree.leaves(function(*arguments))


def tiling(value: Any) -> Any:
    return value.sharding._to_xla_hlo_sharding(value.ndim)


def check_by_jax(name: str, ours: Mesh, theirs: Mesh) -> None:
    got, want = run_by_jax(name, ours), run_by_jax(name, theirs)
    assert len(got) == len(want)
    for number, (mine, judge) in enumerate(zip(got, want, strict=True)):
        same = are_hlo_shardings_equal(tiling(mine), tiling(judge))
        assert same, f"result {number}: {mine.sharding}, JAX's own has {judge.sharding}"
        has_terms = bool(judge.sharding.spec.unreduced)
        if not has_terms:  # JAX adds no terms on the host, and knows no place of one
            compare(mine, judge)
        for mine_part, judge_part in zip(mine.addressable_shards, judge.addressable_shards, strict=True):
            assert has_terms or mine_part.index == judge_part.index
            compare(mine_part.data, judge_part.data)


def check_by_ifrt(name: str, client: Any, theirs: Mesh) -> None:
    import pjrt
    from pjrt import ifrt
    from pjrt.stablehlo.ir.sharding import Sharding as Tiling

    mesh, context = within(name, theirs)
    with context:
        function, arguments = PROGRAMS[name](mesh)
        values = [np.asarray(value) for value in jax.tree.leaves(arguments)]
        text = str(function.lower(*arguments).compiler_ir("stablehlo"))
        want = jax.tree.leaves(function(*arguments))
    free = tuple(not result.sharding for result in pjrt.stablehlo.signature(pjrt.Program.of(text)).results)
    options = pjrt.CompileOptions(allow_spmd_sharding_propagation_to_output=free)
    got = client.compile(text, options)(*values)
    assert len(got) == len(want)
    for number, (mine, judge) in enumerate(zip(got, want, strict=True)):
        assert isinstance(mine.sharding, ifrt.HloSharding)
        wanted = Tiling.from_proto(tiling(judge).to_proto().SerializeToString(), DEVICES).of_rank(judge.ndim)
        ours = mine.sharding.tiling.of_rank(judge.ndim)
        assert ours == wanted, f"result {number}: {mine.sharding}, JAX has {judge.sharding}"
        if not judge.sharding.spec.unreduced:
            compare(mine, judge)
        for shard, judge_part in zip(mine.shards, judge.addressable_shards, strict=True):
            compare(shard.buffer, judge_part.data)


def compare(mine: Any, judge: Any) -> None:
    np.testing.assert_allclose(np.asarray(mine), np.asarray(judge), rtol=2e-5, atol=2e-5)


def differences(check: Callable[[str, Any, Mesh], None], ours: Any) -> dict[str, str | None]:
    """Run all programs on a client or mesh of ours and on JAX's own CPU."""
    theirs = mesh_of("cpu")
    messages: dict[str, str | None] = {}
    for name in PROGRAMS:
        try:
            check(name, ours, theirs)
            messages[name] = None
        except Exception:
            messages[name] = traceback.format_exc()[-1500:]
    return messages


def main(way: str, device: str) -> None:
    import simulated_chip

    import pjrt
    from pjrt import ifrt

    if device == simulated_chip.NAME:
        simulated_chip.register()
    if way == "ifrt":
        messages = differences(check_by_ifrt, ifrt.Client(pjrt.client(device, num_devices=DEVICES)))
    else:  # before anything makes JAX's own devices: JAX makes all of its backends at once
        messages = differences(check_by_jax, mesh_of(pjrt.frameworks.jax.register(device, num_devices=DEVICES)))
    print(json.dumps(messages))


def mesh_of(platform: str) -> Mesh:
    return Mesh(np.array(jax.devices(platform)).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


if __name__ == "__main__":
    main(*sys.argv[1:])
