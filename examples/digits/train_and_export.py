"""Train a small convolutional classifier on the UCI digits with JAX, and export it for `run.py`.

Everything that `run.py` needs is written beside this file:

- `digits.stablehlo`: the inference program, a StableHLO portable artifact whose weights are arguments;
- `weights.npz`: the trained weights, one array a name, in the order of the program's arguments;
- `images.npy`, `labels.npy`: the held-out digits, which training never saw.

Needs `pip install jax scikit-learn`. One fixed seed rules all chance, so one machine gives the same weights twice.
"""

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib.mlir.dialects import stablehlo
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

Weights = dict[str, jax.Array]

SEED = 0
HELD_OUT = 360
EPOCHS = 30
BATCH = 32
LEARNING_RATE = 2e-3

# The first release of StableHLO with a compatibility promise of years. Nothing in this program is newer,
# so it is written down to that version, and every compiler that reads StableHLO 1.x takes the file.
STABLEHLO_VERSION = "1.0.0"


def initial_weights(key: jax.Array) -> Weights:
    """Return He-initialized kernels and zero biases; the names sort in the order in which the program takes them."""
    shapes = {"conv1": (3, 3, 1, 16), "conv2": (3, 3, 16, 32), "dense": (4 * 4 * 32, 10)}
    weights: Weights = {}
    for layer_key, (layer, shape) in zip(jax.random.split(key, len(shapes)), shapes.items(), strict=True):
        fan_in = np.prod(shape[:-1])
        weights[f"{layer}.kernel"] = jax.random.normal(layer_key, shape) * np.sqrt(2 / fan_in)
        weights[f"{layer}.bias"] = jnp.zeros(shape[-1])
    return weights


def classify(weights: Weights, images: jax.Array) -> jax.Array:
    """Return the scores f32[n, 10] of the ten digits for images u8[n, 8, 8] whose pixels are 0 (paper) to 16 (ink)."""
    x = images[..., None].astype(jnp.float32) / 16
    for layer in ("conv1", "conv2"):
        x = jax.lax.conv_general_dilated(
            x, weights[f"{layer}.kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x + weights[f"{layer}.bias"])
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    return x.reshape(len(x), -1) @ weights["dense.kernel"] + weights["dense.bias"]


def loss(weights: Weights, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean cross-entropy of a batch."""
    log_probabilities = jax.nn.log_softmax(classify(weights, images))
    return -jnp.take_along_axis(log_probabilities, labels[:, None], axis=1).mean()


@functools.partial(jax.jit, donate_argnums=(0, 1, 2))
def train_step(
    weights: Weights, first: Weights, second: Weights, step: jax.Array, images: jax.Array, labels: jax.Array
) -> tuple[Weights, Weights, Weights]:
    """Do one step of Adam; return the new weights and the two running moments of the gradient."""
    gradient = jax.grad(loss)(weights, images, labels)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, gradient)
    second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, gradient)
    scale = LEARNING_RATE * jnp.sqrt(1 - 0.999**step) / (1 - 0.9**step)
    weights = jax.tree.map(lambda w, m, v: w - scale * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
    return weights, first, second


def batches(
    rng: np.random.Generator, images: np.ndarray, labels: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield one epoch in random order, each image moved by up to one pixel so that the position matters less."""
    order = rng.permutation(len(images))
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        padded = np.pad(images[chosen], ((0, 0), (1, 1), (1, 1)))
        down, right = rng.integers(0, 3, size=2)
        yield padded[:, down : down + 8, right : right + 8], labels[chosen]


def train(images: np.ndarray, labels: np.ndarray) -> Weights:
    """Return the weights after `EPOCHS` passes over the training digits."""
    weights = initial_weights(jax.random.key(SEED))
    first, second = jax.tree.map(jnp.zeros_like, weights), jax.tree.map(jnp.zeros_like, weights)
    rng = np.random.default_rng(SEED)
    step = 0
    for _ in range(EPOCHS):
        for some_images, some_labels in batches(rng, images, labels):
            step += 1
            weights, first, second = train_step(weights, first, second, step, some_images, some_labels)
    return weights


def export(weights: Weights, images: np.ndarray) -> bytes:
    """Return the inference program for images of this shape: a portable artifact of `STABLEHLO_VERSION`."""
    jax.config.update("jax_traceback_in_locations_limit", 0)  # names of arguments, not the paths of this machine
    module = jax.jit(classify).lower(weights, images).compiler_ir("stablehlo")
    with module.context:
        return bytes(stablehlo.serialize_portable_artifact(module, STABLEHLO_VERSION))


def main() -> None:
    """Train, print the accuracy, and write the four files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder to write the files to")
    output: Path = parser.parse_args().output

    digits = load_digits()
    train_images, images, train_labels, labels = train_test_split(
        digits.images.astype(np.uint8),
        digits.target.astype(np.int32),
        test_size=HELD_OUT,
        random_state=SEED,
        stratify=digits.target,
    )
    weights = train(train_images, train_labels)
    accuracy = np.mean(np.argmax(classify(weights, images), axis=1) == labels)
    print(f"accuracy on the {HELD_OUT} held-out digits: {accuracy:.4f}")

    output.mkdir(parents=True, exist_ok=True)
    (output / "digits.stablehlo").write_bytes(export(weights, images))
    np.savez(output / "weights.npz", **{name: np.asarray(weights[name]) for name in sorted(weights)})
    np.save(output / "images.npy", images)
    np.save(output / "labels.npy", labels)


if __name__ == "__main__":
    main()
