"""The registration of devices with PyTorch, through torchax, and what TorchTPU's takes and refuses.

The page ``docs/frameworks/torch.md`` runs and trains through torchax, and ``torch_tpu_job.py`` through TorchTPU.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import pjrt
from pjrt.plugins import registry


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
    pjrt.frameworks.torch.register_torchax("reference")
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
    print(pjrt.frameworks.torch.register_torchax(given), jax.numpy.ones(2).devices())
try:
    pjrt.frameworks.torch.register_torchax(7)
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
print(pjrt.frameworks.torch.register_torchax("reference"), jax.numpy.ones(2).devices())   # JAX has it already
for device in ("cpu", "no_such_device"):
    try:
        pjrt.frameworks.torch.register_torchax(device)
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
    pjrt.frameworks.torch.register_torchax("reference")
except pjrt.FailedPreconditionError as error:
    print(error.message)
""")
    assert output.startswith("JAX has no device of the platform 'reference'")


def test_without_torch_tpu_the_way_there_is_named() -> None:
    message = run("""
import importlib.util, pjrt
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name in ("torch_tpu", "torchax") else find(name, *more)
try:
    pjrt.frameworks.torch.register("reference")
except pjrt.FailedPreconditionError as error:
    print(error.message)
""")
    assert message.startswith(
        "TorchTPU is needed for a device of PyTorch's own, and it is not installed: pip install tor"
    )
    assert "register_torchax" in message


def test_without_torch_tpu_register_is_torchax_for_now() -> None:
    message = run("""
import importlib.util, warnings, pjrt
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch_tpu" else name == "torchax" or find(name, *more)
pjrt.frameworks.torch.register_torchax = lambda device, wrap, **options: (device, wrap, options)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(pjrt.frameworks.torch.register("reference", num_devices=2))
print(*(str(each.message) for each in caught))
""")
    assert message.startswith(
        "('reference', None, {'num_devices': 2})\nTorchTPU is not installed, so register uses torchax"
    )


STAND_IN = """
import importlib.metadata, importlib.util, os, sys, types
find, version = importlib.util.find_spec, importlib.metadata.version
importlib.util.find_spec = lambda name, *more: name == "torch_tpu" or find(name, *more)
importlib.metadata.version = lambda name: VERSION if name == "torch_tpu" else version(name)
torch = types.SimpleNamespace(device=lambda name: name)
sys.modules["torch"] = torch
import pjrt
def attempt(device, **options):
    try:
        print(pjrt.frameworks.torch.register(device, **options))
    except pjrt.PjrtError as error:
        print(type(error).__name__, error.message)
"""
"""A stand-in for an installed TorchTPU, of which nothing is used."""


def test_a_version_that_was_not_tested_is_refused() -> None:
    output = run(f"VERSION = '9.9'\n{STAND_IN}\nattempt('reference')")
    assert output.startswith(
        "FailedPreconditionError expected torch-tpu of a version that was tested, 0.2.0, found 9.9; "
    )


def test_wrong_arguments_are_named() -> None:
    output = run(f"""VERSION = '0.2.0'\n{STAND_IN}
attempt("no_such_device")
attempt(7)
attempt(pjrt.export(pjrt.StableHloClient, name="mychip"), num_devices=2)
attempt(pjrt.client("reference"), num_devices=2)
os.environ["PJRT_TORCH_FALLBACK"] = "maybe"
attempt("reference")
""")
    unknown, number, exported, client, fallback = output.splitlines()
    assert unknown.startswith("NotFoundError")
    assert "expected the name of a device, or the path of a plugin's library, found 7" in number
    assert "TorchTPU passes no options to the clients of <ExportedPlugin 'mychip'>, found num_devices" in exported
    assert "exists already, found options for a new client: num_devices" in client
    assert fallback == "InvalidArgumentError PJRT_TORCH_FALLBACK: expected on, off or count, found 'maybe'"


def test_the_entry_point_does_nothing_without_the_variable() -> None:
    """Every ``import torch`` calls it. And in a worker, whose device may use PyTorch, it does nothing at all."""
    output = run("""
import os, sys
from pjrt.frameworks import torch_plugin
os.environ.pop("PJRT_TORCH", None)
torch_plugin.load()
print("pjrt.frameworks.torch" in sys.modules, "numpy" in sys.modules)
sys.modules["pjrt.native.worker"] = sys
os.environ["PJRT_TORCH"] = "no_such_device"
torch_plugin.load()
del sys.modules["pjrt.native.worker"]
try:
    torch_plugin.load()
except Exception as error:
    print(type(error).__name__)
""")
    assert output.splitlines()[0].startswith("False")
    assert output.splitlines()[1] in ("FailedPreconditionError", "NotFoundError")


def test_options_reach_a_worker_whose_framework_passes_none() -> None:
    """TorchTPU passes only one of a TPU, which is ignored."""
    library = registry.worker_library("reference", options={"num_devices": 3})
    with registry.load_plugin(library).client(premapped_buffer_size=0) as client:
        assert len(client.devices) == 3
    with pytest.raises(pjrt.InvalidArgumentError, match="has no option 'premapped'"):
        registry.load_plugin(registry.worker_library("reference")).client(premapped=0)


def test_a_table_takes_the_place_of_another() -> None:
    output = run("""
import ctypes, pjrt
from pjrt.capi.environment import library_table, replace_table
from pjrt.plugins import registry
cpu, reference = registry.worker_library("cpu"), registry.worker_library("reference")
replace_table(cpu, library_table(reference))
print(registry.load_plugin(cpu).client().platform_name)
short = (ctypes.c_size_t * 200)(1600)
try:
    replace_table(cpu, ctypes.addressof(short))
except pjrt.FailedPreconditionError as error:
    print(error.message)
""")
    name, refusal = output.splitlines()
    assert name == "reference"
    assert "cannot be replaced by one of 1600 bytes; register the device before" in refusal
