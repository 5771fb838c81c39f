"""The type of a buffer: all that buffers can have in common, except the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import TiledLayout, format_shape
from pjrt.devices.xla import _jaxlib

if TYPE_CHECKING:
    from pjrt.devices.xla.memory_space import XlaMemorySpace


class ArrayType:
    """Element type, shape, layout and memory space of a buffer.

    A runtime makes one object of each type (``Runtime.array_type``), so two buffers have the same type if they have the
    same object, and an execution checks its arguments by comparing identities.

    Attributes:
        shape: the sizes of the dimensions.
        element_type: the type of the elements.
        layout: the order of the elements in memory.
        dynamic_dimensions: the dimensions of which ``shape`` has the bound.
        memory_space: the place of the memory.
        has_buffer_format: whether Python's buffer protocol has the type: not bf16, for example, nor another layout.
        aval: shape and dtype for jaxlib.
        runtime: the runtime that has the memory.
    """

    __slots__ = (
        "aval",
        "dynamic_dimensions",
        "element_type",
        "has_buffer_format",
        "layout",
        "memory_space",
        "runtime",
        "shape",
    )

    def __init__(
        self,
        shape: tuple[int, ...],
        element_type: ElementType,
        layout: TiledLayout,
        memory_space: XlaMemorySpace,
        dynamic_dimensions: tuple[int, ...] = (),
    ) -> None:
        self.shape = shape
        self.element_type = element_type
        self.layout = layout
        self.dynamic_dimensions = dynamic_dimensions
        self.memory_space = memory_space
        self.runtime = memory_space.device.runtime
        has_letter = element_type.dtype.kind in "biufc"
        self.has_buffer_format = has_letter and not dynamic_dimensions and layout.is_row_major
        self.aval = _jaxlib.Aval(shape, element_type.dtype)

    @property
    def is_packed(self) -> bool:
        """Whether an element is less than a byte, so that numpy cannot use the memory in place."""
        return self.element_type.bits < 8

    @property
    def is_row_major(self) -> bool:
        """Whether the elements lie in C order."""
        return self.layout.is_row_major

    def accepts(self, other: ArrayType) -> bool:
        """Whether a parameter of this type accepts an argument of the other type.

        All must agree except the kind of memory: the kinds differ in name only.
        """
        return other is self or (
            other.shape == self.shape
            and other.element_type is self.element_type
            and other.layout == self.layout
            and other.memory_space.device is self.memory_space.device
        )

    def __str__(self) -> str:
        layout = "" if self.is_row_major else str(self.layout)
        return f"{format_shape(self.element_type, self.shape)}{layout}"
