"""Train a small convolutional network of Keras on handwritten digits, with TensorFlow on any PJRT device.

    pip install "tensorflow-cpu==2.21.*" scikit-learn ".[xla]"
    python examples/tensorflow_digits/train.py                    # on the reference interpreter
    python examples/tensorflow_digits/train.py cpu                # or on another device, or a plugin's library

The digits are the 1,797 images that scikit-learn brings along. A fixed fifth of them is held out.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import pjrt

EPOCHS = 6
BATCH = 64


def network(keras: Any) -> Any:
    """Return the network, for images f32[n, 8, 8, 1]; it gives scores f32[n, 10]."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(10),
        ]
    )


def train(device: str) -> float:
    """Train on a device of TensorFlow, such as ``REFERENCE:0``; return the accuracy on the digits held out."""
    import keras
    import tensorflow as tf

    digits = load_digits()
    images = digits.images[..., None].astype(np.float32) / 16
    x, x_held_out, y, y_held_out = train_test_split(
        images, digits.target, test_size=0.2, random_state=0, stratify=digits.target
    )
    keras.utils.set_random_seed(0)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(len(x), seed=0).batch(BATCH, drop_remainder=True)
    with tf.device(device):
        model = network(keras)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"], jit_compile=True)
        model.fit(data, epochs=EPOCHS, shuffle=False, verbose=2)  # it is shuffled already
        accuracy = model.evaluate(x_held_out, y_held_out, batch_size=BATCH, verbose=0)[1]
    return float(accuracy)


if __name__ == "__main__":
    name = pjrt.frameworks.tensorflow.register(sys.argv[1] if len(sys.argv) > 1 else "reference")
    begin = time.perf_counter()
    print(f"training on {name}")
    print(f"accuracy on the digits held out: {train(f'{name}:0'):.3f}, {time.perf_counter() - begin:.0f} s")
