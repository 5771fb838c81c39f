"""The example package of tinygrad, on tinygrad's device in Python, which needs neither hardware nor a compiler."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

import pjrt

pytestmark = pytest.mark.full

Run = Callable[..., subprocess.CompletedProcess[str]]

ON_PYTHON = {"PJRT_OPTIONS_TINYGRAD": "device=PYTHON", "PARALLEL": "0"}
"""The device of the tests. Without PARALLEL=0, tinygrad compiles in subprocesses, whose start takes seconds."""


@pytest.fixture(scope="module")
def site(installed: Callable[[str], Path]) -> Path:
    return installed("tinygrad_device")


@pytest.fixture(scope="module")
def package(site: Path) -> Iterator[Any]:
    """The package's module, in this process."""
    sys.path.insert(0, str(site))
    try:
        module = importlib.import_module("pjrt_tinygrad")
        with importlib.import_module("tinygrad").Context(PARALLEL=0):
            yield module
    finally:
        sys.path.remove(str(site))


@pytest.fixture(scope="module")
def client(package: Any) -> Iterator[pjrt.Client]:
    with package.make_client(device="PYTHON", num_devices=2) as client:
        yield client


def run(client: pjrt.Client, program: str, *arguments: Any) -> list[Any]:
    return [np.asarray(result) for result in client.compile(program)(*arguments)]


def function(body: str, arguments: str, result: str) -> str:
    return f"func.func @main({arguments}) -> {result} {{\n{body}\n}}"


# After installation.


def test_it_is_found_after_installation(site: Path, run_with: Run) -> None:
    done = run_with(site, "-m", "pjrt", "devices", "tinygrad", **ON_PYTHON)
    assert done.returncode == 0, done.stderr
    assert ["tinygrad", "0"] in [line.split()[:2] for line in done.stdout.splitlines()]
    facts = json.loads(run_with(site, "-m", "pjrt", "plugins", "tinygrad", "--json", **ON_PYTHON).stdout)
    assert not facts["problem"]
    assert facts["frameworks"] == {"jax": {"platform": "tinygrad"}, "torch_xla": {"name": "TINYGRAD"}}


TRAINING = """
import jax, jax.numpy as jnp, numpy as np

def loss(weights, x, y):
    (w1, b1), (w2, b2) = weights
    return jnp.mean((jnp.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)

step = jax.jit(lambda p, x, y: jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p, x, y)), donate_argnums=0)

def train(device):
    generator = np.random.default_rng(0)
    weights = [(generator.standard_normal(s).astype("f") / 2, np.zeros(s[1], "f")) for s in [(2, 4), (4, 1)]]
    x = generator.uniform(-1, 1, (8, 2)).astype("f")
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    weights, x, y = jax.device_put((weights, x, y), device)
    first = float(jax.jit(loss)(weights, x, y))
    for _ in range(20):
        weights = step(weights, x, y)
    return first, float(jax.jit(loss)(weights, x, y))

(device,) = jax.devices()
assert device.platform == "tinygrad", device
(first, ours), (_, xlas) = train(device), train(jax.devices("cpu")[0])
assert ours < 0.9 * first, (first, ours)
np.testing.assert_allclose(ours, xlas, rtol=1e-5)
"""


def test_jax_trains_with_the_loss_of_xla(site: Path, run_with: Run) -> None:
    done = run_with(site, "-c", TRAINING, JAX_PLATFORMS="tinygrad,cpu", **ON_PYTHON)
    assert done.returncode == 0, done.stderr[-3000:]


def test_its_operations_are_right(site: Path, run_with: Run) -> None:
    filters = [
        part for text in ("f32 edge", "f32 of", "i32 edge", "i1 edge", "ui8 edge") for part in ("--filter", text)
    ]
    done = run_with(
        site, "-m", "pjrt", "test-device", "tinygrad", "--group", "operations", "--json", *filters, **ON_PYTHON
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert json.loads(done.stdout)["passed"] > 150


# What runs where.


def test_values_between_programs_stay_on_the_device(package: Any, client: pjrt.Client, monkeypatch: Any) -> None:
    x = client.buffer_from_host(np.arange(6, dtype=np.float32))
    program = function(
        "%0 = stablehlo.add %x, %x : tensor<6xf32> return %0 : tensor<6xf32>", "%x: tensor<6xf32>", "tensor<6xf32>"
    )
    executable = client.compile(program)
    executable(x)[0].ready().result()

    def forbidden(*arguments: Any) -> None:
        raise AssertionError("a copy to or from the host")

    with monkeypatch.context() as patch:
        for name in ("copy_in", "copy_out", "host_view"):
            patch.setattr(package.TinygradMemory, name, forbidden)
        (y,) = executable(x)
        (z,) = executable(y)
        z.ready().result()
    np.testing.assert_array_equal(z, 4 * np.arange(6))


def test_the_results_of_each_call_have_their_own_memory(client: pjrt.Client) -> None:
    executable = client.compile(
        function(
            "%0 = stablehlo.negate %x : tensor<4xf32> return %0 : tensor<4xf32>", "%x: tensor<4xf32>", "tensor<4xf32>"
        )
    )
    inputs = [np.full(4, number, np.float32) for number in range(5)]
    results = [executable(x)[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        np.testing.assert_array_equal(result, -x)


def test_an_argument_given_twice(client: pjrt.Client) -> None:
    x = client.buffer_from_host(np.arange(3, dtype=np.int32))
    executable = client.compile(
        function(
            "%0 = stablehlo.multiply %x, %y : tensor<3xi32> return %0 : tensor<3xi32>",
            "%x: tensor<3xi32>, %y: tensor<3xi32>",
            "tensor<3xi32>",
        )
    )
    np.testing.assert_array_equal(executable(x, x)[0], [0, 1, 4])


SORTED = function(
    """%0 = stablehlo.multiply %x, %x : tensor<5xf32>
    %1 = "stablehlo.sort"(%0) ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    }) {dimension = 0 : i64} : (tensor<5xf32>) -> tensor<5xf32>
    %2 = stablehlo.negate %1 : tensor<5xf32>
    return %2 : tensor<5xf32>""",
    "%x: tensor<5xf32>",
    "tensor<5xf32>",
)


def test_the_fallback_sorts(package: Any) -> None:
    x = np.array([2, -1, 0, 3, -2], np.float32)
    with package.make_client(device="PYTHON", profile=True) as client:
        (result,) = run(client, SORTED, x)
        assert set(client.profile.by_op) == {
            "stablehlo.multiply on tinygrad",
            "stablehlo.sort on reference",
            "stablehlo.negate on tinygrad",
        }
    np.testing.assert_array_equal(result, -np.sort(x * x))


@pytest.mark.parametrize("dtype", [np.complex64, "float8_e4m3fn", "int4", np.float16, bool, np.uint64])
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_every_type_is_held(client: pjrt.Client, dtype: Any, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, pjrt.ElementType.of(dtype).dtype if not isinstance(dtype, str) else _named(dtype))
    element = pjrt.ElementType.of(array.dtype).mlir
    type_ = f"tensor<{'x'.join([*map(str, shape), element])}>"
    (result,) = run(
        client, function(f"%0 = stablehlo.add %x, %x : {type_} return %0 : {type_}", f"%x: {type_}", type_), array
    )
    np.testing.assert_array_equal(result, array + array)
    assert result.dtype == array.dtype


def _named(name: str) -> Any:
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


def test_a_program_on_the_second_device(client: pjrt.Client) -> None:
    first, second = client.devices
    x = client.buffer_from_host(np.arange(3, dtype=np.float32), device=first).copy_to(second)
    program = function(
        "%0 = stablehlo.add %x, %x : tensor<3xf32> return %0 : tensor<3xf32>", "%x: tensor<3xf32>", "tensor<3xf32>"
    )
    executable = client.compile(program, pjrt.CompileOptions(device_assignment=[[second.id]]))
    (result,) = executable(x)
    assert result.device == second
    np.testing.assert_array_equal(result, [0, 2, 4])


shapes = arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=4)


@settings(max_examples=12, deadline=None)
@given(data=st.data(), shape=shapes)
def test_a_chain_of_operations(client: pjrt.Client, data: st.DataObject, shape: tuple[int, ...]) -> None:
    elements = st.floats(-4, 4, width=32)
    x, y = (data.draw(arrays_of.arrays(np.float32, shape, elements=elements)) for _ in range(2))
    type_ = f"tensor<{'x'.join([*map(str, shape), 'f32'])}>"
    body = f"""%0 = stablehlo.tanh %x : {type_}
      %1 = stablehlo.maximum %0, %y : {type_}
      %2 = stablehlo.subtract %1, %x : {type_}
      return %2, %1 : {type_}, {type_}"""
    results = run(client, function(body, f"%x: {type_}, %y: {type_}", f"({type_}, {type_})"), x, y)
    chosen = np.maximum(np.tanh(x), y)
    for result, expected in zip(results, (chosen - x, chosen), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


# Errors.


def test_an_unknown_device(package: Any) -> None:
    with pytest.raises(pjrt.InvalidArgumentError, match=r"such as AMD or AMD:1, found 'gpu'; tinygrad has METAL"):
        package.make_client(device="gpu")


@pytest.mark.skipif(sys.platform == "darwin", reason="has Metal")
def test_a_device_that_is_not_here(package: Any) -> None:
    with pytest.raises(pjrt.UnavailableError, match=r"tinygrad cannot use its device METAL here: \w+"):
        package.make_client(device="METAL")


def test_the_fallback_runs_what_tinygrad_cannot_compile(
    package: Any, client: pjrt.Client, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    def broken(*arguments: Any) -> None:
        os.write(2, b"line 7: a register is missing\n")
        raise RuntimeError("the compiler failed")

    monkeypatch.setattr(package, "jit_lower", broken)
    x = np.ones(2, np.float32)
    program = function(
        "%0 = stablehlo.sine %x : tensor<2xf32> return %0 : tensor<2xf32>", "%x: tensor<2xf32>", "tensor<2xf32>"
    )
    with caplog.at_level(logging.WARNING, "pjrt"):
        (result,) = run(client, program, x)
    np.testing.assert_allclose(result, np.sin(x), rtol=1e-6)
    (record,) = (each for each in caplog.records if each.name == "pjrt")
    assert "RuntimeError: the compiler failed\nline 7: a register is missing" in record.getMessage()
    assert "runs 1 operations" in record.getMessage()
    assert "register" not in capfd.readouterr().err
