"""The registration of devices with PyTorch, through torchax. The page ``docs/frameworks/torch.md`` runs and trains."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("package", "title"), [("torch", "PyTorch"), ("jax", "JAX"), ("torchax", "torchax")])
def test_a_missing_package_is_named(package: str, title: str) -> None:
    modules = {name: name for name in ("torch", "jax", "torchax") if name != package}
    message = run(f"""
import sys, types, pjrt
for name in {list(modules)}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__spec__ = True
sys.modules[{package!r}] = None
try:
    pjrt.frameworks.torch.register("reference")
except pjrt.FailedPreconditionError as error:
    print(error.message)
""")
    assert message.startswith(f"{title} is needed to run PyTorch on a device of JAX, and it is not installed: pip inst")


@pytest.mark.full
@pytest.mark.parametrize("given", ["client", "pjrt.export(client, name='mychip')"])
def test_a_client_and_an_exported_plugin(given: str) -> None:
    """Also one that JAX has already. What is no device is named."""
    pytest.importorskip("jax")
    output = run(f"""
import sys, types
import jax, pjrt
from pjrt.stablehlo.files import torch_export
torch_export.load_torchax = lambda purpose: types.SimpleNamespace(enable_globally=lambda: None)
sys.modules["torch"] = types.SimpleNamespace(device=lambda name: name)
client = pjrt.StableHloClient("mychip", fallback="reference")
given = {given}
for _ in range(2):
    print(pjrt.frameworks.torch.register(given), jax.numpy.ones(2).devices())
try:
    pjrt.frameworks.torch.register(7)
except pjrt.InvalidArgumentError as error:
    print(error.message)
""")
    first, again, wrong = output.splitlines()
    assert first == again == "jax {mychip(id=0)}"
    assert wrong == "expected the name of a device, or the path of a plugin's library, found 7 of type int"


@pytest.mark.torch
def test_a_device_is_registered_before_jax_starts() -> None:
    output = run("""
import jax, pjrt
first = pjrt.frameworks.jax.register("reference")
jax.devices()
print(pjrt.frameworks.torch.register("reference"), jax.numpy.ones(2).devices())   # JAX has it already
for device in ("cpu", "no_such_device"):
    try:
        pjrt.frameworks.torch.register(device)
    except pjrt.PjrtError as error:
        print(type(error).__name__, error.message)
""")
    registered, late, unknown = output.splitlines()
    assert registered == "jax {reference(id=0)}"
    assert late.startswith("FailedPreconditionError JAX has made its backends already")
    assert unknown.startswith("NotFoundError")


@pytest.mark.torch
def test_a_platform_that_jax_leaves_out_is_an_error() -> None:
    output = run("""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
import pjrt
try:
    pjrt.frameworks.torch.register("reference")
except pjrt.FailedPreconditionError as error:
    print(error.message)
""")
    assert output.startswith("JAX has no device of the platform 'reference'")
