"""JAX on devices of several processes, as ``jax.distributed`` starts them. Nothing but the registration is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from job_fixtures import StartJob
from job_programs import QUIET

TRANSFORMER = Path(__file__).with_name("transformer_job.py")

SUM = """
import sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
device = hear()
jax.config.update("jax_platforms", pjrt.frameworks.jax.register(device, platform="mine", num_devices=2))
jax.distributed.initialize(address, count, rank)
mesh = Mesh(np.array(jax.devices()), ("x",))
total = jax.jit(jax.shard_map(lambda x: jax.lax.psum(x, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
values = np.arange(12, dtype=np.float32).reshape(4, 3)
array = jax.make_array_from_callback(values.shape, NamedSharding(mesh, P("x")), values.__getitem__)
say("sum", len(jax.devices()), [d.process_index for d in jax.devices()], np.asarray(total(array)).tolist())
jax.distributed.shutdown()
"""


HELPERS = (
    QUIET
    + """
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec as P
jax.config.update("jax_platforms", pjrt.frameworks.jax.register("cpu", num_devices=2))
jax.distributed.initialize(address, count, rank)
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
rows = NamedSharding(mesh, P("data"))
array = jax.make_array_from_process_local_data(rows, np.arange(6, dtype="f4").reshape(2, 3) + 6 * rank, (4, 3))

def body(x):
    moved = jax.lax.ppermute(x, "data", [(0, 1), (1, 0)])
    most = jax.lax.pmax(x.max(), ("data", "model"))
    return moved, most[None], jax.lax.all_gather(x[:, 0], "data", tiled=True), jax.lax.axis_index("data")[None]

out_specs = P("data"), P(), P("data"), P("data")
results = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=P("data"), out_specs=out_specs, check_vma=False))(array)
for value in (*results, jax.jit(lambda x: x @ x.T)(array)):
    say("value", multihost_utils.process_allgather(value, tiled=True).tolist())
multihost_utils.sync_global_devices("here")
say("value", multihost_utils.process_allgather(np.array([rank, 10])).tolist())
say("value", multihost_utils.broadcast_one_to_all(np.array([7.0 + rank])).tolist())
replicated = jax.device_put(array, NamedSharding(mesh, P()))
say("value", array.is_fully_addressable, replicated.is_fully_replicated, np.asarray(replicated).sum())
jax.distributed.shutdown()
"""
)


@pytest.mark.full
def test_helpers_of_jax_for_several_hosts(start_job: StartJob) -> None:
    x = np.arange(12, dtype="f4").reshape(4, 3)
    for lines in start_job(2, HELPERS).succeed():
        values = [line.partition(" ")[2] for line in lines if line.startswith("value ")]
        assert values == [
            str(x[[2, 3, 0, 1]].tolist()),
            "[11.0]",
            str([0.0, 3.0, 6.0, 9.0] * 2),
            "[0, 1]",
            str((x @ x.T).tolist()),
            "[[0, 10], [1, 10]]",
            "[7.0]",
            "False True 66.0",
        ]


@pytest.mark.full
@pytest.mark.parametrize("device", ["reference", "worker:reference", "worker:cpu", "scaffold"])
def test_psum_over_two_processes(start_job: StartJob, tmp_path: Path, device: str) -> None:
    if device == "scaffold":
        subprocess.run([sys.executable, "-m", "pjrt", "new-plugin", "mychip"], cwd=tmp_path, check=True)
        device = f"{tmp_path}/mychip/src/mychip/__init__.py:make_client"
    job = start_job(2, SUM)
    for process in job.processes:
        process.say(device)
    for process in job.processes:
        line = process.hear("sum ")
        assert line.partition("sum ")[2] == "4 [0, 0, 1, 1] [[18.0, 22.0, 26.0]]"
    job.succeed()
    for process in job.processes:
        assert not any("WatchTasksAsync" in line for line in process.errors)  # a warning of jaxlib's about the end


@pytest.mark.parametrize(
    ("device", "count"),
    [
        pytest.param("reference", 4, marks=pytest.mark.full),
        pytest.param("cpu", 2, marks=pytest.mark.heavy),  # XLA compiles in each for seconds
    ],
)
def test_a_transformer_trains_on_several_processes_with_the_losses_of_one(
    start_job: StartJob, device: str, count: int
) -> None:
    alone = subprocess.run(
        [sys.executable, TRANSFORMER, device, "8"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    of_each = 8 // count
    run = QUIET + f"import runpy; sys.argv[1:] = [{device!r}, '{of_each}', address, str(count), str(rank)]\n"
    run += f"runpy.run_path({str(TRANSFORMER)!r}, run_name='__main__')"
    outputs = start_job(count, run).succeed(280)
    expected = losses(alone)
    assert expected[-1] < expected[0] - 0.2
    for output in outputs:
        assert f"devices 8 {of_each}" in output
        np.testing.assert_allclose(losses(output), expected, rtol=1e-5)


def losses(lines: list[str]) -> list[float]:
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]


@pytest.mark.full
def test_jax_says_that_it_takes_no_part_in_a_job_of_this_package(start_job: StartJob) -> None:
    """Only if the job has several processes, and JAX is in no job of its own."""
    source = """
import logging
logging.getLogger("pjrt").addHandler(logging.StreamHandler(sys.stdout))
initialize()
import jax
from pjrt.frameworks import jax_plugin
say("processes", jax.process_count())
distributed.shutdown()
jax_plugin.initialize()
say("left")
"""
    for rank, lines in enumerate(start_job(2, source).succeed()):
        (warning,) = (line for line in lines if "JAX" in line)
        assert warning.startswith(
            f"process {rank} of 2 is in a job of pjrt.distributed.initialize, and JAX takes no part"
        )
        assert f"call jax.distributed.initialize(address, 2, {rank}) in its place" in warning
        assert lines[-2:] == ["processes 1", "left"]
