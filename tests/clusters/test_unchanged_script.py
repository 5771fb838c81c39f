"""A script of JAX that knows nothing of this package, and trains on a cluster that its environment names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

TRANSFORMER = Path(__file__).parents[2] / "examples" / "transformer" / "transformer.py"
LOSSES = [3.4722769, 3.5147419, 3.1408205, 3.0283976]
"""The losses of eight ``cpu`` devices of one process, and of JAX's own CPU backend."""


def run(*arguments: str, num_devices: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with JAX on a cluster of two hosts."""
    environment = {
        **os.environ,
        "PJRT_JAX_DEVICES": "cluster",
        "PJRT_OPTIONS_CLUSTER": f"hosts=2;num_devices={num_devices};logs=hide",
        "JAX_PLATFORMS": "cluster",
        **variables,
    }
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.mark.heavy
def test_the_losses_are_those_of_one_process() -> None:
    assert "pjrt" not in TRANSFORMER.read_text().replace("``pjrt launch``", "")
    done = run(str(TRANSFORMER), num_devices=4)
    losses = [float(line.removeprefix("loss ")) for line in done.stdout.splitlines()]
    assert losses == pytest.approx(LOSSES, rel=1e-5)


SUM_OF_ALL = """
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
mesh = jax.make_mesh((2,), ("host",))
x = jax.device_put(np.arange(4.0), NamedSharding(mesh, PartitionSpec("host")))
print(float(jax.jit(lambda v: (v * v).sum())(x)), len(hits))
"""


@pytest.mark.full
def test_a_second_run_takes_its_programs_from_the_cache_of_jax(tmp_path: Path) -> None:
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    runs = [run("-c", SUM_OF_ALL, num_devices=1, **cache) for _ in range(2)]
    assert [done.stdout.split() for done in runs] == [["14.0", "0"], ["14.0", "1"]]
