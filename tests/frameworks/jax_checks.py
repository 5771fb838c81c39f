"""Check what JAX must do on a device of ours: a script for a subprocess, which prints one JSON object.

    python jax_checks.py DEVICE

Each check is a function; its result is null, or a message about the failure. Numbers are compared with those of JAX's
own CPU backend. This package is imported by ``main`` alone: ``tests/remote`` makes the checks in a process without it.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.layout import Format, Layout
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P  # the name that all of JAX's users know it by

CHECKS: dict[str, Callable[[], None]] = {}
DEVICES = 8
platform = ""


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def on_cpu(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run the same computation on JAX's own CPU backend."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return jax.tree.map(np.asarray, function(*arguments))


def same(function: Callable[..., Any], *arguments: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    got, want = jax.tree.map(np.asarray, function(*arguments)), on_cpu(function, *arguments)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), got, want)


def mesh(*shape: int) -> Mesh:
    return Mesh(np.array(jax.devices(platform)[: int(np.prod(shape))]).reshape(shape), ("x", "y")[: len(shape)])


@check
def it_is_not_the_default() -> None:
    assert jax.default_backend() == "cpu"
    assert jax.devices()[0].client is not jax.devices(platform)[0].client
    assert len(jax.devices(platform)) == DEVICES


@check
def eager_ops() -> None:
    x = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), jax.devices(platform)[0])
    np.testing.assert_allclose(np.asarray((x + 1) * x.T.sum()), (np.arange(6).reshape(2, 3) + 1) * 15.0)


@check
def jit_grad_vmap() -> None:
    def f(x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ x.T))

    x = np.random.default_rng(0).standard_normal((3, 4, 4)).astype(np.float32)
    same(jax.jit(jax.vmap(jax.grad(f))), x, rtol=1e-4, atol=1e-5)


@check
def control_flow() -> None:
    same(lambda x: jax.lax.scan(lambda c, y: (c + y, c * y), 0.0, x), np.arange(5.0, dtype=np.float32))
    same(jax.jit(lambda n: jax.lax.while_loop(lambda s: s < n, lambda s: s * 2 + 1, 0)), 100)
    same(jax.jit(lambda p: jax.lax.cond(p, lambda: 1.0, lambda: 2.0)), True)
    same(jax.jit(lambda i: jax.lax.switch(i, [lambda: 1, lambda: 2, lambda: 3])), 2)


@check
def random_numbers() -> None:
    same(lambda: jax.random.normal(jax.random.key(0), (100,)))
    same(lambda: jax.random.randint(jax.random.key(1), (50,), 0, 1000))
    same(lambda: jax.random.permutation(jax.random.key(2), 20))


@check
def donation() -> None:
    f = jax.jit(lambda x: x + 1, donate_argnums=0)
    x = jnp.arange(4.0)
    y = f(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(y, np.arange(4.0) + 1)
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1


@check
def device_put_in_all_forms() -> None:
    devices = jax.devices(platform)
    x = jax.device_put(np.arange(8.0), devices[3])
    assert x.devices() == {devices[3]}
    y = jax.device_put(x, devices[5])
    assert y.devices() == {devices[5]}
    np.testing.assert_array_equal(y, np.arange(8.0))
    split = NamedSharding(mesh(DEVICES), P("x"))
    z = jax.device_put(np.arange(16.0), split)
    assert len(z.addressable_shards) == DEVICES
    np.testing.assert_array_equal(z, np.arange(16.0))
    np.testing.assert_array_equal(jax.device_put(z, NamedSharding(mesh(DEVICES), P())), np.arange(16.0))
    np.testing.assert_array_equal(jax.device_put(z, devices[1]), np.arange(16.0))
    back = jax.device_put(z, jax.local_devices(backend="cpu")[0])
    np.testing.assert_array_equal(back, np.arange(16.0))
    for dtype in (np.bool_, np.int8, np.uint16, np.int32, np.float16, jnp.bfloat16, np.complex64):
        value = np.array([[0, 1, 2]]).astype(dtype)
        np.testing.assert_array_equal(np.asarray(jax.device_put(value, devices[0])), value)


@check
def host_arrays_with_strides() -> None:
    strided = np.arange(24.0, dtype=np.float32).reshape(4, 6)[::-2, ::3]
    np.testing.assert_array_equal(jax.device_put(strided, jax.devices(platform)[0]), strided)


@check
def block_until_ready_and_async() -> None:
    results = _iterated_squares()
    jax.block_until_ready(results)
    np.testing.assert_allclose(results[8], np.eye(8) * 8, rtol=1e-5)


@check
def arrays_know_that_they_are_ready() -> None:
    results = _iterated_squares()
    jax.block_until_ready(results)
    assert all(r.is_ready() for r in results)


def _iterated_squares() -> list[Any]:
    f = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, v: v @ v / 8, x))
    return [f(jnp.eye(8) * i) for i in range(20)]


@check
def pmap_() -> None:
    devices = jax.devices(platform)
    f = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i", devices=devices)
    np.testing.assert_allclose(f(np.arange(8.0, dtype=np.float32)), np.full(8, 28.0))


@check
def shard_map_() -> None:
    def f(a: Any) -> Any:
        right = jax.lax.ppermute(a, "x", [(i, (i + 1) % DEVICES) for i in range(DEVICES)])
        return jax.lax.psum(a, "x"), right, jax.lax.all_gather(a, "x", tiled=True)

    specs = (P(), P("x"), P())
    mapped = jax.jit(jax.shard_map(f, mesh=mesh(DEVICES), in_specs=P("x"), out_specs=specs, check_vma=False))
    total, right, whole = mapped(np.arange(8.0, dtype=np.float32))
    np.testing.assert_allclose(total, [28.0])
    np.testing.assert_allclose(right, np.roll(np.arange(8.0), 1))
    np.testing.assert_allclose(whole, np.arange(8.0))


@check
def sharded_jit() -> None:
    split = NamedSharding(mesh(4, 2), P("x", "y"))
    a = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    x = jax.device_put(a, split)
    np.testing.assert_allclose(jax.jit(lambda v: (v @ v.T).sum())(x), (a @ a.T).sum(), rtol=1e-4)
    y = jax.jit(lambda v: jnp.sin(v), out_shardings=split)(x)
    assert y.sharding.is_equivalent_to(split, 2)
    # IREE's sine loses digits near its zeros.
    np.testing.assert_allclose(y, np.sin(a), rtol=1e-5, atol=1e-7 if platform == "iree" else 0)


@check
def layouts() -> None:
    device = jax.devices(platform)[0]
    columns = Format(Layout((1, 0)), SingleDeviceSharding(device))
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    x = jax.device_put(a, device)
    assert x.format.layout.major_to_minor == (0, 1)
    y = jax.jit(lambda v: v * 2, out_shardings=columns)(x)
    z = jax.device_put(x, columns)
    for array, expected in ((y, a * 2), (z, a)):
        assert array.format.layout.major_to_minor == (1, 0)
        np.testing.assert_array_equal(array, expected)
    np.testing.assert_array_equal(jax.jit(lambda v: v + 1, in_shardings=columns)(z), a + 1)
    np.testing.assert_array_equal(jax.jit(lambda v: v + 1)(z), a + 1)
    compiled = jax.jit(lambda v: v.T, in_shardings=columns, out_shardings=columns).lower(z).compile()
    assert compiled.input_formats[0][0].layout.major_to_minor == (1, 0)
    assert compiled.output_formats.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(compiled(z), a.T)


@check
def memory_kinds() -> None:
    device = jax.devices(platform)[0]
    assert {m.kind for m in device.addressable_memories()} >= {"device", "pinned_host"}
    assert device.default_memory().kind == "device"
    x = jax.device_put(np.arange(4.0), SingleDeviceSharding(device, memory_kind="pinned_host"))
    assert x.sharding.memory_kind == "pinned_host"
    np.testing.assert_array_equal(jax.device_put(x, SingleDeviceSharding(device, memory_kind="device")), np.arange(4.0))


@check
def ahead_of_time() -> None:
    lowered = jax.jit(lambda x: jnp.sin(x) @ x).lower(jnp.ones((4, 4)))
    compiled = lowered.compile()
    np.testing.assert_allclose(compiled(jnp.ones((4, 4))), np.full((4, 4), np.sin(1.0) * 4), rtol=1e-5)
    assert compiled.cost_analysis()["flops"] >= 2 * 4**3 - 16
    assert compiled.memory_analysis().argument_size_in_bytes == 64
    assert "sin" in compiled.as_text()


@check
def export_and_import() -> None:
    name = jax.devices(platform)[0].platform
    exported = jax.export.export(jax.jit(lambda x: x * 2), platforms=[name])(jnp.ones(3))
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(jnp.arange(3.0)), np.arange(3.0) * 2)


@check
def serialized_executables() -> None:
    from jax.experimental import serialize_executable

    compiled = jax.jit(lambda x: jnp.cos(x) + 1).lower(jnp.ones(5)).compile()
    again = serialize_executable.deserialize_and_load(
        *serialize_executable.serialize(compiled), backend=platform, execution_devices=jax.devices(platform)[:1]
    )
    np.testing.assert_allclose(again(jnp.zeros(5)), np.full(5, 2.0))


@check
def persistent_compilation_cache() -> None:
    from jax.experimental.compilation_cache import compilation_cache

    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()
        try:
            for _ in range(2):
                np.testing.assert_allclose(jax.jit(lambda x: x * 3 - 1)(jnp.ones(7)), np.full(7, 2.0))
                jax.clear_caches()
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()


@check
def debug_print_and_callbacks() -> None:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        jax.jit(lambda x: jax.debug.print("value {}", x))(jnp.arange(2.0))
        jax.effects_barrier()
    assert "value [0. 1.]" in shown.getvalue(), shown.getvalue()
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    f = jax.jit(lambda x: jax.pure_callback(lambda a: np.sin(a), shape, x) + 1)
    np.testing.assert_allclose(f(jnp.arange(3.0)), np.sin(np.arange(3.0)) + 1, rtol=1e-5)
    seen: list[float] = []

    def note(x: Any) -> Any:
        seen.append(float(x))
        return np.float32(x)

    def loop(n: Any) -> Any:
        def body(i: Any, s: Any) -> Any:
            return s + jax.experimental.io_callback(note, jax.ShapeDtypeStruct((), np.float32), i * 1.0, ordered=True)

        return jax.lax.fori_loop(0, n, body, 0.0)

    assert jax.jit(loop)(4) == 6.0
    assert seen == [0.0, 1.0, 2.0, 3.0]


@check
def ordered_callbacks_without_results() -> None:
    seen: list[int] = []

    def twice(x: Any) -> Any:
        jax.experimental.io_callback(lambda a: seen.append(1), None, x, ordered=True)
        jax.experimental.io_callback(lambda: seen.append(2), None, ordered=True)
        return x

    jax.jit(twice)(jnp.ones(3))
    jax.jit(twice)(jax.device_put(np.ones(3, np.float32), jax.devices()[0]))
    jax.experimental.io_callback(lambda a: seen.append(3), None, jnp.ones(3), ordered=True)
    jax.effects_barrier()
    assert seen == [1, 2, 1, 2, 3]
    shape = jax.ShapeDtypeStruct((), np.float32)
    pair = jax.experimental.io_callback(
        lambda a: (1.5, 2), (shape, jax.ShapeDtypeStruct((), np.int32)), 0.0, ordered=True
    )
    assert (float(pair[0]), int(pair[1])) == (1.5, 2)


@check
def callbacks_with_64_bits() -> None:
    """Check that a callback has the setting of its program, which need not be that of the process."""
    shape, third = jax.ShapeDtypeStruct((2,), np.float64), jax.ShapeDtypeStruct((), np.float64)
    seen: list[Any] = []
    with jax.enable_x64(True):
        x = jnp.arange(2.0) / 3
        for function in (
            lambda v: (jax.debug.callback(lambda a: seen.append(np.asarray(a)), v), v)[1],
            lambda v: jax.pure_callback(lambda a: np.asarray(a), shape, v),
            lambda v: v.at[1].set(jax.experimental.io_callback(lambda a: 1 / 3, third, v)),
        ):
            np.testing.assert_array_equal(jax.jit(function)(x), np.arange(2) / 3)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen, [np.arange(2) / 3])


@check
def callbacks_in_partitioned_programs() -> None:
    """Check that the callback of a whole program is called once, with the whole value, and that of a shard on each
    device."""
    split = NamedSharding(mesh(4), P("x"))
    x = jax.device_put(np.arange(8.0, dtype=np.float32), split)
    seen: list[Any] = []

    def note(a: Any) -> Any:
        seen.append(np.array(a))
        return np.asarray(a) * 2

    shape = jax.ShapeDtypeStruct((8,), np.float32)
    for function in (
        lambda v: (jax.debug.callback(lambda a: seen.append(np.array(a)), v), v * 2)[1],
        lambda v: jax.experimental.io_callback(note, shape, v),
        lambda v: jax.pure_callback(note, shape, v),
    ):
        seen.clear()
        result = jax.jit(function)(x)
        jax.effects_barrier()
        np.testing.assert_array_equal(result, np.arange(8.0) * 2)
        np.testing.assert_array_equal(seen, [np.arange(8.0)])
    seen.clear()
    f = jax.shard_map(lambda v: (jax.debug.callback(note, v), v)[1], mesh=mesh(4), in_specs=P("x"), out_specs=P("x"))
    np.testing.assert_array_equal(jax.jit(f)(x), np.arange(8.0))
    jax.effects_barrier()
    np.testing.assert_array_equal(sorted(a.tolist() for a in seen), np.arange(8.0).reshape(4, 2))
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        jax.jit(lambda v: (jax.debug.print("whole {}", v), v + 1)[1])(x)
        jax.effects_barrier()
    assert shown.getvalue() == "whole [0. 1. 2. 3. 4. 5. 6. 7.]\n", shown.getvalue()


@check
def callbacks_for_each_part() -> None:
    """Check that ``partitioned=True`` calls back on each device, with its parts of the operands."""
    seen: list[Any] = []

    def parts_of(function: Any, *operands: Any) -> list[Any]:
        def called(*operands: Any) -> Any:
            jax.debug.callback(
                lambda *parts: seen.append([np.array(p).tolist() for p in parts]),
                *function(*operands),
                partitioned=True,
            )
            return operands

        seen.clear()
        jax.block_until_ready(jax.jit(called)(*operands))
        jax.effects_barrier()
        return sorted(seen)

    split, whole = NamedSharding(mesh(4), P("x")), NamedSharding(mesh(4), P())
    x = jax.device_put(np.arange(8.0, dtype=np.float32), split)
    y = jax.device_put(np.arange(8).reshape(2, 4), NamedSharding(mesh(4), P(None, "x")))
    halves = [[[2.0 * i, 2.0 * i + 1], [[i], [4 + i]]] for i in range(4)]
    assert parts_of(lambda x, y: (x, y), x, y) == halves, seen
    assert parts_of(lambda x: (x.sum(), x < 4), x) == [[28.0, [i < 2] * 2] for i in (2, 3, 0, 1)], seen
    assert parts_of(lambda v: (v,), jax.device_put(np.ones(3, np.int8), whole)) == [[[1, 1, 1]]] * 4, seen
    assert parts_of(lambda v: (v,), jnp.ones(3, jnp.bfloat16)) == [[[1.0, 1.0, 1.0]]], seen
    assert parts_of(lambda x: (), x) == [[]] * 4, seen


@check
def callbacks_with_elements_of_less_than_a_byte() -> None:
    for dtype in (jnp.int4, jnp.uint4, jnp.int2, jnp.uint2, jnp.float4_e2m1fn):
        x = jnp.array([1, 0, 1, 1, 0]).astype(dtype)
        y = jax.jit(lambda v: jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(v.shape, v.dtype), v))(x)
        assert y.dtype == dtype
        np.testing.assert_array_equal(y, x)
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            jax.jit(lambda v: jax.debug.print("{}", v))(x)
            jax.effects_barrier()
        assert shown.getvalue() == "[1 0 1 1 0]\n", shown.getvalue()


@check
def buffer_callbacks() -> None:
    from jax.experimental.buffer_callback import buffer_callback

    def add(context: Any, out: Any, x: Any, *, y: Any) -> None:
        assert context.stage.name == "EXECUTE"
        with pytest.raises(jax.errors.JaxRuntimeError, match="UNIMPLEMENTED"):
            _ = context.stream
        assert (out.shape, out.dtype, out.ndim) == (x.shape, x.dtype, x.ndim) == ((4,), np.float32, 1)
        assert out.writeable
        assert not x.writeable
        np.from_dlpack(out)[...] = np.asarray(x) + np.asarray(y)

    f = buffer_callback(add, jax.ShapeDtypeStruct((4,), np.float32))
    np.testing.assert_array_equal(f(jnp.arange(4.0), y=jnp.float32(2)), np.arange(4) + 2.0)
    np.testing.assert_array_equal(jax.jit(lambda v: f(v, y=v) + 1)(jnp.arange(4.0)), np.arange(4) * 2 + 1.0)

    def increase(_: Any, out: Any, x: Any) -> None:
        np.asarray(out)[...] += 1

    g = buffer_callback(increase, jax.ShapeDtypeStruct((), np.int32), input_output_aliases={0: 0})
    assert jax.jit(g)(jnp.int32(41)) == 42
    h = buffer_callback(lambda *_: 1, jax.ShapeDtypeStruct((), np.int32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="must not return any values"):
        jax.jit(h)(jnp.int32(1)).block_until_ready()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()
    own = jax.jit(lambda v: f(v, y=v))
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        np.testing.assert_array_equal(own(np.arange(4, dtype=np.float32)), np.arange(4) * 2.0)


@check
def callback_that_fails() -> None:
    def fail(_: Any) -> Any:
        raise ValueError("the callback has had enough")

    f = jax.jit(lambda x: jax.pure_callback(fail, jax.ShapeDtypeStruct((), np.float32), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match="ValueError: the callback has had enough"):
        f(jnp.float32(1)).block_until_ready()
    g = jax.jit(lambda x: jax.pure_callback(lambda a: np.stack([a, a]), jax.ShapeDtypeStruct((), np.float32), x))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"returns float32\[\], found float32\[2\](?!.*ffi_handler)"):
        g(jnp.float32(1)).block_until_ready()
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.effects_barrier()
    assert jnp.float32(2) + 1 == 3


@check
def linear_algebra() -> None:
    a = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    s = a @ a.T + np.eye(4, dtype=np.float32)
    same(jnp.linalg.cholesky, s, rtol=1e-4, atol=1e-4)
    same(jnp.linalg.solve, s, a, rtol=1e-3, atol=1e-3)
    same(jnp.linalg.inv, s, rtol=1e-3, atol=1e-3)
    same(jnp.linalg.det, s, rtol=1e-3)
    same(lambda x: jnp.linalg.eigh(x)[0], s, rtol=1e-3, atol=1e-3)
    same(lambda x: jnp.linalg.svd(x)[1], a, rtol=1e-3, atol=1e-3)
    q, r = jnp.linalg.qr(a)
    np.testing.assert_allclose(np.asarray(q) @ np.asarray(r), a, atol=1e-4)


@check
def convolution_sort_fft() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((1, 8, 8, 3)).astype(np.float32)
    w = generator.standard_normal((3, 3, 3, 4)).astype(np.float32)
    numbers = ("NHWC", "HWIO", "NHWC")
    same(partial(jax.lax.conv_general_dilated, window_strides=(1, 1), padding="SAME", dimension_numbers=numbers), x, w,
         rtol=1e-4, atol=1e-4)  # fmt: skip
    same(jnp.sort, x.reshape(-1))
    same(jnp.argsort, x.reshape(-1))
    same(jnp.fft.fft, x.reshape(-1), rtol=1e-3, atol=1e-3)


@check
def profiler() -> None:
    with tempfile.TemporaryDirectory() as folder, jax.profiler.trace(folder):
        jnp.ones(3).block_until_ready()


@check
def training_loop() -> None:
    def net(p: Any, x: Any) -> Any:
        for w, b in p:
            x = jnp.tanh(x @ w + b)
        return x

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((net(p, x) - y) ** 2)

    def run() -> Any:
        k = jax.random.key(1)
        p = [
            (jax.random.normal(k, (4, 8)) * 0.3, jnp.zeros(8)),
            (jax.random.normal(k, (8, 2)) * 0.3, jnp.zeros(2)),
        ]
        x, y = jax.random.normal(k, (32, 4)), jax.random.normal(k, (32, 2))
        step = jax.jit(lambda p: jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss)(p, x, y)))
        for _ in range(30):
            p = step(p)
        return loss(p, x, y)

    same(run, rtol=1e-4)


@check
def nothing_is_left() -> None:
    gc.collect()
    before = len(jax.live_arrays(platform))
    for _ in range(50):
        jnp.ones(10) + 1
    gc.collect()
    assert len(jax.live_arrays(platform)) <= before


def results(name: str) -> dict[str, str | None]:
    """Make all checks on a platform that JAX knows by this name."""
    global platform
    platform = name
    found: dict[str, str | None] = {}
    CHECKS["it_is_not_the_default"]()
    with jax.default_device(jax.devices(platform)[0]):
        for name, function in CHECKS.items():
            try:
                function()
                found[name] = None
            except BaseException as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                found[name] = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
    return found


def main(device: str) -> None:
    import simulated_chip

    import pjrt

    if device == simulated_chip.NAME:
        simulated_chip.register()
    here: Any = pjrt.export(lambda **given: pjrt.client("reference", **given), name="reference")
    options = {"hosts": 2, "num_devices": DEVICES // 2} if device == "cluster" else {"num_devices": DEVICES}
    print(json.dumps(results(pjrt.frameworks.jax.register(here if device == "here" else device, **options))))


if __name__ == "__main__":
    main(sys.argv[1])
