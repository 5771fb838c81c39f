"""Operations that IREE does not run, or runs wrongly: they are left to the fallback.

The tables come from a comparison of each operation and element type with the reference interpreter, with IREE 3.13.
"""

from __future__ import annotations

from collections.abc import Iterable

from pjrt.api.element_type import ElementType
from pjrt.api.shape_spec import ShapeSpec
from pjrt.devices.iree.element_types import SUPPORTED
from pjrt.devices.iree.rewrites import OF_STATIC_SHAPE
from pjrt.stablehlo.operation import Operation, ParsedProgram
from pjrt.stablehlo.signatures import shape_spec
from pjrt.stablehlo.types import TensorType, ValueType

_MISSING = frozenset(
    {
        # IREE has no such operation.
        "stablehlo.batch_norm_grad",
        "stablehlo.cholesky",
        "stablehlo.custom_call",
        "stablehlo.dynamic_gather",
        "stablehlo.dynamic_pad",
        "stablehlo.triangular_solve",
        # Of equal elements in a window, none is selected.
        "stablehlo.select_and_scatter",
        # They need the other devices of a launch, or the host. IREE's drivers of processors have no channels.
        "stablehlo.after_all",
        "stablehlo.all_gather",
        "stablehlo.all_reduce",
        "stablehlo.all_to_all",
        "stablehlo.async_done",
        "stablehlo.async_start",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.create_token",
        "stablehlo.cross-replica-sum",
        "stablehlo.infeed",
        "stablehlo.outfeed",
        "stablehlo.partition_id",
        "stablehlo.recv",
        "stablehlo.reduce_scatter",
        "stablehlo.replica_id",
        "stablehlo.send",
    }
)

_F8 = frozenset(element for element in ElementType if element.name.startswith("F8"))

_MOVES = frozenset(
    {
        "stablehlo.bitcast_convert",
        "stablehlo.broadcast",
        "stablehlo.broadcast_in_dim",
        "stablehlo.case",
        "stablehlo.composite",
        "stablehlo.concatenate",
        "stablehlo.constant",
        "stablehlo.convert",
        "stablehlo.dynamic_slice",
        "stablehlo.dynamic_update_slice",
        "stablehlo.gather",
        "stablehlo.if",
        "stablehlo.optimization_barrier",
        "stablehlo.pad",
        "stablehlo.reshape",
        "stablehlo.reverse",
        "stablehlo.select",
        "stablehlo.slice",
        "stablehlo.transpose",
        "stablehlo.while",
    }
)
"""Operations that move elements and compute none."""

_REAL = frozenset(element for element in ElementType if element.is_floating)
_C64 = frozenset({ElementType.C64})
_C128 = frozenset({ElementType.C128})

_WRONG: dict[str, frozenset[ElementType]] = {
    # A sum of booleans wraps around.
    "chlo.broadcast_add": frozenset({ElementType.PRED}),
    "stablehlo.add": frozenset({ElementType.PRED}),
    # NaN is not among the greatest elements.
    "chlo.top_k": _REAL,
    # Zero, infinity or equal arguments give NaN where they have a value, or the other way round.
    "chlo.broadcast_atan2": _REAL,
    "chlo.broadcast_divide": _C64,
    "chlo.broadcast_power": _REAL,
    "chlo.digamma": _REAL,
    "stablehlo.atan2": _REAL,
    "stablehlo.cbrt": _REAL,
    "stablehlo.divide": _C64,
    "stablehlo.log": _C64,
    "stablehlo.log_plus_one": _C64,
    "stablehlo.exponential_minus_one": frozenset({ElementType.C64}),
    "stablehlo.power": _REAL,
    # The compiler crashes.
    "stablehlo.bitcast_convert": _C64,
}
"""Element types for which the results of an operation are wrong."""

_NOT_LINKED = frozenset(
    {
        "chlo.acos",
        "chlo.asin",
        "chlo.atan",
        "chlo.broadcast_remainder",
        "chlo.erfc",
        "chlo.lgamma",
        "chlo.polygamma",
        "chlo.tan",
        "stablehlo.cosine",
        "stablehlo.remainder",
        "stablehlo.sine",
        "stablehlo.tan",
        "stablehlo.tanh",
    }
)
"""Operations that IREE computes in f64 by functions of a mathematical library, and it links none."""


def refusal(operation: Operation) -> str:
    """Return why IREE does not run an operation, with those in its regions; empty if it may run it."""
    return next(filter(None, map(_refusal, (operation, *operation.walk()))), "")


def _refusal(operation: Operation) -> str:
    name = operation.name
    if name in _MISSING:
        what = operation.attributes.get("call_target_name", "") if name == "stablehlo.custom_call" else ""
        return f"IREE does not run {name}{f' @{what}' if what else ''} ({operation.location})"
    if name in OF_STATIC_SHAPE and not all(_is_static(value.type) for value in operation.operands):
        return f"IREE does not run {name} of a dynamic shape ({operation.location})"
    elements = frozenset(_elements((*operation.operands, *operation.results)))
    wrong = elements & (_WRONG.get(name, frozenset()) | _C128)
    if name in _NOT_LINKED:
        wrong |= elements & {ElementType.F64}
    if name not in _MOVES and not name.startswith("func.") and name != "stablehlo.return":
        wrong |= elements & _F8
    if wrong:
        return f"IREE does not run {name} of {', '.join(sorted(each.mlir for each in wrong))} ({operation.location})"
    return ""


def _elements(values: Iterable[object]) -> Iterable[ElementType]:
    for value in values:
        type_ = value.type  # type: ignore[attr-defined]
        if isinstance(type_, TensorType):
            yield type_.element


def _is_static(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and type_.is_static


_IN_PLACE = frozenset({"chlo.top_k", "stablehlo.dynamic_update_slice", "stablehlo.fft", "stablehlo.sort"})
"""Operations that IREE may compute in the memory of an operand, even where it is an argument of the program."""


def overwritten(program: ParsedProgram) -> frozenset[int]:
    """Return the numbers of the arguments whose memory a run may overwrite.

    IREE 3.13 takes the memory of arguments for its own. Values that go through other operations first, such as a
    reshape or a loop, may have the memory of an argument too, so its size is what counts.
    """
    sizes = {
        value.type.nbytes
        for operation in program.walk()
        if operation.name in _IN_PLACE
        for value in operation.operands
        if isinstance(value.type, TensorType) and value.type.is_static
    }
    arguments = enumerate(program.entry.type.arguments)
    return frozenset(n for n, each in arguments if isinstance(each, TensorType) and each.nbytes in sizes)


def boundary(program: ParsedProgram) -> tuple[list[ShapeSpec], str]:
    """Return the types of the results of a program, and why IREE does not take its arguments and results; empty if it
    does.
    """
    type_ = program.entry.type
    specs = []
    for each in (*type_.arguments, *type_.results):
        spec = shape_spec(each)
        if spec is None or spec.element_type not in SUPPORTED or _is_quantized(each):
            return [], f"IREE has no arguments and results of type {each}"
        specs.append(spec)
    return specs[len(type_.arguments) :], ""


def _is_quantized(type_: ValueType) -> bool:
    return isinstance(type_, TensorType) and type_.quantization is not None
