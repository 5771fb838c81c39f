"""Keras 3 on JAX, without TensorFlow: all kinds of layers, saved models, and training on eight devices."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from framework_jobs import Results, part

os.environ["KERAS_BACKEND"] = "jax"

import keras
from keras import layers


@part()
def all_layers() -> Results:
    keras.utils.set_random_seed(1)
    random = np.random.default_rng(0)
    x, y = random.standard_normal((32, 8, 8, 1)).astype(np.float32), random.integers(0, 10, 32)
    image = keras.Input((8, 8, 1))
    h = layers.Conv2D(8, 3, padding="same", activation="relu", use_bias=False)(image)
    h = layers.MaxPooling2D()(layers.BatchNormalization()(h))
    h = layers.Reshape((16, 8))(h)
    h = layers.LayerNormalization()(layers.MultiHeadAttention(2, 4)(h, h) + h)
    h = layers.GRU(8)(layers.LSTM(8, return_sequences=True)(h))
    h = layers.Dense(10, "softmax")(layers.Dropout(0.2)(h))
    model = keras.Model(image, h)
    model.compile(keras.optimizers.AdamW(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, validation_split=0.25).history
    predictions = model.predict(x, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model.keras")
        again = keras.models.load_model(Path(folder) / "model.keras")
    return {
        "losses": history["loss"],
        "validation": history["val_loss"],
        "evaluation": model.evaluate(x, y, verbose=0),
        "predictions": predictions,
        "predictions after loading": again.predict(x, verbose=0),
    }


@part()
def eight_devices() -> Results:
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).uniform(-1, 1, (64, 2)).astype(np.float32)
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        model = keras.Sequential([keras.Input((2,)), layers.Dense(16, "tanh"), layers.Dense(1)])
        model.compile("adam", "mse")
        losses = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
        assert len(model.weights[0].value.devices()) == 8
    finally:
        keras.distribution.set_distribution(None)
    return {"losses": losses}
