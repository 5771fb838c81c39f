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
    pytest.param("flop_counter", "stablehlo.dot_general", id="flop_counter"),
    pytest.param("slow_accelerator", "full: RESOURCE_EXHAUSTED", id="slow_accelerator"),
    pytest.param("torch_device", "silu", id="torch_device", marks=pytest.mark.torch),
]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=180, env=environment)


@pytest.mark.parametrize(("name", "printed"), [pytest.param("first_device", "on mychip(id=0)", id="first"), *DEVICES])
def test_by_itself(name: str, printed: str) -> None:
    done = run(str(EXAMPLES / name / "device.py"))
    assert done.returncode == 0, done.stderr
    assert printed in done.stdout


@pytest.mark.parametrize(("name", "printed"), DEVICES)
def test_under_jax(name: str, printed: str) -> None:
    done = run("-c", JAX, str(EXAMPLES / name / "device.py"), name)
    assert done.returncode == 0, done.stderr[-2000:]
