"""Devices by the names that the benchmarks give them."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

CACHE = Path(tempfile.gettempdir()) / "pjrt-benchmarks"

DOUBLE = """
func.func @main(%x: tensor<{size}xf32>) -> tensor<{size}xf32> {{
  %y = stablehlo.add %x, %x : tensor<{size}xf32>
  return %y : tensor<{size}xf32>
}}
"""

TINY = "tiny"
"""The functional plugin in C that the tests compile."""


def client_of(device: str, **options: Any) -> Any:
    """Make a client of a built-in device, or of the functional plugin in C.

    With `exported-` before its name, the device is exported and loaded back through the C API.
    """
    import pjrt

    if device == TINY:
        return pjrt.load_plugin(_tiny().build.build_tiny(CACHE)).client(**options)

    inner = device.removeprefix("exported-")
    if inner == device:
        return pjrt.client(device, **options)
    from pjrt import capi

    exported = pjrt.export(lambda **inner_options: pjrt.client(inner, **inner_options), name=inner)
    return capi.load_capsule(exported.capsule).client(**options)


def doubling_program(device: str, size: int) -> Any:
    """Return a program that adds a vector of `size` floats to itself, in the format that the device takes."""
    import pjrt

    if device != TINY:
        return DOUBLE.format(size=size)
    program = _tiny().TinyProgram("double")
    x = program.parameter(f"f32[{size}]")
    return pjrt.Program(program.result(program.let("add", x, x)).code, format=TINY)


def _tiny() -> Any:
    folder = str(Path(__file__).parents[1] / "tests" / "plugins")
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.import_module("tiny.build")
    return importlib.import_module("tiny")
