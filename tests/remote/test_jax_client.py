"""Stock JAX on a server: the client is jaxlib's own, in a process that cannot import this package."""

from __future__ import annotations

import pytest
from remote_fixtures import RunJax

pytestmark = pytest.mark.full


def test_arrays_and_programs_on_one_device(served_cpu: str, run_jax: RunJax) -> None:
    source = """
print(len(devices), {d.platform for d in devices}, [m.kind for m in devices[0].addressable_memories()])
x = jax.device_put(np.arange(8, dtype="f4"), devices[1])
print(x.devices(), np.asarray(x).tolist())
print(np.asarray(jax.jit(lambda x: x * 2 + 1)(x)).tolist())
print(jax.grad(lambda w: jnp.sum(w**2))(x).tolist())
y = jax.device_put(x, devices[2])
print(y.devices(), np.asarray(y).sum())
donated = jax.jit(lambda x: x + 1, donate_argnums=0)
z = donated(x)
print(x.is_deleted(), np.asarray(z).sum())
for dtype in (bool, "i1", "u2", "i4", "f2", jnp.bfloat16, "f4", "c8", jnp.int4, jnp.float8_e4m3fn):
    whole = np.array([0, 1, 1, 0]).astype(dtype)
    back = np.asarray(jax.device_put(whole, devices[0]))
    assert back.dtype == whole.dtype and (back == whole).all(), dtype
for shape in ((), (0,), (3, 0), (2, 3, 4), (1, 5)):
    whole = np.full(shape, 3.5, "f4")
    assert (np.asarray(jax.device_put(whole)) == whole).all(), shape
transposed = np.arange(24, dtype="f4").reshape(2, 3, 4).transpose(2, 0, 1)
assert (np.asarray(jax.device_put(transposed)) == transposed).all()
assert (np.asarray(jax.device_put(np.arange(20)[::-2])) == np.arange(20)[::-2]).all()
"""
    assert run_jax(served_cpu, source) == [
        "4 {'cpu'} ['device', 'pinned_host', 'unpinned_host']",
        "{cpu:1} [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]",
        "[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]",
        "[0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]",
        "{cpu:2} 28.0",
        "True 36.0",
    ]


def test_arrays_move_between_shardings_memories_and_layouts(served_cpu: str, run_jax: RunJax) -> None:
    source = """
from jax.experimental.layout import Format, Layout
from jax.sharding import SingleDeviceSharding

grid, row = Mesh(np.array(devices).reshape(2, 2), ("a", "b")), Mesh(np.array(devices), ("x",))
backwards = Mesh(np.array(devices[::-1]).reshape(2, 2), ("a", "b"))
value = np.arange(16, dtype="f4").reshape(4, 4)
array = jax.device_put(value, NamedSharding(grid, P("a", "b")))
for sharding in (
    NamedSharding(grid, P("b", "a")),
    NamedSharding(grid, P(None, "a")),
    NamedSharding(grid, P(("a", "b"))),
    NamedSharding(row, P("x")),
    NamedSharding(row, P()),
    NamedSharding(backwards, P("a", "b")),  # a remap
    NamedSharding(Mesh(np.array(devices[:2]), ("x",)), P("x")),
    NamedSharding(row, P("x"), memory_kind="pinned_host"),
    SingleDeviceSharding(devices[3]),
    SingleDeviceSharding(devices[2], memory_kind="pinned_host"),
):
    moved = jax.device_put(array, sharding)
    assert moved.sharding == sharding, sharding
    assert (np.asarray(moved) == value).all(), sharding
    on_device = sharding.with_memory_kind("device")
    assert (jax.jit(lambda x: x.sum(0), out_shardings=None)(jax.device_put(moved, on_device)) == value.sum(0)).all()
parts = [jax.device_put(value[n : n + 1], device) for n, device in enumerate(devices)]
whole = jax.make_array_from_single_device_arrays((4, 4), NamedSharding(row, P("x")), parts)
assert (np.asarray(whole) == value).all()
on_host = NamedSharding(row, P("x"), memory_kind="pinned_host")
assert jax.jit(lambda x: x * 2, out_shardings=on_host)(whole).sharding == on_host
columns = Format(Layout((1, 0)), SingleDeviceSharding(devices[0]))
print(array.addressable_shards[0].data.format.layout.major_to_minor)
for turned in (jax.device_put(value, columns), jax.jit(lambda x: x, out_shardings=columns)(value)):
    assert (np.asarray(turned) == value).all()
    print(turned.format.layout.major_to_minor)
"""
    assert run_jax(served_cpu, source) == ["(0, 1)", "(1, 0)", "(1, 0)"]


def test_errors_are_values(served_cpu: str, run_jax: RunJax) -> None:
    """An array that could not be made gives its error where it is used; the client goes on."""
    source = """
strings = jax.device_put(np.array(["a", "b"], dtype=np.dtypes.StringDType()), devices[0])
elsewhere = jax.device_put(strings, devices[1])
for use in (strings.block_until_ready, lambda: np.asarray(strings), elsewhere.block_until_ready):
    try:
        use()
        print("no error")
    except Exception as error:
        print("an array of strings" in str(error))
deleted = jnp.ones(3) + 1
deleted.delete()
try:
    deleted + 1
except RuntimeError as error:
    print("deleted" in str(error))
print(jnp.arange(3) + 1)
"""
    assert run_jax(served_cpu, source) == ["True", "True", "True", "True", "[1 2 3]"]


def test_the_client_keeps_nothing_of_operations_that_ended(served_cpu: str, run_jax: RunJax) -> None:
    """Of each operation it keeps the traceback, until the server gives it back."""
    source = """
def resident_kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4

add = jax.jit(lambda x: x + 1)

def many(x, depth):
    if depth:
        return many(x, depth - 1)
    for _ in range(500):
        x = add(x)
    return x.block_until_ready()

x = jnp.zeros(4)
for _ in range(3):
    x = many(x, 700)
taken = [resident_kib()]
for _ in range(4):
    x = many(x, 700)
    taken.append(resident_kib())
# A leak adds to each round; what an allocator or a thread takes at times does not.
print(min(after - before for before, after in zip(taken, taken[1:])))
"""
    (growth,) = run_jax(served_cpu, source)
    assert int(growth) < 3_000, "500 tracebacks of 700 calls take 6 MB"
