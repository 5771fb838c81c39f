"""What a buffer is but for its value: element type, shape, layout and place, shared by all buffers alike."""

from __future__ import annotations

from pjrt.api.element_type import ElementType
from pjrt.api.layout import Layout, TiledLayout
from pjrt.api.shape_spec import format_shape
from pjrt.devices.xla import _raw
from pjrt.devices.xla.memory_space import XlaMemorySpace


class ArrayType:
    """Element type, shape, layout and memory space of a buffer.

    A client makes one of each (``XlaClient.array_type``), so two buffers are alike if they have the same object, and an
    execution can check its arguments by looking at identities.
    """

    __slots__ = ("aval", "element_type", "layout", "memory_space", "shape")

    def __init__(
        self, shape: tuple[int, ...], element_type: ElementType, layout: TiledLayout, memory_space: XlaMemorySpace
    ) -> None:
        self.shape = shape
        self.element_type = element_type
        self.layout: Layout = layout
        self.memory_space = memory_space
        self.aval = _raw.Aval(shape, element_type.dtype)

    def __str__(self) -> str:
        space = self.memory_space
        return f"{format_shape(self.element_type, self.shape)}{self.layout} in {space.kind} of {space.device}"
