"""Buffers with a layout other than row-major: jaxlib makes them as results of programs only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.layout import TiledLayout
from pjrt.api.program import Program
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.compilation import compile_program
from pjrt.devices.xla.loaded_executable import XlaLoadedExecutable

if TYPE_CHECKING:
    from pjrt.devices.xla.client import XlaClient

_COPY = """
func.func public @main(%x: tensor<{type}> {{mhlo.layout_mode = "{given}"}})
    -> (tensor<{type}> {{mhlo.layout_mode = "{wanted}"}}) {{
  return %x : tensor<{type}>
}}
"""


def compile_relayout(client: XlaClient, kind: ArrayType, layout: TiledLayout) -> XlaLoadedExecutable:
    """The program that copies a buffer of a type into one with another layout, on the type's device."""
    spelled = "x".join([*map(str, kind.shape), kind.element_type.mlir])
    text = _COPY.format(type=spelled, given=kind.layout, wanted=layout)
    place = DeviceAssignment(((kind.memory_space.device.id,),))
    return XlaLoadedExecutable(
        client, compile_program(client, Program.of(text), CompileOptions(device_assignment=place))
    )
