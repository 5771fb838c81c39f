"""Write a step of a language model, and inputs and results of two steps: ``python language_model.py FOLDER``.

The step is a small transformer with a cache of keys and values. It is sharded over 4 × 2 devices, takes any batch that
four divides, donates its cache, and is exported for CPUs and TPUs. The results are JAX's own, on eight devices.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

LAYERS, VOCABULARY, WIDTH, HEADS, HEAD, LENGTH = 2, 32, 16, 4, 4, 8
BATCH = 8


def normalized(x: Any, scale: Any) -> Any:
    """Return the root-mean-square normalization of the last dimension."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(layer: Any, x: Any, cache: Any, position: Any) -> tuple[Any, Any]:
    """Return the attention of one token to those before it, and the cache with this token."""
    query, key, value = (jnp.einsum("bw,whd->bhd", x, layer[name]) for name in ("query", "key", "value"))
    keys = jax.lax.dynamic_update_slice_in_dim(cache["keys"], key[:, None], position, 1)
    values = jax.lax.dynamic_update_slice_in_dim(cache["values"], value[:, None], position, 1)
    scores = jnp.einsum("bhd,bthd->bht", query, keys) / np.sqrt(HEAD)
    weights = jax.nn.softmax(jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf))
    attended = jnp.einsum("bht,bthd->bhd", weights, values)
    return jnp.einsum("bhd,hdw->bw", attended, layer["out"]), {"keys": keys, "values": values}


def step(params: Any, tokens: Any, cache: Any) -> tuple[Any, Any]:
    """Return the logits of the next token of each sequence, and the cache."""
    position, layers = cache["position"], []
    x = params["embedding"][tokens]
    for layer, past in zip(params["layers"], cache["layers"], strict=True):
        attended, present = attention(layer, normalized(x, layer["scale"]), past, position)
        layers.append(present)
        x = x + attended
        x = x + jax.nn.silu(x @ layer["up"]) @ layer["down"]
    return x @ params["embedding"].T, {"layers": layers, "position": position + 1}


def main(folder: Path) -> None:
    """Write the exported step, the weights, the tokens and caches, and the results of two steps."""
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    heads = {"query": P(None, "model", None), "key": P(None, "model", None), "value": P(None, "model", None)}
    layer_specs = {**heads, "out": P("model"), "up": P(None, "model"), "down": P("model"), "scale": P()}
    param_specs = {"embedding": P(), "layers": [layer_specs] * LAYERS}
    past = P("data", None, "model", None)
    cache_specs = {"layers": [{"keys": past, "values": past}] * LAYERS, "position": P()}

    def placed(specs: Any) -> Any:
        return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, P))

    random = np.random.default_rng(0)

    def weight(*shape: int) -> Any:
        return (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)

    shapes = dict.fromkeys(heads, (WIDTH, HEADS, HEAD))
    shapes |= {"out": (HEADS, HEAD, WIDTH), "up": (WIDTH, 2 * WIDTH), "down": (2 * WIDTH, WIDTH), "scale": (WIDTH,)}
    layers = [{name: weight(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    params = {"embedding": weight(VOCABULARY, WIDTH), "layers": layers}
    zeros = np.zeros((BATCH, LENGTH, HEADS, HEAD), np.float32)
    cache = {"layers": [{"keys": zeros, "values": zeros}] * LAYERS, "position": np.int32(0)}
    tokens = random.integers(0, VOCABULARY, (2, BATCH)).astype(np.int32)

    in_shardings = placed((param_specs, P("data"), cache_specs))
    out_shardings = placed((P("data", "model"), cache_specs))
    function = jax.jit(step, donate_argnames=("cache",), in_shardings=in_shardings, out_shardings=out_shardings)
    scope = export.SymbolicScope(["mod(b, 4) == 0"])

    def spec(leaf: Any, sharding: Any, *, batched: bool) -> Any:
        text = ", ".join(["b", *map(str, leaf.shape[1:])]) if batched and leaf.ndim else ""
        shape = export.symbolic_shape(text, scope=scope) if text else leaf.shape
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

    arguments = [
        jax.tree.map(lambda leaf, sharding, batched=batched: spec(leaf, sharding, batched=batched), value, shardings)
        for value, shardings, batched in zip((params, tokens[0], cache), in_shardings, (False, True, True), strict=True)
    ]
    exported = export.export(function, platforms=["cpu", "tpu"])(*arguments)
    (folder / "step.jax").write_bytes(exported.serialize())
    np.savez(folder / "weights.npz", **named(params, "params"))
    np.savez(folder / "cache.npz", **named(cache, "cache"))
    for number in range(2):
        np.save(folder / f"tokens_{number}.npy", tokens[number])
        results = function(*jax.device_put((params, tokens[number], cache), in_shardings))
        np.savez(folder / f"results_{number}.npz", **named(results, "result"))
        cache = jax.tree.map(np.asarray, results[1])


def named(value: Any, root: str) -> dict[str, Any]:
    """Return the leaves of a nested value by their paths."""
    return {root + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(value)}


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    main(Path(sys.argv[1]))
