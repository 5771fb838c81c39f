"""JAX calls functions of a device in Python by name, in compiled programs: in this process and in a worker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pjrt import native

DEVICE = """
import numpy as np, pjrt


def compile_spins(program, options):
    def run(*arrays):
        values = dict(zip(program.entry.arguments, arrays, strict=True))
        for operation in program.entry.body.operations[:-1]:
            operands = [values[operand] for operand in operation.operands]
            if operation.call_target == "mychip.spin":
                with operation.running():
                    values[operation.results[0]] = spin(operands[0], **operation.call_attributes)
            else:
                values[operation.results[0]] = np.add(*operands)
        return [values[output] for output in program.entry.body.outputs]

    return run


def spin(x, by):
    if by == 0:
        raise OSError(5, "the chip does not turn")
    return x * by


def make_client(**options):
    names = ["mychip.spin", "stablehlo.add"]
    return pjrt.StableHloClient("mychip", compile=compile_spins, operations=names, **options)
"""

JAX = """
import runpy, sys
import jax, numpy as np, pjrt

library = sys.argv[1]
plugin = library if library.endswith(".so") else pjrt.export(runpy.run_path(library)["make_client"], name="mychip")
(device,) = jax.devices(pjrt.frameworks.jax.register(plugin, platform="mychip"))

def model(x, by):
    return jax.ffi.ffi_call("mychip.spin", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, by=np.float32(by)) + x

x = jax.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), device)
spun = jax.jit(model, static_argnums=1)
np.testing.assert_array_equal(spun(x, 2), np.asarray(x) * 3)
try:
    spun(x, 0).block_until_ready()
    raise AssertionError("the error of the chip is lost")
except jax.errors.JaxRuntimeError as error:
    assert "OSError: [Errno 5] the chip does not turn (" in str(error), error
    assert "(in stablehlo.custom_call @mychip.spin (tensor<2x3xf32>) -> (tensor<2x3xf32>) [" in str(error), error
    assert "<string>:10:" in str(error), error  # the user's line
print("spun")
"""


@pytest.mark.full
@pytest.mark.parametrize("is_worker", [False, True])
def test_jax_calls_a_function_of_compiled_code_and_sees_where_it_fails(is_worker: bool, tmp_path: Path) -> None:
    device = tmp_path / "mychip.py"
    device.write_text(DEVICE)
    library = tmp_path / "mychip.so"
    if is_worker:
        native.write_library(library, f"{device}:make_client", driver="worker", name="mychip")
    done = subprocess.run(
        [sys.executable, "-c", JAX, str(library if is_worker else device)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "spun" in done.stdout
