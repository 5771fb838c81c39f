"""A job of two processes that saves an array by rows and restores it by columns: a part of ``orbax_job.py``.

    pjrt launch -n 2 tests/frameworks/orbax_processes.py DEVICE FOLDER

Each process writes its columns to ``FOLDER/PROCESS.npy``.
"""

from __future__ import annotations

import os
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
from framework_jobs import JAX_CPU
from jax.sharding import NamedSharding, PartitionSpec

import pjrt


def main(device: str, folder: str) -> None:
    """Save and restore."""
    if device == JAX_CPU:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", 4)
    else:
        jax.config.update("jax_platforms", pjrt.frameworks.jax.register(device, platform="mine", num_devices=4))
    process = int(os.environ["PJRT_PROCESS_INDEX"])
    jax.distributed.initialize(os.environ["PJRT_COORDINATOR_ADDRESS"], 2, process)
    mesh = jax.make_mesh((8,), ("devices",))
    by_rows, by_columns = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (["devices"], [None, "devices"]))
    values = np.arange(64, dtype=np.float32).reshape(8, 8)
    array = jax.make_array_from_callback(values.shape, by_rows, values.__getitem__)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/checkpoint", {"array": array})
        checkpointer.wait_until_finished()
        like = jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=by_columns)
        restored = checkpointer.restore(f"{folder}/checkpoint", {"array": like})["array"]
    columns = {shard.index[1].start: np.asarray(shard.data) for shard in restored.addressable_shards}
    assert sorted(columns) == [4 * process + n for n in range(4)]
    np.save(f"{folder}/{process}.npy", np.concatenate([columns[start] for start in sorted(columns)], 1))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
