"""Devices that are named to run in a Python process of their own: ``worker:NAME``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pjrt

ADD = """
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}"""
X = np.arange(4, dtype=np.float32)


def test_a_built_in_device() -> None:
    with pjrt.client("worker:reference", num_devices=2) as client:
        assert (client.platform_name, len(client.devices)) == ("reference", 2)
        np.testing.assert_array_equal(client.compile(ADD)(X)[0], X + X)
    declared = pjrt.plugins.declaration("worker:reference")
    assert declared == pjrt.plugins.declaration("worker:reference")
    assert declared.library is not None
    assert declared.library.is_file()


def test_a_function_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mychip.py"
    file.write_text(
        "import pjrt\n"
        "def make(extra=0):\n"
        "    return pjrt.host.HostClient('mychip', compile=lambda program, options: lambda x: x + 1 + extra)\n"
    )
    with pjrt.client(f"worker:{file}:make", extra=2) as client:
        assert client.platform_name == "mychip"
        np.testing.assert_array_equal(client.compile(ADD)(X)[0], X + 3)


def test_what_is_wrong_is_said() -> None:
    with pytest.raises(pjrt.NotFoundError, match="no device called 'nothing'"):
        pjrt.client("worker:nothing")
    with pytest.raises(pjrt.InvalidArgumentError, match="no option 'no_such'"):
        pjrt.client("worker:reference", no_such=1)


JAX = """
from pjrt.frameworks import jax as pjrt_jax
assert pjrt_jax.register("worker:cpu") == "pjrt_cpu"  # JAX has a cpu of its own
assert pjrt_jax.register("worker:reference", num_devices=2) == "reference"
assert pjrt_jax.register("worker:reference", num_devices=2) == "reference"
import ctypes
import jax
import numpy as np
from pjrt.devices.xla.ffi_handler import handler_of
x = jax.device_put(np.arange(3, dtype=np.float32), jax.devices("reference")[1])
double = lambda a: jax.pure_callback(lambda v: np.asarray(v) * 2, jax.ShapeDtypeStruct((3,), np.float32), a)
np.testing.assert_array_equal(jax.jit(lambda a: double(a) + 1)(x), [1, 3, 5])
def scale(x, out, *, by):
    out[...] = x * by
new = ctypes.pythonapi.PyCapsule_New
new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
jax.ffi.register_ffi_target("scale", new(handler_of(scale, 0), None, None), platform="reference")
scaled = jax.ffi.ffi_call("scale", jax.ShapeDtypeStruct((3,), np.float32))
np.testing.assert_array_equal(jax.jit(lambda a: scaled(a, by=np.int64(4)))(x), [0, 4, 8])
y = jax.device_put(np.arange(3, dtype=np.float32), jax.devices("pjrt_cpu")[0])
np.testing.assert_array_equal(jax.jit(lambda a: double(a) + 1)(y), [1, 3, 5])
"""


@pytest.mark.full
def test_jax_by_name() -> None:
    """No warning that the platform is experimental: the device is one of this package."""
    ended = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert "experimental" not in ended.stderr
