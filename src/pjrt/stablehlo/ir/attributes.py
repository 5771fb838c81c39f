"""The attributes of operations, as plain Python values.

=========================================  ===========================================================
MLIR                                       Python
=========================================  ===========================================================
integers, floats, strings, booleans        ``int``, ``float``, ``str`` (``bytes`` if not UTF-8), ``bool``
unit                                       ``True``
arrays, dense arrays                       ``tuple``
dictionaries                               ``dict``
dense elements                             ``numpy.ndarray``, read-only, of the tensor's shape
symbol references                          ``str``: the name without ``@``
types                                      as in ``types``; a scalar type is a tensor of rank 0
enums of StableHLO                         ``str``, such as ``"LT"`` or ``"THREE_FRY"``
dimension numbers, handles, algorithms     the classes below; their fields have StableHLO's own names
everything else                            ``Opaque``, its text
=========================================  ===========================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from pjrt.stablehlo.ir.types import ValueType


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute without a form in the table above.

    Attributes:
        text: MLIR's spelling of it.
    """

    text: str


@dataclass(frozen=True, slots=True)
class DotDimensionNumbers:
    """The dimensions that ``stablehlo.dot_general`` pairs and sums over."""

    lhs_batching_dimensions: tuple[int, ...]
    rhs_batching_dimensions: tuple[int, ...]
    lhs_contracting_dimensions: tuple[int, ...]
    rhs_contracting_dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RaggedDotDimensionNumbers:
    """The dimensions that ``chlo.ragged_dot`` pairs, sums over and groups."""

    lhs_batching_dimensions: tuple[int, ...]
    rhs_batching_dimensions: tuple[int, ...]
    lhs_contracting_dimensions: tuple[int, ...]
    rhs_contracting_dimensions: tuple[int, ...]
    lhs_ragged_dimensions: tuple[int, ...]
    rhs_group_dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DotAlgorithm:
    """The arithmetic that ``stablehlo.dot_general`` is to use; the types are tensors of rank 0."""

    lhs_precision_type: ValueType
    rhs_precision_type: ValueType
    accumulation_type: ValueType
    lhs_component_count: int
    rhs_component_count: int
    num_primitive_operations: int
    allow_imprecise_accumulation: bool


@dataclass(frozen=True, slots=True)
class ConvDimensionNumbers:
    """The meaning of each dimension of the operands and the result of ``stablehlo.convolution``."""

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: tuple[int, ...]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: tuple[int, ...]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GatherDimensionNumbers:
    """The meaning of each dimension of ``stablehlo.gather``."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...]
    start_indices_batching_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector_dim: int


@dataclass(frozen=True, slots=True)
class ScatterDimensionNumbers:
    """The meaning of each dimension of ``stablehlo.scatter``."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    input_batching_dims: tuple[int, ...]
    scatter_indices_batching_dims: tuple[int, ...]
    scattered_dims_to_operand_dims: tuple[int, ...]
    index_vector_dim: int


@dataclass(frozen=True, slots=True)
class ChannelHandle:
    """The channel of a collective, send or recv, and its type."""

    handle: int
    channel_type: int


@dataclass(frozen=True, slots=True)
class OutputOperandAlias:
    """An output of a ``stablehlo.custom_call`` that may use the memory of an operand."""

    output_tuple_indices: tuple[int, ...]
    operand_index: int
    operand_tuple_indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ResultAccuracy:
    """The accuracy that an elementwise function must have; ``mode`` is ``DEFAULT``, ``HIGHEST`` or ``TOLERANCE``."""

    atol: float
    rtol: float
    ulps: int
    mode: str
