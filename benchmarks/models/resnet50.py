"""ResNet-50 inference: 53 convolutions with batch normalization from running statistics, 25.6 million weights, NHWC."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # bottleneck width and blocks of each stage
CLASSES = 1000

Weights = dict[str, Any]


def weights(seed: int = 0) -> Weights:
    """Random weights (He initialization) and running statistics, in float32."""
    rng = np.random.default_rng(seed)
    tree: Weights = {"stem": _convolution(rng, 7, 3, 64)}
    channels = 64
    for stage, (width, blocks) in enumerate(STAGES):
        for block in range(blocks):
            layers = {
                "reduce": _convolution(rng, 1, channels, width),
                "spatial": _convolution(rng, 3, width, width),
                "expand": _convolution(rng, 1, width, 4 * width),
            }
            if block == 0:
                layers["shortcut"] = _convolution(rng, 1, channels, 4 * width)
            tree[f"stage{stage}.block{block:02}"] = layers
            channels = 4 * width
    tree["dense"] = {
        "kernel": rng.normal(0, channels**-0.5, (channels, CLASSES)).astype(np.float32),
        "bias": np.zeros(CLASSES, np.float32),
    }
    return tree


def images(batch: int, seed: int = 1) -> np.ndarray:
    """Random images f32[batch, 224, 224, 3]."""
    return np.random.default_rng(seed).normal(size=(batch, 224, 224, 3)).astype(np.float32)


def inference(tree: Weights, x: jax.Array) -> jax.Array:
    """Logits f32[batch, 1000] of images f32[batch, 224, 224, 3]."""
    x = jax.nn.relu(_convolve(tree["stem"], x, stride=2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    for stage, (_, blocks) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _bottleneck(tree[f"stage{stage}.block{block:02}"], x, stride)
    return x.mean(axis=(1, 2)) @ tree["dense"]["kernel"] + tree["dense"]["bias"]


def _convolution(rng: np.random.Generator, size: int, inputs: int, outputs: int) -> dict[str, np.ndarray]:
    deviation = (2 / (size * size * inputs)) ** 0.5
    return {
        "kernel": rng.normal(0, deviation, (size, size, inputs, outputs)).astype(np.float32),
        "scale": np.ones(outputs, np.float32),
        "shift": np.zeros(outputs, np.float32),
        "mean": np.zeros(outputs, np.float32),
        "variance": np.ones(outputs, np.float32),
    }


def _convolve(layer: dict[str, jax.Array], x: jax.Array, stride: int = 1) -> jax.Array:
    """Convolution without a bias, then normalization by the running statistics."""
    x = jax.lax.conv_general_dilated(
        x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    factor = layer["scale"] * jax.lax.rsqrt(layer["variance"] + 1e-5)
    return x * factor + (layer["shift"] - layer["mean"] * factor)


def _bottleneck(layers: dict[str, dict[str, jax.Array]], x: jax.Array, stride: int) -> jax.Array:
    inner = jax.nn.relu(_convolve(layers["reduce"], x))
    inner = jax.nn.relu(_convolve(layers["spatial"], inner, stride))
    inner = _convolve(layers["expand"], inner)
    shortcut = _convolve(layers["shortcut"], x, stride) if "shortcut" in layers else x
    return jax.nn.relu(inner + shortcut)
