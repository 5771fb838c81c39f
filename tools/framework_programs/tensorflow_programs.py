"""Programs with TensorFlow, one for each of its main ways to use a device. Each checks its results."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import tensorflow as tf

import pjrt

X = np.arange(6, dtype=np.float32).reshape(2, 3)

Program = Callable[[str], None]
PROGRAMS: dict[str, tuple[int, Program]] = {}


def program(devices: int = 1) -> Callable[[Program], Program]:
    """Add a function to the programs, with the number of devices that it needs."""

    def add(function: Program) -> Program:
        PROGRAMS[function.__name__] = devices, function
        return function

    return add


@program()
def compiled(name: str) -> None:
    """tf.function(jit_compile=True): a function is compiled once and called twice."""

    @tf.function(jit_compile=True)
    def function(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.tanh(x @ y) + 1

    with tf.device(f"{name}:0"):
        for scale in (1, 2):
            found = function(tf.constant(scale * X), tf.constant(X.T))
            np.testing.assert_allclose(found, np.tanh(scale * X @ X.T) + 1, rtol=1e-6)


@program()
def eager(name: str) -> None:
    """Operations without a function: a program for each operation, on tensors of several types."""
    with tf.device(f"{name}:0"):
        x = tf.constant(X)
        np.testing.assert_allclose(tf.reduce_sum(tf.transpose(x)[1:] * 2, axis=0), 2 * X.T[1:].sum(0))
        np.testing.assert_allclose(tf.concat([tf.zeros((1, 3)), x], 0)[1], X[0])
        for dtype in (tf.bool, tf.int8, tf.int32, tf.int64, tf.float16, tf.bfloat16, tf.float64):
            values = np.array([0, 1, 3]).astype(dtype.as_numpy_dtype)
            np.testing.assert_array_equal(tf.identity(tf.constant(values)).numpy(), values)


@program()
def variables(name: str) -> None:
    """Variables that are assigned as a whole, added to, and updated in parts."""
    with tf.device(f"{name}:0"):
        variable = tf.Variable(X)
        variable.assign_add(tf.ones((2, 3)))
        variable[0].assign(tf.zeros(3))
        np.testing.assert_allclose(variable, [[0, 0, 0], [4, 5, 6]])
        variable.assign(tf.constant(X))
        np.testing.assert_allclose(variable, X)


@program()
def training(name: str) -> None:
    """A training of two steps with GradientTape, compiled: each step replaces the variables."""
    with tf.device(f"{name}:0"):
        w, b = tf.Variable(X.T / 6), tf.Variable(tf.zeros(2))

        @tf.function(jit_compile=True)
        def step(x: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) + b - 1) ** 2)
            for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        losses = [float(step(tf.constant(X / 6))) for _ in range(2)]
    assert losses[1] < losses[0]


@program()
def host_operations(name: str) -> None:
    """Operations whose results have sizes that values decide: they run on the CPU, between two on the device."""
    with tf.device(f"{name}:0"):
        x = tf.constant(X)
        chosen = tf.boolean_mask(x, tf.reduce_sum(x, 1) > 4)
        np.testing.assert_allclose(chosen * 2, 2 * X[1:])


@program(devices=2)
def copies(name: str) -> None:
    """Tensors go from one device to another, and to the CPU and back."""
    with tf.device(f"{name}:0"):
        x = tf.constant(X) + 1
    with tf.device(f"{name}:1"):
        y = x * 2
    with tf.device("CPU:0"):
        z = y + x
    with tf.device(f"{name}:0"):
        np.testing.assert_allclose(z - x, 2 * (X + 1))


def main() -> None:
    """Run the program of a name."""
    devices, function = PROGRAMS[sys.argv[1]]
    function(pjrt.frameworks.tensorflow.register("cpu", num_devices=devices))


if __name__ == "__main__":
    main()
