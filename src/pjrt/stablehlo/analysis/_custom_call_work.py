"""The FLOPs of custom calls: LAPACK's routines, and those that move or mark values only.

The numbers of LAPACK's routines are the leading terms in LAPACK's own working notes, for one matrix of the stack; for
eigenvalues and singular values, whose iterations depend on the values, they are the usual estimates. A multiplication
or an addition of complex numbers counts as one, as elsewhere in XLA's cost analysis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

from pjrt.stablehlo.operation import Operation
from pjrt.stablehlo.types import TensorType

_MARKS = (
    "AllocateBuffer CreateBuffer LayoutConstraint MoveToDevice MoveToHost PinToDevice PinToHost SPMDFullToShardShape "
    "SPMDShardToFullShape Sharding annotate_device_placement shape_assertion xla.sdy.FuncResultSharding "
    "xla.sdy.GlobalToLocalShape xla.sdy.LocalToGlobalShape xla.sdy.Mesh"
)
_FREE = frozenset(_MARKS.split())


def is_free(target: str) -> bool:
    """Whether a custom call only marks a value for the compiler."""
    return target in _FREE


def flops_of_custom_call(target: str, operation: Operation) -> int | None:
    """Return the FLOPs of a custom call; None if they are unknown.

    Raises:
        UnimplementedError: a shape in it is known only when the program runs.
    """
    match = _LAPACK.fullmatch(target)
    routine = _NAMES.get(match["name"], match["name"]) if match else _NAMES.get(target, "")
    estimate = _ROUTINES.get(routine)
    types = [value.type for value in operation.operands]
    if estimate is None or not types or not all(isinstance(type_, TensorType) for type_ in types):
        return None
    shapes = [type_.sizes for type_ in types if isinstance(type_, TensorType)]
    stack = math.prod(shapes[0][:-2])
    return stack * round(estimate([shape[-2:] for shape in shapes]))


_LAPACK = re.compile(r"(?:lapack|cusolver|hipsolver|blas)_[sdcz]?(?P<name>[a-z0-9]+?)(?:_ffi)?")
_NAMES = {
    "Cholesky": "potrf",
    "Eigh": "syevd",
    "LuDecomposition": "getrf",
    "ProductOfElementaryHouseholderReflectors": "orgqr",
    "Qr": "geqrf",
    "gesvd": "gesdd",
    "heevd": "syevd",
    "hetrd": "sytrd",
    "ungqr": "orgqr",
    "unmqr": "ormqr",
}

Shapes = Sequence[tuple[int, ...]]


def _square(factor: float) -> Callable[[Shapes], float]:
    return lambda shapes: factor * shapes[0][-1] ** 3


def _lu(shapes: Shapes) -> float:
    m, n = shapes[0]
    k = min(m, n)
    return 2 * m * n * k - (m + n) * k**2 + 2 * k**3 / 3


def _qr(shapes: Shapes) -> float:
    m, n = shapes[0]
    k = min(m, n)
    return 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 / 3


def _apply_reflectors(shapes: Shapes) -> float:
    (m, k), c = shapes[0], shapes[-1]
    return 2 * c[-1] * k * (2 * m - k) if c[-2] == m else 2 * c[-2] * k * (2 * c[-1] - k)


def _svd(shapes: Shapes) -> float:
    m, n = sorted(shapes[0], reverse=True)
    return 4 * m**2 * n + 8 * m * n**2 + 9 * n**3


def _triangular(shapes: Shapes) -> float:
    a, b = shapes[0], shapes[1]
    return math.prod(b) * a[-1]


_ROUTINES: dict[str, Callable[[Shapes], float]] = {
    "gees": _square(25),
    "geev": _square(25),
    "gehrd": _square(10 / 3),
    "geqp3": _qr,
    "geqrf": _qr,
    "gesdd": _svd,
    "getrf": _lu,
    "gtsv": lambda shapes: 8 * math.prod(shapes[-1]),
    "orgqr": _qr,
    "ormqr": _apply_reflectors,
    "potrf": _square(1 / 3),
    "syevd": _square(9),
    "sytrd": _square(4 / 3),
    "trsm": _triangular,
}
