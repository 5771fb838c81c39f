"""The example devices: as they run by themselves, and under JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

JAX = """
import importlib.util, sys, numpy as np, pjrt, jax
spec = importlib.util.spec_from_file_location("device", sys.argv[1])
device = importlib.util.module_from_spec(spec); sys.modules["device"] = device; spec.loader.exec_module(device)
platform = pjrt.frameworks.jax.register(pjrt.export(device.make_client, name=sys.argv[2]))
with jax.default_device(jax.devices(platform)[0]):
    f = jax.jit(lambda x: jax.numpy.tanh(x) * 2 + jax.nn.sigmoid(x))
    x = np.linspace(-2, 2, 7, dtype=np.float32)
    np.testing.assert_allclose(f(x), np.tanh(x) * 2 + 1 / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
    g = jax.vmap(jax.grad(lambda v: jax.numpy.sin(v) * v))
    np.testing.assert_allclose(g(x), np.cos(x) * x + np.sin(x), rtol=1e-4, atol=1e-5)
"""

DEVICES = [
    pytest.param("flop_counter", "stablehlo.dot_general", id="flop_counter", marks=pytest.mark.full),
    pytest.param("slow_accelerator", "full: RESOURCE_EXHAUSTED", id="slow_accelerator", marks=pytest.mark.full),
    pytest.param("tiled_chip", "8192 bytes for 1200", id="tiled_chip", marks=pytest.mark.full),
    pytest.param("torch_device", "silu", id="torch_device", marks=pytest.mark.torch),
]


def run(*command: str, seconds: float = 180) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=seconds, env=environment)


@pytest.mark.parametrize(("name", "printed"), [pytest.param("first_device", "on mychip(id=0)", id="first"), *DEVICES])
def test_by_itself(name: str, printed: str) -> None:
    done = run(str(EXAMPLES / name / "device.py"))
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize(("name", "printed"), DEVICES)
def test_under_jax(name: str, printed: str) -> None:
    done = run("-c", JAX, str(EXAMPLES / name / "device.py"), name)
    assert done.returncode == 0, done.stderr[-2000:]


QUANTIZED = """
import sys
sys.path.insert(0, sys.argv[1])
import jax, jax.numpy as jnp, numpy as np, pjrt, quantized

calls = []
kernel = quantized.int8_product

def noted(op, x, values, scale):
    calls.append((values.memory.dtype, values.shape, scale.shape))
    return kernel(op, x, values, scale)

quantized.int8_product = noted
platform = pjrt.frameworks.jax.register(pjrt.export(quantized.make_client, name="tiled"))
chip, cpu = jax.devices(platform)[0], jax.devices("cpu")[0]
generator = np.random.default_rng(0)
x, dense = generator.standard_normal((5, 6)).astype("f"), generator.standard_normal((6, 3)).astype("f")
here, there = (jax.device_put((x, quantized.Int8.of(dense)), place) for place in (chip, cpu))
assert here[1].values.dtype == np.int8 and here[1].scale.shape == (3,)
np.testing.assert_allclose(here[1].dense(), dense, atol=np.abs(dense).max() / 254 * 1.01)

run = jax.jit(quantized.product)
ours, theirs = run(*here), run(*there)
assert calls == [(np.dtype(np.int8), (6, 3), (3,))], calls      # the CPU has the other branch
assert ours.devices() == {chip} and theirs.devices() == {cpu}
np.testing.assert_allclose(theirs, x @ np.asarray(there[1].dense()), rtol=1e-5, atol=1e-5)
difference = np.abs(np.asarray(ours) - theirs).max()
assert 0 < difference < 0.02 * np.abs(theirs).max(), difference   # the rows were rounded to int8, too

@jax.jit
def gradient(x, weights):
    return jax.grad(lambda x: (quantized.product(x, weights) ** 2).sum())(x)

wanted = 2 * np.asarray(ours) @ np.asarray(there[1].dense()).T
np.testing.assert_allclose(gradient(*here), wanted, rtol=1e-4, atol=1e-4)
batch = jax.jit(jax.vmap(quantized.product, (0, None)))(jnp.stack([here[0], here[0] * 2]), here[1])
np.testing.assert_allclose(batch, np.stack([ours, ours * 2]), rtol=1e-5)
"""


@pytest.mark.full
def test_a_quantized_type_under_jax() -> None:
    done = run("-c", QUANTIZED, str(EXAMPLES / "tiled_chip"))
    assert done.returncode == 0, done.stderr[-2000:]
    done = run(str(EXAMPLES / "tiled_chip" / "quantized.py"))
    assert "32768 bytes for 131072, off by 1.0%" in done.stdout, done.stderr


TORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import device, jax, jax.numpy as jnp, numpy as np, pjrt, torch
"""

NO_COPY = """
pointers = []
tanh = device.KERNELS["stablehlo.tanh"]

def noted(operation, x):
    result = tanh(operation, x)
    pointers.append((x.data_ptr(), result.data_ptr()))
    return result

device.KERNELS["stablehlo.tanh"] = noted
client = device.make_client()
executable = client.compile(str(jax.jit(jnp.tanh).lower(jnp.ones(5)).as_text()))
for x in (torch.linspace(-1, 1, 5), torch.linspace(-1, 1, 5)):
    argument = client.buffer_from_dlpack(x)
    assert argument.unsafe_pointer() == x.data_ptr()
    (result,) = executable(argument)
    exported = torch.from_dlpack(result)
    seen = np.asarray(result)
    assert pointers.pop() == (x.data_ptr(), exported.data_ptr())
    assert seen.__array_interface__["data"][0] == exported.data_ptr() == result.unsafe_pointer()
    del result, executable
    executable = client.compile(str(jax.jit(jnp.tanh).lower(jnp.ones(5)).as_text()))
    torch.testing.assert_close(exported, torch.tanh(x))  # the tensor keeps the memory
try:
    client.buffer_from_dlpack(torch.ones(2, 3).T)
except pjrt.UnimplementedError as error:
    assert "row-major" in error.message
else:
    raise AssertionError("a transposed tensor was taken")
"""

LIKE_THE_REFERENCE = """
x = np.random.default_rng(0).standard_normal((4, 6)).astype("f")
x[1, 2], x[0, 0], x[3, 3] = np.nan, np.inf, 0
n = np.arange(-12, 12, dtype=np.int32).reshape(4, 6)
empty = np.zeros((0, 6), "f")
programs = [
    (lambda x: (jnp.exp(x), jnp.log(x), jnp.sqrt(x), jnp.sin(x), jnp.cos(x), jnp.abs(x), -x, jnp.floor(x)), x),
    (lambda x: (jnp.maximum(x, x.T.reshape(x.shape)), jnp.minimum(x, 0), x ** 3, x / 2, x - 1), x),
    (lambda x: (x > 0, x == x, jnp.where(x > 0, x, 1), jnp.sign(x)), x),
    (lambda x: (x.sum(), x.max(0), x.min(1), x.prod(), x.mean((0, 1)), x.any(), jnp.argmax(x, 1)), x),
    (lambda x: (x.sum(0), x @ x.T), empty),
    (lambda x: (x @ x.T, jnp.einsum("ab,ab->b", x, x), jnp.einsum("ab,cb->cab", x, x)), x),
    (lambda n: (n // 5, n % 5, n.sum(), n.max(), n & 6, n | 1, n ^ 3, ~n, n @ n.T, n.astype("f"), n.astype(bool)), n),
    (lambda x: (jnp.sort(x), x[1:, ::2], jnp.concatenate([x, x]), x.astype(jnp.bfloat16) + 1), x),
    (lambda x: (x.astype(jnp.int32), x.astype(jnp.float8_e4m3fn).astype("f") * 2, x > 1), np.abs(x[2:3])),
    (lambda x: jax.random.normal(jax.random.key(0), x.shape) + jax.lax.fori_loop(0, 3, lambda _, v: v + x, x), x),
    (lambda x: (x.astype(jnp.complex64) * 1j, jnp.abs(x + 2j), (x > 0) & (x < 1)), x),
]
with device.make_client() as ours, pjrt.client("reference") as judge:
    for function, argument in programs:
        text = str(jax.jit(function).lower(argument).as_text())
        results = [client.compile(text)(argument) for client in (ours, judge)]
        for number, (mine, want) in enumerate(zip(*results, strict=True)):
            mine, want = np.asarray(mine), np.asarray(want)
            assert mine.dtype == want.dtype
            np.testing.assert_allclose(mine, want, rtol=2e-5, atol=1e-5, err_msg=f"{number} of {text}")
"""

TRAINING = """
from jax.sharding import Mesh, NamedSharding, PartitionSpec
platform = pjrt.frameworks.jax.register(pjrt.export(device.make_client, name="torch_device"), num_devices=4)

def loss(weights, x, y):
    for w, b in weights[:-1]:
        x = jnp.tanh(x @ w + b)
    w, b = weights[-1]
    return jnp.mean((x @ w + b - y) ** 2)

step = jax.jit(lambda p, x, y: jax.tree.map(lambda p, g: p - 0.1 * g, p, jax.grad(loss)(p, x, y)), donate_argnums=0)

def train(devices):
    mesh = Mesh(np.array(devices), "data")
    generator = np.random.default_rng(0)
    weights = [(generator.standard_normal(s).astype("f") / 2, np.zeros(s[1], "f")) for s in ((2, 16), (16, 1))]
    x = generator.uniform(-1, 1, (64, 2)).astype("f")
    y = np.sin(3 * x[:, :1]) * x[:, 1:]
    x, y = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
    weights = jax.device_put(weights, NamedSharding(mesh, PartitionSpec()))
    for _ in range(30):
        weights = step(weights, x, y)
    return float(jax.jit(loss)(weights, x, y))

np.testing.assert_allclose(train(jax.devices(platform)), train(jax.devices("cpu")), rtol=1e-4)
"""


@pytest.mark.torch
@pytest.mark.parametrize(
    "code", [NO_COPY, LIKE_THE_REFERENCE, TRAINING], ids=["no_copy", "like_the_reference", "training"]
)
def test_the_torch_device(code: str) -> None:
    done = run("-c", TORCH + code, str(EXAMPLES / "torch_device"))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.torch
def test_the_torch_device_is_right() -> None:
    done = run("-m", "pjrt", "test-device", f"{EXAMPLES / 'torch_device' / 'device.py'}:make_client", "--filter", "f32")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "nothing is wrong" in done.stdout


@pytest.mark.torch
def test_the_llama_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    done = run(str(EXAMPLES / "torch_llama" / "train.py"), "reference", "--steps", "11", seconds=280)
    assert done.returncode == 0, done.stderr[-3000:]
    *steps, written = done.stdout.splitlines()
    losses = [float(line.rpartition(" ")[2]) for line in steps]
    assert len(losses) == 2
    assert losses[1] < losses[0] - 0.5
    assert "Train a small" in written
