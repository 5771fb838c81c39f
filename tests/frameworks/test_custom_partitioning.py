"""JAX's custom_partitioning and inspect_array_sharding: Python functions that a compiler asks, in workers and here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

BEFORE = """
import gc, sys
import jax
import jax.numpy as jnp
import numpy as np
import pjrt
from jax._src import custom_partitioning as internal
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

device, partitioner, worker = sys.argv[1:]
jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
platform = pjrt.frameworks.jax.register(device, num_devices=2, worker=worker == "worker")
mesh = Mesh(np.array(jax.devices(platform)), ("x",))
split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
a = np.arange(16, dtype=np.float32).reshape(4, 4)
x = jax.device_put(a, split)

def partitioned(function, rule, partition=None, infer=None):
    "Return a function that is divided as its first argument is."
    def divide(mesh, arguments, results):
        first = arguments[0].sharding
        return mesh, function, jax.tree.map(lambda _: first, results), (first,) * len(arguments)
    def inferred(mesh, arguments, results):
        return jax.tree.map(lambda _: arguments[0].sharding, results)
    made = custom_partitioning(function)
    made.def_partition(
        partition=partition or divide, infer_sharding_from_operands=infer or inferred, sharding_rule=rule)
    return made

def raises(message, function, *arguments):
    try:
        jax.jit(function)(*arguments)
    except jax.errors.JaxRuntimeError as error:
        assert message in str(error), error
    else:
        raise SystemExit("no error came")

def fail(*_):
    raise ValueError("my own error")
"""

PARTITIONING = """
seen = []
def both(v, w):
    seen.append(v.shape)
    return v + w, {"difference": v - w}
two = partitioned(both, "i j, i j -> i j, i j")
total, more = jax.jit(two)(x, x)
np.testing.assert_array_equal(total, 2 * a)
np.testing.assert_array_equal(more["difference"], 0 * a)
assert total.sharding.is_equivalent_to(split, 2), total.sharding
assert (2, 4) in seen, seen  # what one device does

# Only the function of this process knows of this.
def mean(v):
    return v.sum(axis=0)
def divide(mesh, arguments, results):
    def sum_of_parts(v):
        return jax.lax.psum(v.sum(axis=0), "x")
    return mesh, sum_of_parts, NamedSharding(mesh, P(None)), (NamedSharding(mesh, P("x", None)),)
summed = partitioned(mean, "i j -> j", partition=divide, infer=lambda mesh, *_: NamedSharding(mesh, P(None)))
np.testing.assert_array_equal(jax.jit(summed)(x), a.sum(axis=0))

raises("my own error", partitioned(lambda v: v * 2, "i j -> i j", partition=fail), x)
if partitioner == "gspmd":  # Shardy asks for the rule alone
    raises("my own error", partitioned(lambda v: v * 2, "i j -> i j", infer=fail), x)
np.testing.assert_array_equal(jax.jit(partitioned(lambda v: v * 2, "i j -> i j"))(x), 2 * a)

# The function of others in the place of JAX's.
calls = []
def counted(*arguments):
    calls.append(arguments)
    return internal._custom_partitioning_partition(*arguments)
jax._src.lib.xla_client.register_custom_call_partitioner(
    "CustomSPMDPartitioning", internal._custom_partitioning_propagate_user_sharding, counted,
    internal._custom_partitioning_infer_sharding_from_operands, can_side_effecting_have_replicated_sharding=True,
    c_api=jax._src.xla_bridge._backend_factories[platform].c_api)
np.testing.assert_array_equal(jax.jit(partitioned(lambda v: v * 3, "i j -> i j"))(x), 3 * a)
assert calls

# Nothing is kept once JAX forgets the programs.
del two, summed, total, more
jax.clear_caches()
gc.collect()
assert not internal._sharding_callbacks, list(internal._sharding_callbacks.values())
print("done")
"""

INSPECTING = """
from pjrt.frameworks import _jax_changes

def inspected(callback):
    def function(v):
        jax.debug.inspect_array_sharding(v * 2, callback=callback)
        jax.debug.inspect_array_sharding(v.sum(), callback=callback)
        return v + 1
    return function

seen = []
np.testing.assert_array_equal(jax.jit(inspected(seen.append))(x), a + 1)
assert len(seen) == 2, seen
assert sorted(each.is_equivalent_to(split, 2) for each in seen if each.spec) == [True], seen
raises("my own error", inspected(fail), x)
np.testing.assert_array_equal(jax.jit(inspected(seen.append))(x), a + 1)
assert len(seen) == 4, seen
jax.debug.inspect_array_sharding(x, callback=seen.append)
assert len(seen) == 5, seen
jax.clear_caches()
gc.collect()
assert not _jax_changes._inspections
print("done")
"""

WITH_JAX = """
import jax.experimental.custom_partitioning
import pjrt

def make_client(num_devices):
    return pjrt.client("reference", num_devices=num_devices)
"""


def check(code: str, device: str, partitioner: str, place: str = "worker") -> None:
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEFORE + code, device, partitioner, place],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@pytest.mark.parametrize("device", ["reference", pytest.param("cpu", marks=pytest.mark.full)])
def test_custom_partitioning_in_a_worker(device: str, partitioner: str) -> None:
    check(PARTITIONING, device, partitioner)


@pytest.mark.full
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
def test_custom_partitioning_in_a_worker_that_has_jax(tmp_path: Path, partitioner: str) -> None:
    """There JAX has functions of its own for the same name of a call."""
    (tmp_path / "device.py").write_text(WITH_JAX)
    check(PARTITIONING, f"{tmp_path / 'device.py'}:make_client", partitioner)


@pytest.mark.parametrize(
    ("device", "place", "partitioner"),
    [
        ("reference", "worker", "shardy"),
        *(
            pytest.param(*row, marks=pytest.mark.full)
            for row in (
                ("reference", "worker", "gspmd"),
                ("cpu", "worker", "shardy"),
                ("reference", "here", "gspmd"),
                ("cpu", "here", "shardy"),
            )
        ),
    ],
)
def test_inspected_shardings(device: str, place: str, partitioner: str) -> None:
    check(INSPECTING, device, partitioner, place)
