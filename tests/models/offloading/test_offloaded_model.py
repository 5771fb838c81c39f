"""Models that are larger than the device: the same numbers in a fraction of the memory."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch_folders
from hypothesis import given, settings
from hypothesis import strategies as st
from limited_device import limited
from waiting import wait_until

import pjrt
from pjrt.host import Compiled, HostClient
from pjrt.models import Action, OffloadedModel

NAMES = ["unrolled", "scanned", "backwards", "step"]
LAYERS = 8
OTHERS = 20_000
"""Bytes for what is not a weight of a layer: the embedding, arguments, activations."""


class Layered:
    """A transformer of ``layered_models.py``."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jax"
        arrays = dict(np.load(folder / f"{name}.npz"))
        arrays = {key: a.view(ml_dtypes.bfloat16) if a.dtype == np.uint16 else a for key, a in arrays.items()}
        self.weights = {key: array for key, array in arrays.items() if key.startswith("params")}
        self.results = [arrays[f"result_{index}"] for index in range(sum(key.startswith("result") for key in arrays))]
        self.arguments: dict[str, Any] = {"tokens": arrays["tokens"]}
        if name == "step":
            cache = [arrays[f"cache['layers'][{index}]"] for index in range(LAYERS)]
            self.arguments["cache"] = {"layers": cache, "count": arrays["cache['count']"]}
        self.layer = sum(array.nbytes for key, array in self.weights.items() if "layers" in key) // LAYERS
        self.total = sum(array.nbytes for array in self.weights.values())

    @property
    def two_layers(self) -> int:
        """Bytes for two of the eight layers."""
        return 2 * self.layer + OTHERS


@pytest.fixture(scope="session")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Layered]:
    folder = tmp_path_factory.mktemp("layered")
    script = Path(__file__).parents[1] / "layered_models.py"
    done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return lambda name: Layered(folder, name)


@pytest.fixture(scope="session")
def inner() -> Iterator[pjrt.Client]:
    with pjrt.client("reference") as client:
        yield client


def leaves(result: Any) -> list[np.ndarray]:
    if isinstance(result, dict):
        return [leaf for key in sorted(result) for leaf in leaves(result[key])]
    if isinstance(result, tuple | list):
        return [leaf for each in result for leaf in leaves(each)]
    return [np.asarray(result)]


def assert_right(result: Any, model: Layered) -> None:
    found = leaves(result)
    assert len(found) == len(model.results)
    for array, expected in zip(found, model.results, strict=True):
        np.testing.assert_allclose(array, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.full
@pytest.mark.parametrize(
    ("device", "name"), [("cpu", "unrolled"), ("cpu", "scanned"), *(("reference", name) for name in NAMES)]
)
def test_a_model_of_eight_layers_runs_in_memory_for_two(
    device: str, name: str, layered: Callable[[str], Layered]
) -> None:
    model = layered(name)
    inner = pjrt.client(device)
    assert model.two_layers < model.total / 2
    with limited(inner, model.two_layers) as client, pytest.raises(pjrt.ResourceExhaustedError):
        _ = [client.buffer_from_host(array) for array in model.weights.values()]
    with limited(inner, model.two_layers) as client:
        with pjrt.offload(model.path, client, weights=model.weights) as offloaded:
            for _ in range(2):
                assert_right(offloaded(**model.arguments), model)
            (staged,) = offloaded.compilations
            plan = offloaded.plan(staged.shapes[-len(offloaded.parameters) :])
            # One program for all layers (or one for each half of a layer), and those around them.
            assert max(Counter(stage.executable for stage in plan.stages).values()) == LAYERS
            assert plan.num_executables <= 4
            stats = client.devices[0].memory_stats()
            assert plan.peak_bytes - 64 <= (stats.peak_bytes_in_use or 0) <= plan.peak_bytes <= model.two_layers
        gc.collect()
        assert client.devices[0].memory_stats().bytes_in_use == 0


def dense(layers: int, size: int = 16, argument: str = "") -> str:
    """Return a program of dense layers with names for its arguments."""
    types = f"tensor<4x{size}xf32>", f"tensor<{size}x{size}xf32>"
    lines = [f'func.func @main(%x: {types[0]}{argument} loc("x")']
    lines += [f', %w{layer}: {types[1]} loc("w{layer}")' for layer in range(layers)]
    lines.append(f") -> {types[0]} {{")
    value = "%x"
    for layer in range(layers):
        lines += [
            f"  %d{layer} = stablehlo.dot_general {value}, %w{layer}, contracting_dims = [1] x [0]"
            f" : ({types[0]}, {types[1]}) -> {types[0]}",
            f"  %t{layer} = stablehlo.tanh %d{layer} : {types[0]}",
        ]
        value = f"%t{layer}"
    return "\n".join([*lines, f"  return {value} : {types[0]}", "}"])


RNG = np.random.default_rng(5)
X = RNG.standard_normal((4, 16)).astype(np.float32)
W = {f"w{layer}": (RNG.standard_normal((16, 16)) / 4).astype(np.float32) for layer in range(6)}
MATRIX = 16 * 16 * 4


def expected(x: np.ndarray, layers: int = 6) -> np.ndarray:
    for layer in range(layers):
        x = np.tanh(x @ W[f"w{layer}"])
    return x


def assert_dense(offloaded: OffloadedModel, x: Any = X) -> None:
    (result,) = offloaded(x)
    np.testing.assert_allclose(result, expected(np.asarray(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prefetch", [True, False])
@pytest.mark.parametrize("host_memory_kind", [None, "pinned_host"])
def test_ways_to_bring_weights(prefetch: bool, host_memory_kind: str | None, inner: pjrt.Client) -> None:
    with limited(inner, 2 * MATRIX + 1024) as client:
        with pjrt.offload(
            dense(6), client, weights=W, prefetch=prefetch, host_memory_kind=host_memory_kind
        ) as offloaded:
            assert_dense(offloaded)
            plan = offloaded.plan()
            loads = [step.stage for step in plan.steps if step.action is Action.LOAD]
            assert loads == sorted(loads)
            early = plan.steps.index((Action.LOAD, 2)) < plan.steps.index((Action.FINISH, 1))
            assert early is prefetch
        assert client.devices[0].memory_stats().bytes_in_use == 0


def test_the_plan_is_readable(inner: pjrt.Client) -> None:
    with limited(inner, 3 * MATRIX) as client, pjrt.offload(dense(6), client, weights=W) as offloaded:
        plan = offloaded.plan()
        assert [stage.weights for stage in plan.stages] == [(name,) for name in W]
        assert {stage.executable for stage in plan.stages} == {0}
        assert plan.weight_bytes == 6 * MATRIX
        assert plan.moved_bytes + plan.resident_bytes == plan.weight_bytes
        first, header, *rows = str(plan).splitlines()
        assert first.startswith("6 stages, 1 compiled program; weights 6.0 KiB")
        assert header.split()[:2] == ["stage", "program"]
        assert len(rows) == 6


def test_enough_memory_keeps_all_weights(inner: pjrt.Client) -> None:
    with limited(inner) as client, pjrt.offload(dense(6), client, weights=W, memory_limit=1 << 20) as offloaded:
        assert_dense(offloaded)
        before = client.devices[0].memory_stats().num_allocs or 0
        assert_dense(offloaded)
        # Only the argument and results of stages are new.
        assert (client.devices[0].memory_stats().num_allocs or 0) - before <= 7
        assert offloaded.plan().moved_bytes == 0


def test_the_limit_is_by_default_what_is_free(inner: pjrt.Client) -> None:
    with limited(inner, 5 * MATRIX) as client:
        kept = client.buffer_from_host(np.zeros((16, 16), np.float32))
        offloaded = pjrt.offload(dense(6), client, weights=W)
        assert offloaded.memory_limit == 4 * MATRIX
        assert_dense(offloaded)
        kept.delete()
    with pytest.raises(pjrt.InvalidArgumentError, match="states no limit of its memory: give memory_limit"):
        pjrt.offload(dense(6), inner, weights=W)


def test_arguments_on_the_device(inner: pjrt.Client) -> None:
    with (
        limited(inner, 4 * MATRIX) as client,
        pjrt.offload(dense(6), client, weights=W, memory_limit=3 * MATRIX) as offloaded,
    ):
        buffer = client.buffer_from_host(X)
        assert_dense(offloaded, buffer)
        assert not buffer.is_deleted
        (once,) = offloaded(X)
        (twice,) = offloaded(once)
        np.testing.assert_allclose(twice, expected(expected(X)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("donor", ["{tf.aliasing_output = 0 : i32}", "{jax.buffer_donor = true}"])
def test_a_donated_argument_is_used_up(donor: str, inner: pjrt.Client) -> None:
    with limited(inner, 3 * MATRIX) as client:
        with pjrt.offload(dense(6, argument=f" {donor}"), client, weights=W) as offloaded:
            buffer = client.buffer_from_host(X)
            assert_dense(offloaded, X.copy())
            (result,) = offloaded(buffer)
            assert buffer.is_deleted
            np.testing.assert_allclose(result, expected(X), rtol=1e-5, atol=1e-6)


def test_stages_give_memory_to_one_another(inner: pjrt.Client) -> None:
    # Without donation each stage has its argument and its result beside the weights: too much for this memory.
    limit = 2 * MATRIX + 3 * X.nbytes
    with limited(inner, limit) as client, pjrt.offload(dense(6), client, weights=W) as offloaded:
        assert [stage.result_bytes for stage in offloaded.plan().stages] == [X.nbytes, *[0] * 5]
        assert_dense(offloaded)


def test_files_of_weights(tmp_path: Path, inner: pjrt.Client) -> None:
    from safetensors.numpy import save_file

    save_file(W, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", **W)
    with limited(inner, 3 * MATRIX) as client:
        for name in ("w.safetensors", "w.npz"):
            with pjrt.offload(dense(6), client, weights=tmp_path / name) as offloaded:
                assert_dense(offloaded)


def test_weights_by_number_of_argument(inner: pjrt.Client) -> None:
    weights = {index + 1: array for index, array in enumerate(W.values())}
    with limited(inner, 3 * MATRIX) as client, pjrt.offload(dense(6), client, weights=weights) as offloaded:
        assert_dense(offloaded)
        assert [parameter.name for parameter in offloaded.parameters] == ["x"]


@pytest.mark.full
def test_nested_weights(layered: Callable[[str], Layered], inner: pjrt.Client) -> None:
    model = layered("scanned")
    layers = {name: model.weights[f"params['layers']['{name}']"] for name in ("wq", "wk", "wv", "wo", "up", "down")}
    params = {"embedding": model.weights["params['embedding']"], "layers": layers}
    with limited(inner, model.two_layers) as client:
        for key in ("params", 0):
            with pjrt.offload(model.path, client, weights={key: params}) as offloaded:
                assert_right(offloaded(model.arguments["tokens"]), model)
        # A part of an argument: the rest is given with each call.
        with pjrt.offload(model.path, client, weights={f"params['layers']['{k}']": layers[k] for k in layers}) as rest:
            assert_right(rest({"embedding": params["embedding"]}, model.arguments["tokens"]), model)


def test_results_that_no_stage_computes(inner: pjrt.Client) -> None:
    program = """
    func.func @main(%x: tensor<2xf32> loc("x"), %w: tensor<2xf32> loc("w"))
        -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<3xi32>, tensor<2xf32>) {
      %c = stablehlo.constant dense<[1, 2, 3]> : tensor<3xi32>
      %y = stablehlo.add %x, %w : tensor<2xf32>
      return %x, %w, %y, %c, %y : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<3xi32>, tensor<2xf32>
    }"""
    x, w = np.float32([1, 2]), np.float32([10, 20])
    with limited(inner, 4096) as client, pjrt.offload(program, client, weights={"w": w}) as offloaded:
        for _ in range(2):
            results = offloaded(x)
            for result, value in zip(results, (x, w, x + w, np.int32([1, 2, 3]), x + w), strict=True):
                np.testing.assert_array_equal(result, value)
            results[2].delete()
            np.testing.assert_array_equal(results[4], x + w)
    identity = 'func.func @main(%x: tensor<2xf32> loc("x")) -> tensor<2xf32> { return %x : tensor<2xf32> }'
    with limited(inner, 4096) as client:
        np.testing.assert_array_equal(pjrt.offload(identity, client)(x)[0], x)
        np.testing.assert_array_equal(pjrt.offload(identity, client, weights={"x": x})()[0], x)


def test_large_constants_are_weights(inner: pjrt.Client) -> None:
    values = RNG.integers(0, 100, (3, 128, 128)).astype(np.int32)
    lines = ['func.func @main(%x: tensor<128x128xi32> loc("x")) -> tensor<128x128xi32> {']
    for index in range(3):
        hexadecimal = values[index].tobytes().hex().upper()
        lines.append(f'  %c{index} = stablehlo.constant dense<"0x{hexadecimal}"> : tensor<128x128xi32>')
        before = f"%y{index - 1}" if index else "%x"
        lines.append(f"  %y{index} = stablehlo.add {before}, %c{index} : tensor<128x128xi32>")
    program = "\n".join([*lines, "  return %y2 : tensor<128x128xi32>", "}"])
    x = np.ones((128, 128), np.int32)
    with limited(inner, 5 * x.nbytes) as client, pjrt.offload(program, client) as offloaded:
        assert len(offloaded.plan().stages) == 3
        assert offloaded.plan().num_executables == 1
        np.testing.assert_array_equal(offloaded(x)[0], x + values.sum(0))


def test_several_threads_take_turns(inner: pjrt.Client) -> None:
    with limited(inner, 2 * MATRIX + 1024) as client, pjrt.offload(dense(6), client, weights=W) as offloaded:
        errors: list[BaseException] = []

        def call(seed: int) -> None:
            try:
                for _ in range(3):
                    assert_dense(offloaded, X * np.float32(seed))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert (client.devices[0].memory_stats().peak_bytes_in_use or 0) <= 2 * MATRIX + 1024


@pytest.mark.full
def test_shapes_take_turns_with_the_memory(layered: Callable[[str], Layered], inner: pjrt.Client) -> None:
    model = layered("step")
    with limited(inner, 5 * model.layer + OTHERS) as client:
        with pjrt.offload(model.path, client, weights=model.weights) as offloaded:
            assert_right(offloaded(**model.arguments), model)
            tokens = model.arguments["tokens"][:3]
            offloaded(tokens, model.arguments["cache"])
            assert_right(offloaded(**model.arguments), model)
            assert len(offloaded.compilations) == 2
            with pytest.raises(pjrt.InvalidArgumentError, match="static shape"):
                offloaded.plan()


def test_a_stage_that_fails_leaves_nothing_on_the_device() -> None:
    calls = 0

    def compile(program: pjrt.Program, options: pjrt.CompileOptions) -> Compiled:
        def run(x: np.ndarray, w: np.ndarray) -> np.ndarray:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise ValueError("the fourth stage fails")
            return np.tanh(x @ w)

        return Compiled(run=run, outputs=[pjrt.ShapeSpec((4, 16), np.float32)])

    with HostClient("failing", compile=compile, memory_limit=3 * MATRIX) as client:
        offloaded = pjrt.offload(dense(6), client, weights=W)
        with pytest.raises(pjrt.PjrtError, match="the fourth stage fails"):
            offloaded(X)
        offloaded.close()

        def is_empty() -> bool:
            gc.collect()  # a thread of the device may hold the error, and with it the arguments, for a moment longer
            return client.devices[0].memory_stats().bytes_in_use == 0

        wait_until(is_empty)


def test_a_closed_model(inner: pjrt.Client) -> None:
    with limited(inner, 3 * MATRIX) as client:
        offloaded = pjrt.offload(dense(6), client, weights=W)
        offloaded.close()
        offloaded.close()
        with pytest.raises(pjrt.FailedPreconditionError, match="the model is closed"):
            offloaded(X)


def test_an_array_larger_than_the_memory_is_named(inner: pjrt.Client) -> None:
    with limited(inner, MATRIX - 1) as client:
        with pytest.raises(pjrt.ResourceExhaustedError, match=r"w0, a tensor<16x16xf32> of 1024 bytes, is larger than"):
            pjrt.offload(dense(6), client, weights=W)


def test_a_stage_that_cannot_be_divided_is_explained(inner: pjrt.Client) -> None:
    with limited(inner, MATRIX + X.nbytes) as client:
        with pytest.raises(
            pjrt.ResourceExhaustedError,
            match=r"needs 256 bytes more than the memory limit of 1280 bytes: .*The largest array is w0",
        ):
            pjrt.offload(dense(6), client, weights=W)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"nothing": X}, "expected the names of arguments .*, found nothing"),
        ({"w0": X}, r"expected argument 1 \(w0\): f32\[16,16\], found f32\[4,16\]"),
        ({"w0": W["w0"].astype(np.float64)}, "found f64"),
        ({9: W["w0"]}, "expected the number of one of 7 positional arguments, found 9"),
        ({"w0": W["w0"], 1: W["w0"]}, "expected one value for argument 1 .*, found two weights"),
    ],
)
def test_wrong_weights(weights: Any, message: str, inner: pjrt.Client) -> None:
    with limited(inner, 4 * MATRIX) as client, pytest.raises(pjrt.InvalidArgumentError, match=message):
        pjrt.offload(dense(6), client, weights=weights)


def test_wrong_arguments(inner: pjrt.Client) -> None:
    with limited(inner, 4 * MATRIX) as client, pjrt.offload(dense(6), client, weights=W) as offloaded:
        with pytest.raises(pjrt.InvalidArgumentError, match="expected 1 arguments"):
            offloaded(X, X)
        with pytest.raises(pjrt.InvalidArgumentError, match=r"expected argument 0 \(x\)"):
            offloaded(X[:2])
        with pytest.raises(pjrt.InvalidArgumentError, match="at least 1 byte, found 0"):
            pjrt.offload(dense(6), client, weights=W, memory_limit=0)
        with pytest.raises(pjrt.NotFoundError, match="no memory space of kind 'far'"):
            pjrt.offload(dense(6), client, weights=W, host_memory_kind="far")


def test_programs_that_cannot_run_in_stages(inner: pjrt.Client) -> None:
    parted = f"module attributes {{mhlo.num_partitions = 2 : i32}} {{ {dense(2)} }}"
    with pytest.raises(pjrt.UnimplementedError, match="offloading runs programs of one device"):
        pjrt.offload(parted, inner, memory_limit=1 << 20)
    outfeed = """
    func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {
      %t = stablehlo.create_token : !stablehlo.token
      %o = "stablehlo.outfeed"(%x, %t) : (tensor<2xf32>, !stablehlo.token) -> !stablehlo.token
      return %x : tensor<2xf32>
    }"""
    with pytest.raises(pjrt.UnimplementedError, match=r"stablehlo\.outfeed .* whose effect is not a result"):
        pjrt.offload(outfeed, inner, memory_limit=1 << 20)


def test_cpu_itself() -> None:
    with pjrt.client("cpu", num_devices=2) as client:
        with pjrt.offload(dense(6), client, weights=W, memory_limit=3 * MATRIX, device=client.devices[1]) as offloaded:
            assert_dense(offloaded)
            (result,) = offloaded(X)
            assert result.buffers[0].device is client.devices[1]


@st.composite
def programs(draw: st.DrawFn) -> tuple[str, int, int]:
    """Draw a program of small operations in any order, with its numbers of arguments and of weights."""
    type_ = "tensor<4x4xf32>"
    arguments, weights = draw(st.integers(1, 3)), draw(st.integers(1, 6))
    donated = draw(st.lists(st.booleans(), min_size=arguments, max_size=arguments))
    values = [f"%x{i}" for i in range(arguments)] + [f"%w{i}" for i in range(weights)]
    lines = []
    for number in range(draw(st.integers(1, 14))):
        if draw(st.integers(0, 9)) == 0:
            lines.append(f"%v{number} = stablehlo.constant dense<{number}.5> : {type_}")
        else:
            name = draw(st.sampled_from(["add", "subtract", "maximum"]))
            left, right = draw(st.sampled_from(values)), draw(st.sampled_from(values))
            lines.append(f"%v{number} = stablehlo.{name} {left}, {right} : {type_}")
        values.append(f"%v{number}")
    results = draw(st.lists(st.sampled_from(values), min_size=1, max_size=4))
    donor = " {jax.buffer_donor = true}"
    heads = [f'%x{i}: {type_}{donor if donated[i] else ""} loc("x{i}")' for i in range(arguments)]
    heads += [f'%w{i}: {type_} loc("w{i}")' for i in range(weights)]
    types = ", ".join([type_] * len(results))
    body = "\n".join([*lines, f"return {', '.join(results)} : {types}"])
    return f"func.func @main({', '.join(heads)}) -> ({types}) {{\n{body}\n}}", arguments, weights


@pytest.mark.full
@given(programs(), st.integers(2, 24), st.booleans(), st.booleans())
@settings(max_examples=10, deadline=None)
def test_any_program_in_any_memory(program: tuple[str, int, int], arrays: int, prefetch: bool, on_device: bool) -> None:
    text, arguments, weights = program
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(arguments)]
    ws = {f"w{i}": rng.standard_normal((4, 4)).astype(np.float32) for i in range(weights)}
    spare = arguments if on_device else 0  # for buffers of arguments that the program does not need
    with pjrt.client("reference") as inner, limited(inner, (arrays + spare) * 64) as client:
        expected = [np.array(result) for result in inner.compile(text)(*xs, *ws.values())]

        def check(offloaded: OffloadedModel) -> None:
            results = offloaded(*(map(client.buffer_from_host, xs) if on_device else xs))
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_array_equal(result, value)

        try:
            offloaded = pjrt.offload(text, client, weights=ws, prefetch=prefetch, memory_limit=arrays * 64)
        except pjrt.ResourceExhaustedError:
            # At most the arguments, the results, two operands, a result, and what is alive between.
            assert arrays < arguments + len(expected) + 18
            return
        check(offloaded)
        check(offloaded)
        offloaded.close()

        def is_empty() -> bool:
            gc.collect()  # a thread of the device may hold the error, and with it the arguments, for a moment longer
            return client.devices[0].memory_stats().bytes_in_use == 0

        wait_until(is_empty)


@pytest.mark.full
def test_weights_in_a_folder_of_pytorch(tmp_path: Path, inner: pjrt.Client) -> None:
    torch_folders.write_mlp(tmp_path / "mlp")
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    with limited(inner, 1 << 16) as client, pjrt.offload(tmp_path / "mlp", client) as offloaded:
        result = offloaded(x, None, 7, flag=np.zeros(5, np.bool_))["y"]
        np.testing.assert_allclose(result, 2 * (x @ torch_folders.WEIGHT.T + torch_folders.BIAS), rtol=1e-5)
        weights = torch_folders.WEIGHT.nbytes + torch_folders.BIAS.nbytes
        assert offloaded.plan({"args[0]": x.shape}).weight_bytes == weights + 4  # and the scale
