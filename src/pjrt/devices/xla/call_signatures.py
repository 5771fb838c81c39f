"""The signatures of the custom-call targets in C: what each must be given so that it stays inside of its operands.

The handlers of jaxlib trust their callers: they copy a whole operand into the memory of a result, and compute the sizes
of everything from the shape of one operand. JAX calls them with shapes that fit; any other program may not. The table
below says what fits. The handlers of jaxlib 0.9 to 0.12 need the same.

A signature is a text such as ``T*mn T*n -> T*mn``. Each word is an operand or result: a letter for its element type,
``*`` for the dimensions of a batch, which all have in common, and a letter for each further dimension. One letter is
one size, but for ``k``, the smaller one of ``m`` and ``n``, and ``l``, which is ``n`` − 1.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pjrt.api.errors import InvalidArgumentError
from pjrt.stablehlo.hlo_parameters import HloArray, HloCustomCall

_MOST = 2**31 - 1
"""LAPACK counts in integers of 32 bits."""

_NEVER_EMPTY = "mnp"
"""The sizes of matrices that LAPACK refuses to be 0, or ends the process at. XLA removes most calls with such ones."""

_TYPED_API = 4
_FIRST_APIS = (0, 1)

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Signature:
    """One way in which a target can be called.

    Attributes:
        text: the operands and results.
        attributes: by name the values that each attribute may have: letters, which are passed as their numbers, or
            numbers and truth values as MLIR writes them; ``None`` for any whole number of 32 bits.
        fits: whether the sizes, and the attributes that are numbers, fit together.
        elements: the element types that each letter stands for.
        api_versions: the versions of custom calls that the handler is registered for.
    """

    text: str
    attributes: Mapping[str, str | tuple[str, ...] | None] = field(default_factory=dict)
    fits: Callable[[Sizes], bool] = lambda sizes: True
    elements: Mapping[str, Sequence[str]] = field(default_factory=dict)
    api_versions: tuple[int, ...] = (_TYPED_API,)

    def accepts(self, call: HloCustomCall) -> bool:
        """Whether a call has this signature."""
        if call.api_version not in self.api_versions:
            return False
        sizes: dict[str, int] = {}
        if self.api_versions == (_TYPED_API,) and not self._reads_attributes(call.config, sizes):
            return False
        operands, results = (side.split() for side in self.text.split("->"))
        return (
            (len(operands), len(results)) == (len(call.operands), len(call.results))
            and _match((*operands, *results), (*call.operands, *call.results), self.elements, sizes)
            and self.fits(sizes)
        )

    def _reads_attributes(self, config: str, sizes: dict[str, int]) -> bool:
        """Read the attributes into the sizes; return whether they are those of the signature, and have its values."""
        given = _attributes(config)
        if given is None or given.keys() != self.attributes.keys():
            return False
        for name, allowed in self.attributes.items():
            value = given[name]
            if allowed is None:
                if not value.endswith(" : i32"):
                    return False
                sizes[name] = int(value.removesuffix(" : i32"))
            elif value not in ([f"{ord(letter)} : ui8" for letter in allowed] if isinstance(allowed, str) else allowed):
                return False
        return True


def _match(
    words: Sequence[str], values: Sequence[HloArray], elements: Mapping[str, Sequence[str]], sizes: dict[str, int]
) -> bool:
    """Whether the types of values are those that words describe; note the sizes of their letters."""
    chosen: dict[str, str] = {}
    batch: tuple[int, ...] | None = None
    for word, value in zip(words, values, strict=True):
        letter, dimensions, shape = word[0], word[1:], value.shape
        if value.element not in elements[letter] or chosen.setdefault(letter, value.element) != value.element:
            return False
        if dimensions.startswith("*"):
            dimensions = dimensions[1:]
            if len(shape) < len(dimensions):
                return False
            outer = shape[: len(shape) - len(dimensions)]
            batch = outer if batch is None else batch
            if outer != batch:
                return False
            shape = shape[len(outer) :]
        if len(shape) != len(dimensions):
            return False
        for name, size in zip(dimensions, shape, strict=True):
            if size > _MOST or (not size and name in _NEVER_EMPTY) or _size(name, size, sizes) != size:
                return False
    return True


def _size(name: str, found: int, sizes: dict[str, int]) -> int:
    """Return the size that a letter stands for; the first one that is found, if it is not known yet."""
    if name == "k" and "m" in sizes and "n" in sizes:
        return min(sizes["m"], sizes["n"])
    if name == "l":
        return max(sizes["n"] - 1, 0)
    return sizes.setdefault(name, found)


_ATTRIBUTE = r"(\w+) = (-?\d+ : u?i\d+|true|false)"


def _attributes(config: str) -> Mapping[str, str] | None:
    """Return the attributes in a configuration, as MLIR writes them; ``None`` if there are others than numbers."""
    if not config:
        return {}
    if not re.fullmatch(rf"\{{({_ATTRIBUTE}(, {_ATTRIBUTE})*)?\}}", config):
        return None
    pairs = re.findall(_ATTRIBUTE, config)
    return dict(pairs) if len(dict(pairs)) == len(pairs) else None


# LAPACK.


def _svd_fits(sizes: Sizes) -> bool:
    """Whether LAPACK can count the memory that it needs for a decomposition."""
    smaller = min(sizes["m"], sizes["n"])
    return 4 * smaller * smaller + 100 * smaller + sizes["m"] + sizes["n"] <= _MOST


def _range_fits(sizes: Sizes) -> bool:
    low, high, n = sizes["low"], sizes["high"], sizes["n"]
    return 1 <= low <= max(1, n) and min(low, n) <= high <= n


_UPLO = {"uplo": "LU"}
_SVD = (
    Signature("T*mn -> T*mn R*k T*mm T*nn I*", {"mode": "AN"}, _svd_fits),
    Signature("T*mn -> T*mn R*k T*mk T*kn I*", {"mode": "SN"}, _svd_fits),
)
_TRSM = {"uplo": "LU", "trans_x": "NTC", "diag": "NU"}
_ROUTINES: dict[str, tuple[Signature, ...]] = {
    "gehrd": (Signature("T*nn -> T*nn T*l I*", {"low": None, "high": None}, _range_fits),),
    "geqp3": (Signature("T*mn I*n -> T*mn I*n T*k"),),
    "geqrf": (Signature("T*mn -> T*mn T*k"),),
    "gesdd": _SVD,
    "gesvd": _SVD,
    "getrf": (Signature("T*mn -> T*mn I*k I*"),),
    "gtsv": (Signature("T*n T*n T*n T*nc -> T*n T*n T*n T*nc I*"),),
    "potrf": (Signature("T*nn -> T*nn I*", _UPLO),),
    "trsm": (
        Signature("T*mm T*mn -> T*mn", {"side": "L", **_TRSM}),
        Signature("T*nn T*mn -> T*mn", {"side": "R", **_TRSM}),
    ),
    "or/ungqr": (Signature("T*mp T*q -> T*mp", fits=lambda sizes: sizes["q"] <= sizes["p"] <= sizes["m"]),),
    "or/unmqr": tuple(
        Signature(
            f"T*{rows}p T*q T*mn -> T*mn",
            {"left": (left,), "transpose": ("false", "true")},
            lambda sizes, rows=rows: sizes["q"] <= min(sizes["p"], sizes[rows]),  # type: ignore[misc]
        )
        for left, rows in (("true", "m"), ("false", "n"))
    ),
    "sy/heevd": (Signature("T*nn -> T*nn R*n I*", {"mode": "VN", **_UPLO}),),
    "sy/hetrd": (Signature("T*nn -> T*nn R*n R*l T*l I*", _UPLO),),
}
_EIGENVECTORS = {"compute_left": "VN", "compute_right": "VN"}
_SCHUR = {"mode": "VN", "sort": "N"}
_OF_REAL = {
    "geev": (Signature("T*nn -> T*n T*n C*nn C*nn I*", _EIGENVECTORS),),
    "gees": (Signature("T*nn -> T*nn T*nn T*n T*n I* I*", _SCHUR),),
}
_OF_COMPLEX = {
    "geev": (Signature("T*nn -> T*n T*nn T*nn I*", _EIGENVECTORS),),
    "gees": (Signature("T*nn -> T*nn T*nn T*n I* I*", _SCHUR),),
}
_TYPES = {"s": ("F32", "F32", "C64"), "d": ("F64", "F64", "C128"), "c": ("C64", "F32", ""), "z": ("C128", "F64", "")}
"""For each prefix of LAPACK its element type, the real one, and the complex one."""

# Sparse matrices. The indices are checked when the program runs: see ``csr_product``.

_MULTIPLIED = ("S32", "S64", "F32", "F64", "C64", "C128")
_CSR = tuple(
    Signature(text, {}, lambda sizes: sizes["p"] == sizes["r"] + 1, {"T": _MULTIPLIED, "J": ("S32", "S64")})
    for text in ("Tz Jp Jz Tk -> Tr", "Tz Jp Jz Tkc -> Trc")
)

CSR_PRODUCT = "cpu_csr_sparse_dense_ffi"
"""jaxlib's target that multiplies a sparse matrix, and trusts its indices."""

CHECKED_CSR_PRODUCT = "pjrt.cpu_csr_sparse_dense"
"""The target that checks the indices first."""


def _signatures() -> dict[str, tuple[Signature, ...]]:
    table: dict[str, tuple[Signature, ...]] = {
        "tridiagonal_solve_perturbed_ffi": (
            Signature("T*n T*n T*n T*nc -> T*nc", elements={"T": ("F32", "F64", "C64", "C128")}),
        ),
        # XLA's own, which a program may call by its name.
        "TopK": tuple(
            Signature(
                text, fits=lambda sizes: sizes["j"] <= sizes["n"], elements={"T": ("F32",), "I": ("S32",)},
                api_versions=_FIRST_APIS,
            )
            for text in ("Tn -> Tj Ij", "Tbn -> Tbj Ibj")
        ),
        CHECKED_CSR_PRODUCT: _CSR,
    }  # fmt: skip
    for prefix, (own, real, wide) in _TYPES.items():
        elements = {"T": (own,), "R": (real,), "C": (wide,) if wide else (), "I": ("S32",)}
        for name, signatures in (_ROUTINES | (_OF_COMPLEX if prefix in "cz" else _OF_REAL)).items():
            of_real, _, of_complex = name.rpartition("/")
            routine = name if not of_real else (of_complex if prefix in "cz" else of_real + of_complex[2:])
            table[f"lapack_{prefix}{routine}_ffi"] = tuple(
                Signature(each.text, each.attributes, each.fits, elements) for each in signatures
            )
    return table


SIGNATURES = _signatures()
"""The signatures of each target that is checked."""


def check(call: HloCustomCall) -> None:
    """Raise an error if a call of a target of the table does not have one of its signatures.

    Raises:
        InvalidArgumentError: the operands, results or attributes do not fit together.
    """
    signatures = SIGNATURES[call.target]
    if any(signature.accepts(call) for signature in signatures):
        return
    operands, results = (", ".join(map(str, each)) for each in (call.operands, call.results))
    expected = " or ".join(dict.fromkeys(f"'{signature.text}'" for signature in signatures))
    raise InvalidArgumentError(
        f"the custom call {call.target} would leave the memory of its operands and results: expected {expected} (a "
        "word is an operand or result: its type, * for the dimensions of a batch, a letter for each size; k is the "
        f"smaller one of m and n, l is n - 1) and attributes that fit; found ({operands}) -> ({results}) with "
        f"{call.config[:200]!r} and API version {call.api_version}"
    )
