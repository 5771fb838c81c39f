"""TensorFlow on devices of ours: an opt-in job, because its packages are 1.7 GB.

    python3.13 -m venv tensorflow && tensorflow/bin/pip install "tensorflow-cpu==2.21.*" scikit-learn ".[xla]"
    tensorflow/bin/python tests/frameworks/tensorflow_job.py                    # or with the names of devices
    tensorflow/bin/python tests/frameworks/tensorflow_job.py --part operations reference
    tensorflow/bin/python tests/frameworks/tensorflow_job.py --repeat 20 --part training reference

Each part runs in a subprocess, compares with TensorFlow's own CPU, exits with tensors alive, and must end cleanly.
``operations`` prints which of TensorFlow's operations differ or are not there. Some parts run a second time under the
layer ``validate``, which must find nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs_with_layers
import numpy as np

ROOT = Path(__file__).resolve().parents[2]
DEVICES = ("reference", "cpu")
TIME_LIMIT = 1800
VALIDATED = ("compiled", "eager", "training", "types", "devices")
HOST = "CPU:0"


def close(found: Any, expected: Any, tolerance: float = 1e-5) -> float:
    """Return the largest difference, relative to the largest number; raise where it is above the tolerance."""
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape, (found.shape, expected.shape)
    assert found.dtype == expected.dtype, (found.dtype, expected.dtype)
    if found.dtype.kind in "biuSO" or not found.size:
        assert np.array_equal(found, expected), (found, expected)
        return 0.0
    finite = np.isfinite(expected)
    assert np.array_equal(found[~finite], expected[~finite], equal_nan=True), (found, expected)
    if not finite.any():
        return 0.0
    worst = float(np.max(np.abs(found - expected)[finite]) / max(1.0, float(np.max(np.abs(expected[finite])))))
    assert worst <= tolerance, (worst, found, expected)
    return worst


@contextlib.contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    """Expect an error with a text in its message."""
    found = ""
    try:
        yield
    except kind as error:
        found = str(error)
    assert text in found, found or f"expected {kind.__name__}"


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compiled(tf: Any, device: str) -> None:
    @tf.function(jit_compile=True)
    def step(x: Any, w: Any) -> Any:
        return tf.tanh(x @ w), tf.reduce_sum(x)

    x, w = numbers(4, 8), numbers(8, 2, seed=1)
    with tf.device(device):
        y, total = step(x, w)
    assert y.device.endswith(device), y.device
    close(y, np.tanh(x @ w))
    close(total, x.sum())


def eager(tf: Any, device: str) -> None:
    x = numbers(4, 6)
    with tf.device(device):
        a = tf.constant(x)
        assert a.device.endswith(device)
        for dtype in (tf.float32, tf.float64, tf.bfloat16, tf.float16, tf.int8, tf.int32, tf.int64, tf.uint8, tf.bool):
            values = np.array([0, 1, 1, 3]).astype(dtype.as_numpy_dtype)
            close(tf.constant(values), values)
        close(tf.reshape(a, (2, 12)), x.reshape(2, 12))
        close(tf.transpose(a), x.T)
        close(tf.zeros((2, 3)) + tf.fill((2, 3), 2.0) + tf.ones((2, 3)), np.full((2, 3), 3, np.float32))
        close(a[1:, ::2], x[1:, ::2])
        close(tf.shape(a), np.array([4, 6], np.int32))
        close(tf.range(5) * 2, np.arange(0, 10, 2, dtype=np.int32))
        v = tf.Variable(a)
        v.assign_add(a)
        v[0].assign(tf.zeros(6))
        close(v, np.concatenate([np.zeros((1, 6), np.float32), 2 * x[1:]]))
        v.scatter_nd_update([[1]], tf.ones((1, 6)))
        close(v[1], np.ones(6, np.float32))
        counter = tf.Variable(0)
        counter.assign_add(3)
        assert int(counter) == 3


def train(tf: Any, device: str, jit: bool) -> list[float]:
    x, y = numbers(64, 8), numbers(64, 1, seed=2)
    with tf.device(device):
        w, b = tf.Variable(numbers(8, 1, seed=1)), tf.Variable(tf.zeros(1))

        @tf.function(jit_compile=jit)
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(x @ w) + b - y) ** 2)
            for variable, gradient in zip((w, b), tape.gradient(loss, (w, b)), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss

        run = step if jit else step.python_function
        return [float(run(tf.constant(x), tf.constant(y))) for _ in range(20)]


def training(tf: Any, device: str) -> None:
    expected = train(tf, HOST, jit=False)
    for jit in (False, True):
        worst = close(np.array(train(tf, device, jit)), np.array(expected))
        print(f"    {'compiled' if jit else 'eager'}: losses differ by at most {worst:.1e}")
    assert expected[-1] < expected[0]


def fit(tf: Any, device: str, make: Callable[[Any], Any], x: Any, y: Any, jit: bool) -> tuple[list[float], Any, Any]:
    import keras

    with tf.device(HOST):
        keras.utils.set_random_seed(0)
        weights = make(keras).get_weights()  # random numbers of another device are others
    with tf.device(device):
        model = make(keras)
        model.set_weights(weights)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], jit_compile=jit)
        history = model.fit(x, y, epochs=4, batch_size=32, shuffle=False, verbose=0).history
        assert device == HOST or model.weights[0].value.device.endswith(device)
        return history["loss"], history["accuracy"][-1], model.predict(x[:8], verbose=0)


def same_fit(tf: Any, device: str, make: Callable[[Any], Any], x: Any, y: Any, tolerance: float) -> None:
    expected = fit(tf, HOST, make, x, y, jit=False)
    for jit in (False, True):
        losses, accuracy, predicted = fit(tf, device, make, x, y, jit)
        worst = close(np.array(losses), np.array(expected[0]), tolerance)
        print(
            f"    jit_compile={jit}: losses differ by at most {worst:.1e}, accuracy {accuracy:.3f}, "
            f"the CPU's {expected[1]:.3f}"
        )
        assert abs(accuracy - expected[1]) < 0.03
        close(predicted, expected[2], 10 * tolerance)


def keras_cnn(tf: Any, device: str) -> None:
    def make(keras: Any) -> Any:
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(16, "relu"),
                layers.Dense(2),
            ]
        )

    x = numbers(256, 8, 8, 1)
    same_fit(tf, device, make, x, (x.mean((1, 2, 3)) > 0).astype(np.int32), 1e-3)


def keras_transformer(tf: Any, device: str) -> None:
    def make(keras: Any) -> Any:
        layers = keras.layers
        tokens = keras.Input((10,), dtype="int32")
        values = layers.Embedding(50, 16)(tokens)
        values = layers.LayerNormalization()(values + layers.MultiHeadAttention(2, 8)(values, values))
        values = layers.GlobalAveragePooling1D()(layers.Dense(16, "gelu")(values))
        return keras.Model(tokens, layers.Dense(2)(values))

    x = np.random.default_rng(0).integers(0, 50, (128, 10)).astype(np.int32)
    same_fit(tf, device, make, x, (x.sum(1) % 2).astype(np.int32), 1e-3)


def keras_dropout(tf: Any, device: str) -> None:
    """Fit with layers that draw random numbers, whose algorithm differs from the CPU's: the loss falls."""

    def make(keras: Any) -> Any:
        layers = keras.layers
        return keras.Sequential([keras.Input((8,)), layers.Dense(32, "relu"), layers.Dropout(0.2), layers.Dense(2)])

    x = numbers(256, 8)
    for jit in (False, True):
        losses, accuracy, _ = fit(tf, device, make, x, (x.sum(1) > 0).astype(np.int32), jit)
        assert losses[-1] < losses[0]
        assert accuracy > 0.8


def data(tf: Any, device: str) -> None:
    found = []
    with tf.device(device):
        batches = tf.data.Dataset.from_tensor_slices(np.arange(10, dtype=np.float32)).shuffle(10, seed=1).batch(3)
        found += [float(tf.reduce_sum(tf.identity(batch) * 2)) for batch in batches.prefetch(2)]

        @tf.function
        def total(batches: Any) -> Any:
            result = tf.constant(0.0)
            for batch in batches:
                result += tf.reduce_sum(batch)
            return result

        assert float(total(batches)) == 45
    assert sum(found) == 90


def saved_model(tf: Any, device: str) -> None:
    class Model(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(numbers(3, 2))

        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32)])
        def __call__(self, x):  # type: ignore[no-untyped-def]  # with annotations TensorFlow wants types of its own
            return tf.nn.relu(x @ self.w)

    x = numbers(5, 3, seed=1)
    with tempfile.TemporaryDirectory() as folder, tf.device(device):
        model = Model()
        tf.saved_model.save(model, folder)
        loaded = tf.saved_model.load(folder)
        close(loaded(x), np.maximum(x @ numbers(3, 2), 0))
        checkpoint = tf.train.Checkpoint(w=model.w)
        path = checkpoint.save(f"{folder}/checkpoint")
        model.w.assign(tf.zeros((3, 2)))
        checkpoint.restore(path)
        close(model.w, numbers(3, 2))


def devices(tf: Any, device: str) -> None:
    name = device.partition(":")[0]
    assert [each.name for each in tf.config.list_physical_devices(name)] == [
        f"/physical_device:{name}:{number}" for number in range(2)
    ]
    x = numbers(4)
    with tf.device(f"{name}:0"):
        first = tf.constant(x)
    with tf.device(f"{name}:1"):
        second = tf.identity(first) * 2
        mixed = first + second
    with tf.device(HOST):
        host = tf.identity(mixed)
    assert second.device.endswith(f"{name}:1")
    assert mixed.device.endswith(f"{name}:1")
    assert host.device.endswith(HOST)
    close(host, 3 * x)


def random_numbers(tf: Any, device: str) -> None:
    with tf.device(device):
        for _ in range(2):
            tf.random.set_seed(7)
            drawn = [tf.random.normal((1000,)), tf.random.uniform((1000,), maxval=10, dtype=tf.int32)]
            assert abs(float(tf.reduce_mean(drawn[0]))) < 0.2
            assert set(drawn[1].numpy().tolist()) == set(range(10))
        same = [tf.random.stateless_normal((5,), (1, 2)).numpy() for _ in range(2)]
        close(*same)
        generator = tf.random.Generator.from_seed(3)
        first, again = generator.normal((5,)), tf.random.Generator.from_seed(3).normal((5,))
        close(first, again)
        assert not np.array_equal(first, generator.normal((5,)))


def types(tf: Any, device: str) -> None:
    """Use what a device lacks: TensorFlow places it on its CPU, beside what the device has."""
    with tf.device(device):
        assert tf.strings.join(["a", "b"]).numpy() == b"ab"
        ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
        close(tf.reduce_sum(ragged, axis=1), np.array([3, 3], np.float32))
        words = tf.strings.length(["a", "bcd"])
        close(tf.cast(words, tf.float32) * 2, np.array([2, 6], np.float32))
        values, places = tf.unique(tf.constant([3, 1, 3]))
        close(values, np.array([3, 1], np.int32))
        close(places, np.array([0, 1, 0], np.int32))
        complex_ = tf.complex(tf.constant([1.0]), tf.constant([2.0]))
        close(tf.math.conj(complex_) * complex_, np.array([5], np.complex64))


def control_flow(tf: Any, device: str) -> None:
    @tf.function
    def f(x: Any) -> Any:
        i = tf.constant(0)
        while i < 3:
            x = x * 2
            i += 1
        if tf.reduce_sum(x) > 0:
            return x
        return -x

    with tf.device(device):
        close(f(tf.ones(2)), np.array([8, 8], np.float32))
        close(f(-tf.ones(2)), np.array([8, 8], np.float32))
        close(tf.map_fn(lambda v: v + 1, tf.constant([1.0, 2.0])), np.array([2, 3], np.float32))
        close(tf.vectorized_map(lambda v: v * v, tf.constant([1.0, 3.0])), np.array([1, 9], np.float32))


def errors(tf: Any, device: str) -> None:
    with tf.device(device):
        for wrong, kind in (
            (lambda: tf.ones((2, 3)) @ tf.ones((2, 3)), tf.errors.InvalidArgumentError),
            (lambda: tf.reshape(tf.ones(3), (2, 2)), tf.errors.InvalidArgumentError),
            (lambda: tf.linalg.cholesky(tf.ones((2, 3))), tf.errors.InvalidArgumentError),
        ):
            try:
                found = wrong()
            except kind:
                continue
            raise AssertionError(found)
        close(tf.ones(2) + 1, np.array([2, 2], np.float32))  # the device goes on


def memory(tf: Any, device: str) -> None:
    """Fill the device's memory, whose limit is an option: TensorFlow raises its own error, and goes on."""
    import pjrt

    with tf.device(device):
        kept = tf.ones((1 << 20,))
        used = pjrt.frameworks.tensorflow.memory_stats(device)
        assert used.bytes_in_use >= 4 << 20, used
        try:
            held = [tf.ones((4 << 20,)) for _ in range(64)]
            held[-1].numpy()
        except tf.errors.ResourceExhaustedError as error:
            print(f"    {str(error).splitlines()[0][:150]}")
        else:
            raise AssertionError("there was memory")
        held = []
        close(tf.reduce_sum(kept), np.float32(1 << 20))


OPERATIONS_OF_ONE = """
abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e ceil cos cosh cumsum cumprod cumulative_logsumexp
digamma erf erfc erfinv exp expm1 floor imag is_finite is_inf is_nan l2_normalize lgamma log log1p log_sigmoid
ndtri negative reciprocal reciprocal_no_nan reduce_all reduce_any reduce_euclidean_norm reduce_logsumexp
reduce_max reduce_mean reduce_min reduce_prod reduce_std reduce_sum reduce_variance rint round rsqrt sigmoid sign
sin sinh softplus softsign sqrt square tan tanh zero_fraction argmax argmin real angle conj softmax log_softmax
""".split()  # noqa: SIM905 a list has a line for each
OPERATIONS_OF_TWO = """
add atan2 divide divide_no_nan equal floordiv floormod greater greater_equal less less_equal maximum minimum mod
multiply multiply_no_nan nextafter not_equal pow squared_difference subtract truediv xdivy xlog1py xlogy igamma
igammac
""".split()  # noqa: SIM905 a list has a line for each
OPERATIONS_OF_NN = ["elu", "gelu", "leaky_relu", "relu", "relu6", "selu", "silu", "swish", "crelu"]
OPERATIONS_OF_INTEGERS = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]
OPERATIONS_OF_BOOLEANS = ["logical_and", "logical_or", "logical_xor"]


def operations(tf: Any, device: str) -> None:
    a = np.abs(numbers(4, 5)) * 0.8 + 0.05
    b = np.abs(numbers(4, 5, seed=1)) * 0.8 + 0.05
    square = (numbers(3, 3) @ numbers(3, 3).T + 3 * np.eye(3)).astype(np.float32)
    i = np.arange(12, dtype=np.int32).reshape(3, 4)
    image = numbers(2, 6, 6, 3)
    signal = (numbers(16) + 1j * numbers(16, seed=1)).astype(np.complex64)
    cases: dict[str, Callable[[], Any]] = {}
    for name in OPERATIONS_OF_ONE:
        truth = name in ("reduce_all", "reduce_any")
        values = a > 0.5 if truth else a + 1 if name == "acosh" else np.minimum(a, 0.9)
        of = getattr(tf.math, name, None) or getattr(tf.nn, name)
        cases[f"math.{name}"] = lambda of=of, values=values: of(tf.constant(values))
    for name in OPERATIONS_OF_TWO:
        cases[f"math.{name}"] = lambda name=name: getattr(tf.math, name)(tf.constant(a), tf.constant(b))
    for name in OPERATIONS_OF_NN:
        cases[f"nn.{name}"] = lambda name=name: getattr(tf.nn, name)(tf.constant(numbers(3, 4)))
    for name in OPERATIONS_OF_INTEGERS:
        cases[f"bitwise.{name}"] = lambda name=name: getattr(tf.bitwise, name)(tf.constant(i), tf.constant(i % 3))
    for name in OPERATIONS_OF_BOOLEANS:
        cases[f"math.{name}"] = lambda name=name: getattr(tf.math, name)(tf.constant(a > 0.5), tf.constant(b > 0.5))
    c = tf.constant
    cases |= {
        "bitwise.invert": lambda: tf.bitwise.invert(c(i)),
        "math.logical_not": lambda: tf.math.logical_not(c(a > 0.5)),
        "math.betainc": lambda: tf.math.betainc(c(a), c(b), c(np.clip(a, 0, 1))),
        "math.polygamma": lambda: tf.math.polygamma(c(np.ones_like(a)), c(a + 1)),
        "math.zeta": lambda: tf.math.zeta(c(a + 2), c(b + 1)),
        "math.add_n": lambda: tf.math.add_n([c(a), c(b), c(a)]),
        "math.accumulate_n": lambda: tf.math.accumulate_n([c(a), c(b)]),
        "math.bincount": lambda: tf.math.bincount(c(i % 5)),
        "math.confusion_matrix": lambda: tf.math.confusion_matrix(c([0, 1, 2]), c([0, 2, 2])),
        "math.in_top_k": lambda: tf.math.in_top_k(c([0, 1, 2, 3]), c(a), 2),
        "math.invert_permutation": lambda: tf.math.invert_permutation(c([2, 0, 1])),
        "math.segment_sum": lambda: tf.math.segment_sum(c(a), c([0, 0, 1, 1])),
        "math.segment_max": lambda: tf.math.segment_max(c(a), c([0, 0, 1, 1])),
        "math.segment_mean": lambda: tf.math.segment_mean(c(a), c([0, 0, 1, 1])),
        "math.unsorted_segment_sum": lambda: tf.math.unsorted_segment_sum(c(a), c([1, 0, 1, 0]), 2),
        "math.unsorted_segment_max": lambda: tf.math.unsorted_segment_max(c(a), c([1, 0, 1, 0]), 2),
        "math.unsorted_segment_min": lambda: tf.math.unsorted_segment_min(c(a), c([1, 0, 1, 0]), 2),
        "math.unsorted_segment_prod": lambda: tf.math.unsorted_segment_prod(c(a), c([1, 0, 1, 0]), 2),
        "math.top_k": lambda: tf.math.top_k(c(a), 2)[0],
        "math.approx_max_k": lambda: tf.math.approx_max_k(c(a), 2)[0],
        "argsort": lambda: tf.argsort(c(a)),
        "sort": lambda: tf.sort(c(a), direction="DESCENDING"),
        "searchsorted": lambda: tf.searchsorted(c(np.sort(a)), c(b)),
        "batch_to_space": lambda: tf.batch_to_space(c(numbers(4, 1, 1, 1)), [2, 2], [[0, 0], [0, 0]]),
        "space_to_batch": lambda: tf.space_to_batch(c(numbers(1, 2, 2, 1)), [2, 2], [[0, 0], [0, 0]]),
        "bitcast": lambda: tf.bitcast(c(a), tf.int32),
        "boolean_mask": lambda: tf.boolean_mask(c(a), c(a[:, 0] > 0.3)),
        "broadcast_to": lambda: tf.broadcast_to(c(a), (2, 4, 5)),
        "cast": lambda: tf.cast(c(a * 10), tf.int64),
        "clip_by_value": lambda: tf.clip_by_value(c(a), 0.2, 0.6),
        "clip_by_norm": lambda: tf.clip_by_norm(c(a), 1.0),
        "clip_by_global_norm": lambda: tf.clip_by_global_norm([c(a), c(b)], 1.0)[0][1],
        "concat": lambda: tf.concat([c(a), c(b)], 1),
        "dynamic_stitch": lambda: tf.dynamic_stitch([c([0, 2]), c([1, 3])], [c([1.0, 2.0]), c([3.0, 4.0])]),
        "dynamic_partition": lambda: tf.dynamic_partition(c(a), c([0, 1, 0, 1]), 2)[1],
        "einsum": lambda: tf.einsum("ij,kj->ik", c(a), c(b)),
        "expand_dims": lambda: tf.expand_dims(c(a), 1),
        "eye": lambda: tf.eye(3),
        "fill": lambda: tf.fill((2, 3), 7.0),
        "gather": lambda: tf.gather(c(a), c([2, 0]), axis=1),
        "gather_nd": lambda: tf.gather_nd(c(a), c([[1, 2], [3, 4]])),
        "histogram_fixed_width": lambda: tf.histogram_fixed_width(c(a), [0.0, 2.0], nbins=5),
        "identity_n": lambda: tf.identity_n([c(a), c(b)])[1],
        "linspace": lambda: tf.linspace(0.0, 1.0, 5),
        "matmul": lambda: tf.matmul(c(a), c(b), transpose_b=True),
        "meshgrid": lambda: tf.meshgrid(c([1.0, 2.0]), c([3.0, 4.0, 5.0]))[1],
        "norm": lambda: tf.norm(c(a), axis=1),
        "one_hot": lambda: tf.one_hot(c([0, 2]), 4),
        "ones_like": lambda: tf.ones_like(c(a)),
        "zeros_like": lambda: tf.zeros_like(c(i)),
        "pad": lambda: tf.pad(c(a), [[1, 0], [0, 2]], "REFLECT"),
        "range": lambda: tf.range(1.0, 9.0, 2.0),
        "rank": lambda: tf.rank(c(a)),
        "repeat": lambda: tf.repeat(c(a), 2, axis=1),
        "reshape": lambda: tf.reshape(c(a), (5, -1)),
        "reverse": lambda: tf.reverse(c(a), [1]),
        "reverse_sequence": lambda: tf.reverse_sequence(c(a), c([1, 2, 3, 4]), seq_axis=1),
        "roll": lambda: tf.roll(c(a), 2, 1),
        "scatter_nd": lambda: tf.scatter_nd(c([[1], [3]]), c([5.0, 6.0]), (5,)),
        "sequence_mask": lambda: tf.sequence_mask(c([1, 3]), 4),
        "shape": lambda: tf.shape(c(a)),
        "shape_n": lambda: tf.shape_n([c(a), c(b)])[0],
        "size": lambda: tf.size(c(a)),
        "slice": lambda: tf.slice(c(a), [1, 1], [2, 3]),
        "split": lambda: tf.split(c(a), 2)[1],
        "squeeze": lambda: tf.squeeze(c(a[:, None])),
        "stack": lambda: tf.stack([c(a), c(b)], 1),
        "strided_slice": lambda: c(a)[::2, 1:-1],
        "tensor_scatter_nd_add": lambda: tf.tensor_scatter_nd_add(c(a), c([[1]]), c(b[:1])),
        "tensor_scatter_nd_max": lambda: tf.tensor_scatter_nd_max(c(a), c([[1]]), c(b[:1])),
        "tensor_scatter_nd_min": lambda: tf.tensor_scatter_nd_min(c(a), c([[1]]), c(b[:1])),
        "tensor_scatter_nd_sub": lambda: tf.tensor_scatter_nd_sub(c(a), c([[1]]), c(b[:1])),
        "tensor_scatter_nd_update": lambda: tf.tensor_scatter_nd_update(c(a), c([[1]]), c(b[:1])),
        "tensordot": lambda: tf.tensordot(c(a), c(b), [[1], [1]]),
        "tile": lambda: tf.tile(c(a), [2, 1]),
        "transpose": lambda: tf.transpose(c(image), [0, 3, 1, 2]),
        "truncatediv": lambda: tf.truncatediv(c(i), c(i % 3 + 1)),
        "truncatemod": lambda: tf.truncatemod(c(i), c(i % 3 + 1)),
        "unstack": lambda: tf.unstack(c(a))[1],
        "where": lambda: tf.where(c(a > 0.4), c(a), c(b)),
        "where of one": lambda: tf.where(c(a > 0.4)),
        "foldl": lambda: tf.foldl(lambda x, y: x + y, c(a)),
        "scan": lambda: tf.scan(lambda x, y: x + y, c(a)),
        "unravel_index": lambda: tf.unravel_index(c([5, 7]), c([3, 4])),
        "unique_with_counts": lambda: tf.unique_with_counts(c([1, 1, 2]))[2],
        "tril": lambda: tf.linalg.band_part(c(square), -1, 0),
        "linalg.adjoint": lambda: tf.linalg.adjoint(c(square)),
        "linalg.cholesky": lambda: tf.linalg.cholesky(c(square)),
        "linalg.cholesky_solve": lambda: tf.linalg.cholesky_solve(tf.linalg.cholesky(c(square)), c(square)),
        "linalg.cross": lambda: tf.linalg.cross(c(a[:, :3]), c(b[:, :3])),
        "linalg.det": lambda: tf.linalg.det(c(square)),
        "linalg.diag": lambda: tf.linalg.diag(c(a)),
        "linalg.diag_part": lambda: tf.linalg.diag_part(c(square)),
        "linalg.eigvalsh": lambda: tf.linalg.eigvalsh(c(square)),
        "linalg.global_norm": lambda: tf.linalg.global_norm([c(a), c(b)]),
        "linalg.inv": lambda: tf.linalg.inv(c(square)),
        "linalg.logdet": lambda: tf.linalg.logdet(c(square)),
        "linalg.lu": lambda: tf.linalg.lu(c(square))[0],
        "linalg.matmul": lambda: tf.linalg.matmul(c(square), c(square)),
        "linalg.matvec": lambda: tf.linalg.matvec(c(square), c(square[0])),
        "linalg.matrix_transpose": lambda: tf.linalg.matrix_transpose(c(a)),
        "linalg.normalize": lambda: tf.linalg.normalize(c(a))[0],
        "linalg.pinv": lambda: tf.linalg.pinv(c(square)),
        "linalg.qr": lambda: tf.abs(tf.linalg.qr(c(square))[1]),
        "linalg.set_diag": lambda: tf.linalg.set_diag(c(square), c(a[0, :3])),
        "linalg.slogdet": lambda: tf.linalg.slogdet(c(square))[1],
        "linalg.solve": lambda: tf.linalg.solve(c(square), c(square)),
        "linalg.svd": lambda: tf.linalg.svd(c(square), compute_uv=False),
        "linalg.tensor_diag": lambda: tf.linalg.tensor_diag(c(a[0])),
        "linalg.tensor_diag_part": lambda: tf.linalg.tensor_diag_part(c(square)),
        "linalg.trace": lambda: tf.linalg.trace(c(square)),
        "linalg.triangular_solve": lambda: tf.linalg.triangular_solve(c(np.tril(square)), c(square)),
        "linalg.tridiagonal_solve": lambda: tf.linalg.tridiagonal_solve(
            c(np.array([[1, 1, 0], [4, 4, 4], [0, 1, 1]], np.float32)), c(a[0, :3]), partial_pivoting=False
        ),
        "nn.atrous_conv2d": lambda: tf.nn.atrous_conv2d(c(image), c(numbers(2, 2, 3, 4)), 2, "VALID"),
        "nn.avg_pool2d": lambda: tf.nn.avg_pool2d(c(image), 2, 2, "VALID"),
        "nn.avg_pool3d": lambda: tf.nn.avg_pool3d(c(image[..., None]), 2, 2, "VALID"),
        "nn.batch_normalization": lambda: tf.nn.batch_normalization(c(a), 0.1, 2.0, 0.5, 1.5, 1e-3),
        "nn.bias_add": lambda: tf.nn.bias_add(c(a), c(b[0])),
        "nn.conv1d": lambda: tf.nn.conv1d(c(image[:, 0]), c(numbers(2, 3, 4)), 1, "SAME"),
        "nn.conv2d": lambda: tf.nn.conv2d(c(image), c(numbers(3, 3, 3, 4)), 2, "SAME"),
        "nn.conv2d_transpose": lambda: tf.nn.conv2d_transpose(c(image), c(numbers(2, 2, 4, 3)), (2, 12, 12, 4), 2),
        "nn.conv3d": lambda: tf.nn.conv3d(c(image[..., None]), c(numbers(2, 2, 2, 1, 3)), [1] * 5, "VALID"),
        "nn.depthwise_conv2d": lambda: tf.nn.depthwise_conv2d(c(image), c(numbers(2, 2, 3, 2)), [1] * 4, "SAME"),
        "nn.separable_conv2d": lambda: tf.nn.separable_conv2d(
            c(image), c(numbers(2, 2, 3, 1)), c(numbers(1, 1, 3, 4)), [1] * 4, "SAME"
        ),
        "nn.depth_to_space": lambda: tf.nn.depth_to_space(c(numbers(1, 2, 2, 4)), 2),
        "nn.space_to_depth": lambda: tf.nn.space_to_depth(c(numbers(1, 4, 4, 1)), 2),
        "nn.dilation2d": lambda: tf.nn.dilation2d(c(image), c(numbers(2, 2, 3)), [1] * 4, "SAME", "NHWC", [1] * 4),
        "nn.embedding_lookup": lambda: tf.nn.embedding_lookup(c(a), c([1, 3])),
        "nn.l2_loss": lambda: tf.nn.l2_loss(c(a)),
        "nn.local_response_normalization": lambda: tf.nn.local_response_normalization(c(image)),
        "nn.log_poisson_loss": lambda: tf.nn.log_poisson_loss(c(a), c(b)),
        "nn.max_pool2d": lambda: tf.nn.max_pool2d(c(image), 2, 2, "SAME"),
        "nn.max_pool3d": lambda: tf.nn.max_pool3d(c(image[..., None]), 2, 2, "VALID"),
        "nn.moments": lambda: tf.nn.moments(c(a), [0])[1],
        "nn.sigmoid_cross_entropy_with_logits": lambda: tf.nn.sigmoid_cross_entropy_with_logits(c(a), c(b)),
        "nn.softmax_cross_entropy_with_logits": lambda: tf.nn.softmax_cross_entropy_with_logits(c(a), c(b)),
        "nn.sparse_softmax_cross_entropy_with_logits": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits(
            c([0, 1, 2, 3]), c(a)
        ),
        "nn.weighted_moments": lambda: tf.nn.weighted_moments(c(a), [0], c(b))[0],
        "nn.weighted_cross_entropy_with_logits": lambda: tf.nn.weighted_cross_entropy_with_logits(c(a), c(b), 2.0),
        "nn.fused_batch_norm": lambda: tf.compat.v1.nn.fused_batch_norm(c(image), c(a[0, :3]), c(b[0, :3]))[0],
        "signal.fft": lambda: tf.signal.fft(c(signal)),
        "signal.ifft": lambda: tf.signal.ifft(c(signal)),
        "signal.fft2d": lambda: tf.signal.fft2d(c(signal.reshape(4, 4))),
        "signal.rfft": lambda: tf.signal.rfft(c(numbers(16))),
        "signal.irfft": lambda: tf.signal.irfft(c(signal[:9])),
        "signal.dct": lambda: tf.signal.dct(c(numbers(8))),
        "signal.frame": lambda: tf.signal.frame(c(numbers(16)), 4, 2),
        "signal.hann_window": lambda: tf.signal.hann_window(8),
        "image.resize bilinear": lambda: tf.image.resize(c(image), (4, 9)),
        "image.resize nearest": lambda: tf.image.resize(c(image), (4, 9), "nearest"),
        "image.adjust_brightness": lambda: tf.image.adjust_brightness(c(image), 0.2),
        "image.adjust_contrast": lambda: tf.image.adjust_contrast(c(image), 2.0),
        "image.adjust_hue": lambda: tf.image.adjust_hue(c(np.abs(image) / 4), 0.1),
        "image.adjust_saturation": lambda: tf.image.adjust_saturation(c(np.abs(image) / 4), 0.5),
        "image.central_crop": lambda: tf.image.central_crop(c(image), 0.5),
        "image.flip_left_right": lambda: tf.image.flip_left_right(c(image)),
        "image.rgb_to_hsv": lambda: tf.image.rgb_to_hsv(c(np.abs(image) / 4)),
        "image.hsv_to_rgb": lambda: tf.image.hsv_to_rgb(c(np.clip(np.abs(image) / 4, 0, 1))),
        "image.rgb_to_grayscale": lambda: tf.image.rgb_to_grayscale(c(image)),
        "image.sobel_edges": lambda: tf.image.sobel_edges(c(image)),
        "image.extract_patches": lambda: tf.image.extract_patches(
            c(image), [1, 2, 2, 1], [1, 2, 2, 1], [1] * 4, "VALID"
        ),
        "quantization.fake_quant_with_min_max_args": lambda: tf.quantization.fake_quant_with_min_max_args(c(a)),
        "random.stateless_uniform": lambda: tf.random.stateless_uniform((5,), (1, 2)),
        "random.stateless_normal": lambda: tf.random.stateless_normal((5,), (1, 2)),
        "random.stateless_truncated_normal": lambda: tf.random.stateless_truncated_normal((5,), (1, 2)),
    }
    on_device, placed, failed = [], [], {}
    for name, case in cases.items():
        with tf.device(HOST):
            expected = case()
        try:
            with tf.device(device):
                found = case()
            close(found, expected, 1e-4)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
            continue
        (on_device if found.backing_device.endswith(device) or found.dtype == tf.int32 else placed).append(name)
    print(f"    {len(cases)} operations: {len(on_device)} right on the device, {len(placed)} right on the CPU")
    print(f"    on the CPU: {', '.join(placed)}")
    for name, why in failed.items():
        print(f"    {name}: {why}")
    assert len(on_device) + len(placed) >= 200


def mirrored(tf: Any, device: str) -> None:
    """Train on two devices by ``MirroredStrategy``; TensorFlow's collectives are an error where they would wait."""
    import keras

    devices = [device, device.replace(":0", ":1")]
    x = numbers(64, 8)

    def losses(reduction: Any) -> list[float]:
        with tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction).scope():
            model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="ones")])
            model.compile("sgd", "mse")
        return model.fit(x, x[:, :1], epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"]

    with tf.device(HOST):
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
        expected = model.fit(x, x[:, :1], epochs=3, batch_size=16, shuffle=False, verbose=0).history["loss"]
    worst = close(np.array(losses(tf.distribute.ReductionToOneDevice())), np.array(expected))
    print(f"    losses differ from one device's by at most {worst:.1e}")
    with raises(tf.errors.UnimplementedError, "ReductionToOneDevice"):
        losses(None)


def lists(tf: Any, device: str) -> None:
    """Lists of tensors are for compiled functions; others have an error that says so."""

    def squares(x: Any) -> Any:
        found = tf.TensorArray(tf.float32, size=3)
        for i in tf.range(3):
            found = found.write(i, x[i] * x[i])
        return found.stack()

    @tf.function(jit_compile=True)
    def with_gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = squares(x)
        return y, tape.gradient(y, x)

    with tf.device(device):
        x = tf.constant([1.0, 2.0, 3.0])
        y, gradient = with_gradient(x)
        close(y, np.array([1, 4, 9], np.float32))
        close(gradient, np.array([2, 4, 6], np.float32))
        with raises(tf.errors.UnimplementedError, "jit_compile=True"):
            tf.function(squares)(x)
    with tf.device(HOST):
        close(tf.function(squares)(x), np.array([1, 4, 9], np.float32))


def example(tf: Any, device: str) -> None:
    """Run ``examples/tensorflow_digits``: the network learns to read."""
    train = runpy.run_path(str(ROOT / "examples" / "tensorflow_digits" / "train.py"))["train"]
    accuracy = train(device)
    print(f"    accuracy on the digits held out: {accuracy:.3f}")
    assert accuracy > 0.9


def wheel(folder: Path) -> None:
    """Build the wheel of a new device, and unpack it: TensorFlow has the device, and nothing imports pjrt for it."""

    def run(*command: str, **environment: str) -> str:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT,
        )
        assert done.returncode == 0, (command, done.returncode, done.stderr[-2000:])
        return done.stdout

    run("-m", "pjrt", "new-plugin", "gadget", "--tensorflow")
    run("-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", "wheels", "./gadget")
    (made,) = (folder / "wheels").iterdir()
    assert "-py3-none-linux" in made.name, made.name
    site = folder / "site-packages"  # TensorFlow looks into folders of this name
    run("-m", "pip", "install", "--no-deps", "--target", str(site), str(made))
    code = "import sys, test_tensorflow; exec(test_tensorflow.PROGRAM); print('pjrt' in sys.modules)"
    places = os.pathsep.join((str(site), str(folder / "gadget" / "tests")))
    printed = run("-c", code, PYTHONPATH=places, PATH=os.defpath).splitlines()
    assert printed[-2:] == ["device:GADGET:0 [[8.0, 11.0], [16.0, 23.0]]", "False"], printed
    print(f"    {made.name}: {made.stat().st_size} bytes")


PARTS: dict[str, Callable[[Any, str], None]] = {
    f.__name__: f
    for f in (
        compiled,
        eager,
        training,
        keras_cnn,
        keras_transformer,
        keras_dropout,
        data,
        saved_model,
        devices,
        random_numbers,
        types,
        control_flow,
        errors,
        memory,
        operations,
        mirrored,
        lists,
        example,
    )
}
OPTIONS: dict[str, dict[str, Any]] = {
    "devices": {"num_devices": 2},
    "mirrored": {"num_devices": 2},
    "memory": {"memory_limit": 128 << 20},
}


def run_part(device: str, part: str) -> None:
    import pjrt

    options = OPTIONS.get(part, {})
    name = pjrt.frameworks.tensorflow.register(device, **options)
    import tensorflow as tf

    PARTS[part](tf, f"{name}:0")
    global alive
    with tf.device(f"{name}:0"):
        alive = [tf.ones(3) + i for i in range(3)]


def run_in_subprocess(device: str, part: str) -> None:
    if part == "wheel":
        with tempfile.TemporaryDirectory() as folder:
            wheel(Path(folder))
        return
    command = [sys.executable, "-X", "faulthandler", __file__, "--run", device, part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    if part not in VALIDATED:
        return
    with tempfile.TemporaryDirectory() as folder:
        done, calls = jobs_with_layers.run_validated(command, Path(folder))
    assert done.returncode == 0, ("under validate", done.returncode, done.stderr[-2000:])
    print(f"    {calls['PJRT_LoadedExecutable_Execute']} executions under validate, no finding")


def main(devices: list[str], parts: list[str], repeat: int) -> int:
    os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3"}
    failed = count = 0
    for device in devices:
        for part in parts:
            if (device, part) in (("cpu", "memory"), ("cpu", "wheel")):
                continue  # XLA's CPU has the memory of the host, without a limit; a wheel has a device of its own
            for _ in range(repeat):
                count += 1
                start = time.perf_counter()
                print(f"{device}: {part}", flush=True)
                try:
                    run_in_subprocess(device, part)
                except (AssertionError, subprocess.TimeoutExpired) as problem:
                    failed += 1
                    print(f"    FAILED: {problem}")
                print(f"    {time.perf_counter() - start:.0f} s", flush=True)
    print(f"{count - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("devices", nargs="*", default=[])
    parser.add_argument("--part", action="append", choices=[*PARTS, "wheel"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run_part(*arguments.devices)
    else:
        sys.exit(main(arguments.devices or [*DEVICES], arguments.part or [*PARTS, "wheel"], arguments.repeat))
