"""``stablehlo.gather`` as an index with arrays, as numpy and most libraries have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.stablehlo.lowering._indexing import IndexedDimensions, indexed_dimensions
from pjrt.stablehlo.lowering._types import Shape, expect_operation, inverse, sizes
from pjrt.stablehlo.operation import Operation

Array = Any


@dataclass(frozen=True, slots=True)
class NdGather:
    """Elements, or whole slices, of an operand at places given by arrays.

    Cut each dimension of the operand to ``slice_sizes`` where it is not indexed, transpose by ``operand_permutation``,
    so that the indexed dimensions come first, index these with arrays, and transpose the result, whose dimensions are
    those of the batch shape and then the others, by ``result_permutation``. Reshape it to ``result_shape``. Indices
    outside of the operand are moved inside: clamp each to 0 and ``indexed.limits``.

    Attributes:
        indexed: the indexed dimensions, and their indices.
        slice_sizes: the size of a slice along each dimension of the operand.
        operand_permutation: the indexed dimensions of the operand, then the others.
        result_permutation: where the dimensions of the batch shape and of the slices go in the result.
        result_shape: the shape of the result.
    """

    indexed: IndexedDimensions
    slice_sizes: Shape
    operand_permutation: Shape
    result_permutation: Shape
    result_shape: Shape

    @property
    def take_axis(self) -> int | None:
        """The one dimension that is indexed, by numbers or by vectors of one: the axis of ``take``. None otherwise."""
        return self.indexed.axes[0] if self.indexed.components == (0,) else None

    def apply(self, operand: Array, indices: Array) -> Array:
        """Return the result as numpy computes it: an example for translators."""
        indexed = self.indexed
        cut = operand[
            tuple(slice(0, size if d not in indexed.axes else None) for d, size in enumerate(self.slice_sizes))
        ]
        places = tuple(
            np.broadcast_to(np.clip(_signed(array, limit), 0, limit), indexed.batch_shape)
            for array, limit in zip(indexed.arrays(indices), indexed.limits, strict=True)
        )
        elements = cut.transpose(self.operand_permutation)[places]
        return elements.transpose(self.result_permutation).reshape(self.result_shape)


def _signed(array: Array, limit: int) -> Array:
    """Return indices as int64; unsigned ones that do not fit are beyond any limit."""
    return (np.minimum(array, np.uint64(limit)) if array.dtype.kind == "u" else array).astype(np.int64)


def nd_gather(operation: Operation) -> NdGather | None:
    """Return ``stablehlo.gather`` as an index with arrays, or ``None`` if it takes slices that move by parts.

    A slice that is indexed along a dimension, and has more than one element there but not all, has no such form.
    """
    expect_operation(operation, "stablehlo.gather")
    operand, indices = (sizes(value) for value in operation.operands)
    numbers = operation.attribute("dimension_numbers")
    slice_sizes = tuple(map(int, operation.attribute("slice_sizes")))
    batching = tuple(numbers.operand_batching_dims)
    index_map = tuple(numbers.start_index_map)
    if any(slice_sizes[d] != 1 for d in (*index_map, *batching)):
        return None
    indexed = indexed_dimensions(
        operand,
        indices,
        index_map,
        batching,
        tuple(numbers.start_indices_batching_dims),
        int(numbers.index_vector_dim),
    )
    if not indexed.axes:
        return None
    others = tuple(d for d in range(len(operand)) if d not in indexed.axes)
    # Dimensions of one element that stay in the result, although they are indexed.
    dropped = {*numbers.collapsed_slice_dims, *batching}
    offset_dims = tuple(numbers.offset_dims)
    result = sizes(operation.results[0])
    kept = [d for d in range(len(operand)) if d not in dropped]
    places = [offset_dims[kept.index(d)] for d in others if d in kept]
    if len(places) != len(others):
        # A dimension that is collapsed but not indexed: its slice is the first element.
        return None
    batch_places = [d for d in range(len(result)) if d not in offset_dims]
    alone = [offset_dims[kept.index(d)] for d in kept if d in indexed.axes]
    order = [*batch_places, *places]
    squeezed = [d for d in range(len(result)) if d not in alone]
    return NdGather(
        indexed=indexed,
        slice_sizes=slice_sizes,
        operand_permutation=(*indexed.axes, *others),
        result_permutation=inverse(tuple(squeezed.index(d) for d in order)),
        result_shape=result,
    )
