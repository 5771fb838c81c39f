"""The common half of gather and scatter: which dimensions of the operand are indexed, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pjrt.stablehlo.lowering._types import Shape

Array = Any


@dataclass(frozen=True, slots=True)
class IndexedDimensions:
    """Dimensions of an operand that are indexed, each by an array of the *batch shape*.

    The batch shape is that of the indices without the dimension of index vectors.

    Attributes:
        axes: the indexed dimensions of the operand.
        components: for each of them the position in the index vectors, or ``None`` where the index is the number of
            the place along a dimension of the batch shape.
        batch_dimensions: for each of them that dimension of the batch shape; -1 where an index vector has the index.
        index_vector_dim: the dimension of the indices that holds the index vectors; ``None`` if indices are numbers.
        batch_shape: the shape.
        limits: for each axis the largest index.
    """

    axes: Shape
    components: tuple[int | None, ...]
    batch_dimensions: Shape
    index_vector_dim: int | None
    batch_shape: Shape
    limits: Shape

    def arrays(self, indices: Array) -> list[Array]:
        """Return the index of each axis at each place, as numpy arrays that broadcast to the batch shape.

        They are not moved into the operand. This is what a translator writes in its own library.
        """
        indices = np.asarray(indices)
        table = indices[..., None] if self.index_vector_dim is None else np.moveaxis(indices, self.index_vector_dim, -1)
        arrays = []
        for component, dimension in zip(self.components, self.batch_dimensions, strict=True):
            if component is not None:
                arrays.append(table[..., component])
                continue
            shape = [1] * len(self.batch_shape)
            shape[dimension] = self.batch_shape[dimension]
            arrays.append(np.arange(shape[dimension]).reshape(shape))
        return arrays


def indexed_dimensions(
    operand: Shape,
    indices: Shape,
    index_map: Shape,
    operand_batching: Shape,
    indices_batching: Shape,
    index_vector_dim: int,
) -> IndexedDimensions:
    """Return the indexed dimensions of an operand: first the batching ones, then those of the index vectors."""
    vector = None if index_vector_dim == len(indices) else index_vector_dim
    batch_shape = tuple(size for d, size in enumerate(indices) if d != vector)
    places = [d - (vector is not None and d > vector) for d in indices_batching]
    axes = (*operand_batching, *index_map)
    return IndexedDimensions(
        axes=axes,
        components=(*(None for _ in places), *range(len(index_map))),
        batch_dimensions=(*places, *(-1 for _ in index_map)),
        index_vector_dim=vector,
        batch_shape=batch_shape,
        limits=tuple(operand[axis] - 1 for axis in axes),
    )
