"""A sentence encoder of the shape of all-MiniLM-L6-v2, in JAX and as an ONNX graph with the same 101 weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LAYERS, WIDTH, HEADS, INNER, VOCABULARY, POSITIONS = 6, 384, 12, 1536, 30522, 512

Weights = dict[str, Any]


def weights(seed: int = 0) -> Weights:
    """Random weights, all float32, nested as frameworks nest them."""
    rng = np.random.default_rng(seed)

    def dense(rows: int, columns: int) -> dict[str, np.ndarray]:
        kernel = rng.normal(0, rows**-0.5, (rows, columns)).astype(np.float32)
        return {"kernel": kernel, "bias": rng.normal(0, 0.02, columns).astype(np.float32)}

    def norm() -> dict[str, np.ndarray]:
        return {"scale": np.ones(WIDTH, np.float32), "bias": np.zeros(WIDTH, np.float32)}

    def embedding(rows: int) -> np.ndarray:
        return rng.normal(0, 0.05, (rows, WIDTH)).astype(np.float32)

    layers = {
        str(number): {
            **{name: dense(WIDTH, WIDTH) for name in ("query", "key", "value", "out")},
            "attention_norm": norm(),
            "up": dense(WIDTH, INNER),
            "down": dense(INNER, WIDTH),
            "norm": norm(),
        }
        for number in range(LAYERS)
    }
    words, positions, kinds = embedding(VOCABULARY), embedding(POSITIONS), embedding(2)
    return {"words": words, "positions": positions, "kinds": kinds, "norm": norm(), "layers": layers}


def tokens(batch: int, length: int, seed: int = 1) -> dict[str, np.ndarray]:
    """Random sentences: the ids of words, s32[batch, length], and a mask that leaves out the end of some."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY, (batch, length), dtype=np.int32)
    lengths = rng.integers(length // 2, length + 1, (batch, 1))
    return {"ids": ids, "mask": (np.arange(length) < lengths).astype(np.float32)}


def encode(weights: Weights, ids: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the mean of each sentence's words, f32[batch, WIDTH]."""
    batch, length = ids.shape
    x = weights["words"][ids] + weights["positions"][:length] + weights["kinds"][0]
    x = _norm(weights["norm"], x)
    hidden = (1.0 - mask[:, None, None, :]) * -1e9
    for number in range(LAYERS):
        layer = weights["layers"][str(number)]
        query, key, value = (
            _dense(layer[name], x).reshape(batch, length, HEADS, -1) for name in ("query", "key", "value")
        )
        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) * (WIDTH // HEADS) ** -0.5
        attended = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores + hidden), value)
        x = _norm(layer["attention_norm"], x + _dense(layer["out"], attended.reshape(x.shape)))
        x = _norm(layer["norm"], x + _dense(layer["down"], jax.nn.gelu(_dense(layer["up"], x), approximate=False)))
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)


def _dense(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    return x @ weights["kernel"] + weights["bias"]


def _norm(weights: Mapping[str, jax.Array], x: jax.Array) -> jax.Array:
    centered = x - x.mean(-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.mean(centered * centered, -1, keepdims=True) + 1e-12)
    return centered * scale * weights["scale"] + weights["bias"]


def onnx_model(weights: Weights) -> bytes:
    """Return the encoder as an ONNX model for any batch and length, of the operations that exporters write."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[Any] = []
    constants: list[Any] = []

    def constant(value: Any, name: str = "") -> str:
        name = name or f"constant_{len(constants)}"
        constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, list(inputs), [f"value_{len(nodes)}"], **attributes))
        name: str = nodes[-1].output[0]
        return name

    def dense(own: Mapping[str, np.ndarray], x: str) -> str:
        return add("Add", add("MatMul", x, constant(own["kernel"])), constant(own["bias"]))

    def norm(own: Mapping[str, np.ndarray], x: str) -> str:
        return add("LayerNormalization", x, constant(own["scale"]), constant(own["bias"]), axis=-1, epsilon=1e-12)

    def heads(x: str, order: list[int]) -> str:
        split = constant(np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return add("Transpose", add("Reshape", x, split), perm=order)

    def gelu(x: str) -> str:
        erf = add("Erf", add("Div", x, constant(np.float32(2**0.5))))
        return add("Mul", add("Mul", x, add("Add", erf, constant(np.float32(1)))), constant(np.float32(0.5)))

    length = add("Shape", "ids", start=1, end=2)
    positions = add("Slice", constant(weights["positions"]), constant(np.array([0])), length, constant(np.array([0])))
    x = add("Add", add("Gather", constant(weights["words"]), "ids"), positions)
    x = norm(weights["norm"], add("Add", x, constant(weights["kinds"][0])))
    inner = add("Unsqueeze", "mask", constant(np.array([1, 2])))
    hidden = add("Mul", add("Sub", constant(np.float32(1)), inner), constant(np.float32(-1e9)))
    for number in range(LAYERS):
        layer = weights["layers"][str(number)]
        query, value = (heads(dense(layer[name], x), [0, 2, 1, 3]) for name in ("query", "value"))
        key = heads(dense(layer["key"], x), [0, 2, 3, 1])
        scores = add("Mul", add("MatMul", query, key), constant(np.float32((WIDTH // HEADS) ** -0.5)))
        attended = add("MatMul", add("Softmax", add("Add", scores, hidden), axis=-1), value)
        joined = constant(np.array([0, 0, WIDTH], np.int64))
        attended = add("Reshape", add("Transpose", attended, perm=[0, 2, 1, 3]), joined)
        x = norm(layer["attention_norm"], add("Add", x, dense(layer["out"], attended)))
        x = norm(layer["norm"], add("Add", x, dense(layer["down"], gelu(dense(layer["up"], x)))))
    outer, axis = add("Unsqueeze", "mask", constant(np.array([2]))), constant(np.array([1]))
    total = add("ReduceSum", add("Mul", x, outer), axis, keepdims=0)
    nodes.append(helper.make_node("Div", [total, add("ReduceSum", "mask", axis, keepdims=1)], ["sentence"]))
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT32, ["batch", "length"]),
        helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", "length"]),
    ]
    output = helper.make_tensor_value_info("sentence", TensorProto.FLOAT, ["batch", WIDTH])
    graph = helper.make_graph(nodes, "encoder", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    serialized: bytes = model.SerializeToString()
    return serialized
