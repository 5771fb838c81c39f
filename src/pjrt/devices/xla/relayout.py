"""Copies of arrays into another layout: jaxlib makes layouts other than row-major only as results of programs."""

from __future__ import annotations

from pjrt.api.compile_options import CompileOptions, DeviceAssignment
from pjrt.api.program import Program
from pjrt.api.shape_spec import TiledLayout
from pjrt.devices.xla import _jaxlib
from pjrt.devices.xla.array_type import ArrayType
from pjrt.devices.xla.compilation import compile_program
from pjrt.devices.xla.executable import XlaExecutable

_COPY = """
func.func public @main(%x: tensor<{type}> {{mhlo.layout_mode = "{given}"}})
    -> (tensor<{type}> {{mhlo.layout_mode = "{wanted}"}}) {{
  return %x : tensor<{type}>
}}
"""


def relaid(array: _jaxlib.Array, array_type: ArrayType, layout: TiledLayout) -> tuple[_jaxlib.Array, ArrayType]:
    """Return a copy of an array of a type with another layout, in the device's default memory, and the copy's type."""
    runtime, space = array_type.runtime, array_type.memory_space.device.default_memory_space
    target = runtime.array_type(array_type.shape, array_type.element_type, space, layout.minor_to_major)
    key = (array_type, layout)
    program = runtime.relayouts.get(key)
    if program is None:
        handler = _jaxlib.result_handler(target.aval, space.placement.sharding)
        program = runtime.relayouts.setdefault(key, (_compiled(array_type, layout), handler))
    executable, handler = program
    (copied,) = executable.jaxlib_executable.execute_sharded([array]).consume_with_handlers([handler])
    return copied, target


def _compiled(array_type: ArrayType, layout: TiledLayout) -> XlaExecutable:
    spelled = "x".join([*map(str, array_type.shape), array_type.element_type.mlir])
    text = _COPY.format(type=spelled, given=array_type.layout, wanted=layout)
    place = DeviceAssignment(((array_type.memory_space.device.id,),))
    return compile_program(array_type.runtime, Program.of(text), CompileOptions(device_assignment=place))
