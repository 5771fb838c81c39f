"""Write files of ``jax.export``: ``python exported_models.py FOLDER``, in a process with eight devices of JAX."""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P


def step() -> export.Exported:
    """A step of a language model with a cache: sharded over 4 × 2 devices, of any batch, with a donated cache."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def run(params: Any, tokens: Any, cache: Any, *, scale: Any) -> Any:
        hidden = params["embedding"][tokens] @ params["w"]
        keys = cache["k"] + hidden[:, None, :] * scale
        return jnp.tanh(keys).sum(1), {"k": keys, "count": cache["count"] + 1}

    def spec(shape: Any, dtype: Any, *axes: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*axes)))

    (batch,) = export.symbolic_shape("b", constraints=["mod(b, 4) == 0"])
    cache = {"k": spec((batch, 5, 16), np.float32, "data", None, "model"), "count": spec((), np.int32)}
    out = (NamedSharding(mesh, P("data", "model")), jax.tree.map(lambda leaf: leaf.sharding, cache))
    function = jax.jit(run, donate_argnames=("cache",), out_shardings=out)
    return export.export(function, platforms=["cpu", "tpu"])(
        {"embedding": spec((32, 8), np.float32), "w": spec((8, 16), np.float32, None, "model")},
        spec((batch,), np.int32, "data"),
        cache,
        scale=spec((), np.float32),
    )


class State(NamedTuple):
    """A node of a type that the reader does not know."""

    mean: Any
    count: Any


export.register_namedtuple_serialization(State, serialized_name="State")


def nested() -> export.Exported:
    """Arguments and results of every kind of node; an argument that is not needed."""

    def run(pair: Any, state: Any, unused: Any, nothing: Any, *, options: Any) -> Any:
        first, (second, third) = pair
        total = first + second + third * options["factor"]
        return {"total": total, "state": State(state.mean + total, state.count + 1), "none": None, "list": [first]}

    scalar = jax.ShapeDtypeStruct((), np.float32)
    pair = (scalar, [scalar, scalar])
    return export.export(jax.jit(run))(
        pair,
        State(scalar, scalar),
        jax.ShapeDtypeStruct((7,), np.int8),
        None,
        options={"factor": scalar, "other": scalar},
    )


@functools.partial(jax.tree_util.register_dataclass, data_fields=["w", "b"], meta_fields=[])
@dataclasses.dataclass
class Layer:
    """A node whose file does not state the names of its fields."""

    w: Any
    b: Any


export.register_pytree_node_serialization(
    Layer, serialized_name="Layer", serialize_auxdata=lambda _: b"", deserialize_auxdata=lambda _: ()
)


def fields() -> export.Exported:
    """Arguments and results with fields; several platforms; a dynamic size."""

    def run(layer: Any, x: Any) -> Any:
        return {"layer": layer, "y": x * layer.w + layer.b}

    (size,) = export.symbolic_shape("n")
    scalar = jax.ShapeDtypeStruct((), np.float32)
    return export.export(jax.jit(run), platforms=["cpu", "tpu"])(
        Layer(scalar, scalar), jax.ShapeDtypeStruct((size,), np.float32)
    )


def platforms() -> export.Exported:
    """A program whose part for the TPU would not compile elsewhere."""

    def run(x: Any) -> Any:
        return lax.platform_dependent(x, tpu=lambda y: y * 3, cpu=lambda y: jnp.linalg.cholesky(y), cuda=lambda y: y)

    return export.export(jax.jit(run), platforms=["tpu", "cpu", "cuda"])(jax.ShapeDtypeStruct((2, 2), np.float32))


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    for make in (step, nested, fields, platforms):
        (Path(sys.argv[1]) / f"{make.__name__}.jax").write_bytes(make().serialize())
