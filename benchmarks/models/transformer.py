"""One training step of a decoder-only transformer: loss, gradient and Adam, 4 layers, 5.3 million weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH = 4, 256, 8, 4096, 128
LEARNING_RATE = 3e-4

State = dict[str, Any]  # weights, the two moments of Adam, and the number of the step


def state(seed: int = 0) -> State:
    """Random weights, moments of zero, step 0; all float32 but for the step."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)

    def layer() -> dict[str, np.ndarray]:
        return {
            "attention.scale": np.ones(WIDTH, np.float32),
            "query_key_value": matrix(WIDTH, 3 * WIDTH),
            "attention.out": matrix(WIDTH, WIDTH),
            "mlp.scale": np.ones(WIDTH, np.float32),
            "mlp.in": matrix(WIDTH, 4 * WIDTH),
            "mlp.out": matrix(4 * WIDTH, WIDTH),
        }

    weights = {
        "embedding": matrix(VOCABULARY, WIDTH),
        "position": matrix(LENGTH, WIDTH),
        "out": matrix(WIDTH, VOCABULARY),
        "layers": [layer() for _ in range(LAYERS)],
    }
    zeros = jax.tree.map(np.zeros_like, weights)
    return {"weights": weights, "first": zeros, "second": jax.tree.map(np.copy, zeros), "step": np.zeros((), np.int32)}


def tokens(batch: int, seed: int = 1) -> np.ndarray:
    """Random text: s32[batch, LENGTH + 1], each row the input and, one later, what to predict."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, (batch, LENGTH + 1), dtype=np.int32)


def train_step(old: State, text: jax.Array) -> tuple[State, jax.Array]:
    """The state after one step of Adam on this text, and the loss before it."""
    value, gradient = jax.value_and_grad(loss)(old["weights"], text)
    step = old["step"] + 1
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, old["first"], gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, old["second"], gradient)
    rate = LEARNING_RATE * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), old["weights"], first, second)
    return {"weights": weights, "first": first, "second": second, "step": step}, value


def loss(weights: dict[str, Any], text: jax.Array) -> jax.Array:
    """The mean cross-entropy of predicting each token from those before it."""
    x = weights["embedding"][text[:, :-1]] + weights["position"]
    for layer in weights["layers"]:
        x = x + _attention(layer, _normalize(x, layer["attention.scale"]))
        x = x + jax.nn.gelu(_normalize(x, layer["mlp.scale"]) @ layer["mlp.in"]) @ layer["mlp.out"]
    log_probabilities = jax.nn.log_softmax(x @ weights["out"])
    return -jnp.take_along_axis(log_probabilities, text[:, 1:, None], axis=-1).mean()


def _normalize(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * scale


def _attention(layer: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Causal self-attention with `HEADS` heads."""
    batch, length, width = x.shape
    heads = (x @ layer["query_key_value"]).reshape(batch, length, 3, HEADS, width // HEADS)
    query, key, value = (heads[:, :, i] for i in range(3))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (width // HEADS) ** -0.5
    causal = jnp.tril(jnp.ones((length, length), bool))
    attended = jax.nn.softmax(jnp.where(causal, scores, -jnp.inf)) @ value.swapaxes(1, 2)
    return attended.swapaxes(1, 2).reshape(batch, length, width) @ layer["attention.out"]
