"""Programs with JAX, one for each of its main ways to use a device. Each checks its results.

They run on a device that does not let JAX read its memory in place, as an accelerator does not, and that reads programs
of an old version of StableHLO, so that the recordings can be replayed on many plugins.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import xla_bridge
from jax.experimental.serialize_executable import deserialize_and_load, serialize
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import pjrt
from pjrt.devices.xla.buffer import XlaBuffer

OLD_STABLEHLO = (1, 0, 0)
X = np.arange(6, dtype=np.float32).reshape(2, 3)

PROGRAMS: dict[str, tuple[int, Callable[[], None]]] = {}


Program = Callable[[], None]


def program(devices: int = 1) -> Callable[[Program], Program]:
    """Add a function to the programs, with the number of devices that it needs."""

    def add(function: Program) -> Program:
        PROGRAMS[function.__name__] = devices, function
        return function

    return add


def mesh() -> Mesh:
    return Mesh(np.array(jax.devices()), ("x",))


def split(array: np.ndarray) -> jax.Array:
    return jax.device_put(array, NamedSharding(mesh(), PartitionSpec("x")))


@program()
def jit() -> None:
    """jax.jit: a program is compiled once and executed twice."""
    function = jax.jit(lambda x, y: x @ y + 1)
    for scale in (1, 2):
        np.testing.assert_allclose(function(scale * X, X.T), scale * X @ X.T + 1)


@program()
def eager() -> None:
    """Operations without jit: a program for each operation."""
    x = jnp.asarray(X)
    assert float((x[0] * 2 - x[1]).sum()) == -6.0


@program()
def grad() -> None:
    """jax.value_and_grad: three steps of training with parameters that stay on the device."""

    def loss(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ parameters["w"] + parameters["b"]) - y) ** 2)

    @jax.jit
    def step(parameters: dict[str, jax.Array], x: jax.Array, y: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
        value, slopes = jax.value_and_grad(loss)(parameters, x, y)
        return value, jax.tree.map(lambda each, slope: each - 0.1 * slope, parameters, slopes)

    parameters = {"w": np.full((3, 2), 0.1, np.float32), "b": np.zeros(2, np.float32)}
    losses = []
    for _ in range(3):
        value, parameters = step(parameters, X, X[:, :2])
        losses.append(float(value))
    assert losses == sorted(losses, reverse=True)


@program()
def device_put() -> None:
    """jax.device_put: arrays of many types, with strides, empty and scalar, to a device and back."""
    arrays = [np.arange(5).astype(name) for name in ("bool", "int8", "uint16", "int32", "float16", "complex64")]
    arrays += [np.asarray(jnp.arange(5, dtype=jnp.bfloat16)), X.T, X[:, ::2], X[::-1], np.zeros((0, 3), np.float32)]
    arrays += [np.float32(7), np.broadcast_to(np.int32(3), (2, 2))]
    for array in arrays:
        for device in jax.devices():
            np.testing.assert_array_equal(np.asarray(jax.device_put(array, device)), array)


@program(devices=2)
def sharded_jit() -> None:
    """jax.jit of sharded arrays: one program on two devices, with a sum over both."""
    function = jax.jit(lambda x: (x * 2, x.sum()))
    double, total = function(split(X))
    np.testing.assert_array_equal(double, 2 * X)
    assert float(total) == 15.0


@program(devices=2)
def shard_map() -> None:
    """jax.shard_map: collectives between two devices."""

    def body(x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.psum(x, "x"), jax.lax.ppermute(x, "x", [(0, 1), (1, 0)]), jax.lax.all_gather(x, "x", tiled=True)

    specs = (PartitionSpec("x"), PartitionSpec("x"), PartitionSpec("x"))
    function = jax.jit(jax.shard_map(body, mesh=mesh(), in_specs=PartitionSpec("x"), out_specs=specs, check_vma=False))
    total, swapped, gathered = function(split(X))
    np.testing.assert_array_equal(total, np.broadcast_to(X.sum(0), (2, 3)))
    np.testing.assert_array_equal(swapped, X[::-1])
    np.testing.assert_array_equal(gathered, np.concatenate([X, X]))


@program()
def donation() -> None:
    """jax.jit with donate_argnums: the argument is deleted, and its memory is used for the result."""
    function = jax.jit(lambda x, y: x + y, donate_argnums=0)
    x, y = jax.device_put(X), jax.device_put(X)
    for count in range(2, 5):
        old, x = x, function(x, y)
        assert old.is_deleted()
        np.testing.assert_array_equal(x, count * X)


@program()
def asynchronous_dispatch() -> None:
    """Executions that are enqueued before the results of earlier ones are there, and awaited at the end."""
    function = jax.jit(lambda x: jax.lax.fori_loop(0, 1000, lambda _, v: v * 0.5 + 1, x))
    x = jax.device_put(np.zeros((64,), np.float32))
    for _ in range(5):
        x = function(x)
    x.copy_to_host_async()
    jax.block_until_ready(x)
    np.testing.assert_allclose(x, 2)


@program(devices=2)
def copies() -> None:
    """Copies between devices, and of an array on its own device, one of them of an array that is donated later."""
    first, second = jax.devices()
    x = jax.device_put(X, first)
    there = jax.device_put(x, second)
    assert there.devices() == {second}
    copy = jax.device_put(there, second, may_alias=False)
    result = jax.jit(lambda v: v + 1, donate_argnums=0)(there)
    np.testing.assert_array_equal(copy, X)
    np.testing.assert_array_equal(result, X + 1)
    np.testing.assert_array_equal(jax.device_put(result, first), X + 1)


@program()
def memory_kinds() -> None:
    """Memories of the host: arrays are moved there and back, also by a program."""
    device = jax.devices()[0]
    host = SingleDeviceSharding(device, memory_kind="pinned_host")
    x = jax.device_put(X, device)
    offloaded = jax.device_put(x, host)
    assert offloaded.sharding.memory_kind == "pinned_host"
    np.testing.assert_array_equal(offloaded, X)
    np.testing.assert_array_equal(jax.device_put(offloaded, SingleDeviceSharding(device)), X)


@program()
def serialization() -> None:
    """jax.experimental.serialize_executable: an executable is serialized, loaded again and executed."""
    compiled = jax.jit(lambda x: x * 3).lower(jax.ShapeDtypeStruct(X.shape, X.dtype)).compile()
    again = deserialize_and_load(*serialize(compiled), execution_devices=jax.devices()[:1])
    np.testing.assert_array_equal(again(X), 3 * X)


@program()
def analyses() -> None:
    """Ahead-of-time compilation with the cost and memory analyses, and the memory statistics of a device."""
    compiled = jax.jit(lambda x, y: x @ y).lower(X, X.T).compile()
    compiled.cost_analysis()
    compiled.memory_analysis()
    assert compiled.as_text()
    jax.devices()[0].memory_stats()


@program()
def control_flow() -> None:
    """while, cond and scan in one program."""

    @jax.jit
    def function(x: jax.Array) -> tuple[jax.Array, ...]:
        count = jax.lax.while_loop(lambda v: v[0] < 10, lambda v: (v[0] + 3, v[1] + 1), (x, 0))[1]
        chosen = jax.lax.cond(x > 0, lambda v: v * 2, lambda v: v - 1, x)
        return count, chosen, jax.lax.scan(lambda total, v: (total + v, total), x, jnp.arange(4.0))[1]

    count, chosen, sums = function(jnp.float32(1))
    assert (int(count), float(chosen)) == (3, 2.0)
    np.testing.assert_array_equal(sums, [1, 1, 2, 4])


@program()
def random_numbers() -> None:
    """jax.random, sorting, and a gather."""
    key = jax.random.key(7)
    values = jax.random.uniform(key, (16,))
    ordered = jnp.sort(values)
    np.testing.assert_array_equal(ordered, np.sort(np.asarray(values)))
    assert float(ordered[jnp.argmax(ordered)]) == float(ordered[-1])


@program()
def references() -> None:
    """Arrays that are read several times, deleted and used after that."""
    x = jax.device_put(X)
    for _ in range(2):
        np.testing.assert_array_equal(np.asarray(x + 0), X)
    x.delete()
    assert x.is_deleted()
    try:
        np.asarray(x)
    except RuntimeError:
        return
    raise AssertionError("a deleted array was read")


@program()
def many_outputs() -> None:
    """A program with arguments that it does not use, and with many outputs, an argument among them."""
    function = jax.jit(lambda x, y, unused: (x, y, x + y, (x * y).astype(jnp.int32), jnp.float32(3)), keep_unused=True)
    same, other, total, product, constant = function(X, 2 * X, X)
    np.testing.assert_array_equal(same, X)
    np.testing.assert_array_equal(other, 2 * X)
    np.testing.assert_array_equal(total, 3 * X)
    np.testing.assert_array_equal(product, (2 * X * X).astype(np.int32))
    assert float(constant) == 3.0


@program()
def linear_algebra() -> None:
    """A convolution, and a batched product of matrices in bfloat16."""
    image, kernel = np.ones((1, 1, 6, 6), np.float32), np.ones((2, 1, 3, 3), np.float32)
    result = jax.jit(lambda x, k: jax.lax.conv(x, k, (1, 1), "SAME"))(image, kernel)
    assert float(result[0, 0, 2, 2]) == 9.0
    batch = jnp.ones((2, 3, 4), jnp.bfloat16)
    product = jax.jit(lambda a: jnp.einsum("bij,bkj->bik", a, a))(batch)
    assert float(product[1, 2, 0]) == 4.0


@program(devices=2)
def two_programs_on_two_devices() -> None:
    """The same function on each device, with arguments that are there already."""
    function = jax.jit(lambda x: x * 2 + 1)
    results = [function(jax.device_put(X + i, device)) for i, device in enumerate(jax.devices())]
    for i, (result, device) in enumerate(zip(results, jax.devices(), strict=True)):
        assert result.devices() == {device}
        np.testing.assert_array_equal(result, (X + i) * 2 + 1)


def main() -> None:
    """Run the program of a name."""
    devices, function = PROGRAMS[sys.argv[1]]
    XlaBuffer.is_on_cpu = property(lambda self: False)
    attributes = {"stablehlo_current_version": OLD_STABLEHLO}
    client = functools.partial(pjrt.client, "cpu", num_devices=devices)
    exported = pjrt.export(client, name="recorded", attributes=attributes)
    xla_bridge.register_plugin("recorded", c_api=exported.capsule)
    jax.config.update("jax_platforms", "recorded")
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*")  # the recording has no paths of this machine
    function()


if __name__ == "__main__":
    main()
