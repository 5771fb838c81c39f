"""Recordings for tests: of the tiny plugin, used through this package and through JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from tiny import TinyProgram

import pjrt
from pjrt.layers import wrap
from pjrt.layers.recording import Recording

X = np.arange(4, dtype=np.float32)

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"

_STEP = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax._src import xla_bridge
from tiny.jax_program import also_tiny

device = sys.argv[1]
if device.endswith(".so"):
    xla_bridge.register_plugin("recorded", library_path=device)
else:
    import pjrt
    exported = pjrt.export(lambda **options: pjrt.client(device, **options), name="recorded")
    xla_bridge.register_plugin("recorded", c_api=exported.capsule)

def loss(parameters, x, y):
    return jnp.mean(((x @ parameters["first"] + parameters["bias"]) @ parameters["second"] - y) ** 2)

def step(parameters, x, y):
    value, gradient = jax.value_and_grad(loss)(parameters, x, y)
    return value, jax.tree.map(lambda each, slope: each - 0.01 * slope, parameters, gradient)

with jax.default_device(jax.devices("recorded")[0]):
    random = np.random.default_rng(0)
    parameters = {"first": random.normal(size=(4, 8)), "bias": np.zeros(8), "second": random.normal(size=(8, 1))}
    parameters = {name: value.astype(np.float32) for name, value in parameters.items()}
    x = random.normal(size=(16, 4)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    train = jax.jit(also_tiny(step, parameters, x, y))
    losses = []
    for _ in range(2):
        value, parameters = train(parameters, x, y)
        losses.append(float(value))
    print(losses)
"""


def record_jax(device: str, library: Path, file: Path) -> subprocess.CompletedProcess[str]:
    """Record two training steps of JAX on a plugin, in a process that knows of no layer but by its environment."""
    environment = os.environ | {
        "PJRT_LAYERS": "record",
        "PJRT_RECORD": f"file={file}",
        "PYTHONPATH": os.pathsep.join([str(PLUGINS), *(part for part in sys.path if part)]),
    }
    if device.endswith(".so"):
        environment["LD_PRELOAD"] = str(library)
    return subprocess.run(
        [sys.executable, "-c", _STEP, device], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def program(name: str = "adder", *, fails: bool = False) -> pjrt.Program:
    """Return a program that adds two arrays."""
    tiny = TinyProgram(name)
    x, y = tiny.parameter("f32[4]"), tiny.parameter("f32[4]")
    if fails:
        tiny.do("fail", 13, "no luck")
    return pjrt.Program(tiny.result(tiny.let("add", x, y)).code, "tiny")


def record_sums(library: Path, file: Path, *, count: int = 2, **options: object) -> Recording:
    """Record a client of the tiny plugin that adds arrays, and return the recording."""
    plugin = wrap(library, ["record"], record={"file": file, **options})
    client = plugin.client(num_devices=2)
    executable = client.compile(program())
    for i in range(count):
        x, y = client.buffer_from_host(X[::-1]), client.buffer_from_host(np.arange(8, dtype=np.float32)[::2] + i)
        (result,) = executable(x, y)
        assert result.to_host().result().tolist() == (X[::-1] + 2 * X + i).tolist()
    client.close()
    return Recording.open(file)
