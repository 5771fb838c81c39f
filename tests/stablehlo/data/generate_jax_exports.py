"""Write a file of ``jax.export`` with the installed JAX into this folder. Tests read the files of several versions.

Run it with a JAX of each version: ``pip install jax==0.6.2 flatbuffers absl-py`` in an environment of its own.
"""

import os
from pathlib import Path

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

try:
    from jax import export
except ImportError:  # before 0.4.30
    from jax.experimental import export

jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")  # no folders of this machine in locations


def step(state, x, scale):
    """Use two of three arguments in a nested structure, and two axes of a mesh."""
    return {"y": jnp.sin(x) * scale, "n": (state["count"] + 1, None)}


mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
cut = NamedSharding(mesh, PartitionSpec("y", ("x",)))
whole = NamedSharding(mesh, PartitionSpec())
state = {"count": jax.ShapeDtypeStruct((), np.int32), "unused": jax.ShapeDtypeStruct((3,), jnp.bfloat16)}
jitted = jax.jit(step, in_shardings=(whole, cut, whole))
arguments = (state, jax.ShapeDtypeStruct((8, 4), np.float32), jax.ShapeDtypeStruct((), np.float32))
try:
    exported = export.export(jitted, platforms=("cpu", "tpu"))(*arguments)
except TypeError:  # before 0.4.30
    exported = export.export(jitted, lowering_platforms=("cpu", "tpu"))(*arguments)
code = exported.serialize() if hasattr(exported, "serialize") else export.serialize(exported)
Path(__file__).with_name(f"jax_{jax.__version__}.export").write_bytes(code)
print(jax.__version__, len(code))
