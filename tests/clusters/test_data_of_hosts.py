"""Data that each host loads itself, in a program of JAX without a change: it does not pass the controller."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

pytest.importorskip("jax")

PROGRAM = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

SIZE = 1 << 20  # elements of a shard, 4 MB

def load(shard, step, batch):
    import os
    values = np.fromfile(f"{folder}/{int(shard[0])}", np.float32)
    batch[...] = values + np.float32(step)
    Path(f"{folder}/loaded-{int(shard[0])}-{int(step)}-{os.getpid()}").touch()

for shard in range(4):
    np.full(SIZE, shard, np.float32).tofile(f"{folder}/{shard}")
jax.ffi.register_ffi_target("load", load, platform="cluster")
mesh = Mesh(np.array(jax.devices()), ("shards",))
shards = jax.device_put(np.arange(4, dtype=np.int32), NamedSharding(mesh, P("shards")))

def batch(shard, step):
    return jax.ffi.ffi_call("load", jax.ShapeDtypeStruct((SIZE,), np.float32), has_side_effect=True)(shard, step)

specs = {"mesh": mesh, "in_specs": (P("shards"), P()), "out_specs": P("shards")}

@jax.jit
def total(shards, step):
    return jax.shard_map(batch, check_vma=False, **specs)(shards, step).reshape(4, -1).mean(1)

print(*(np.asarray(total(shards, np.int32(step))).tolist() for step in range(2)))
passed_bytes()  # the program is there now
print(np.asarray(total(shards, np.int32(2))).tolist(), passed_bytes())
whole = jax.jit(jax.shard_map(batch, check_vma=False, **specs))(shards, np.int32(0)).block_until_ready()
print(passed_bytes())
print(np.asarray(whole).sum() == 6 * SIZE, passed_bytes())
try:
    jax.jit(lambda v: jax.pure_callback(lambda u: 1 / 0, v, v))(jnp.float32(1)).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(error)
client.close()
"""

CLUSTER = """
import os, socket, sys
from pathlib import Path
import pjrt
from pjrt.clusters.launchers.launcher import LocalLauncher

folder = sys.argv[1]

class OverTcp(LocalLauncher):
    is_local = False  # as for workers on other machines: no local sockets, no shared memory

def counts():
    # The bytes that were sent and received on the TCP connections of this process, as Linux counts them.
    numbers = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(fd))) as each:
                if each.family in (socket.AF_INET, socket.AF_INET6) and each.type == socket.SOCK_STREAM:
                    info = each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
                    numbers[fd] = int.from_bytes(info[120:128], "little") + int.from_bytes(info[128:136], "little")
        except OSError:
            pass
    return numbers

last = {}

def passed_bytes():
    global last
    before, last = last, counts()
    return sum(number - before.get(fd, 0) for fd, number in last.items())

client = pjrt.cluster(launcher=OverTcp(2, {}), device="cpu", num_devices=2)
pjrt.frameworks.jax.register(client, platform="cluster", make_default=True)
"""


def test_data_is_loaded_by_the_hosts(tmp_path: Path) -> None:
    pytest.importorskip("cloudpickle")
    done = subprocess.run(
        [sys.executable, "-c", CLUSTER + PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, step, for_the_program, read, callback, *_ = done.stdout.splitlines()
    assert first == "[0.0, 1.0, 2.0, 3.0] [1.0, 2.0, 3.0, 4.0]"
    assert step.startswith("[2.0, 3.0, 4.0, 5.0] ")
    assert 0 < int(step.split()[-1]) < 50_000  # each step loads 16 MB
    assert 0 < int(for_the_program) < 50_000
    assert read.startswith("True ")
    assert int(read.split()[-1]) > 16_000_000  # the controller asks for the values
    assert "ZeroDivisionError: division by zero" in callback
    loads = [path.name.split("-")[1:] for path in tmp_path.glob("loaded-*")]
    processes = {shard: {process for other, _, process in loads if other == shard} for shard in "0123"}
    assert processes["0"] == processes["1"] != processes["2"] == processes["3"]
    assert all(len(each) == 1 for each in processes.values())
