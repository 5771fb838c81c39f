"""Orbax: sharded checkpoints of eight devices, restored with another sharding, between devices, and by steps."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from framework_jobs import JAX_CPU, Results, part
from jax.sharding import Mesh, NamedSharding, PartitionSpec

FOLDER = Path(os.environ["JOB_FOLDER"])
"""A folder with the checkpoint of JAX's own CPU backend, whose job comes first."""

RESTORE_ON_JAX = """
import sys
import jax
import numpy as np
import orbax.checkpoint as ocp
assert "pjrt" not in sys.modules
jax.config.update("jax_platforms", "cpu")
cpu = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
like = jax.ShapeDtypeStruct((8, 8), np.float32, sharding=cpu)
with ocp.PyTreeCheckpointer() as checkpointer:
    args = ocp.args.PyTreeRestore({"weights": like}, partial_restore=True,
        restore_args=ocp.checkpoint_utils.construct_restore_args({"weights": like}))
    np.save(sys.argv[2], checkpointer.restore(sys.argv[1], args=args)["weights"])
"""


def tree() -> dict[str, Any]:
    """Return arrays that are divided among eight devices in several ways, and other values."""
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"))

    def place(array: Any, *axes: str | None) -> jax.Array:
        return jax.device_put(array, NamedSharding(mesh, PartitionSpec(*axes)))

    return {
        "weights": place(np.arange(64, dtype=np.float32).reshape(8, 8), "x", "y"),
        "columns": place(np.arange(16, dtype=np.int32).reshape(2, 8), None, "y"),
        "everywhere": place(np.arange(3.0, dtype=np.float16)),
        "halves": jax.device_put(jnp.ones(8, jnp.bfloat16)),
        "step": 3,
    }


def in_rows(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the description of a tree whose arrays of eight rows are divided by rows."""
    mesh = jax.make_mesh((8,), ("rows",))

    def describe(value: Any) -> Any:
        if not hasattr(value, "shape"):
            return value
        spec = PartitionSpec("rows") if value.shape[0] % 8 == 0 else PartitionSpec()
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=NamedSharding(mesh, spec))

    return jax.tree.map(describe, tree)


def values(tree: dict[str, Any]) -> Results:
    return {name: np.asarray(value, np.float64) for name, value in tree.items()}


@part(tolerance=0)
def another_sharding() -> Results:
    saved = tree()
    with tempfile.TemporaryDirectory() as folder, ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(f"{folder}/tree", saved)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(f"{folder}/tree", in_rows(saved))
    assert restored["weights"].sharding.spec == PartitionSpec("rows")
    assert [shard.data.shape for shard in restored["weights"].addressable_shards] == [(1, 8)] * 8
    return values(restored)


@part(tolerance=0)
def steps() -> Results:
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with tempfile.TemporaryDirectory() as folder, ocp.CheckpointManager(folder, options=options) as manager:
        state = tree()
        for step in range(4):
            manager.save(step, args=ocp.args.StandardSave(state))
            state = jax.tree.map(lambda value: value + 1, state)
        manager.wait_until_finished()
        kept = manager.all_steps()
        restored = manager.restore(3, args=ocp.args.StandardRestore(in_rows(tree())))
    return values(restored) | {"kept": np.array(kept)}


@part(tolerance=0)
def between_devices() -> Results:
    """Restore what JAX's own CPU backend saved, and restore there, without this package, what is saved here."""
    name = jax.devices()[0].client.platform_version + jax.default_backend()
    checkpoint = FOLDER / "".join(filter(str.isalnum, name))
    saved = tree()
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(checkpoint, saved)
        checkpointer.wait_until_finished()
        of_jax = FOLDER / f"checkpoint of {JAX_CPU}"
        if not of_jax.exists():
            of_jax.symlink_to(checkpoint)
        restored = checkpointer.restore(of_jax.resolve(), in_rows(saved))
    target = FOLDER / f"{checkpoint.name}.npy"
    subprocess.run([sys.executable, "-c", RESTORE_ON_JAX, checkpoint, target], check=True, env=without_platforms())
    return values(restored) | {"restored by JAX's CPU": np.load(target)}


def without_platforms() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}


@part(tolerance=0)
def two_processes() -> Results:
    target = os.environ.get("JOB_TARGET", JAX_CPU)
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pjrt", "launch", "-n", "2", str(PROCESSES), target, folder]
        done = subprocess.run(command, capture_output=True, text=True, env=without_platforms(), timeout=300)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
        return {"columns": np.concatenate([np.load(f"{folder}/{process}.npy") for process in range(2)], 1)}


PROCESSES = Path(__file__).with_name("orbax_processes.py")
