"""JAX on devices of several processes, as ``jax.distributed`` starts them. Nothing but the registration is ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from job_fixtures import StartJob

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


@pytest.mark.parametrize("device", ["reference", "scaffold"])
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


def test_a_transformer_trains_on_four_processes_with_the_losses_of_one(start_job: StartJob) -> None:
    alone = subprocess.run(
        [sys.executable, TRANSFORMER, "reference", "8"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    run = "import runpy; sys.argv[1:] = ['reference', '2', address, str(count), str(rank)]\n"
    run += f"runpy.run_path({str(TRANSFORMER)!r}, run_name='__main__')"
    outputs = start_job(4, run).succeed(110)
    expected = losses(alone)
    assert expected[-1] < expected[0] - 0.2
    for output in outputs:
        assert "devices 8 2" in output
        np.testing.assert_allclose(losses(output), expected, rtol=1e-5)


def losses(lines: list[str]) -> list[float]:
    return [float(line.split()[1]) for line in lines if line.startswith("loss ")]
