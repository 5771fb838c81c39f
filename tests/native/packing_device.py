"""A device in Python whose memory packs elements of less than a byte."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pjrt
from pjrt import TiledLayout
from pjrt.host import Memory
from pjrt.host_memory.array import packed, packed_size, unpacked


class PackedMemory(Memory):
    """Rows, in which elements of less than a byte are packed."""

    def layout(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> TiledLayout | None:
        if spec.layout is not None:
            raise pjrt.UnimplementedError("rows only")
        return TiledLayout.row_major(len(spec.shape)) if spec.element_type.bits >= 8 else self._packed(spec)

    def _packed(self, spec: pjrt.ShapeSpec) -> TiledLayout:
        return replace(TiledLayout.row_major(len(spec.shape)), element_bits=spec.element_type.bits)

    def size_of(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> int:
        return packed_size(spec.size, spec.element_type) if spec.element_type.bits < 8 else spec.size_in_bytes

    def allocate(self, spec: pjrt.ShapeSpec, space: pjrt.MemorySpace) -> dict[str, Any]:
        return {"spec": spec}

    def copy_in(self, handle: Any, array: Any) -> None:
        is_packed = handle["spec"].element_type.bits < 8
        handle["bytes"] = packed(array, handle["spec"].element_type) if is_packed else array.copy()

    def copy_out(self, handle: Any, array: Any) -> None:
        spec = handle["spec"]
        is_packed = spec.element_type.bits < 8
        array[...] = unpacked(handle["bytes"], spec.shape, spec.element_type) if is_packed else handle["bytes"]


def make_client(**options: Any) -> pjrt.Client:
    return pjrt.StableHloClient("packing", kernels={}, fallback="reference", memory=PackedMemory(), **options)
