"""Check what JAX does for a device that it decides by the platform's name: a script, which prints one JSON object.

    python jax_by_platform.py DEVICE

The checks have the titles of the rows in ``docs/frameworks/jax.md``. The result of each is null, or a message about the
failure.
"""

from __future__ import annotations

import ctypes
import importlib
import inspect
import io
import json
import logging
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse
from jax.experimental.compute_on import compute_on
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P  # the name that all of JAX's users know it by

import pjrt

SCAFFOLD = "scaffold"
CHECKS: dict[str, Callable[[], None]] = {}
platform = ""


def check(title: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(function: Callable[[], None]) -> Callable[[], None]:
        CHECKS[title] = function
        return function

    return add


def expect(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-3, atol=1e-3)


def matrix() -> Any:
    return jnp.arange(16, dtype=np.float32).reshape(4, 4)


def split() -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices(platform)), ("x",)), P("x"))


@check("no warning that the platform is experimental")
def quiet() -> None:
    assert "experimental" not in MESSAGES.getvalue(), MESSAGES.getvalue()  # those of jax.devices in main


@check("donated arguments")
def donation() -> None:
    x = matrix()
    expect(jax.jit(lambda v: v + 1, donate_argnums=0)(x), np.arange(16).reshape(4, 4) + 1)
    assert x.is_deleted()


@check("linear algebra by LAPACK")
def linear_algebra() -> None:
    a = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)
    assert "lapack_sgeqrf" in jax.jit(jnp.linalg.qr).lower(a).as_text()
    q, r = jnp.linalg.qr(a)
    expect(q @ r, a)
    form, vectors = jax.scipy.linalg.schur(a)
    expect(vectors @ form @ vectors.T, a)


@check("rules of modules that are imported later")
def later_rules() -> None:
    linalg = importlib.import_module("jax.experimental.sparse.linalg")
    diagonal: Any = sparse.BCSR.fromdense(np.diag([2, 4, 5, 8]).astype(np.float32))
    expect(linalg.spsolve(diagonal.data, diagonal.indices, diagonal.indptr, jnp.ones(4)), [0.5, 0.25, 0.2, 0.125])
    expect(diagonal @ jnp.ones(4), [2, 4, 5, 8])


@check("random bits: threefry, rbg, gamma")
def random_bits() -> None:
    draws: list[Callable[[], Any]] = [
        lambda: jax.random.normal(jax.random.key(3), (8,)),
        lambda: jax.random.bits(jax.random.key(3, impl="rbg"), (8,)),
        lambda: jax.random.gamma(jax.random.key(3), 2.0, (8,)),
    ]
    for draw in draws:
        found = draw()
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            expect(found, draw())


@check("callbacks into Python")
def callbacks() -> None:
    x = matrix()
    expect(jax.jit(lambda v: jax.pure_callback(np.sin, v, v))(x), np.sin(x))
    expect(jax.jit(lambda v: jax.experimental.io_callback(lambda a: np.asarray(a) * 2, v, v))(x), 2 * np.asarray(x))
    seen: list[Any] = []
    jax.jit(lambda v: jax.debug.callback(seen.append, v))(x)
    jax.effects_barrier()
    expect(seen, [x])


@check("a call returns when its callbacks have run")
def callbacks_within_the_call() -> None:
    returned = threading.Event()
    seen: list[bool] = []
    jax.jit(lambda v: jax.debug.callback(lambda _: seen.append(returned.wait(2)), v))(matrix())
    before = list(seen)
    returned.set()
    jax.effects_barrier()
    assert before == [False], f"found {seen} after the call"


@check("`platform_dependent` with a branch for `cpu` and no default")
def branch_for_cpu() -> None:
    def branches(v: Any) -> Any:
        return jax.lax.platform_dependent(v, cuda=lambda a: a + 2, cpu=lambda a: a + 1)

    assert float(jax.jit(branches)(jnp.float32(0))) == 1
    expect(jax.vmap(branches)(jnp.zeros(3)), np.ones(3))
    exported = jax.export.export(jax.jit(branches), platforms=["cuda", jax.devices(platform)[0].platform])
    assert float(exported(jnp.float32(0)).call(jnp.float32(0))) == 1


@check("`platform_dependent` with a default: the branch for `cpu`")
def branch_beside_default() -> None:
    f = jax.jit(lambda v: jax.lax.platform_dependent(v, cpu=lambda a: a + 1, default=lambda a: a + 2))
    assert float(f(jnp.float32(0))) == 1


@check("a function that `jax.export` exported for `cpu`")
def exported_for_cpu() -> None:
    for platforms in (["cpu"], ["cuda", "cpu"]):
        exported = jax.export.export(jax.jit(lambda v: v * 2), platforms=platforms)(jnp.ones(3))
        result = jax.export.deserialize(exported.serialize()).call(jnp.arange(3.0))
        expect(result, [0, 2, 4])
        assert result.devices() == {jax.devices(platform)[0]}


@check("a function exported for the device and `cpu`, run by JAX's own CPU")
def exported_for_both() -> None:
    names = list(dict.fromkeys([jax.devices(platform)[0].platform, "cpu"]))
    exported = jax.export.export(jax.jit(lambda v: v * 2), platforms=names)(jnp.ones(3))
    cpu = jax.local_devices(backend="cpu")[0]
    expect(jax.jit(exported.call)(jax.device_put(np.arange(3, dtype=np.float32), cpu)), [0, 2, 4])


@check("the persistent compilation cache")
def persistent_cache() -> None:
    from jax.experimental.compilation_cache import compilation_cache

    events: list[str] = []
    jax.monitoring.register_event_listener(lambda event, **_: events.append(event.rpartition("/")[2]))
    with tempfile.TemporaryDirectory() as folder:
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
        compilation_cache.reset_cache()
        try:
            for _ in range(2):
                expect(jax.jit(lambda x: x * 3 - 1)(np.ones(7, np.float32)), np.full(7, 2))
                jax.clear_caches()
            files = [path for path in Path(folder).iterdir() if path.name.startswith("jit__lambda")]
        finally:
            jax.config.update("jax_compilation_cache_dir", None)
            compilation_cache.reset_cache()
    assert files
    assert events.count("cache_hits") >= 1, events


@check("DLPack, from a JAX array")
def dlpack_out() -> None:
    x = matrix()
    assert np.from_dlpack(x).ctypes.data == x.unsafe_buffer_pointer()
    expect(np.from_dlpack(x), np.arange(16).reshape(4, 4))
    assert tuple(map(int, x.__dlpack_device__())) == (1, 0)
    halves = jnp.arange(4, dtype=jnp.bfloat16)
    capsule = halves.__dlpack__()
    expect(pjrt.host_memory.external.from_capsule(capsule).astype(np.float32), [0, 1, 2, 3])
    shared = np.from_dlpack(x)
    address = x.unsafe_buffer_pointer()
    del x
    jax.block_until_ready([matrix() * 2 for _ in range(4)])  # would take the memory if it were free
    assert shared.ctypes.data == address
    expect(shared, np.arange(16).reshape(4, 4))


@check("DLPack, onto the device without a copy")
def dlpack_in() -> None:
    raw = np.zeros(128, np.uint8)
    values = raw[-raw.ctypes.data % 64 :][:64].view(np.float32)
    device = jax.devices(platform)[0]
    for function in (jax.dlpack.from_dlpack, jnp.from_dlpack):
        x = function(values, device=device, copy=False)
        assert x.devices() == {device}
        assert x.unsafe_buffer_pointer() == values.ctypes.data
        y = function(values, device=device, copy=True)
        assert y.devices() == {device}
        assert y.unsafe_buffer_pointer() != values.ctypes.data
    assert jax.dlpack.from_dlpack(values).devices() == {jax.local_devices(backend="cpu")[0]}
    assert jax.dlpack.from_dlpack(values[1:], device=device).devices() == {device}


@check("`jnp.asarray(array, copy=False)`")
def asarray_without_copy() -> None:
    expect(jnp.asarray(np.arange(3, dtype=np.float32), copy=False), [0, 1, 2])


@check("results in another kind of memory")
def memory_kinds() -> None:
    device = jax.devices(platform)[0]
    host = SingleDeviceSharding(device, memory_kind="pinned_host")
    x = matrix()
    for function, argument in (
        (jax.jit(lambda v: v * 2, out_shardings=host), x),
        (jax.jit(lambda v: jax.device_put(v * 2, jax.memory.Space.Host)), x),
        (jax.jit(lambda v: v * 2), jax.device_put(x, host)),
    ):
        result = function(argument)
        assert result.sharding.memory_kind == "pinned_host"
        assert result.addressable_data(0).sharding.memory_kind == "pinned_host"
        expect(result, 2 * np.asarray(x))
    halves = NamedSharding(split().mesh, P("x"), memory_kind="pinned_host")
    result = jax.jit(lambda v: v * 2, out_shardings=halves)(jax.device_put(x, split()))
    assert result.sharding.is_equivalent_to(halves, 2)
    back = jax.jit(lambda v: jax.device_put(v, jax.memory.Space.Device))(jax.device_put(x, host))
    assert back.sharding.memory_kind == "device"


@check("`compute_on` with the type `device_host`")
def compute_on_host() -> None:
    double = jax.jit(lambda v: v * 2)
    if "out_memory_spaces" in inspect.signature(compute_on).parameters:
        on_host = compute_on(double, compute_type="device_host", out_memory_spaces=jax.memory.Space.Device)
    else:  # JAX 0.10
        on_host = compute_on("device_host")(double)
    assert float(jax.jit(lambda v: on_host(v) + 1)(jnp.float32(2))) == 5


@check("`jax.ffi.register_ffi_target(…, platform=…)`, a Python function")
def ffi_in_python() -> None:
    def double(x: Any, out: Any) -> None:
        out[...] = x * 2

    _call_target("test.by_platform.python", double)


@check("`jax.ffi.register_ffi_target(…, platform=…)`, a handler in C")
def ffi_in_c() -> None:
    from pjrt.devices.xla.ffi_handler import handler_of

    new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )

    def double(x: Any, out: Any) -> None:
        out[...] = x * 2

    _call_target("test.by_platform.c", new_capsule(handler_of(double, 0), None, None))


def _call_target(name: str, handler: Any) -> None:
    jax.ffi.register_ffi_target(name, handler, platform=platform)
    call = jax.ffi.ffi_call(name, jax.ShapeDtypeStruct((3,), np.float32))
    expect(jax.jit(call)(jnp.arange(3.0)), [0, 2, 4])


@check("`custom_partitioning`")
def own_partitioning() -> None:
    twice: Any = custom_partitioning(lambda v: v * 2)
    twice.def_partition(
        partition=lambda mesh, arguments, result: (
            mesh, lambda v: v * 2, arguments[0].sharding, (arguments[0].sharding,)
        ),
        infer_sharding_from_operands=lambda mesh, arguments, result: arguments[0].sharding,
        sharding_rule="i j -> i j",
    )  # fmt: skip
    result = jax.jit(twice)(jax.device_put(matrix(), split()))
    assert result.sharding.is_equivalent_to(split(), 2)
    expect(result, 2 * np.asarray(matrix()))


@check("`jax.debug.inspect_array_sharding` of several devices")
def inspect_sharding() -> None:
    seen: list[Any] = []

    def inspect(v: Any) -> Any:
        jax.debug.inspect_array_sharding(v * 2, callback=seen.append)
        return v * 2

    jax.jit(inspect)(jax.device_put(matrix(), split())).block_until_ready()
    assert seen[0].is_equivalent_to(split(), 2)


@check("Pallas kernels with `interpret=True`")
def pallas_interpreted() -> None:
    expect(_increased(interpret=True), np.arange(16).reshape(4, 4) + 1)


@check("Pallas kernels, compiled")
def pallas_compiled() -> None:
    expect(_increased(), np.arange(16).reshape(4, 4) + 1)


def _increased(**options: Any) -> Any:
    from jax.experimental import pallas

    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] + 1

    return pallas.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((4, 4), np.float32), **options)(matrix())


@check("`Compiled.cost_analysis()`")
def cost_of_compiled() -> None:
    assert jax.jit(lambda v: v @ v).lower(matrix()).compile().cost_analysis()["flops"] > 0


@check("`Lowered.cost_analysis()`")
def cost_of_lowered() -> None:
    cost = jax.jit(lambda v: v @ v).lower(matrix()).cost_analysis()
    assert cost is not None, "no cost"


@check("matrix products by the algorithm `TF32_TF32_F32`")
def product_by_algorithm() -> None:
    expect(jax.jit(lambda v: jax.lax.dot(v, v, precision="TF32_TF32_F32"))(jnp.eye(4)), np.eye(4))


@check("`jax.lax.pbroadcast`")
def broadcast() -> None:
    f = jax.shard_map(
        lambda v: jax.lax.pbroadcast(v, "x", 0), mesh=split().mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    expect(jax.jit(f)(np.arange(4, dtype=np.float32)), [0, 1, 0, 1])


@check("arrays of strings")
def strings() -> None:
    with jax.transfer_guard("allow"):
        jax.device_put(np.array(["a", "b"], dtype=np.dtypes.StringDType()), jax.devices(platform)[0])


@check("`jax_default_device` by name")
def default_device_by_name() -> None:
    with jax.default_device(platform):
        assert jnp.ones(2).devices() == {jax.devices(platform)[0]}


MESSAGES = io.StringIO()


def main(device: str) -> None:
    global platform
    if device == SCAFFOLD:
        pjrt.plugins.register(name=SCAFFOLD, factory=scaffold())
    experimental = False if device == SCAFFOLD else None
    platform = pjrt.frameworks.jax.register(device, num_devices=2, experimental=experimental)
    logging.getLogger("jax").addHandler(logging.StreamHandler(MESSAGES))
    first = jax.devices(platform)[0]
    found: dict[str, str | None] = {}
    with jax.default_device(first):
        for title, function in CHECKS.items():
            try:
                function()
                found[title] = None
            except Exception as error:
                found[title] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


def scaffold() -> Callable[..., pjrt.Client]:
    """Return the function that makes clients of the device that ``pjrt new-plugin`` writes."""
    template = Path(pjrt.__file__).parent / "cli" / "template" / "device.py.txt"
    names: dict[str, Any] = {}
    exec(compile(template.read_text().replace("@NAME@", SCAFFOLD), template, "exec"), names)
    make_client: Callable[..., pjrt.Client] = names["make_client"]
    return make_client


if __name__ == "__main__":
    main(sys.argv[1])
