"""Write transformers of 8 layers as files of ``jax.export``: ``python layered_models.py FOLDER``.

For each model ``NAME.jax`` is written, and ``NAME.npz`` with its weights and inputs by the names of the parameters and
with the results of JAX as ``result_0``, ….
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export, lax

LAYERS, WIDTH, WORDS, TOKENS = 8, 32, 64, 8
RNG = np.random.default_rng(12)


def array(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[-2] if len(shape) > 1 else 1)).astype(np.float32)


def layers(*stack: int) -> dict[str, np.ndarray]:
    square = {name: array(*stack, WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo")}
    return square | {"up": array(*stack, WIDTH, 4 * WIDTH), "down": array(*stack, 4 * WIDTH, WIDTH)}


def layer(p: Any, x: Any) -> Any:
    x = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
    scores = jax.nn.softmax(x @ p["wq"] @ (x @ p["wk"]).T / np.sqrt(WIDTH).astype(np.float32))
    x = x + scores @ (x @ p["wv"]) @ p["wo"]
    return x + jax.nn.gelu(x @ p["up"]) @ p["down"]


def unrolled() -> tuple[Any, ...]:
    """Each layer has arrays of its own; the embedding is used at both ends."""

    def run(params: Any, tokens: Any) -> Any:
        x = params["embedding"][tokens]
        for p in params["layers"]:
            x = layer(p, x)
        return x @ params["embedding"].T

    return run, {"embedding": array(WORDS, WIDTH), "layers": [layers() for _ in range(LAYERS)]}


def scanned() -> tuple[Any, ...]:
    """A loop over stacked layers, which also returns one value for each."""

    def run(params: Any, tokens: Any) -> Any:
        def body(x: Any, p: Any) -> Any:
            y = layer(p, x)
            return y, y.sum()

        x, sums = lax.scan(body, params["embedding"][tokens], params["layers"])
        return {"logits": x @ params["embedding"].T, "sums": sums}

    return run, {"embedding": array(WORDS, WIDTH), "layers": layers(LAYERS)}


def backwards() -> tuple[Any, ...]:
    """A loop from the last layer to the first, in pairs inside of a loop; weights are converted where they are used."""

    def run(params: Any, tokens: Any) -> Any:
        def two(x: Any, pair: Any) -> Any:
            for index in range(2):
                x = layer(jax.tree.map(lambda w, i=index: w[i].astype(jnp.float32), pair), x)
            return x, None

        pairs = jax.tree.map(lambda w: w.reshape(LAYERS // 2, 2, *w.shape[1:]), params["layers"])
        x, _ = lax.scan(two, params["embedding"][tokens], pairs, reverse=True)
        return x

    half = jax.tree.map(lambda w: w.astype(jnp.bfloat16), layers(LAYERS))
    return run, {"embedding": array(WORDS, WIDTH), "layers": half}


def step() -> tuple[Any, ...]:
    """A step with a donated cache, of a symbolic number of tokens; weights are converted before all else."""

    def run(params: Any, tokens: Any, cache: Any) -> Any:
        params = jax.tree.map(lambda w: w.astype(jnp.float32), params)
        x, kept = params["embedding"][tokens], []
        for p, old in zip(params["layers"], cache["layers"], strict=True):
            kept.append(old * 0.5 + x.sum(0))
            x = layer(p, x + kept[-1])
        return x.sum(1), {"layers": kept, "count": cache["count"] + 1}

    layers_ = [jax.tree.map(lambda w: w.astype(jnp.bfloat16), layers()) for _ in range(LAYERS)]
    cache = {"layers": [array(1, WIDTH)[0] for _ in range(LAYERS)], "count": np.int32(3)}
    return run, {"embedding": array(WORDS, WIDTH), "layers": layers_}, cache


def names(tree: Any, root: str) -> dict[str, np.ndarray]:
    return {
        root + jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def write(folder: Path, make: Any) -> None:
    run, params, *others = make()
    tokens = RNG.integers(0, WORDS, TOKENS).astype(np.int32)
    (size,) = export.symbolic_shape("n") if others else (TOKENS,)
    specs = [
        jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), each) for each in (params, *others)
    ]
    function = jax.jit(run, donate_argnames=("cache",) if others else ())
    exported = export.export(function)(specs[0], jax.ShapeDtypeStruct((size,), np.int32), *specs[1:])
    results = jax.tree.leaves(jax.jit(run)(params, tokens, *others))
    arrays = names(params, "params") | names(tokens, "tokens") | names(others[0] if others else {}, "cache")
    arrays |= {f"result_{index}": np.asarray(result) for index, result in enumerate(results)}
    (folder / f"{make.__name__}.jax").write_bytes(exported.serialize())
    # numpy's files do not have bfloat16: its bits are written.
    bits = {name: value.view(np.uint16) if value.dtype == jnp.bfloat16 else value for name, value in arrays.items()}
    np.savez(folder / f"{make.__name__}.npz", **bits)


if __name__ == "__main__":
    for each in (unrolled, scanned, backwards, step):
        write(Path(sys.argv[1]), each)
